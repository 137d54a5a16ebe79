"""Roll-ups: the same counts as rows, durations within half a bin, the same verdicts; also when the rows are gone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import loaded
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import captures
from captures import MINUTE, SECOND, T0
from kdiff.analysis import bins
from kdiff.analysis.compare import Options, compare
from kdiff.analysis.counts import GRAPHS, UNNAMED, Counts, Metric
from kdiff.analysis.evidence import Evidence, extent, whole_window
from kdiff.analysis.histograms import Histograms
from kdiff.analysis.quantiles import Ordered, quantile
from kdiff.analysis.report import Report
from kdiff.analysis.window import Window
from kdiff.queries.address import Address
from kdiff.queries.connection import connect
from kdiff.queries.errors import KdiffError
from kdiff.queries.server import ServerStore
from kdiff.queries.store import CaptureStore, Params, Store, load_sql

pytestmark = pytest.mark.usefixtures("engine")

HOURS = 3
BEFORE = Window(T0, T0 + HOURS * 60 * MINUTE)
AFTER = Window(BEFORE.to_ns, BEFORE.to_ns + HOURS * 60 * MINUTE)
LAUNCHES = 9_001  # of each kernel in each window
METRICS: tuple[Metric, ...] = ("device", "completion", "launch", "graph")


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two kernels and a graph, by every measure; after the swap gelu takes 30% longer."""
    root = tmp_path_factory.mktemp("rollups") / "capture"
    rng = np.random.default_rng(5)
    for side, window in enumerate((BEFORE, AFTER)):
        times = captures.spread(window.from_ns, window.to_ns, LAUNCHES)
        for kernel, typical in (("gelu", 40_000 * (1 + 0.3 * side)), ("norm", 150), ("(graph)", 900_000)):
            tag = f"{side}-{kernel}"
            durations = (typical * rng.lognormal(0, 0.2, LAUNCHES)).astype(np.int64)
            graph = kernel == "(graph)"
            shapes = {"grid_x": rng.integers(1, 4, LAUNCHES), "pid": rng.integers(7, 9, LAUNCHES)}
            launches = captures.launches(
                "" if graph else kernel,
                times,
                kind="graph_launch" if graph else "launch",
                duration_ns=rng.integers(0, 9_000, LAUNCHES),
                completion_ns=durations + 9_000,
                batch_launches=rng.integers(1, 3, LAUNCHES),
                status=np.where(rng.random(LAUNCHES) < 0.003, 2, 0),
                flags=np.where(rng.random(LAUNCHES) < 0.01, 1, 0),
                **shapes,
            )
            captures.write(root, "cuda_events", launches, tag)
            if not graph:
                ran = captures.executions(kernel, times, durations, graph_id=rng.integers(0, 2, LAUNCHES), **shapes)
                captures.write(root, "kernel_executions", ran, tag)
    account = captures.health(BEFORE.from_ns, AFTER.to_ns, events=55, step=10 * MINUTE)
    captures.write(root, "agent_health", account)
    return root


