"""What services have lost: who is charged, and whom kdiff counts it for."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from loaded import load

import captures
from captures import AFTER, BEFORE, MINUTE, SECOND, T0, TwoWindows
from kdiff.agent.clock import Steps
from kdiff.agent.health import NOBODY, LossCounters, Losses, Moment, ServiceCounts, Stretch
from kdiff.agent.pairing import Pairing
from kdiff.agent.segments import SegmentWriter, Spool
from kdiff.analysis.compare import Options, compare
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.report import Report
from kdiff.analysis.verdict import Verdict
from kdiff.analysis.window import HOUR_NS, Window
from kdiff.probes.wire import EVENT, Kind, Sync
from kdiff.queries.address import Address
from kdiff.queries.errors import KdiffError
from kdiff.queries.server import ServerStore
from kdiff.queries.store import CaptureStore
from kdiff.queries.tables import AGENT_HEALTH

N = 6_007


# What BPF has counted


class Key(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint32), ("kind", ctypes.c_uint32))


class Table(dict[tuple[int, int], int]):
    """A hash of BCC's."""

    Key = Key
    reads = 0

    def items(self) -> Any:
        self.reads += 1
        return [(Key(*key), ctypes.c_uint64(count)) for key, count in super().items()]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(_plain(key))

    def __getitem__(self, key: Any) -> Any:
        return ctypes.c_uint64(super().__getitem__(_plain(key)))


def _plain(key: Any) -> tuple[int, int]:
    return (key.pid, key.kind)


class Counters:
    """An array of BCC's with a value on each CPU."""

    def __init__(self) -> None:
        self.counts = [0] * len(Kind)

    def sum(self, key: ctypes.c_int) -> ctypes.c_uint64:
        return ctypes.c_uint64(self.counts[key.value])


class Bpf:
    """The maps, and what counts in them."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.by, self.nobody, self.total = Table(), Counters(), Counters()
        maps = {"lost": self.total, "lost_by": self.by, "lost_of_nobody": self.nobody}
        self.meanwhile: list[tuple[int, Kind, int]] = []  # is lost while an entry is deleted
        self.counters = LossCounters(SimpleNamespace(map=maps.__getitem__), self.take)  # type: ignore[arg-type]

    def take(self, table: Table, key: Key) -> int:
        while self.meanwhile:
            self.lose(*self.meanwhile.pop())
        return dict.pop(table, _plain(key), 0)

    def lose(self, pid: int, kind: Kind, count: int, *, interrupted: bool = False) -> None:
        key = (pid, int(kind))
        if dict.__contains__(self.by, key) or len(self.by) < self.room:
            dict.__setitem__(self.by, key, dict.get(self.by, key, 0) + count)
        else:
            self.nobody.counts[kind] += count
        if not interrupted:
            self.total.counts[kind] += count


def test_each_loss_is_told_once_and_of_whom() -> None:
    bpf = Bpf(3)
    assert bpf.counters.read() == {}
    assert bpf.by.reads == 0, "nothing was lost"
    bpf.lose(7, Kind.LAUNCH, 11)
    bpf.lose(7, Kind.GRAPH_LAUNCH, 2)
    bpf.lose(8, Kind.SYNC, 5)
    bpf.lose(9, Kind.LAUNCH, 3)  # no room
    bpf.lose(7, Kind.NAME, 1)
    assert bpf.counters.read() == {7: Losses(13), 8: Losses(syncs=5), NOBODY: Losses(3, other=1)}
    assert bpf.counters.read() == {}
    assert bpf.by.reads == 1
    bpf.lose(8, Kind.SYNC, 2)
    bpf.lose(9, Kind.EXECUTION, 101)
    assert bpf.counters.read() == {8: Losses(syncs=2), NOBODY: Losses(executions=101)}


def test_what_is_counted_while_it_is_read_is_told_the_next_time() -> None:
    bpf = Bpf(3)
    bpf.lose(7, Kind.LAUNCH, 11, interrupted=True)
    assert bpf.counters.read() == {}
    bpf.total.counts[Kind.LAUNCH] += 11
    assert bpf.counters.read() == {7: Losses(11)}
    bpf.lose(7, Kind.LAUNCH, 2, interrupted=True)  # a program that is killed meanwhile
    assert bpf.counters.read(last=True) == {7: Losses(2)}


def test_what_is_lost_while_a_process_is_forgotten_is_told_once() -> None:
    """The pid of one that ended is another's, which loses something between the look at the count and its end."""
    bpf = Bpf(3)
    bpf.lose(7, Kind.LAUNCH, 11)
    assert bpf.counters.read() == {7: Losses(11)}
    bpf.meanwhile.append((7, Kind.LAUNCH, 5))
    bpf.counters.forget(7)
    assert dict(bpf.by) == {}
    assert bpf.counters.read() == {7: Losses(5)}
    assert bpf.counters.read(last=True) == {}
    bpf.lose(7, Kind.LAUNCH, 2)
    assert bpf.counters.read() == {7: Losses(2)}


