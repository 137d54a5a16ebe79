from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shipped

import captures
from kdiff.agent.blocks import OpenSegment
from kdiff.agent.disk_policy import DiskPolicy, account_prefix
from kdiff.agent.journal import Journal
from kdiff.agent.redo import RedoLog
from kdiff.agent.segment_files import Listing, SegmentFile
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.window import Window
from kdiff.queries.shipping_notes import read_marks
from kdiff.queries.store import CaptureStore

SIZES = [1009, 2003, 3001, 4001, 5003]


class Spool:
    """A spool with segments of SIZES, and a policy for it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shipped.write(root, SIZES)
        self.notes: list[str] = []
        self.journals: list[Journal] = []

    def policy(self, max_bytes: int) -> DiskPolicy:
        self.journal = self.open_journal()
        prefix = account_prefix("host-1", shipped.BOOT, time.time_ns())
        return DiskPolicy(Listing(self.root, print), max_bytes, self.journal, prefix, self.notes.append)

    def open_journal(self) -> Journal:
        self.journals.append(Journal(self.root))
        return self.journals[-1]

    def files(self, table: str = "cuda_events") -> list[SegmentFile]:
        return [file for file in Listing(self.root, print).read() if file.table == table]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in Listing(self.root, print).read())

    def rows(self, table: str = "cuda_events") -> int:
        return sum(pq.read_metadata(file.path).num_rows for file in self.files(table))

    def lost(self) -> dict[str, int]:
        health = pq.read_table(self.root / "agent_health").to_pandas()
        return {name: int(health[f"lost_{name}"].sum()) for name in ("launches", "syncs", "other")}


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spool]:
    monkeypatch.setattr("kdiff.agent.disk_policy._DOWN_TO", 1.0)
    spool = Spool(tmp_path)
    yield spool
    for journal in spool.journals:
        journal.close()


def kinds(files: list[SegmentFile]) -> dict[str, int]:
    kind = [k for file in files for k in pq.read_table(file.path, columns=["kind"])["kind"].to_pylist()]
    syncs = sum(k == "sync" for k in kind)
    return {"launches": len(kind) - syncs, "syncs": syncs, "other": 0}


def test_within_the_bound_nothing_goes(spool: Spool) -> None:
    before = sorted(spool.root.rglob("*.parquet"))
    policy = spool.policy(spool.bytes)
    policy.apply()
    assert sorted(spool.root.rglob("*.parquet")) == before
    assert (policy.waiting, policy.waiting_bytes, policy.bytes) == (11, spool.bytes, spool.bytes)
    assert not spool.notes


def test_confirmed_segments_go_first_and_cost_nothing(spool: Spool) -> None:
    oldest, *_, newest = spool.files()
    policy = spool.policy(spool.bytes - 1)
    spool.journal.confirmed(newest.key)
    policy.apply()
    assert oldest.path.exists()
    assert not newest.path.exists()
    assert (policy.shed.removed, policy.shed.segments) == (1, 0)
    assert spool.lost() == {"launches": 0, "syncs": 0, "other": 0}


def test_then_the_oldest_rows_go_and_are_counted_where_they_lay(spool: Spool) -> None:
    first, second, *rest = spool.files()
    lost = kinds([first, second])
    spans = [pq.read_table(file.path)["timestamp_ns"].to_numpy() for file in (first, second)]
    policy = spool.policy(spool.bytes - first.size - 1)
    policy.apply()
    assert [file.key for file in spool.files()] == [file.key for file in rest]
    assert spool.lost() == lost
    assert policy.shed.rows == {"cuda_events": SIZES[0] + SIZES[1]}
    assert spool.rows() + sum(lost.values()) == sum(SIZES)
    assert len(spool.files("kernels")) == 1
    assert len(spool.notes) == 1
    assert "the oldest rows are given up and counted as lost" in spool.notes[0]
    account = pq.read_table(spool.files("agent_health")[-1].path).to_pylist()
    assert {(row["service"], row["host"], row["events"]) for row in account} == {("svc", "host-1", 0)}
    assert min(row["from_ns"] for row in account) == spans[0].min()
    assert max(row["to_ns"] for row in account) == spans[1].max() + 1
    # kdiff sees it: in the minutes of the lost rows, and not in the others.
    with CaptureStore(spool.root) as store:
        window = Window(int(spans[0].min()), int(spans[1].max()) + 1)
        assert Evidence(store, window, "").recording().lost == sum(lost.values())
        after = Window(window.to_ns + 1, window.to_ns + 10_000_000)
        assert Evidence(store, after, "").recording().lost == 0


def test_shed_executions_are_lost_in_their_device_windows(spool: Spool) -> None:
    times = time.time_ns() + np.arange(997) * 1000
    rows = captures.executions("k", times, 5, pid=7, host="host-2")
    captures.write(spool.root, "kernel_executions", rows, "host-1-01234567-1-00000000")
    policy = spool.policy(spool.bytes - 1)
    policy.apply()
    assert policy.shed.rows == {"kernel_executions": 997}
    [window] = pq.read_table(spool.root / "device_windows").to_pylist()
    assert (window["lost"], window["executions"], window["ended"]) == (997, 0, "shed")
    assert (window["host"], window["pid"], window["service"]) == ("host-2", 7, "svc")
    assert window["from_ns"] == window["to_ns"] == times[0]
    assert spool.lost() == {"launches": 0, "syncs": 0, "other": 0}


def test_what_is_being_shipped_or_may_be_in_the_store_is_not_called_lost(spool: Spool) -> None:
    first, second, third, *_ = spool.files()
    policy = spool.policy(spool.bytes - 1)
    spool.journal.begun(first.key)
    with OpenSegment(second) as held:
        assert held.hold()
        policy.apply()
        assert first.path.exists()
        assert second.path.exists()
        assert not third.path.exists()
    # Also for a process that comes after: what was begun is in the notes.
    policy = spool.policy(1)
    policy.apply()
    assert first.path.exists()
    assert not second.path.exists()


def test_names_and_accounts_go_last(spool: Spool) -> None:
    policy = spool.policy(1)
    policy.apply()
    assert spool.files() == []
    assert policy.shed.rows["cuda_events"] == sum(SIZES)
    left = [file.table for file in Listing(spool.root, print).read()]
    assert set(left) == {"agent_health"}  # of what went
    assert sum(spool.lost().values()) == sum(SIZES)


def test_a_shipper_passes_over_what_was_given_up_before_it_came_to_it(spool: Spool) -> None:
    [first, *_] = spool.files()
    with OpenSegment(first) as opened:
        spool.policy(1).apply()
        assert not opened.hold()


def test_a_torn_segment_and_a_torn_note_are_no_obstacle(spool: Spool) -> None:
    (spool.root / "cuda_events" / "torn.parquet").write_bytes(b"torn" * 100)
    (spool.root / ".shedding").write_text("{")
    (spool.root / ".shipped").write_bytes(b"?a\n+b/c/d\n\xff\n+" + os.urandom(20))
    old, fresh = (spool.root / "kernels" / f".host-1-0123abcd-17-{number:08d}.parquet.tmp" for number in range(2))
    for path in (old, fresh):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))
    spool.policy(1).apply()
    assert sum(spool.lost().values()) == sum(SIZES)
    assert not old.exists()
    assert fresh.exists()


def test_the_notes_survive_a_kill_and_do_not_grow_for_ever(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdiff.agent.journal._SPARE_LINES", 10)
    journal = spool.open_journal()
    files = spool.files()
    journal.begun(files[0].key)
    journal.begun(files[1].key)
    journal.confirmed(files[1].key)
    after = spool.open_journal()  # the other was not closed
    assert after.in_doubt(files[0].key)
    assert not after.in_doubt(files[1].key)
    assert after.is_confirmed(files[1].key)
    for number in range(500):
        after.confirmed(f"cuda_events/{number}.parquet")
        after.forget(f"cuda_events/{number}.parquet")
    assert len((spool.root / ".shipped").read_text().splitlines()) < 30
    assert json.dumps(sorted(path.name for path in spool.root.glob(".ship*"))) == '[".shipped"]'


NOTING = """
import random, sys
from pathlib import Path
from kdiff.agent import journal
journal._SPARE_LINES = 100
journal._PATIENCE_S = 50.0  # on a machine that has much else to do the two that wait get no turn for long
root, server = Path(sys.argv[1]), sys.argv[2]
notes = journal.Journal(root, server=server, of_run=server == "00000000")
keys = [f"cuda_events/{number}.parquet" for number in range(300)]
random.Random(server).shuffle(keys)
for key in keys:
    notes.begun(key)