def judged(store: Store, exact: bool, before: Window = BEFORE, after: Window = AFTER, metric: str = "auto") -> Report:
    return compare(
        Evidence(store, before, exact=exact),
        Evidence(store, after, exact=exact),
        Options(metric=metric),  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class Both:
    rolled: Evidence
    exact: Evidence

    @classmethod
    def of(cls, store: Store, window: Window) -> Both:
        return cls(Evidence(store, window), Evidence(store, window, exact=True))


def same_counts(both: Both) -> None:
    assert both.rolled.rolled
    assert not both.exact.rolled
    assert both.rolled.census() == both.exact.census()
    assert both.rolled.processes == both.exact.processes
    assert both.rolled.timed_by == both.exact.timed_by


def same_durations(both: Both) -> int:
    """Each measure of each kernel: as many in each minute, each within half a bin of what it was, and from the judged
    quantile on in the minute in which it was. How many.
    """
    compared = 0
    keys = {key: i for i, counts in enumerate(both.exact.census().values()) for key in counts.keys}
    for metric in METRICS:
        rolled, exact = both.rolled.values(metric, keys), both.exact.values(metric, keys)
        assert rolled.keys() >= exact.keys()
        for code in rolled:
            for isolated in (False, True):
                one, other = (side[code].choose(isolated) if code in side else None for side in (rolled, exact))
                if one is None or other is None:
                    assert one is other, metric
                    continue
                assert one.counts is not None
                assert one.per_bucket is not None
                assert one.size == other.size
                assert (one.per_bucket == np.bincount(other.bucket, minlength=other.buckets)).all()
                written_out = np.repeat(one.ordered.values, one.ordered.counts)
                assert near(written_out, np.sort(other.durations_ns)), metric
                value = quantile(one.ordered, both.rolled.quantile)
                tail = one.durations_ns >= value
                assert one.counts[tail].sum() == (written_out >= value).sum()
                slowest = np.lexsort((other.durations_ns, other.bucket))
                for minute in np.unique(one.bucket[tail]):
                    here = tail & (one.bucket == minute)
                    its = np.sort(np.repeat(one.durations_ns[here], one.counts[here]))
                    true = other.durations_ns[slowest][other.bucket[slowest] == minute]
                    assert near(its, true[true.size - its.size :]), metric
                compared += 0 if isolated else other.size
    return compared


def measured(counts: dict[str, Counts]) -> int:
    """How many durations there are by all measures."""
    return sum(
        c.completions if kernel == GRAPHS else c.executions + c.completions + c.timed for kernel, c in counts.items()
    )


def near(binned: NDArray[np.int64], true: NDArray[np.int64]) -> bool:
    """Within half a bin and the rounding of what it stands for to whole nanoseconds."""
    return bool((np.abs(binned - true) <= true * bins.BOUND * 1.0001 + 0.5).all())


def test_counts_and_durations_are_those_of_the_rows(capture: Path) -> None:
    with CaptureStore(capture) as store:
        both = Both.of(store, BEFORE)
        same_counts(both)
        same_durations(both)
        assert both.rolled.recording().coverage == both.exact.recording().coverage == 1.0
        listed = [{row["kernel_name"]: row for row in e.kernels()} for e in (both.rolled, both.exact)]
    assert listed[0].keys() == listed[1].keys() == {"gelu", "norm", GRAPHS}
    for name, row in listed[0].items():
        for column, value in row.items():
            true = listed[1][name][column]
            binned = "p99" in column and true is not None
            assert value == (pytest.approx(true, rel=0.003) if binned else true), column
    assert listed[0][GRAPHS]["kind"] == "graph_launch"
    assert listed[0][GRAPHS]["completion_p99_ns"] > 0


@pytest.mark.parametrize("metric", ["auto", "completion", "launch", "graph"])
def test_verdicts_are_those_of_the_rows(capture: Path, metric: str) -> None:
    with CaptureStore(capture) as store:
        rolled, exact = judged(store, False, metric=metric), judged(store, True, metric=metric)
    assert [(row.kernel, row.verdict, row.n_before, row.n_after) for row in rolled.kernels] == [
        (row.kernel, row.verdict, row.n_before, row.n_after) for row in exact.kernels
    ]
    for one, other in zip(rolled.kernels, exact.kernels, strict=True):
        assert one.ratio == pytest.approx(other.ratio, rel=0.006)
        assert one.ci is not None
        assert other.ci is not None
        assert one.ci[0] <= other.ci[0] * 1.0001, "bins must not make it surer"
        assert one.ci[1] >= other.ci[1] * 0.9999
        assert one.ci == pytest.approx(other.ci, rel=0.016)
    assert (rolled.verdict, rolled.before.lost) == (exact.verdict, exact.before.lost)
    if metric == "auto":
        assert [(row.kernel, row.verdict.value) for row in rolled.kernels] == [("gelu", "REGRESSED"), ("norm", "PASS")]


def test_a_window_is_whole_minutes(capture: Path) -> None:
    ragged = Window(BEFORE.from_ns + 17 * SECOND + 1, BEFORE.to_ns - 3 * SECOND)
    with CaptureStore(capture) as store:
        both = Both.of(store, ragged)
        assert both.rolled.window == both.exact.window == Window(BEFORE.from_ns + MINUTE, BEFORE.to_ns - MINUTE)
        same_counts(both)
        same_durations(both)


@pytest.mark.parametrize(("length_ns", "rolled"), [(120 * MINUTE, True), (120 * MINUTE - 1, False)])
def test_how_long_a_window_is_read_from_roll_ups(capture: Path, length_ns: int, rolled: bool) -> None:
    with CaptureStore(capture) as store:
        evidence = Evidence(store, Window(T0, T0 + length_ns))
    assert evidence.rolled is rolled
    assert evidence.window.length_ns == length_ns


def test_an_empty_window_is_empty(capture: Path) -> None:
    with CaptureStore(capture) as store:
        later = Both.of(store, Window(AFTER.to_ns + MINUTE, AFTER.to_ns + 500 * MINUTE))
        same_counts(later)
        assert later.rolled.census() == {}
        assert later.rolled.values("device", {1: 0})[0].choose(False) is None
        assert later.rolled.kernels() == []


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(st.integers(0, 1000), st.integers(0, 3_600 * SECOND), st.sampled_from([0, 200, 201, 2**62])),
        min_size=1,
        max_size=300,
    )
)
def test_any_duration_lands_within_half_a_bin(tmp_path_factory: pytest.TempPathFactory, durations: list[int]) -> None:
    root = tmp_path_factory.mktemp("any")
    window = Window(T0, T0 + 130 * MINUTE)
    times = captures.spread(window.from_ns, window.to_ns, len(durations))
    values = np.array(durations, np.int64)
    captures.write(root, "kernel_executions", captures.executions("k", times, values))
    captures.write(root, "cuda_events", captures.launches("k", times, completion_ns=values, duration_ns=values))
    with CaptureStore(root) as store:
        both = Both.of(store, window)
        same_counts(both)
        assert same_durations(both) == len(durations) + 2 * int((values > 0).sum())