TAKE = """
from kdiff.agent.bpf import Program
from kdiff.agent.health import LossCounters
from kdiff.probes.program import Tracing
program = Program(Tracing())
counters, by = LossCounters(program), program.map("lost_by")
by[by.Key(7, 1)] = by.Leaf(11)
print(counters.read(last=True)[7].total)
counters.forget(8)
print(len(list(by.items())))
counters.forget(7)
print(len(list(by.items())), counters.read(last=True))
"""


@pytest.mark.ebpf
def test_what_bpf_counted_of_a_process_that_ended_is_deleted() -> None:
    done = subprocess.run([sys.executable, "-c", TAKE], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["11", "1", "0", "{}"]


def test_a_process_that_ended_makes_room_but_not_before_all_of_it_is_told() -> None:
    bpf = Bpf(1)
    bpf.lose(7, Kind.LAUNCH, 11)
    bpf.counters.forget(7)
    assert bpf.counters.read() == {7: Losses(11)}
    bpf.lose(7, Kind.LAUNCH, 1)  # its pid is another's by now
    bpf.counters.forget(7)
    assert bpf.counters.read() == {7: Losses(1)}
    bpf.counters.forget(7)
    bpf.counters.forget(8)
    assert not bpf.by
    bpf.lose(8, Kind.LAUNCH, 5)
    bpf.lose(7, Kind.LAUNCH, 3)
    assert bpf.counters.read() == {8: Losses(5), NOBODY: Losses(3)}


# The account


WHEN = Moment((1000, 2000), "boot", 40, Steps(-7, 5))


def test_one_row_of_the_host_and_one_of_each_service_that_has_anything() -> None:
    stretch = Stretch(1000, drain_lag_ns=77)
    stretch.of("b").events += 5
    stretch.of("b").lost += Losses(3, 2, 1, 1000)
    stretch.of("a").events += 7
    stretch.of("a").unresolved_launches += 4
    stretch.of("").lost += Losses(other=2)
    stretch.of("").orphaned += 9
    stretch.of("a").dropped += Losses(100, 30)
    table = stretch.rows(WHEN, "host-1", "both", 31)
    assert table.schema.equals(AGENT_HEALTH)
    columns = ("service", "events", "lost_launches", "lost_syncs", "lost_other", "unresolved_launches")
    rows = table.to_pylist()
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("", 0, 0, 0, 11, 0),
        ("a", 7, 100, 30, 0, 4),
        ("b", 5, 3, 2, 1, 0),
    ]
    assert {(row["from_ns"], row["to_ns"], row["host"], row["layer"]) for row in rows} == {
        (1000, 2000, "host-1", "both")
    }
    assert [(row["drain_lag_ns"], row["attached_probes"]) for row in rows] == [(77, 31), (0, 0), (0, 0)]
    assert {(row["boot_id"], row["clock_offset_ns"], row["clock_set_ns"], row["slept_ns"]) for row in rows} == {
        ("boot", 40, -7, 5)
    }
    assert rows[0]["agent_cpu_ns"] >= 0
    assert [row["agent_cpu_ns"] for row in rows[1:]] == [0, 0]


def test_one_service_has_one_row() -> None:
    stretch = Stretch(1000, "svc")
    (row,) = stretch.rows(WHEN, "host-1", "both", 31).to_pylist()
    assert (row["service"], row["events"], row["attached_probes"]) == ("svc", 0, 31)
    stretch.of("svc").events = 3
    stretch.of("svc").lost += Losses(2)
    (row,) = stretch.rows(WHEN, "host-1", "both", 31).to_pylist()
    assert (row["events"], row["lost_launches"]) == (3, 2)


