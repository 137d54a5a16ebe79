"""Rows of gpu_samples in captures and on servers: as they were sampled, what is null too."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shipped
from command_line import kdiff, named

import captures
from captures import SECOND
from kdiff.agent.disk_policy import DiskPolicy, account_prefix
from kdiff.agent.journal import Journal
from kdiff.agent.segment_files import Listing
from kdiff.agent.segments import SegmentWriter, Spool
from kdiff.queries import export
from kdiff.queries.address import Address
from kdiff.queries.connection import connect
from kdiff.queries.errors import StoreError
from kdiff.queries.migrations import migrate
from kdiff.queries.segments_read import UnreadableError, read_footer
from kdiff.queries.server import ServerStore
from kdiff.queries.store import CaptureStore, Params, Store
from kdiff.queries.tables import GPU_SAMPLES, WAITS
from kdiff.queries.tables import NULLABLE as NULLABLE_COLUMNS

GPUS = ("GPU-a", "GPU-b")
NULLABLE = NULLABLE_COLUMNS - set(WAITS.names)


def samples(from_ns: int, seconds: int, service: str = "svc") -> pa.Table:
    """Two GPUs: one that supports everything, one that supports nothing."""
    rows = []
    for second in range(seconds):
        at = from_ns + second * SECOND
        place = {"service": service, "host": "host-1", "parent_uuid": "", "gpu_name": "NVIDIA H200"}
        readings = {name: second * 100 + number for number, name in enumerate(sorted(NULLABLE))}
        full = {"throttle_reasons": (1 << 63) + second, "pids": [4242, 4243 + second], "pid_memory_bytes": [7, None]}
        rows.append(place | readings | full | {"timestamp_ns": at, "gpu_uuid": GPUS[0]})
        bare = {"timestamp_ns": at + 5, "gpu_uuid": GPUS[1], "pids": [], "pid_memory_bytes": []}
        rows.append(place | bare | dict.fromkeys(NULLABLE))
    return pa.Table.from_pylist(rows, schema=GPU_SAMPLES)


def now() -> int:
    """A whole minute, lately: a server drops rows that are old."""
    return (time.time_ns() // captures.MINUTE - 60) * captures.MINUTE


def rows_of(root: Path) -> list[dict[str, Any]]:
    return [row for path in sorted((root / "gpu_samples").iterdir()) for row in pq.read_table(path).to_pylist()]


def answer(store: Store, begin: int, service: str = "") -> list[dict[str, Any]]:
    """What the query says, in the order of the rows."""
    params: Params = {"from_ns": begin, "to_ns": begin + 3600 * SECOND, "service": service}
    return sorted(store.query("gpu_samples", params).to_pylist(), key=lambda row: row["timestamp_ns"])


def answered(table: pa.Table) -> list[dict[str, Any]]:
    """What the query says of these rows."""
    return [{name: value for name, value in row.items() if name != "service"} for row in table.to_pylist()]


def test_a_segment_says_which_columns_may_be_null(tmp_path: Path) -> None:
    path = SegmentWriter(tmp_path, "host-1", shipped.BOOT, 1).write("gpu_samples", samples(now(), 3))
    schema = pq.read_schema(path)
    assert {field.name for field in schema if field.nullable} == NULLABLE
    assert len(NULLABLE) == 12
    assert pq.read_table(path).to_pylist() == samples(now(), 3).to_pylist()
    found = read_footer(path, "gpu_samples", GPU_SAMPLES)
    assert (found.first_ns, found.last_ns) == (now(), now() + 2 * SECOND + 5)
    captures.write(tmp_path, "gpu_samples", pa.table({"timestamp_ns": [1], "gpu_uuid": ["a"], "pids": ["1"]}), "odd")
    with pytest.raises(UnreadableError, match="column pids is string, not list"):
        read_footer(tmp_path / "gpu_samples" / "odd.parquet", "gpu_samples", GPU_SAMPLES)


def test_samples_are_shipped_as_they_are_and_once(database: Address, tmp_path: Path) -> None:
    begin, root = now(), tmp_path / "capture"
    wanted = samples(begin, 101)
    SegmentWriter(root, "host-1", shipped.BOOT, begin).write("gpu_samples", wanted)
    client = connect(database)
    migrate(client, database.database)
    assert shipped.ship(database, root).rows == 202
    assert shipped.ship(database, root).rows == 0
    assert shipped.checksum_of_server(client, "gpu_samples") == shipped.checksum_of_files(client, [root], "gpu_samples")
    with ServerStore(database) as server, CaptureStore(root) as capture:
        for store in (server, capture):
            assert answer(store, begin) == answered(wanted)
            assert answer(store, begin, "svc") == answer(store, begin)
            assert answer(store, begin, "another") == []
            assert answer(store, begin + 100 * SECOND) == answered(wanted)[-2:]
    client.close()


@pytest.mark.parametrize("server", [False, True])
def test_an_export_holds_them_however_many_there_are(
    database: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: bool
) -> None:
    monkeypatch.setattr(export, "MAX_ROWS", 37)
    begin, root = now(), tmp_path / "capture"
    SegmentWriter(root, "host-1", shipped.BOOT, begin).write("gpu_samples", samples(begin, 101))
    if server:
        client = connect(database)
        migrate(client, database.database)
        client.close()
        shipped.ship(database, root)
    target, window = tmp_path / "out", (begin + SECOND, begin + 100 * SECOND)
    with ServerStore(database) if server else CaptureStore(root) as store:
        pieces = export.slices(store, *window, "svc")
        assert max(piece.rows for piece in pieces) <= 37
        counts = export.write_capture(store, "svc", window, pieces, target, lambda _: None)
    assert counts == {"gpu_samples": 198}
    found = sorted(rows_of(target), key=lambda row: int(row["timestamp_ns"]))
    assert found == samples(begin, 101).to_pylist()[2:-2]
    schema = pq.read_schema(next((target / "gpu_samples").iterdir()))
    assert {field.name for field in schema if field.nullable} == NULLABLE


def test_nulls_where_kdiff_writes_none_are_refused(database: Address, tmp_path: Path) -> None:
    begin = now()
    client = connect(database, settings={"mutations_sync": 2})
    migrate(client, database.database)
    client.insert_arrow("gpu_samples", samples(begin, 3))
    client.command("ALTER TABLE gpu_samples MODIFY COLUMN gpu_name Nullable(String)")
    client.command("ALTER TABLE gpu_samples UPDATE gpu_name = NULL WHERE 1")
    client.close()
    window = (begin, begin + 10 * SECOND)
    with ServerStore(database) as store, pytest.raises(StoreError, match="the column gpu_name lacks values"):
        export.write_capture(store, "", window, export.slices(store, *window, ""), tmp_path / "out", lambda _: None)


@pytest.mark.parametrize("server", [False, True])
def test_old_samples_are_deleted(
    database: Address,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    server: bool,
) -> None:
    # A server deletes to the whole hour: the cut is on one.
    begin, root = now() // (3600 * SECOND) * 3600 * SECOND - 60 * SECOND, tmp_path / "capture"
    writer = SegmentWriter(root, "host-1", shipped.BOOT, begin)
    writer.write("gpu_samples", samples(begin, 101))
    writer.write("gpu_samples", samples(begin, 11, "other"))
    store: Path | Address = root
    if server:
        client = connect(database)
        migrate(client, database.database)
        client.close()
        shipped.ship(database, root)
        store = database
    cut = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begin // SECOND + 60))
    asked = ["delete", "--store", named(monkeypatch, store), "--before", cut, "--service", "svc", "--yes"]
    done = kdiff(monkeypatch, capsys, *asked)
    assert (done.code, done.err) == (0, "")
    assert "rows 120 of gpu_samples" in done.out
    with ServerStore(database) if server else CaptureStore(root) as left:
        assert answer(left, begin, "svc") == answered(samples(begin, 101))[120:]
        assert answer(left, begin, "other") == answered(samples(begin, 11))


def test_a_full_spool_gives_samples_up_with_the_launches_of_their_time(tmp_path: Path) -> None:
    begin = now()
    shipped.write(tmp_path, [5003], began_ns=begin)
    writer = SegmentWriter(tmp_path, "host-1", shipped.BOOT, begin - 1)
    for number in range(5):
        writer.write("gpu_samples", samples(begin + number * 100 * SECOND, 100))
    journal = Journal(tmp_path)
    sizes = [path.stat().st_size for path in (tmp_path / "gpu_samples").iterdir()]
    total = sum(path.stat().st_size for path in tmp_path.glob("*/*.parquet"))
    policy = DiskPolicy(
        Listing(tmp_path, print), total - min(sizes), journal, account_prefix("h", shipped.BOOT, begin), print
    )
    policy.apply()
    journal.close()
    gone = policy.shed.rows["gpu_samples"]
    assert gone > 0
    assert gone % 200 == 0
    assert len(rows_of(tmp_path)) == 1000 - gone
    assert rows_of(tmp_path)[0]["timestamp_ns"] == begin + gone // 200 * 100 * SECOND


def test_samples_that_wait_for_a_full_disk_are_bounded_and_no_lost_executions(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, "host-1", shipped.BOOT, 1)
    (tmp_path / "gpu_samples").write_text("in the way")
    spool = Spool(writer, keep_at_most=500)
    for number in range(5):
        spool.put("gpu_samples", samples(number * 100 * SECOND, 100))
    refused, dropped = spool.write()
    assert refused is not None
    assert (dropped, spool.dropped_executions) == (0, 0)
    (tmp_path / "gpu_samples").unlink()
    assert spool.write() == (None, 0)
    assert [row["timestamp_ns"] // SECOND for row in rows_of(tmp_path)][::200] == [300, 400]