def test_bins_do_not_depend_on_the_order_in_which_they_meet(own_database: Address, capture: Path) -> None:
    loaded.load(own_database, capture)
    with ServerStore(own_database) as server, CaptureStore(capture) as store:
        for window in (BEFORE, AFTER):
            same_counts(Both.of(server, window))
            both = Both(Evidence(server, window), Evidence(store, window, exact=True))
            assert same_durations(both) == measured(both.exact.census()) > 5 * LAUNCHES
        client = connect(own_database)
        for table in ("kernel_minutes", "kernel_totals"):
            client.command(f"OPTIMIZE TABLE {table} FINAL")
        client.close()
        both = Both(Evidence(server, BEFORE), Evidence(store, BEFORE, exact=True))
        assert same_durations(both) == measured(both.exact.census())


def test_whole_hours_of_a_window_of_minutes_are_read_from_their_roll_ups(own_database: Address, capture: Path) -> None:
    """The minutes around them one by one; all of them where nobody says that the hours are complete."""
    loaded.load(own_database, capture)
    hour = Window(T0 + 60 * MINUTE, T0 + 120 * MINUTE)
    with ServerStore(own_database) as server, connect(own_database) as client:
        evidence = Evidence(server, Window(T0 + 20 * MINUTE, T0 + 160 * MINUTE))
        assert evidence.rolled
        counts = evidence.census()["gelu"]
        within = Evidence(server, hour, exact=True).census()["gelu"].completions

        def read() -> Ordered:
            return Histograms(evidence, "completion", {counts.keys[0]: 3}).ordered()[3]

        whole = read()
        assert whole.size == counts.completions
        bare = f"minute >= {hour.from_ns // SECOND} AND minute < {hour.to_ns // SECOND}"
        emptied = f"ALTER TABLE kernel_totals UPDATE isolated_bins = map(), shared_bins = map() WHERE {bare}"
        client.command(emptied, settings={"mutations_sync": 2})
        found = read()
        assert found.values.tolist() == whole.values.tolist()
        assert found.counts.tolist() == whole.counts.tolist()
        client.command("TRUNCATE TABLE hours_since")
        assert read().size == counts.completions - within > 0
        client.command(f"INSERT INTO hours_since VALUES ({hour.to_ns // SECOND})")
        assert read().size == counts.completions - within
        client.command(f"INSERT INTO hours_since VALUES ({hour.from_ns // SECOND})")
        assert read().size == counts.completions