def test_counts_add_up() -> None:
    one = ServiceCounts(1, 2, Losses(3), 4, Losses(5, 6, 7, 8))
    assert one + one == ServiceCounts(2, 4, Losses(6), 8, Losses(10, 12, 14, 16))


def test_rows_given_up_for_want_of_room_are_their_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SegmentWriter(tmp_path / "capture", "host", "0123456789", 0)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "write", refuse)
    spool = Spool(writer, keep_at_most=100)
    spool.put("cuda_events", captures.launches("k", range(30), service=["a"] * 11 + ["b"] * 19))
    spool.put("cuda_events", captures.launches("k", range(60), service="a"))
    assert spool.write()[1] == 0
    spool.put("cuda_events", captures.launches("k", range(40), service="b"))
    assert spool.write()[1] == 30
    assert spool.take_dropped() == {"a": Losses(11), "b": Losses(19)}
    assert spool.take_dropped() == {}
    spool.put("cuda_events", captures.launches("k", range(50), service="b"))
    assert spool.write()[1] == 60
    assert spool.take_dropped() == {"a": Losses(60)}


def test_what_one_process_lost_leaves_the_batches_of_another_known() -> None:
    def calls(at: int) -> np.ndarray:
        events = np.zeros(4, EVENT)
        events["pid"] = [1, 2, 1, 2]
        events["timestamp_ns"] = [at, at + 1, at + 10, at + 11]
        events["duration_ns"] = [2, 2, 5, 5]
        events["kind"] = [Kind.LAUNCH, Kind.LAUNCH, Kind.SYNC, Kind.SYNC]
        events["sync"] = [Sync.NONE, Sync.NONE, Sync.STREAM, Sync.STREAM]
        return events

    def shares(*lost: int) -> dict[int, list[int]]:
        pairing = Pairing()
        for pid in (1, 2):
            pairing.process_began(pid)
        found: dict[int, list[int]] = {1: [], 2: []}
        for number in range(3):
            if number == 1 and lost:
                pairing.events_lost(lost)
            rows = pairing.feed(calls(1000 * (number + 1)), 10_000)
            for row in rows[rows["event"]["kind"] == Kind.LAUNCH]:
                found[int(row["event"]["pid"])].append(int(row["batch_launches"]))
        return found

    assert shares() == {1: [1, 1, 1], 2: [1, 1, 1]}
    assert shares(1) == {1: [1, 0, 0], 2: [1, 1, 1]}
    assert shares(1, NOBODY) == {1: [1, 0, 0], 2: [1, 0, 0]}


# kdiff


