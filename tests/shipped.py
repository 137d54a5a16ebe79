"""A capture made by the agent's own writer, and whether a server holds exactly its rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import captures
from kdiff.agent.segment_files import Listing
from kdiff.agent.segments import SegmentWriter
from kdiff.agent.shipping import Hooks, Shipper, Tally
from kdiff.queries.address import Address
from kdiff.queries.connection import connect
from kdiff.queries.migrations import migrate
from kdiff.queries.tables import ROLLUPS, TABLES
from server import StandIn

BOOT = "0123456789abcdef"
_KERNELS = [f"void kernel_{i}<float, {i}>(float*)" for i in range(7)]


def events(rows: int, seed: int, from_ns: int, host: str = "host-1", service: str = "svc") -> pa.Table:
    """Launches and syncs of a few seconds; no two rows are alike."""
    random = np.random.default_rng(seed)
    kernels = random.integers(0, len(_KERNELS), rows)
    kinds = random.integers(0, 8, rows)
    sync = kinds == 0
    times = from_ns + np.cumsum(random.integers(1, 9_000, rows))
    names = pa.DictionaryArray.from_arrays(pa.array(np.where(sync, 7, kernels), pa.int32()), [*_KERNELS, ""])
    kind = pa.DictionaryArray.from_arrays(
        pa.array(np.where(sync, 2, np.where(kinds == 1, 1, 0)), pa.int32()), ["launch", "graph_launch", "sync"]
    )
    table = captures.table(
        "cuda_events",
        {
            "timestamp_ns": times,
            "duration_ns": random.integers(0, 20_000, rows),
            "completion_ns": np.where(sync, 0, random.integers(0, 900_000, rows)),
            "batch_launches": np.where(sync, 0, random.integers(1, 3, rows)),
            "service": service,
            "host": host,
            "pid": 1000 + seed % 3,
            "tid": 1000,
            "stream": random.integers(0, 5, rows),
            "grid_x": random.integers(1, 4, rows),
            "block_x": 128,
        },
        rows=rows,
    )
    table = table.set_column(table.schema.get_field_index("kernel_name"), table.schema.field("kernel_name"), names)
    return table.set_column(table.schema.get_field_index("kind"), table.schema.field("kind"), kind)


def health(from_ns: int, to_ns: int, rows: int) -> pa.Table:
    columns = {"from_ns": [from_ns], "to_ns": to_ns, "service": "svc", "host": "host-1", "events": rows}
    return captures.table("agent_health", columns, rows=1)


def write(root: Path, sizes: Sequence[int], *, host: str = "host-1", began_ns: int | None = None) -> SegmentWriter:
    """A capture with a segment of cuda_events of each size, kernels before and accounts behind, as the agent writes."""
    began_ns = began_ns or time.time_ns() - 3_600_000_000_000
    writer = SegmentWriter(root, host, BOOT, began_ns)
    writer.write("kernels", captures.table("kernels", {"kernel_id": [1, 2, 3], "first_seen_ns": began_ns}, rows=3))
    at = began_ns
    for number, size in enumerate(sizes):
        rows = events(size, number, at, host)
        end = int(rows["timestamp_ns"][-1].as_py()) + 1
        writer.write("cuda_events", rows)
        writer.write("agent_health", health(at, end, size))
        at = end
    return writer


def _checksum(table: str) -> str:
    """Of the rows as a set with repetitions; the same on every engine."""
    hashed = f"cityHash64(tuple({', '.join(TABLES[table].names)}))"
    return f"count(), sum({hashed}), groupBitXor({hashed}), sum(cityHash64({hashed}))"


def checksum_of_server(client: Any, table: str = "cuda_events") -> tuple[int, ...]:
    return tuple(client.query(f"SELECT {_checksum(table)} FROM {table}").result_rows[0])


def checksum_of_files(client: Any, roots: Sequence[Path], table: str = "cuda_events") -> tuple[int, ...]:
    """By the same engine, from rows that were read by pyarrow and put into a table of no engine's cleverness."""
    client.command(f"CREATE OR REPLACE TABLE plain_{table} ENGINE = MergeTree ORDER BY () AS {table}")
    for root in roots:
        for path in sorted((root / table).glob("*.parquet")):
            client.insert_arrow(f"plain_{table}", pq.read_table(path))
    found = client.query(f"SELECT {_checksum(table)} FROM plain_{table}").result_rows[0]
    client.command(f"DROP TABLE plain_{table} SYNC")
    return tuple(found)


ROLLED_UP = """
SELECT sum(launches), sum(completions), sum(isolated_ns), sum(launch_ns), sum(arraySum(mapValues(isolated_bins))),
    sum(arraySum(mapValues(shared_bins))), sum(arraySum(mapValues(call_bins))),
    (SELECT (sum(launches), sum(completions), sum(arraySum(mapValues(call_bins)))) FROM kernel_hours),
    (SELECT sum(launches) FROM process_hours), (SELECT (sum(events), sum(covered_ns)) FROM health_hours)
FROM kernel_minutes
"""
FROM_ROWS = """
SELECT count(), countIf(completion_ns > 0), sumIf(completion_ns, batch_launches = 1), sum(duration_ns),
    countIf(completion_ns > 0 AND batch_launches = 1), countIf(completion_ns > 0 AND batch_launches > 1),
    countIf(duration_ns > 0),
    (count(), countIf(completion_ns > 0), countIf(duration_ns > 0)),
    count(), (SELECT (sum(events), sum(to_ns - from_ns)) FROM agent_health)
FROM cuda_events WHERE kind IN ('launch', 'graph_launch')
"""


@contextmanager
def migrated(address: Address, name: str) -> Iterator[Address]:
    """A database of that name, dropped in the end."""
    address = replace(address, database=name)
    client = connect(address, database="")
    migrate(client, name)
    yield address
    client.command(f"DROP DATABASE {name} SYNC")
    client.close()


@contextmanager
def own_server(path: Path) -> Iterator[StandIn]:
    """A stand-in that may be stopped and killed, with a migrated database `kdiff`."""
    with StandIn(path) as running:
        client = connect(running.address(), database="")
        migrate(client, "kdiff")
        client.close()
        yield running


@pytest.fixture(scope="module")
def client(database: Address) -> Iterator[Any]:
    """Of the module's database."""
    client = connect(database)
    yield client
    client.close()


@pytest.fixture
def store(client: Any) -> Any:
    """A client of the database, whose tables are empty."""
    empty(client)
    return client


def empty(client: Any) -> None:
    for table in (*TABLES, *ROLLUPS, "shipped_segments"):
        client.command(f"TRUNCATE TABLE {table}")


def count(client: Any, table: str = "cuda_events") -> int:
    return int(client.query(f"SELECT count() FROM {table}").first_row[0])


def ship(address: Address, root: Path, **options: Any) -> Tally:
    notes: list[str] = []
    shipper = Shipper(lambda: address, Hooks(note=notes.append), **options)
    try:
        shipper.ship(Listing(root, notes.append).read())
    finally:
        shipper.close()
    return shipper.tally