def test_rows_that_are_gone_leave_long_windows_and_no_wrong_answer(own_database: Address, capture: Path) -> None:
    loaded.load(own_database, capture)
    with ServerStore(own_database) as server:
        whole = judged(server, False)
        client = connect(own_database)
        for table in ("cuda_events", "kernel_executions"):
            client.command(
                f"ALTER TABLE {table} DELETE WHERE timestamp_ns < {BEFORE.to_ns}", settings={"mutations_sync": 2}
            )
        client.close()
        left = judged(server, False)
        assert [(r.kernel, r.verdict, r.n_before, r.ci) for r in left.kernels] == [
            (r.kernel, r.verdict, r.n_before, r.ci) for r in whole.kernels
        ]
        short = Window(BEFORE.to_ns - 20 * MINUTE, BEFORE.to_ns), Window(AFTER.from_ns, AFTER.from_ns + 20 * MINUTE)
        for exact, windows in ((False, short), (True, (BEFORE, AFTER))):
            with pytest.raises(KdiffError, match=r"of the before window .* are kept in roll-ups only: choose a window"):
                judged(server, exact, *windows)
        client = connect(own_database)
        client.command("TRUNCATE TABLE agent_health")
        client.close()
        with pytest.raises(KdiffError, match=r"of the before window .* are kept in roll-ups only"):
            judged(server, False, *short)
        known = extent(server)
        assert known is not None
        assert known.from_ns == BEFORE.from_ns


