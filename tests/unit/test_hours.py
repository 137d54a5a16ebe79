"""Roll-ups of hours: what those of minutes say, exactly, of windows that are judged by them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, Final

import loaded
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import kdiff, named

import captures
from captures import MINUTE, SECOND, T0
from kdiff.analysis import scaling
from kdiff.analysis.calibration import excesses
from kdiff.analysis.compare import Options, compare
from kdiff.analysis.counts import Metric, Recording
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.report import Report
from kdiff.analysis.window import HOUR_NS, Window
from kdiff.queries import migrations
from kdiff.queries.address import Address
from kdiff.queries.connection import connect
from kdiff.queries.errors import KdiffError
from kdiff.queries.server import ServerStore
from kdiff.queries.store import CaptureStore, Params, Store, load_sql
from kdiff.queries.tables import ROLLUPS
from server import PASSWORD

pytestmark = pytest.mark.usefixtures("engine")

BEGIN: Final = T0 + 17 * MINUTE + SECOND
BEFORE: Final = Window(BEGIN, BEGIN + 121 * HOUR_NS)
AFTER: Final = Window(BEFORE.to_ns, BEFORE.to_ns + 121 * HOUR_NS)
HOURS: Final = Window(T0 + HOUR_NS, T0 + 121 * HOUR_NS)
"""What of BEFORE is judged."""
LAUNCHES: Final = 9_001
METRICS: Final[tuple[Metric, ...]] = ("device", "completion", "launch", "graph")


def windows(window: Window, every_ns: int, length_ns: int, rng: np.random.Generator, **columns: Any) -> pa.Table:
    starts = np.arange(window.from_ns, window.to_ns, every_ns)
    its: dict[str, Any] = {name: rng.integers(0, 9, starts.size) for name in ("uncollected", "dropped", "lost")}
    its |= {"executions": 40_000, "clock_error_ns": rng.integers(1, 999, starts.size)}
    return captures.device_windows(starts, length_ns, **(its | columns))


def write(root: Path, both: tuple[Window, ...] = (BEFORE, AFTER), odd: bool = False) -> Path:
    """Two kernels and a graph of three processes by every measure; after the swap gelu takes 30% longer.

    Accounts and device windows lie across the hours. `odd`: the device windows of one process are rarer.
    """
    rng = np.random.default_rng(5)
    for side, window in enumerate(both):
        times = captures.spread(window.from_ns, window.to_ns, LAUNCHES)
        process = rng.integers(0, 3, LAUNCHES)
        whose = {"pid": 7 + process, "host": [f"host-{1 + p // 2}" for p in process]}
        for kernel, typical in (("gelu", 40_000 * (1 + 0.3 * side)), ("norm", 150), ("(graph)", 900_000)):
            tag = f"{side}-{kernel}"
            durations = (typical * rng.lognormal(0, 0.2, LAUNCHES)).astype(np.int64)
            graph = kernel == "(graph)"
            launches = captures.launches(
                "" if graph else kernel,
                times,
                kind="graph_launch" if graph else "launch",
                duration_ns=rng.integers(0, 9_000, LAUNCHES),
                completion_ns=durations + 9_000,
                batch_launches=rng.integers(1, 3, LAUNCHES),
                status=np.where(rng.random(LAUNCHES) < 0.003, 2, 0),
                flags=np.where(rng.random(LAUNCHES) < 0.01, 1, 0),
                **whose,
            )
            captures.write(root, "cuda_events", launches, tag)
            if not graph:
                ran = captures.executions(kernel, times, durations, graph_id=rng.integers(0, 2, LAUNCHES), **whose)
                captures.write(root, "kernel_executions", ran, tag)
        for pid, host in ((7, "host-1"), (8, "host-1"), (9, "host-2")):
            every = (5 if odd and pid == 8 else 2) * 7 * MINUTE
            its = windows(window, every, 3 * MINUTE, rng, pid=pid, host=host)
            captures.write(root, "device_windows", its, f"{side}-{pid}")
    for number, (host, service) in enumerate((("host-1", "svc"), ("host-2", "svc"), ("host-2", ""))):
        its = captures.health(both[0].from_ns, both[-1].to_ns, events=400, step=7 * MINUTE, host=host, service=service)
        for name in ("lost_launches", "lost_syncs", "lost_other"):
            lost = pa.array((rng.random(len(its)) < 0.02).astype(np.uint64))
            its = its.set_column(its.schema.get_field_index(name), its.schema.field(name), lost)
        if number:  # with gaps
            its = its.filter(pa.array(rng.random(len(its)) < 0.93))
        captures.write(root, "agent_health", its, f"{number}")
    return root


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("hours") / "capture")


@pytest.fixture
def server(own_database: Address, capture: Path) -> Iterator[ServerStore]:
    loaded.load(own_database, capture)
    with ServerStore(own_database) as store:
        yield store


def by_minutes(store: Store, window: Window, service: str = "") -> Evidence:
    evidence = Evidence(store, window, service)
    evidence.__dict__["hourly"] = False
    return evidence


def same(store: Store, window: Window, service: str = "") -> Evidence:
    """That hours say what minutes say: counts, losses, who was timed and for how long, each duration by stretch."""
    hours, minutes = Evidence(store, window, service), by_minutes(store, window, service)
    assert hours.hourly
    assert hours.window == minutes.window
    assert hours.census() == approximately(minutes.census())
    assert hours.processes == minutes.processes
    assert hours.timed_by == minutes.timed_by
    assert hours.timed_processes == minutes.timed_processes
    assert hours.timed == minutes.timed
    one, other = hours.device, minutes.device
    for name in ("windows", "executions", "uncollected", "dropped", "lost", "clock_error_ns", "unheard", "launches"):
        assert getattr(one, name) == getattr(other, name), name
    assert (one.timed_ns, one.alive_ns, one.coverage) == (other.timed_ns, other.alive_ns, other.coverage)
    assert close(hours.recording(), minutes.recording())
    keys = {key: i for i, counts in enumerate(minutes.census().values()) for key in counts.keys}
    for metric in METRICS:
        for isolated in (False, True):
            samples = [
                {index: values.choose(isolated) for index, values in its.values(metric, keys).items()}
                for its in (hours, minutes)
            ]
            assert samples[0].keys() == samples[1].keys()
            for index, sample in samples[0].items():
                assert identical(sample, samples[1][index]), metric
    return hours


def identical(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    order = [np.lexsort((sample.durations_ns, sample.bucket)) for sample in (one, other)]
    return (one.size, one.buckets, one.tick) == (other.size, other.buckets, other.tick) and all(
        (getattr(one, name)[order[0]] == getattr(other, name)[order[1]]).all()
        for name in ("durations_ns", "bucket", "counts")
    ) and bool((one.per_bucket == other.per_bucket).all())  # fmt: skip


def approximately(census: dict[str, Any]) -> dict[str, Any]:
    """All counts exactly; what executions stand for within what one share for all processes may be off."""
    scaled = ("device_runs", "device_ns")
    return {
        name: type(counts)(
            counts.keys,
            **{
                field: pytest.approx(getattr(counts, field), rel=0.02) if field in scaled else getattr(counts, field)
                for field in counts.__slots__
                if field != "keys"
            },
        )
        for name, counts in census.items()
    }


def close(one: Recording, other: Recording) -> bool:
    """Losses exactly; what is covered of a host is told to the nanosecond where one service tells."""
    assert (one.lost, one.lost_launches, one.lost_syncs) == (other.lost, other.lost_launches, other.lost_syncs)
    assert one.hosts.keys() == other.hosts.keys()
    assert one.coverage == other.coverage
    assert one.hosts.get("host-1") == other.hosts.get("host-1")
    return all(share <= other.hosts[host] < share + 0.07 for host, share in one.hosts.items())


def judged(
    store: Store, hourly: bool, metric: str = "auto", windows: tuple[Window, Window] = (BEFORE, AFTER)
) -> Report:
    sides = [Evidence(store, window) for window in windows]
    options = Options(metric=metric, strata=False)  # type: ignore[arg-type]  # hours do not tell shapes
    if hourly:
        assert all(side.hourly for side in sides)
        return compare(*sides, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evidence, "hourly", False)
        return compare(*sides, options)


def forget_rows(address: Address) -> None:
    with connect(address) as client:
        for table in ("cuda_events", "kernel_executions"):
            client.command(f"TRUNCATE TABLE {table}")


def test_hours_say_what_minutes_say(server: ServerStore, capture: Path) -> None:
    hours = same(server, BEFORE)
    assert hours.window == HOURS
    assert hours.window.buckets() == (120, HOUR_NS)
    same(server, AFTER)
    same(server, Window(BEFORE.from_ns, AFTER.to_ns), "svc")
    exact = Evidence(server, BEFORE, exact=True)
    assert exact.window == HOURS
    assert not exact.rolled
    assert hours.census() == approximately(exact.census())
    assert hours.kernels() == by_minutes(server, BEFORE).kernels()
    with CaptureStore(capture) as store:
        of_rows = Evidence(store, BEFORE)
        assert of_rows.rolled
        assert not of_rows.hourly
        assert hours.census() == approximately(of_rows.census())
        assert hours.device.timed_ns == of_rows.device.timed_ns
        keys = {key: i for i, counts in enumerate(of_rows.census().values()) for key in counts.keys}
        for metric in METRICS:
            one, other = (its.values(metric, keys)[0].choose(False) for its in (hours, of_rows))
            assert identical(one, other)


@pytest.mark.parametrize("metric", ["auto", "completion", "launch", "graph"])
def test_verdicts_are_those_of_minutes(server: ServerStore, metric: str) -> None:
    """Where rows are gone, which minutes look for beside what is rolled up, in all that the report says."""
    forget_rows(server.address)
    one, other = judged(server, True, metric), judged(server, False, metric)
    kernels = [[replace(row, load_before=None, load_after=None) for row in report.kernels] for report in (one, other)]
    assert kernels[0] == kernels[1]
    for row, same in zip(one.kernels, other.kernels, strict=True):  # sums of shares, in another order
        for load, like in ((row.load_before, same.load_before), (row.load_after, same.load_after)):
            assert load
            assert like
            for number, alike in zip(astuple(load), astuple(like), strict=True):
                assert number == (None if alike is None else pytest.approx(alike, rel=1e-6))
    if metric in ("auto", "completion"):
        assert captures.only(one).verdict.value == "REGRESSED"
    assert (one.before.window, one.before.buckets, one.before.bucket_ns) == (HOURS, 120, HOUR_NS)
    assert (one.verdict, one.before.device, one.after.lost) == (other.verdict, other.before.device, other.after.lost)
    assert [w for w in one.warnings if "recorded only" not in w] == [
        w for w in other.warnings if "recorded only" not in w
    ]


def test_what_comes_late_is_in_the_hours(own_database: Address, capture: Path, tmp_path: Path) -> None:
    """Each segment by itself, the earliest last; then twice as much for hours that were merged."""
    loaded.load(own_database)
    with connect(own_database) as client:
        client.command("SYSTEM STOP MERGES")
        for table in ("device_windows", "agent_health", "kernel_executions", "cuda_events"):
            for segment in sorted((capture / table).glob("*.parquet"), reverse=True):
                client.insert_arrow(table, loaded.whole(table, pq.read_table(segment)))
        with ServerStore(own_database) as store:
            first = same(store, BEFORE).census()
            client.command("SYSTEM START MERGES")
            for table in ROLLUPS:
                client.command(f"OPTIMIZE TABLE {table} FINAL")
            assert same(store, BEFORE).census() == first
            again = captures.launches("gelu", captures.spread(HOURS.from_ns, HOURS.to_ns, 1_009), completion_ns=77)
            client.insert_arrow("cuda_events", again)
            late = same(store, BEFORE).census()
    assert late["gelu"].launches - first["gelu"].launches == 1_009
    assert late["gelu"].isolated - first["gelu"].isolated == 1_009
    assert late["norm"] == first["norm"]


def test_a_verdict_by_hours_reads_hours_only(server: ServerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Params] = {}
    query = server.query

    def noted(name: str, params: Params | None = None, *more: Any) -> pa.Table:
        asked[name] = params or {}
        return query(name, params, *more)

    monkeypatch.setattr(server, "query", noted)
    judged(server, True)
    judged(server, True, "completion")
    read = {name: set(re.findall(r"FROM (\w+)", load_sql(name))) for name in asked}
    others = {name for name, tables in read.items() if not all("hour" in table for table in tables)}
    assert others == {"calibrations_kept"}, "few rows of their own"
    excesses(Evidence(server, AFTER), [], always=True)
    length = int(str(asked["calibration_counts"]["to_ns"])) - int(str(asked["calibration_counts"]["from_ns"]))
    assert length == 6 * HOUR_NS


def test_processes_that_were_timed_unlike_are_scaled_one_by_one(
    own_database: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded.load(own_database, write(tmp_path, odd=True))
    with ServerStore(own_database) as store:
        hours, minutes = Evidence(store, BEFORE), by_minutes(store, BEFORE)
        assert hours.hourly
        assert hours.census() == minutes.census()
        scales = [hours.device.scale(process) for process in hours.timed_by]
        assert max(scales) > 2 * min(scales)
        # Of a large fleet some minutes must do.
        monkeypatch.setattr(scaling, "MOST_ROWS", 1)
        monkeypatch.setattr(scaling, "LEAST_MINUTES", 3_000)
        sampled = Evidence(store, BEFORE).census()
        assert sampled != minutes.census()
        assert sampled == approximately(minutes.census())
        monkeypatch.setattr(scaling, "LEAST_MINUTES", 1)
        assert Evidence(store, BEFORE).census()["gelu"].executions == minutes.census()["gelu"].executions


def test_windows_from_before_the_hours_are_read_from_minutes(own_database: Address, tmp_path: Path) -> None:
    """A server that was filled before it had hours: what is older than these is in minutes only."""
    with connect(own_database) as client, pytest.MonkeyPatch.context() as patch:
        every = migrations.migrations()
        patch.setattr(migrations, "migrations", lambda: every[:6])
        migrations.migrate(client, own_database.database)
        now = client.query("SELECT toUnixTimestamp(now())").first_row[0] * SECOND
        old = Window(now // HOUR_NS * HOUR_NS - 120 * HOUR_NS, now // HOUR_NS * HOUR_NS)
        times = captures.spread(old.from_ns, old.to_ns, 1_009)
        columns = [name for name, *_ in client.query("DESCRIBE TABLE cuda_events").result_rows]
        client.insert_arrow("cuda_events", captures.launches("old", times, completion_ns=5).select(columns))
        patch.undo()
        assert migrations.migrate(client, own_database.database)[0] == 7
        since = client.query("SELECT toUnixTimestamp(since) FROM hours_since").first_row[0] * SECOND
        assert since % HOUR_NS == 0
        assert HOUR_NS <= since - now <= 2 * HOUR_NS + MINUTE
        new = Window(since, since + 120 * HOUR_NS)
        client.insert_arrow("cuda_events", captures.launches("new", captures.spread(new.from_ns, new.to_ns, 997)))
    with ServerStore(own_database) as store:
        before = Evidence(store, old)
        assert not before.hourly
        assert before.census()["old"].launches == 1_009
        assert not Evidence(store, Window(new.from_ns - HOUR_NS, new.to_ns)).hourly
        after = Evidence(store, new)
        assert after.hourly
        assert after.census()["new"].launches == 997
        assert after.missing_rollups == 0


def test_hours_that_are_gone_are_not_judged_as_if_they_were_whole(server: ServerStore) -> None:
    with connect(server.address) as client:
        first = HOURS.from_ns // SECOND
        gone = f"hour >= {first + 7200} AND hour < {first + 10800}"
        for table in ("kernel_hours", "process_hours"):
            client.command(f"ALTER TABLE {table} DELETE WHERE {gone}", settings={"mutations_sync": 2})
        lacking = client.query(
            f"SELECT sum(launches + executions) FROM process_minutes WHERE toStartOfHour(minute) = {first + 7200}"
        ).first_row[0]
        assert Evidence(server, BEFORE).missing_rollups == lacking > 300
        assert by_minutes(server, BEFORE).missing_rollups == 0
        with pytest.raises(
            KdiffError, match=r"have no roll-ups by the hour: add --exact, or choose a window of under fi"
        ):
            judged(server, True)
        client.command("TRUNCATE TABLE kernel_hours")
        with pytest.raises(KdiffError, match=r"of the before window .* have no roll-ups by the hour"):
            judged(server, True)


def test_calls_in_device_windows_are_not_left_out_by_hours(
    own_database: Address, capture: Path, tmp_path: Path
) -> None:
    """Device windows in one period only: nobody reads a month of rows to leave the slower calls out."""
    loaded.load(own_database, capture)
    with connect(own_database) as client:
        client.command(f"DELETE FROM device_hours WHERE hour < {AFTER.from_ns // SECOND}")
        client.command(f"DELETE FROM process_hours WHERE hour < {AFTER.from_ns // SECOND} AND kind = 'device'")
    with ServerStore(own_database) as store:
        report = judged(store, True, "completion")
    assert {row.verdict.value for row in report.kernels} == {"INCONCLUSIVE"}
    assert all("by hours, which do not tell; choose a window of under five" in row.reasons[0] for row in report.kernels)


@pytest.mark.parametrize("seed", range(3))
def test_stretches_of_any_length_count_in_the_windows_that_they_overlap(own_database: Address, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 400
    first = T0 - 30 * HOUR_NS
    start = first + rng.integers(0, 220, count) * HOUR_NS + rng.choice([0, 1, MINUTE, HOUR_NS - 1], count)
    length = rng.choice([1, SECOND, HOUR_NS - 1, HOUR_NS, HOUR_NS + 1, 5 * HOUR_NS, 60 * HOUR_NS], count)
    numbers = {name: rng.integers(0, 50, count) for name in ("lost_launches", "lost_syncs", "lost_other", "events")}
    health = {"from_ns": start, "to_ns": start + length, "host": "host-1", "service": "svc", **numbers}
    its = {name: rng.integers(0, 50, count) for name in ("executions", "uncollected", "dropped", "lost")}
    its |= {"clock_error_ns": rng.integers(0, 99, count), "pid": rng.integers(1, 200, count)}
    its |= {"from_ns": start, "to_ns": start + length, "host": "host-1", "service": "svc"}
    loaded.load(own_database)
    with connect(own_database) as client:
        client.insert_arrow("agent_health", captures.table("agent_health", health))
        client.insert_arrow("device_windows", captures.table("device_windows", its))
    with ServerStore(own_database) as store:
        for begin in range(-35, 100, 9):
            window = Window(T0 + begin * HOUR_NS, T0 + (begin + 120) * HOUR_NS)
            hours, minutes = Evidence(store, window), by_minutes(store, window)
            recorded = hours.recording(), minutes.recording()
            assert recorded[0].lost == recorded[1].lost
            assert recorded[0].lost_launches == recorded[1].lost_launches
            # Stretches that overlap are a union there.
            assert 0 <= recorded[0].coverage - recorded[1].coverage < 1e-9
            one, other = hours.device, minutes.device
            assert (one.windows, one.missing, one.executions) == (other.windows, other.missing, other.executions)
            assert one.clock_error_ns == other.clock_error_ns
            assert one.alive_ns == other.alive_ns


def test_what_is_deleted_is_gone_from_hours_and_minutes(
    server: ServerStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A time within an hour is taken back to the hour: no hour holds what its minutes do not."""
    cut = T0 + 50 * HOUR_NS
    sums = "SELECT sum(launches), sum(executions), sum(device_ns) FROM {} WHERE toUnixTimestamp({}) {} {}"
    client = connect(server.address)

    def sums_of(how: str) -> list[tuple[int, ...]]:
        tables = ("kernel_totals", "kernel_hours", "process_minutes", "process_hours")
        return [client.query(sums.format(t, ROLLUPS[t], how, cut // SECOND)).first_row for t in tables]

    before = sums_of(">=")
    address = named(monkeypatch, server.address)
    result = kdiff(
        monkeypatch, capsys, "delete", "--store", address, "--before", str((cut + 1_799 * SECOND) // SECOND),
        "--all-services", "--yes",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert "older than 2025-11-29T12:00:00Z" in result.out
    assert sums_of("<") == [(0, 0, 0)] * 4
    assert sums_of(">=") == before
    assert len(set(before)) == 1
    for table in ("health_hours", "device_hours"):
        assert (
            client.query(f"SELECT count() FROM {table} WHERE toUnixTimestamp(hour) < {cut // SECOND}").first_row[0] == 0
        )
    client.close()
    same(server, Window(cut - 5 * MINUTE, cut + 130 * HOUR_NS))


def test_a_batch_that_is_sent_again_is_in_the_hours_once(own_database: Address, capture: Path) -> None:
    loaded.load(own_database)
    settings = {"insert_deduplication_token": "x", "deduplicate_blocks_in_dependent_materialized_views": 1}
    rows = captures.launches("gelu", captures.spread(HOURS.from_ns, HOURS.to_ns, 10_007), completion_ns=9)
    with connect(own_database) as client:
        for _ in range(3):
            client.insert_arrow("cuda_events", rows, settings=settings)
            client.insert_arrow("agent_health", captures.health(BEGIN, BEGIN + HOUR_NS), settings=settings)
        assert client.query("SELECT sum(launches), uniqExact(hour) FROM kernel_hours").first_row == (10_007, 120)
        assert client.query("SELECT sum(launches) FROM process_hours").first_row == (10_007,)
        assert client.query("SELECT sum(events), sum(covered_ns) FROM health_hours").first_row == (360_000, HOUR_NS)


def test_the_time_of_a_fleet_in_a_month_is_not_too_long(own_database: Address) -> None:
    """8,000 GPUs that are busy half of the time: 2e19 ns and more are counted of all of them."""
    loaded.load(own_database)
    hour_ns = 8_000 * HOUR_NS // 2
    first = HOURS.from_ns // SECOND
    with connect(own_database) as client:
        for kind, its in (("launch", ("isolated_ns", "launch_ns", "completion_ns")), ("device", ("device_ns",))):
            names = f"minute, kind, kernel_name, launches, executions, completions, ran, {', '.join(its)}"
            client.command(
                f"INSERT INTO kernel_totals ({names}) "
                f"SELECT {first} + 3600 * number, '{kind}', 'k', 5, 5, 5, 5{f', {hour_ns}' * len(its)} "
                "FROM numbers(1440)"
            )
    window = Window(HOURS.from_ns, HOURS.from_ns + 1_440 * HOUR_NS)
    whole = 1_440 * hour_ns
    assert whole > 2**64
    with ServerStore(own_database) as store:
        for evidence in (Evidence(store, window), by_minutes(store, window)):
            counts = evidence.census()["k"]
            assert (counts.isolated_ns, counts.launch_ns) == (whole, whole)
        assert Evidence(store, window).census()["k"].device_ns == whole
        (row,) = Evidence(store, window).query("minutes_kernels_between").to_pylist()
        assert row["device_total_ns"] == whole
        assert row["completion_avg_ns"] == hour_ns / 5


def test_a_service_that_was_quiet_was_recorded_where_agents_say_so(own_database: Address, capture: Path) -> None:
    """No account names it: those of no service do."""
    loaded.load(own_database, capture)
    with connect(own_database) as client:
        client.insert_arrow("cuda_events", captures.launches("once", [AFTER.to_ns], service="quiet"))
    with ServerStore(own_database) as store:
        hours, minutes = Evidence(store, BEFORE, "quiet"), by_minutes(store, BEFORE, "quiet")
        assert hours.hourly
        assert hours.recording() == minutes.recording()
        assert 0.9 < hours.recording().coverage < 1


def test_a_clock_that_was_off_refuses_no_account(own_database: Address) -> None:
    """What cannot be placed must not keep a batch from being shipped."""
    begins = [-(2**63), 2**63 - 2, 5, 0, -7, HOURS.from_ns]
    ends = [2**63 - 1, 2**63 - 1, -5, 0, 3, HOURS.from_ns + SECOND]
    its = {"from_ns": begins, "to_ns": ends, "host": "host-1", "service": "svc", "pid": 7, "lost": 3}
    health = {"from_ns": begins, "to_ns": ends, "host": "host-1", "service": "svc", "lost_launches": 3, "events": 9}
    loaded.load(own_database)
    with connect(own_database) as client:
        client.insert_arrow("agent_health", captures.table("agent_health", health))
        client.insert_arrow("device_windows", captures.table("device_windows", its))
    with ServerStore(own_database) as store:
        evidence = Evidence(store, BEFORE)
        assert evidence.hourly
        assert evidence.recording().lost == 3
        assert (evidence.device.windows, evidence.device.lost, evidence.device.covered_ns) == (1, 3, SECOND)


@pytest.mark.parametrize(
    "windows", [(BEFORE, AFTER), (Window(T0, T0 + 3 * HOUR_NS), Window(T0 + 3 * HOUR_NS, T0 + 6 * HOUR_NS))]
)
def test_a_verdict_from_roll_ups_loads_no_pandas(server: ServerStore, windows: tuple[Window, Window]) -> None:
    """Pyarrow imports it to look at any Python value that it is given: a quarter of a second of a verdict."""
    code = (
        "import sys\n"
        "from kdiff.analysis import cli\n"
        "try:\n"
        "    cli.main()\n"
        "finally:\n"
        "    print('pandas' in sys.modules)\n"
    )
    asked = ["--store", f"clickhouse://default@127.0.0.1:{server.address.hosts[0][1]}/{server.address.database}"]
    asked += ["--before", str(windows[0]), "--after", str(windows[1]), "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *asked],
        env=os.environ | {"KDIFF_CLICKHOUSE_PASSWORD": PASSWORD},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (1, 3), done.stderr
    assert done.stdout.endswith("False\n")
