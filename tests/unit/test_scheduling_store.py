"""What threads waited in stores: shipped as it was recorded, null where it was not, and told by both engines alike."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shipped

import captures
from captures import SECOND
from kdiff.agent.segments import SegmentWriter
from kdiff.analysis.compare import Options, compare
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.report import Scheduling
from kdiff.analysis.window import Window
from kdiff.queries.address import Address
from kdiff.queries.connection import connect
from kdiff.queries.migrations import migrate
from kdiff.queries.server import ServerStore
from kdiff.queries.store import CaptureStore
from kdiff.queries.tables import WAITS

pytestmark = pytest.mark.usefixtures("engine")

COUNT = 4_003
WAITED = 3_000_000


def written(root: Path) -> tuple[Window, Window]:
    """Isolated launches and their syncs in two windows of ten minutes, the second with waits in each 50th sync."""
    begin = (time.time_ns() // SECOND - 1_800) * SECOND
    windows = Window(begin, begin + 600 * SECOND), Window(begin + 600 * SECOND, begin + 1200 * SECOND)
    writer = SegmentWriter(root, "host-1", shipped.BOOT, begin)
    for seed, window in enumerate(windows):
        times = captures.spread(window.from_ns, window.to_ns, COUNT)
        took = (90_000 * np.random.default_rng(seed).lognormal(0.0, 0.1, COUNT)).astype(np.int64)
        waits = np.zeros(COUNT, np.int64)
        if seed:
            waits[::50] = WAITED
        took += waits
        known = {"runnable_ns": 0, "blocked_ns": 0, "runnable_before_ns": 11, "blocked_before_ns": 22}
        launched = captures.launches("gelu", times, completion_ns=took, tid=7, **known)
        known |= {"runnable_ns": waits, "blocked_ns": took - waits - 9_000, "runnable_before_ns": 0}
        entered = {"kind": "sync", "duration_ns": took - 9_000, "tid": 7}
        writer.write(
            "cuda_events", pa.concat_tables([launched, captures.launches("gelu", times + 9_000, **entered, **known)])
        )
        writer.write("agent_health", captures.health(window.from_ns, window.to_ns))
    return windows


def test_a_server_has_them_and_says_the_same(database: Address, tmp_path: Path) -> None:
    root = tmp_path / "capture"
    before, after = written(root)
    client = connect(database)
    migrate(client, database.database)
    shipped.ship(database, root)
    names = ", ".join(f"sum({name})" for name in WAITS.names)
    rows = pq.read_table(root / "cuda_events").select(WAITS.names).to_pandas().sum()
    assert client.query(f"SELECT {names} FROM cuda_events").first_row == tuple(rows.tolist())
    client.close()
    found = []
    with ServerStore(database) as server, CaptureStore(root) as capture:
        for store in (server, capture):
            report = compare(Evidence(store, before), Evidence(store, after), Options(metric="completion"))
            (row,) = report.kernels
            found.append((row.scheduling_before, row.scheduling_after, row.reasons))
    assert found[0] == found[1]
    assert found[0][1].waited_ns == WAITED * -(-COUNT // 50)
    assert (found[0][0].n, found[0][0].known, found[0][0].waited_ns) == (COUNT, COUNT, 0)
    assert any(reason.startswith("The host was preempted: ") for reason in found[0][2])
    assert isinstance(found[0][0], Scheduling)


def test_segments_of_before_it_was_kept_have_null(database: Address, tmp_path: Path) -> None:
    root = tmp_path / "capture"
    before, _ = written(root)
    for path in (root / "cuda_events").iterdir():
        pq.write_table(pq.read_table(path).drop_columns(WAITS.names), path)
    client = connect(database)
    migrate(client, database.database)
    assert shipped.ship(database, root).rows == 4 * COUNT + 120
    names = ", ".join(f"count({name})" for name in WAITS.names)
    assert client.query(f"SELECT count(), {names} FROM cuda_events").first_row == (4 * COUNT, 0, 0, 0, 0)
    client.close()
    params: dict[str, int | str | list[int]] = {"from_ns": before.from_ns, "to_ns": before.to_ns, "service": ""}
    with ServerStore(database) as server, CaptureStore(root) as capture:
        for store in (server, capture):
            assert store.query("waits_known", params).to_pylist() == [{"known": 0}]
            rows = store.query("rows_cuda_events", params)
            assert [rows[name].null_count for name in WAITS.names] == [2 * COUNT] * 4