class Host(TwoWindows):
    """Two services on host-1, a third on host-2, with the accounts that `run` keeps."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        for path in (root / "agent_health").iterdir():
            path.unlink()
        rng = np.random.default_rng(3)
        for service, host in (("a", "host-1"), ("b", "host-1"), ("c", "host-2")):
            for window in (BEFORE, AFTER):
                times = captures.spread(window.from_ns, window.to_ns, N)
                given = {"completion_ns": (80_000 * rng.lognormal(0, 0.1, N)).astype(np.int64), "service": service}
                self.add("cuda_events", captures.launches("gelu", times, host=host, **given))
        for host in ("host-1", "host-2"):
            self.account("", host, BEFORE.from_ns, AFTER.to_ns)
        for service, host in (("a", "host-1"), ("b", "host-1"), ("c", "host-2")):
            self.account(service, host, AFTER.from_ns, AFTER.from_ns + 10 * SECOND, events=100)

    def account(self, service: str, host: str, from_ns: int, to_ns: int, **columns: Any) -> None:
        given = {"events": 0, "service": service, "host": host, **columns}
        self.add("agent_health", captures.health(from_ns, to_ns, **given))

    def lose(self, service: str, count: int, host: str = "host-1") -> None:
        """In one stretch of the window after."""
        self.account(service, host, AFTER.from_ns, AFTER.from_ns + 10 * SECOND, lost_launches=count)

    def of(self, service: str) -> Report:
        with CaptureStore(self.root) as store:
            return compare(Evidence(store, BEFORE, service), Evidence(store, AFTER, service), Options())


@pytest.fixture
def host(tmp_path: Path, engine: None) -> Host:
    return Host(tmp_path)


def test_a_service_is_judged_by_its_own_losses(host: Host) -> None:
    host.lose("a", 62)
    a, b, c = host.of("a"), host.of("b"), host.of("c")
    assert (a.after.lost, b.after.lost, c.after.lost) == (62, 0, 0)
    assert a.after.loss == 62 / (N + 62)
    assert (a.verdict, b.verdict, c.verdict) == (Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.PASS)
    assert "The after window lost 1.02% of its events (limit 1%)" in a.cause
    # All of it, and nothing twice.
    every = host.of("")
    assert every.after.lost == 62
    assert every.after.loss == 62 / (3 * N + 62)
    assert every.exit_code == 0


def test_what_may_be_anybodys_counts_for_every_service_of_that_host(host: Host) -> None:
    host.lose("", 62)
    a, b, c = host.of("a"), host.of("b"), host.of("c")
    assert (a.after.lost, b.after.lost, c.after.lost) == (62, 62, 0)
    assert (a.exit_code, b.exit_code, c.exit_code) == (3, 3, 0)
    host.lose("", 7, host="")  # of a file of no recording, see the accounts of rows given up
    assert [host.of(service).after.lost for service in "abc"] == [69, 69, 7]


def test_the_account_of_the_host_covers_a_service_that_is_quiet(host: Host) -> None:
    for service in ("a", "b", "c"):
        report = host.of(service)
        assert (report.before.coverage, report.after.coverage) == (1.0, 1.0)
        assert report.before.loss == 0.0
        assert not report.warnings


def test_a_name_that_no_service_has_is_covered_by_nobody(host: Host) -> None:
    with pytest.raises(KdiffError, match=r"holds no launches of the service nope \(services: a, b, c\)"):
        host.of("nope")


def test_a_server_says_the_same_by_rows_by_minutes_and_by_hours(
    engine: None, own_database: Address, tmp_path: Path
) -> None:
    begin, end = T0 + 2 * HOUR_NS, T0 + 123 * HOUR_NS
    times = captures.spread(begin, end, 1_001)
    for service, host in (("a", "host-1"), ("b", "host-1"), ("c", "host-2")):
        segment = captures.launches("gelu", times, service=service, host=host)
        captures.write(tmp_path, "cuda_events", segment, service)
        own = captures.health(begin, begin + MINUTE, 10, lost_launches=ord(service), service=service, host=host)
        captures.write(tmp_path, "agent_health", own, service)
    for host, lost in (("host-1", 2), ("host-2", 300)):
        whole = captures.health(begin, end, 0, HOUR_NS // 2, lost_launches=lost, service="", host=host)
        captures.write(tmp_path, "agent_health", whole, host)
    load(own_database, tmp_path)
    lost = {"a": 6 * 97 + 242 * 2, "b": 6 * 98 + 242 * 2, "c": 6 * 99 + 242 * 300}
    with ServerStore(own_database) as store, CaptureStore(tmp_path) as rows:
        for service, host in (("a", "host-1"), ("b", "host-1"), ("c", "host-2")):
            hours = Evidence(store, Window(begin, end), service)
            minutes = Evidence(store, Window(begin, end), service)
            minutes.__dict__["hourly"] = False
            exact = Evidence(rows, Window(begin, end), service, exact=True)
            assert hours.hourly
            for evidence in (hours, minutes, exact):
                recording = evidence.recording()
                assert (recording.lost, recording.coverage, recording.hosts) == (lost[service], 1.0, {host: 1.0})
        assert Evidence(store, Window(begin, end)).recording().lost == sum(lost.values()) - 242 * 2


def test_a_host_that_the_service_has_left_is_not_asked(host: Host) -> None:
    host.account("a", "host-2", BEFORE.from_ns, BEFORE.from_ns + 10 * SECOND, events=1)
    host.account("", "host-2", BEFORE.from_ns, BEFORE.from_ns + 10 * SECOND, lost_launches=7)
    host.lose("", 62, host="host-2")
    assert (host.of("a").before.lost, host.of("a").after.lost) == (7, 0)
