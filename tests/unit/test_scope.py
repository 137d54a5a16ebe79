"""A part of a store: counts, times and accounts of some hosts and without what is cut, from rows and from roll-ups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import loaded
import numpy as np
import pyarrow as pa
import pytest
from fleets import HOSTS, KERNELS, PIDS, WINDOW, Fleet, some_cuts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import captures
from captures import MINUTE, SECOND, T0
from kdiff.analysis.counts import Metric, Recording
from kdiff.analysis.evidence import Evidence, extent
from kdiff.analysis.sample import Sample
from kdiff.analysis.scope import Cut, Scope, inside, joined, without
from kdiff.analysis.window import HOUR_NS, Window
from kdiff.queries.address import Address
from kdiff.queries.server import ServerStore
from kdiff.queries.store import CaptureStore, Store

pytestmark = pytest.mark.usefixtures("engine")

ROWS = 12_007
FLEET = Fleet.random(ROWS, 3)
METRICS: tuple[Metric, ...] = ("device", "completion", "launch")
SHORT = Window(WINDOW.from_ns, WINDOW.from_ns + 17 * MINUTE)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FLEET.write(tmp_path_factory.mktemp("scope") / "capture")


@pytest.fixture(scope="module")
def rows(engine: None, capture: Path) -> Iterator[CaptureStore]:
    with CaptureStore(capture) as store:
        yield store


@pytest.fixture
def server(own_database: Address, capture: Path) -> Iterator[ServerStore]:
    loaded.load(own_database, capture)
    with ServerStore(own_database) as store:
        yield store


def values_of(metric: Metric) -> np.ndarray:
    return {"device": FLEET.device, "completion": FLEET.completion, "launch": FLEET.call}[metric]


def is_true(store: Store, window: Window, scope: Scope, exact: bool) -> Evidence:
    """That an Evidence says of a scope what is true of it, each row counted once."""
    evidence = Evidence(store, window, exact=exact, scope=scope)
    unit = MINUTE if evidence.rolled else 1
    inside = FLEET.kept(scope, unit) & (FLEET.time >= window.from_ns) & (FLEET.time < window.to_ns)
    census = evidence.census()
    keys = {key: KERNELS.index(name) for name, counts in census.items() for key in counts.keys}
    for number, name in enumerate(KERNELS):
        its = inside & (FLEET.kernel == number)
        counts = census.get(name)
        if not its.any():
            assert counts is None
            continue
        assert counts is not None
        assert (counts.launches, counts.executions) == (its.sum(), its.sum())
        assert counts.isolated == (its & (FLEET.batch == 1)).sum()
        assert counts.in_graphs == FLEET.graph[its].sum()
        assert counts.launch_ns == FLEET.call[its].sum()
        for metric in METRICS:
            for isolated in (False, True):
                sample = evidence.values(metric, keys)[number].choose(isolated)
                kept = its & (FLEET.batch == 1) if isolated and metric == "completion" else its
                has_values(evidence, sample, kept, metric)
    processes = {(row["host"], row["pid"]): row["launches"] for row in evidence.processes}
    assert processes == {
        (host, pid): n
        for h, host in enumerate(HOSTS)
        for p, pid in enumerate(PIDS)
        if (n := int((inside & (FLEET.host == h) & (FLEET.pid == p)).sum()))
    }
    assert evidence.timed_by == processes
    assert evidence.missing_rows == evidence.missing_rollups == evidence.missing_executions == 0
    kernels = {row["kernel_name"]: row["launches"] for row in evidence.kernels()}
    assert kernels == {n: c.launches for n, c in census.items()}
    return evidence


def has_values(evidence: Evidence, sample: Sample | None, kept: np.ndarray, metric: Metric) -> None:
    if not kept.any():
        assert sample is None
        return
    assert sample is not None
    true = np.sort(values_of(metric)[kept])
    buckets, width = evidence.window.buckets()
    stretch = (FLEET.time[kept] - evidence.window.from_ns) // width
    if evidence.scope.by_host:
        buckets = len(evidence.scope.hosts)
        order = {HOSTS.index(host): place for place, host in enumerate(evidence.scope.hosts) if host in HOSTS}
        stretch = np.array([order[h] for h in FLEET.host[kept].tolist()])
    assert sample.buckets == buckets
    assert sample.clustered == evidence.scope.by_host
    per_bucket = sample.per_bucket
    if per_bucket is None:
        assert (np.sort(sample.durations_ns) == true).all()
        per_bucket = np.bincount(sample.bucket, minlength=buckets).astype(np.float64)
        order_ = np.lexsort((sample.durations_ns, sample.bucket))
        assert (
            sample.durations_ns[order_] == values_of(metric)[kept][np.lexsort((values_of(metric)[kept], stretch))]
        ).all()
    assert np.array_equal(per_bucket, np.bincount(stretch, minlength=buckets))
    written_out = np.repeat(sample.ordered.values, sample.ordered.counts)
    assert np.allclose(written_out, true, rtol=0.0026, atol=1)


SCOPES = {
    "hosts": Scope(hosts=(HOSTS[2], HOSTS[1])),
    "by host": Scope(hosts=(HOSTS[1], "nobody", HOSTS[0]), by_host=True),
    "a process": Scope(cuts=(Cut(HOSTS[1], PIDS[2], WINDOW.from_ns + 1, WINDOW.from_ns + 5 * MINUTE),)),
    "a host": Scope(cuts=(Cut(HOSTS[2], 0, 0, WINDOW.from_ns + 7 * MINUTE + 1),)),
    "a number of a process": Scope(cuts=(Cut("", PIDS[1], WINDOW.from_ns + 90 * SECOND, 2**62),)),
    "all for a while": Scope(cuts=(Cut("", 0, WINDOW.from_ns + 61 * SECOND, WINDOW.from_ns + 300 * SECOND),)),
    "many": Scope(hosts=HOSTS[1:], cuts=some_cuts(np.random.default_rng(4), 300)),
    "many, all hosts": Scope(cuts=some_cuts(np.random.default_rng(5), 60)),
    "many, by host": Scope(hosts=HOSTS, cuts=some_cuts(np.random.default_rng(6), 60), by_host=True),
    "everything cut": Scope(cuts=(Cut("", 0, 0, 2**62),)),
    "nobody": Scope(hosts=("nobody",)),
}


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES.keys())
def test_rows_of_a_capture(rows: CaptureStore, scope: Scope) -> None:
    assert not is_true(rows, SHORT, scope, exact=False).rolled
    assert not is_true(rows, WINDOW, scope, exact=True).rolled
    assert is_true(rows, WINDOW, scope, exact=False).rolled


def test_rows_and_roll_ups_of_a_server(server: ServerStore) -> None:
    for scope in SCOPES.values():
        assert not is_true(server, SHORT, scope, exact=False).rolled
        assert not is_true(server, WINDOW, scope, exact=True).rolled
        assert is_true(server, WINDOW, scope, exact=False).rolled


def test_an_empty_scope_asks_what_none_asks(rows: CaptureStore) -> None:
    assert not Scope()
    assert Scope(hosts=("a",))
    asked = []

    class Noting(CaptureStore):
        def query(self, *args: object) -> pa.Table:
            asked.append(args)
            return CaptureStore.query(self, *args)  # type: ignore[arg-type]

    with Noting(rows.root) as store:
        Evidence(store, SHORT, scope=Scope()).census()
    assert asked
    assert all(len(args) == 2 for args in asked)
    assert Evidence(rows, SHORT).scoped(SCOPES["many"]).scoped(Scope()).census() == Evidence(rows, SHORT).census()
    scoped = Evidence(rows, SHORT, scope=SCOPES["many"])
    assert scoped.at(0.5).census() == scoped.census()
    assert scoped.at(0.5).quantile == 0.5


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Cut("a", 0, 5, 5), "ends after it begins"),
        (lambda: Cut("a", 0, -1, 5), "between 1970 and 2116"),
        (lambda: Cut("a", 0, 0, 2**63), "between 1970 and 2116"),
        (lambda: Cut("a", -1, 0, 5), "32 bits"),
        (lambda: Cut("a", 2**32, 0, 5), "32 bits"),
        (lambda: Scope(hosts=("a", "a")), "counts once"),
        (lambda: Scope(by_host=True), "need the hosts"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


def test_accounts_of_other_hosts_and_of_cuts_do_not_count(tmp_path: Path) -> None:
    """Three hosts of 10 accounts of 1 min each; the one of minute m of host h lost 100 h + m launches."""
    hosts = ("a", "b", "c")
    for number, host in enumerate(hosts):
        rows = captures.health(T0, T0 + 10 * MINUTE, events=1_000, step=MINUTE, host=host)
        lost = pa.array(100 * number + np.arange(10), pa.uint64())
        rows = rows.set_column(rows.schema.get_field_index("lost_launches"), rows.schema.field("lost_launches"), lost)
        captures.write(tmp_path, "agent_health", rows, host)
        times = captures.spread(T0, T0 + 10 * MINUTE, 10_000)
        captures.write(tmp_path, "cuda_events", captures.launches("k", times, host=host, pid=7), host)
    columns = {"from_ns": T0, "to_ns": T0 + MINUTE, "service": "svc", "lost_launches": 5}
    elsewhere = captures.table("agent_health", columns)
    captures.write(tmp_path, "agent_health", elsewhere, "nowhere")
    window = Window(T0, T0 + 10 * MINUTE)

    def found(scope: Scope) -> Recording:
        return Evidence(store, window, "svc", scope=scope).recording()

    with CaptureStore(tmp_path) as store:
        assert found(Scope()).lost == 3_000 + 3 * 45 + 5
        assert found(Scope(hosts=("a",))).lost == 45 + 5  # what is of no host may be of any
        assert set(found(Scope(hosts=("b", "c"))).hosts) == {"", "b", "c"}
        half = found(Scope(hosts=("b",), cuts=(Cut("b", 0, T0 + 90 * SECOND, T0 + 5 * MINUTE),)))
        # Of minutes 2, 3 and 4 nothing counts; of minute 1 the account counts whole, and half of it is covered.
        assert half.lost == 1_045 - (102 + 103 + 104) + 5
        assert half.hosts["b"] == 0.65
        assert half.lost_launches == half.lost / (half.lost + 6_500)
        process = found(Scope(hosts=("b",), cuts=(Cut("b", 7, T0, T0 + 5 * MINUTE),)))
        assert process == found(Scope(hosts=("b",)))
        assert found(Scope(hosts=("b",), cuts=(Cut("", 0, 0, 2**62),))) == Recording()


def intervals(limit: int = 60) -> st.SearchStrategy[list[tuple[int, int]]]:
    pair = st.tuples(st.integers(0, limit), st.integers(0, limit)).map(lambda p: (min(p), max(p)))
    return st.lists(pair, max_size=12)


def cells(stretches: Iterable[tuple[int, int]]) -> set[int]:
    return {cell for a, b in stretches for cell in range(a, b)}


@settings(max_examples=200, deadline=None)
@given(intervals(), intervals())
def test_stretches_without_cuts(stretches: list[tuple[int, int]], cuts: list[tuple[int, int]]) -> None:
    cut = joined(np.array([c for c in cuts if c[1] > c[0]], np.int64).reshape(-1, 2))
    assert cells(map(tuple, cut.tolist())) == cells(cuts)
    assert (cut[1:, 0] > cut[:-1, 1]).all()
    whole = np.array([s for s in stretches if s[1] > s[0]], np.int64).reshape(-1, 2)
    for place, (start, end) in enumerate(whole.tolist()):
        left = without(whole[place : place + 1], cut)
        assert cells(map(tuple, left.tolist())) == set(range(start, end)) - cells(cuts)
        lies = inside(whole[place : place + 1, 0], whole[place : place + 1, 1], cut)[0]
        assert lies == (set(range(start, end)) <= cells(cuts))
    assert len(without(whole, cut)) == sum(len(without(row[None], cut)) for row in whole)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.integers(0, 40), st.sets(st.sampled_from(HOSTS)), st.booleans())
def test_whatever_is_cut(rows: CaptureStore, seed: int, count: int, hosts: set[str], short: bool) -> None:
    scope = Scope(tuple(sorted(hosts)), some_cuts(np.random.default_rng(seed), count))
    window = SHORT if short else WINDOW
    kept = FLEET.kept(scope, 1 if short else MINUTE) & (FLEET.time >= window.from_ns) & (FLEET.time < window.to_ns)
    evidence = Evidence(rows, window, scope=scope)
    assert sum(counts.launches for counts in evidence.census().values()) == kept.sum()
    assert sum(evidence.timed_by.values()) == kept.sum()


def test_windows_of_days_are_read_from_minutes(own_database: Address, tmp_path: Path) -> None:
    """And those of all hosts from hours, without the minutes that are cut."""
    window = Window(T0, T0 + 121 * HOUR_NS)
    fleet = Fleet.random(4_001, 9, window)
    loaded.load(own_database, fleet.write(tmp_path, window, sparse=True))
    host = Scope(hosts=HOSTS[1:], cuts=(Cut(HOSTS[1], 0, T0, T0 + 9 * HOUR_NS + 1),))
    cut = Scope(cuts=(Cut(HOSTS[1], 7, T0, T0 + 9 * HOUR_NS + 1), Cut("", 8, T0 + 77 * HOUR_NS, T0 + 80 * HOUR_NS)))
    with ServerStore(own_database) as store:
        assert Evidence(store, window).by_hours
        for scope in (host, cut):
            evidence = Evidence(store, window, scope=scope)
            assert evidence.hourly
            assert not evidence.by_hours
            kept = fleet.kept(scope, MINUTE)
            assert sum(counts.launches for counts in evidence.census().values()) == kept.sum()
            keys = {key: KERNELS.index(name) for name, counts in evidence.census().items() for key in counts.keys}
            for index, values in evidence.values("device", keys).items():
                its = kept & (fleet.kernel == index)
                sample = values.choose(False)
                assert sample is not None
                assert sample.per_bucket is not None
                assert (sample.per_bucket == np.bincount((fleet.time[its] - T0) // HOUR_NS, minlength=121)).all()
            assert evidence.missing_rollups == 0
            covered = evidence.recording().hosts[HOSTS[1]]
            assert covered == (1.0 if scope is cut else 1 - (9 * 60 + 1) / (121 * 60))


def test_device_windows_of_other_hosts_and_in_cuts_do_not_count(tmp_path: Path) -> None:
    """Two processes on two hosts, each timed for 10 s in every minute of ten."""
    window = Window(T0, T0 + 10 * MINUTE)
    starts = T0 + np.arange(10) * MINUTE
    for host in ("a", "b"):
        for pid in (7, 8):
            times = captures.spread(T0, T0 + 10 * MINUTE, 6_001)
            timed = times[captures.inside(times, starts, 10 * SECOND)]
            its = {"host": host, "pid": pid}
            captures.write(tmp_path, "cuda_events", captures.launches("k", times, **its), f"{host}{pid}")
            captures.write(tmp_path, "kernel_executions", captures.executions("k", timed, 9, **its), f"{host}{pid}")
            rows = captures.device_windows(starts, 10 * SECOND, executions=100, lost=pid, **its)
            captures.write(tmp_path, "device_windows", rows, f"{host}{pid}")
    with CaptureStore(tmp_path) as store:
        every = Evidence(store, window).device
        assert (every.windows, every.lost, every.covered_ns) == (40, 300, 400 * SECOND)
        assert Evidence(store, window, scope=Scope(hosts=("b",))).device.lost == 150
        # Cut from the middle of the third device window to right behind the fifth.
        cut = Cut("b", 8, T0 + 2 * MINUTE + 5 * SECOND, T0 + 4 * MINUTE + 10 * SECOND)
        device = Evidence(store, window, scope=Scope(hosts=("b",), cuts=(cut,))).device
        assert (device.windows, device.lost) == (18, 150 - 2 * 8)
        assert device.timed_ns == {("b", 7): 100 * SECOND, ("b", 8): 75 * SECOND}
        assert device.alive_ns["b", 7] - device.alive_ns["b", 8] == 125 * SECOND
        assert device.stretches["b", 8].tolist()[2] == [T0 + 2 * MINUTE, T0 + 2 * MINUTE + 5 * SECOND]
        nothing = Evidence(store, window, scope=Scope(cuts=(Cut("", 0, 0, 2**62),))).device
        assert (nothing.windows, nothing.covered_ns, nothing.coverage) == (0, 0, 0.0)


def test_thousands_of_cuts_and_hosts_and_a_user_who_may_set_nothing(server: ServerStore) -> None:
    starts = WINDOW.from_ns + np.arange(90) * 2 * MINUTE
    cuts = tuple(
        Cut(host, pid, start + second * SECOND, start + (second + 3) * SECOND)
        for second in range(0, 54, 6)
        for start in starts.tolist()
        for host in HOSTS
        for pid in PIDS
    )
    assert len(cuts) == 7_290
    hosts = (*(f"host-{i:06}-{'x' * 30}" for i in range(5_000)), *HOSTS[1:])
    for user in ("default", "reader", "readonly"):
        with ServerStore(replace(server.address, user=user)) as store:
            for scope in (Scope(cuts=cuts), Scope(hosts=hosts, by_host=True)):
                for exact in (False, True):
                    evidence = Evidence(store, WINDOW, exact=exact, scope=scope)
                    kept = FLEET.kept(scope, 1 if exact else MINUTE)
                    assert 0.4 * ROWS < kept.sum() < 0.8 * ROWS
                    census = evidence.census()
                    assert sum(counts.launches for counts in census.values()) == kept.sum()
            keys = {key: 0 for counts in census.values() for key in counts.keys}
            sample = evidence.values("device", keys)[0].choose(False)
            assert sample is not None
            assert np.bincount(sample.bucket, minlength=5_002).tolist()[5_000:] == np.bincount(FLEET.host)[1:].tolist()


def test_what_a_store_holds_of_hosts(rows: CaptureStore, server: ServerStore) -> None:
    for store in (rows, server):
        for number, host in enumerate(HOSTS):
            found = extent(store, hosts=(host,))
            assert found is not None
            its = FLEET.time[FLEET.host == number]
            assert (found.from_ns, found.to_ns) == (its[0], its[-1] + 1)
        assert extent(store, hosts=("nobody",)) is None
