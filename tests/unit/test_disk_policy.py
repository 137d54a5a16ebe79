from __future__ import annotations

import json
import os
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
from kdiff.agent.disk_policy import DiskPolicy
from kdiff.agent.journal import Journal
from kdiff.agent.segment_files import Listing, SegmentFile
from kdiff.agent.segments import SegmentWriter
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.window import Window
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
        writer = SegmentWriter(self.root, "host-1", shipped.BOOT, time.time_ns())
        return DiskPolicy(Listing(self.root, print), max_bytes, self.journal, lambda: writer, self.notes.append)

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
    assert left == ["agent_health"]  # of what went
    assert sum(spool.lost().values()) == sum(SIZES)


def test_a_shipper_passes_over_what_was_given_up_before_it_came_to_it(spool: Spool) -> None:
    [first, *_] = spool.files()
    with OpenSegment(first) as opened:
        spool.policy(1).apply()
        assert not opened.hold()


class KilledError(BaseException):
    """Stands for a kill -9."""


@pytest.mark.parametrize("at", ["before the account", "after the account", "between two removals"])
def test_a_kill_in_between_counts_nothing_twice_and_nothing_less(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    times = time.time_ns() + np.arange(997) * 1000
    captures.write(spool.root, "kernel_executions", captures.executions("k", times, 5), "host-1-01234567-1-00000000")
    policy = spool.policy(spool.bytes // 4)
    write, unlink = SegmentWriter.write, Path.unlink
    removed = []

    def writing(self: SegmentWriter, table: str, rows: Any) -> Path:
        if at == "before the account" and table == "agent_health":
            raise KilledError
        path = write(self, table, rows)
        if at == "after the account" and table == "agent_health":
            raise KilledError
        return path

    def unlinking(self: Path, missing_ok: bool = False) -> None:
        if self.suffix == ".parquet":
            removed.append(self)
            if at == "between two removals" and len(removed) == 2:
                raise KilledError
        unlink(self, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(SegmentWriter, "write", writing)
        patch.setattr(Path, "unlink", unlinking)
        with pytest.raises(KilledError):
            policy.apply()
    spool.policy(1 << 30).apply()
    assert not list(spool.root.glob(".shedding*"))
    assert spool.rows() + sum(spool.lost().values()) == sum(SIZES)
    executions = spool.rows("kernel_executions")
    windows = pq.read_table(spool.root / "device_windows").to_pylist() if spool.files("device_windows") else []
    assert executions + sum(window["lost"] for window in windows) == 997
    assert (spool.rows() == sum(SIZES)) == (at == "before the account")


def test_on_a_full_disk_the_rows_make_room_for_their_account(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = spool.policy(1)
    write = SegmentWriter.write

    def writing(self: SegmentWriter, table: str, rows: Any) -> Path:
        if spool.files():
            raise OSError(28, "No space left on device")
        return write(self, table, rows)

    monkeypatch.setattr(SegmentWriter, "write", writing)
    policy.apply()
    assert spool.files() == []
    assert sum(spool.lost().values()) == sum(SIZES)


def test_a_torn_segment_and_a_torn_note_are_no_obstacle(spool: Spool) -> None:
    (spool.root / "cuda_events" / "torn.parquet").write_bytes(b"torn" * 100)
    (spool.root / ".shedding").write_text("{")
    (spool.root / ".shipped").write_bytes(b"?a\n+b/c/d\n\xff\n+" + os.urandom(20))
    old, fresh = spool.root / "kernels" / ".a.parquet.tmp", spool.root / "kernels" / ".b.parquet.tmp"
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

    policy = spool.policy(spool.bytes - first.size - 1)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        with pytest.raises(PermissionError):
            policy.apply()
        policy.apply()
    assert not second.path.exists()
    assert policy.shed.rows["cuda_events"] == spool.lost()["launches"] + spool.lost()["syncs"]


@pytest.mark.parametrize("victim", ["/{0}", "../precious", "cuda_events/../../precious", "cuda_events/.."])
def test_a_forged_note_removes_nothing_outside(tmp_path: Path, victim: str) -> None:
    precious = tmp_path / "precious"
    precious.touch()
    spool = Spool(tmp_path / "spool")
    account = spool.files("agent_health")[0].key
    note = {"accounts": [account], "victims": [victim.format(precious)]}
    (spool.root / ".shedding").write_text(json.dumps(note))
    spool.policy(spool.bytes).apply()
    assert precious.exists()
    assert not (spool.root / ".shedding").exists()
    assert spool.rows() == sum(SIZES)
    for journal in spool.journals:
        journal.close()