def test_a_verdict_from_roll_ups_reads_no_calls(
    own_database: Address, capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those are more than a fleet's server could count for each verdict."""
    loaded.load(own_database, capture)
    asked: set[str] = set()
    with ServerStore(own_database) as server:
        query = server.query

        def noted(name: str, params: Params | None = None, *more: Any) -> pa.Table:
            asked.add(name)
            return query(name, params, *more)

        monkeypatch.setattr(server, "query", noted)
        judged(server, False, metric="completion")
    read = {name: set(re.findall(r"FROM (\w+)", load_sql(name))) for name in asked}
    assert {"minutes_bins", "minutes_tails"} < read.keys()
    # Shapes are in no other table: their counts are read, and the histograms of kernels that have several.
    by_shape = {name for name, tables in read.items() if tables & {"cuda_events", "kernel_minutes"}}
    assert by_shape <= {"minutes_shapes", "minutes_strata"}


@pytest.mark.parametrize(
    ("before_ns", "after_ns"), [(9_000, 9_432), (9_000, 9_460), (40_000, 41_990), (40_000, 42_020)]
)
def test_bins_do_not_decide_what_lies_at_the_margin(tmp_path: Path, before_ns: int, after_ns: int) -> None:
    """A deterministic kernel moves by nearly the tolerance: a bin's width is no evidence."""
    for side, (window, duration) in enumerate(((BEFORE, before_ns), (AFTER, after_ns))):
        times = captures.spread(window.from_ns, window.to_ns, LAUNCHES)
        captures.write(tmp_path, "kernel_executions", captures.executions("k", times, duration), f"{side}")
    captures.write(tmp_path, "agent_health", captures.health(BEFORE.from_ns, AFTER.to_ns, events=0, step=10 * MINUTE))
    with CaptureStore(tmp_path) as store:
        rolled, exact = (captures.only(judged(store, e), "k").verdict.value for e in (False, True))
    assert exact == ("REGRESSED" if after_ns > 1.05 * before_ns else "PASS")
    assert rolled == "INCONCLUSIVE"


def load_with_windows(database: Address, capture: Path, spare: Path) -> None:
    """The capture, and device windows in the after period only."""
    windows = captures.device_windows(np.arange(AFTER.from_ns, AFTER.to_ns, MINUTE), 20 * SECOND, pid=7)
    captures.write(spare, "device_windows", windows)
    loaded.load(database, capture, spare)


def test_calls_in_device_windows_are_not_judged_when_their_rows_are_gone(
    own_database: Address, capture: Path, tmp_path: Path
) -> None:
    """Device windows in one period only: without rows nobody can leave the slower calls out."""
    load_with_windows(own_database, capture, tmp_path)
    with ServerStore(own_database) as server:
        before = judged(server, False, metric="completion")
        assert "those in them are left out" in " ".join(before.notes)
        client = connect(own_database)
        client.command(f"DELETE FROM cuda_events WHERE timestamp_ns < {BEFORE.to_ns}")
        client.close()
        after = judged(server, False, metric="completion")
    assert {row.verdict.value for row in after.kernels} == {"INCONCLUSIVE"}
    assert all("they cannot be left out: its rows are gone" in row.reasons[0] for row in after.kernels)


def test_device_times_come_from_the_roll_ups_also_beside_calls_that_are_left_out(
    own_database: Address, capture: Path, tmp_path: Path
) -> None:
    load_with_windows(own_database, capture, tmp_path)
    with ServerStore(own_database) as server:
        whole = captures.only(judged(server, False, metric="device"))
        client = connect(own_database)
        client.command(f"DELETE FROM kernel_executions WHERE timestamp_ns >= {AFTER.from_ns + 30 * MINUTE}")
        client.close()
        left = captures.only(judged(server, False, metric="device"))
    assert (left.n_after, left.ratio, left.ci) == (whole.n_after, whole.ratio, whole.ci)


@pytest.mark.parametrize(
    "what",
    ["TABLE kernel_totals", "TABLE process_minutes", "COLUMN shared_bins"],
)
def test_roll_ups_that_are_gone_are_not_judged_as_if_they_were_whole(
    own_database: Address, capture: Path, what: str
) -> None:
    loaded.load(own_database, capture)
    client = connect(own_database)
    late = f"minute >= toDateTime({AFTER.from_ns // SECOND + 5400})"
    kind, name = what.split()
    if kind == "TABLE":
        client.command(f"DELETE FROM {name} WHERE {late}")
    else:
        emptied = f"ALTER TABLE kernel_totals UPDATE {name} = map() WHERE {late}"
        client.command(emptied, settings={"mutations_sync": 2})
    client.close()
    with ServerStore(own_database) as server:
        assert Evidence(server, BEFORE).missing_rollups == 0
        if kind == "TABLE":
            with pytest.raises(KdiffError, match="have no roll-ups: add --exact"):
                judged(server, False)
        else:
            report = judged(server, False, metric="completion")
            assert {row.verdict.value for row in report.kernels} == {"INCONCLUSIVE"}
            assert all("histograms of the after window hold" in row.reasons[0] for row in report.kernels)
        assert captures.only(judged(server, True)).verdict.value == "REGRESSED"


def test_rows_that_are_gone_do_not_make_up_for_roll_ups_that_are(own_database: Address, capture: Path) -> None:
    """Twenty minutes have no roll-ups, and an hour between them has no rows."""
    loaded.load(own_database, capture)
    client = connect(own_database)
    begin, count = BEFORE.from_ns // SECOND, "SELECT count() FROM {} WHERE {}"
    bare = " OR ".join(f"{{0}} >= {at} AND {{0}} < {at + 600}" for at in (begin + 1800, begin + 7800))
    of_rows = bare.format("intDiv(timestamp_ns, 1000000000)")
    lacking = sum(
        client.query(count.format(table, f"({of_rows}) AND {kinds}")).first_row[0]
        for table, kinds in (("cuda_events", "kind != 'sync'"), ("kernel_executions", "1"))
    )
    for table in ("kernel_totals", "process_minutes"):
        client.command(f"DELETE FROM {table} WHERE {bare.format('toUnixTimestamp(minute)')}")
    for table in ("cuda_events", "kernel_executions"):
        gone = f"timestamp_ns >= {begin + 3600}000000000 AND timestamp_ns < {begin + 7200}000000000"
        client.command(f"DELETE FROM {table} WHERE {gone}")
    client.close()
    with ServerStore(own_database) as server:
        assert Evidence(server, BEFORE).missing_rollups == lacking > 1_000
        assert Evidence(server, BEFORE, exact=True).missing_rows > 2 * lacking


def test_what_arrives_between_two_counts_is_not_missing(
    own_database: Address, capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded.load(own_database, capture)
    times = captures.spread(BEFORE.from_ns, BEFORE.to_ns, LAUNCHES)
    client = connect(own_database)
    with ServerStore(own_database) as server:
        query = server.query

        def late(name: str, params: Params | None = None) -> pa.Table:
            answer = query(name, params)
            if name == "minutes_census" and late.rows:  # type: ignore[attr-defined]
                client.insert_arrow("cuda_events", late.rows.pop())  # type: ignore[attr-defined]
            return answer

        late.rows = [captures.launches("late", times, completion_ns=1)]  # type: ignore[attr-defined]
        monkeypatch.setattr(server, "query", late)
        evidence = Evidence(server, BEFORE)
        assert "late" not in evidence.census()
        assert evidence.missing_rollups == 0
        assert sum(row["launches"] for row in evidence.processes) == 4 * LAUNCHES
    client.close()


def test_launches_that_did_not_run_are_listed_no_more_than_from_rows(own_database: Address, tmp_path: Path) -> None:
    times = captures.spread(BEFORE.from_ns, BEFORE.to_ns, 500)
    for kernel, columns in {"ran": {}, "failed": {"status": 2}, "captured": {"flags": 1}}.items():
        captures.write(tmp_path, "cuda_events", captures.launches(kernel, times, completion_ns=9, **columns), kernel)
    captures.write(tmp_path, "kernel_executions", captures.executions("in a graph", times, 9), "1")
    loaded.load(own_database, tmp_path)
    with ServerStore(own_database) as server:
        rolled, exact = (Evidence(server, BEFORE, exact=e).kernels() for e in (False, True))
    assert rolled == exact
    assert [row["kernel_name"] for row in exact] == ["in a graph", "ran"]


def test_a_kernel_that_is_called_as_graphs_are_hides_none(tmp_path: Path) -> None:
    times = captures.spread(BEFORE.from_ns, BEFORE.to_ns, 500)
    named = "(graph 1234abcd: 3 x k)"
    called = {"": "graph_launch", GRAPHS: "launch", UNNAMED: "launch", "k": "launch", named: "graph_launch"}
    for number, (kernel, kind) in enumerate(called.items()):
        captures.write(tmp_path, "cuda_events", captures.launches(kernel, times, kind=kind), f"{number}")
    with CaptureStore(tmp_path) as store:
        both = Both.of(store, BEFORE)
        same_counts(both)
        launches = {name: counts.launches for name, counts in both.rolled.census().items()}
    assert launches == {GRAPHS: 500, UNNAMED: 1_000, "k": 500, named: 500}


def test_a_clock_that_was_off_does_not_hide_the_rest(tmp_path: Path) -> None:
    captures.write(tmp_path, "cuda_events", captures.launches("k", [T0, T0 + SECOND]), "0")
    captures.write(tmp_path, "cuda_events", captures.launches("odd", [-(2**63), 2**63 - 1, 7]), "1")
    with CaptureStore(tmp_path) as store:
        window = whole_window(store)
        assert window.from_ns == 0
        for exact in (False, True):
            listed = {row["kernel_name"]: row["launches"] for row in Evidence(store, window, exact=exact).kernels()}
            assert listed["k"] == 2


def test_more_kernels_than_one_parameter_holds(own_database: Address, tmp_path: Path) -> None:
    names = [f"kernel_{i}" for i in range(6_301)]
    times = captures.spread(BEFORE.from_ns, BEFORE.to_ns, len(names))
    captures.write(tmp_path, "kernel_executions", captures.executions(names, times, 40_000))
    loaded.load(own_database, tmp_path)
    with ServerStore(own_database) as server:
        for exact in (False, True):
            evidence = Evidence(server, BEFORE, exact=exact)
            keys = {row["kernel_key"]: i for i, row in enumerate(evidence.query("census_device").to_pylist())}
            samples = [values.choose(False) for values in evidence.values("device", keys).values()]
            assert sum(sample.size for sample in samples if sample) == 6_301


def test_what_a_bin_stands_for() -> None:
    values = bins.durations_ns(np.arange(0, 1 << 16))
    assert (np.diff(values) >= 0).all()
    assert values[:203].tolist() == list(range(203))
    assert quantile(Ordered.of(values[:201]), 0.99) == 198