for key in keys[:200]:
    notes.confirmed(key)
"""


def test_no_note_is_lost_among_processes_that_note_at_once(tmp_path: Path) -> None:
    for number in range(300):
        captures.write(tmp_path, "cuda_events", captures.table("cuda_events", {}, rows=0), str(number))
    command = [sys.executable, "-c", NOTING, str(tmp_path)]
    for process in [subprocess.Popen([*command, f"{number:08d}"]) for number in range(3)]:
        assert process.wait(60) == 0
    keys = [f"cuda_events/{number}.parquet" for number in range(300)]
    for server in ("00000000", "00000001", "00000002"):
        journal = Journal(tmp_path, server=server, of_run=False)
        confirmed = {key for key in keys if journal._marks.get(key, {}).get(server) == "+"}
        begun = {key for key in keys if journal._marks.get(key, {}).get(server) == "?"}
        assert (len(confirmed), len(begun)) == ((0, 100) if server == "00000000" else (200, 100))
        assert sum(key in journal._settled for key in keys) == 200
        assert all(journal.in_doubt(key) for key in begun)
        journal.close()


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_notes_that_are_no_file_are_done_without(spool: Spool, tmp_path: Path, kind: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    notes = spool.root / ".shipped"
    {"link": lambda: notes.symlink_to(precious), "fifo": lambda: os.mkfifo(notes), "folder": notes.mkdir}[kind]()
    assert read_marks(spool.root) == {}
    journal = Journal(spool.root, server="00000001", of_run=False)
    journal.begun(spool.files()[0].key)
    journal.close()
    assert precious.read_text() == "precious"
    spool.policy(1).apply()


GOOD = shipped.events(2003, 1, 1_700_000_000_000_000_000)


def replaced(column: str, values: pa.Array) -> pa.Table:
    return GOOD.set_column(GOOD.schema.get_field_index(column), column, values)


@pytest.mark.parametrize(
    "foreign",
    [
        GOOD.drop_columns(["timestamp_ns"]),
        GOOD.drop_columns(["kind"]),
        replaced("timestamp_ns", pa.array(["x"] * 2003)),
        replaced("service", pa.array([1] * 2003)),
        replaced("service", pa.array([{"a": 1}] * 2003)),
    ],
    ids=["no time", "no kind", "text for time", "number for text", "nested"],
)
def test_a_foreign_file_goes_first_and_counts_nothing(spool: Spool, foreign: pa.Table) -> None:
    bound = spool.bytes
    strange = spool.root / "cuda_events" / "strange.parquet"
    pq.write_table(foreign, strange)
    spool.policy(bound).apply()
    assert not strange.exists()
    assert spool.rows() == sum(SIZES)
    assert spool.lost() == {"launches": 0, "syncs": 0, "other": 0}


def test_what_is_no_file_is_neither_waited_for_nor_removed(spool: Spool) -> None:
    folder = spool.root / "cuda_events"
    (folder / "b.parquet").symlink_to("/dev/zero")
    (folder / "c.parquet").mkdir()
    os.rename(spool.files()[-1].path, os.fsencode(folder) + b"/\xff.parquet")
    os.mkfifo(folder / "a.parquet")
    spool.policy(1).apply()
    assert sorted(path.name for path in folder.iterdir()) == ["a.parquet", "b.parquet", "c.parquet"]


def test_losses_stay_counted_when_the_accounts_themselves_are_too_much(spool: Spool) -> None:
    policy = spool.policy(1)
    for _ in range(3):
        policy.apply()
    assert sum(spool.lost().values()) == sum(SIZES)
    [account] = spool.files("agent_health")
    policy.apply()
    assert spool.files("agent_health") == [account]
    table = pq.read_table(account.path)
    assert sum(table["events"].to_pylist()) == sum(SIZES)
    assert policy.shed.rows == {"cuda_events": sum(SIZES), "kernels": 3}


def test_a_segment_that_cannot_be_removed_is_counted_once(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *_ = spool.files()
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == first.path:
            raise PermissionError(1, "Operation not permitted")
        unlink(path, missing_ok)

    bound = spool.bytes - first.size - 1
    policy = spool.policy(bound)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        for _ in range(3):
            with pytest.raises(PermissionError):
                policy.apply()
        with pytest.raises(PermissionError):
            spool.policy(bound).apply()  # of a process that comes after
    assert first.path.exists()
    assert not second.path.exists()
    assert sum(spool.lost().values()) == policy.shed.rows["cuda_events"] == SIZES[0] + SIZES[1]
    spool.policy(bound).apply()
    assert not first.path.exists()
    assert sum(spool.lost().values()) == SIZES[0] + SIZES[1]


def test_what_the_accounts_of_executions_count_stays_counted_when_they_are_too_much(spool: Spool) -> None:
    times = time.time_ns() + np.arange(997) * 1000
    for number in range(3):
        rows = captures.executions("k", times, 5, pid=7)
        captures.write(spool.root, "kernel_executions", rows, f"host-1-01234567-{number}-00000000")
    captures.write(spool.root, "device_windows", captures.device_windows([int(times[0])], lost=11, executions=997))
    policy = spool.policy(1)
    for _ in range(4):
        policy.apply()
    windows = pq.read_table(spool.root / "device_windows").to_pylist()
    assert sum(window["lost"] for window in windows) == 3 * 997 + 11
    assert sum(window["executions"] for window in windows) == 0
    assert policy.shed.rows["kernel_executions"] == 3 * 997


def test_a_file_of_any_size_is_given_up_within_a_moment(spool: Spool) -> None:
    bound = spool.bytes
    huge = spool.root / "cuda_events" / "huge.parquet"
    with open(huge, "wb") as file:
        file.truncate(1 << 40)
    began = time.monotonic()
    spool.policy(bound).apply()
    assert time.monotonic() - began < 20
    assert not huge.exists()
    assert spool.rows() == sum(SIZES)


def test_rows_are_counted_by_the_batch_and_odd_groups_together(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdiff.agent.accounts._BATCH_ROWS", 997)
    monkeypatch.setattr("kdiff.agent.accounts._MOST_GROUPS", 5)
    times = spool.rows() + np.arange(2003)
    strange = captures.launches("k", times, service=[f"service {number % 101}" for number in range(2003)])
    captures.write(spool.root, "cuda_events", strange, "strange")
    spool.policy(spool.bytes - 1).apply()
    [account] = [file for file in spool.files("agent_health") if pq.read_metadata(file.path).num_rows > 1]
    rows = pq.read_table(account.path).to_pylist()
    assert len(rows) == 6
    assert sum(row["lost_launches"] for row in rows) == 2003
    assert (min(row["from_ns"] for row in rows), max(row["to_ns"] for row in rows)) == (times[0], times[-1] + 1)


def test_nothing_is_said_to_be_given_up_that_is_not(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk that may only be read."""

    def refuse(*_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(RedoLog, "append", refuse)
    policy = spool.policy(1)
    with pytest.raises(OSError, match="Read-only"):
        policy.apply()
    assert spool.notes == []
    assert spool.rows() == sum(SIZES)
    assert policy.shed.segments == 0
