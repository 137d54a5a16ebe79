"""Accounts of rows that are given up: what `agent_health` and `device_windows` say instead of them.

The rows of one victim's account are a block of their own when they are shipped, called after the victim: a server that
has the victim is not told that it is lost, and one that counts it as lost takes it from nobody.
"""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kdiff.agent.segment_files import SegmentFile
from kdiff.queries.segments_read import UnreadableError, read_footer
from kdiff.queries.segments_write import layout, required
from kdiff.queries.tables import AGENT_HEALTH, DEVICE_WINDOWS, KIND_SYNC, TABLES

ACCOUNTS: Final = ("device_windows", "agent_health")
"""The tables that account for the rows of others."""
_BATCH_ROWS: Final = 1 << 17
_MOST_GROUPS: Final = 1000
_VICTIMS_KEY: Final = b"kdiff:given_up"
_GROUPED_BY: Final = {
    "cuda_events": ["service", "host", "kind"],
    "kernel_executions": ["service", "host", "pid", "container_id"],
}
_SAME: Final = {
    "agent_health": ("service", "host"),
    "device_windows": ("service", "host", "pid", "container_id"),
}
_ADDED_UP: Final = {
    "agent_health": ("events", "lost_launches", "lost_syncs", "lost_other", "agent_cpu_ns", "unresolved_launches"),
    "device_windows": ("uncollected", "dropped", "lost", "inside_ns", "skipped"),
}
_GREATEST: Final = {
    "agent_health": ("to_ns", "drain_lag_ns", "attached_probes"),
    "device_windows": ("clock_error_ns",),
}


@dataclass(frozen=True, slots=True)
class Victim:
    """A segment that an account stands for. `identity`: what no other segment of its table is called."""

    table: str
    identity: str
    rows: int


NO_VICTIM: Final = Victim("", "", 0)


@dataclass
class Accounts:
    """The rows of the accounts of one batch of victims."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {table: [] for table in ACCOUNTS})
    victims: dict[str, list[tuple[Victim, int]]] = field(default_factory=lambda: {table: [] for table in ACCOUNTS})
    sums: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {table: [] for table in ACCOUNTS})

    def add(self, file: SegmentFile, identity: Callable[[], str]) -> int:
        """Accounts for a segment; returns its rows. Those of an account are summed up.

        `identity` is asked for where there is an account: of a foreign file it takes as long as reading it.
        A segment that cannot be read has no rows: it could not have been shipped either. Raises OSError where it is
        this process that cannot read it now: for want of memory or of descriptors.
        """
        try:
            read_footer(file.path, file.table, TABLES[file.table])
            with pq.ParquetFile(file.path) as parquet:
                rows = int(parquet.metadata.num_rows)
                if file.table in ACCOUNTS:
                    self._take_over(file, parquet)
                if file.table not in _GROUPED_BY or not rows:
                    return rows
                groups = _groups(file.table, parquet)
            victim = Victim(file.table, identity(), rows)
        except (OSError, ValueError, MemoryError, pa.ArrowException, UnreadableError) as error:
            if wants := _wants(error):
                raise OSError(wants, f"{os.strerror(wants)} to read what is to be given up") from error
            return 0
        table, account = "agent_health", [_health_row(group) for group in groups]
        if file.table != "cuda_events":
            table, account = "device_windows", [_window_row(group) for group in groups]
        self.rows[table] += account
        self.victims[table].append((victim, len(account)))
        return rows

    def _take_over(self, file: SegmentFile, parquet: pq.ParquetFile) -> None:
        """An account: what counts a victim stays as it is, all else is added up. All of a file, or none of it."""
        metadata = parquet.metadata
        told = victims_of(metadata.metadata, file.table, metadata.num_rows) if file.own else []
        sums = [row.copy() for row in self.sums[file.table]]
        kept: list[dict[str, Any]] = []
        if not told:
            for batch in parquet.iter_batches(_BATCH_ROWS):
                _sum_up(file.table, pa.Table.from_batches([batch]), sums)
        else:
            rows, at = parquet.read(), 0
            for victim, count in told:
                part = rows.slice(at, count)
                at += count
                if victim == NO_VICTIM:
                    _sum_up(file.table, part, sums)
                else:
                    kept += part.to_pylist()
        self.rows[file.table] += kept
        self.victims[file.table] += [one for one in told if one[0] != NO_VICTIM]
        self.sums[file.table] = sums

    def segments(self) -> Iterable[tuple[str, bytes]]:
        """The table of each segment to write, and its bytes."""
        for table in ACCOUNTS:
            victims, sums = self.victims[table], self.sums[table]
            if not victims and not sums:
                continue
            told = [*victims, (NO_VICTIM, len(sums))] if sums else victims
            metadata = json.dumps([[victim.table, victim.identity, victim.rows, count] for victim, count in told])
            yield table, _parquet(table, self.rows[table] + sums, {_VICTIMS_KEY: metadata} if victims else {})


def _wants(error: BaseException | None) -> int:
    """ENOMEM, EMFILE or ENFILE where that is why; 0 where it lies in the file."""
    while error is not None:
        if isinstance(error, MemoryError):
            return errno.ENOMEM
        if isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EMFILE, errno.ENFILE):
            return error.errno
        error = error.__cause__
    return 0


def victims_of(metadata: dict[bytes, bytes] | None, table: str, rows: int) -> list[tuple[Victim, int]]:
    """The victims that a segment accounts for, and how many of its rows are of each; [] for any other segment.

    NO_VICTIM has the rows that add up what other accounts were.
    """
    told = (metadata or {}).get(_VICTIMS_KEY)
    if told is None or table not in ACCOUNTS:
        return []
    try:
        found = [(Victim(str(of), str(name), int(lost)), int(count)) for of, name, lost, count in json.loads(told)]
    except (ValueError, TypeError):
        return []
    counts = [count for _, count in found]
    whole = min(counts, default=0) > 0 and sum(counts) == rows
    known = all(victim == NO_VICTIM or (victim.table in _GROUPED_BY and victim.rows > 0) for victim, _ in found)
    return found if whole and known else []


def _parquet(table: str, rows: list[dict[str, Any]], metadata: dict[bytes, str]) -> bytes:
    data = pa.Table.from_pylist(rows, TABLES[table])
    schema = required(data.schema).with_metadata(metadata or None)
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(data.columns, schema=schema), file, **layout(schema))
    return file.getvalue()


def _groups(table: str, parquet: pq.ParquetFile) -> list[dict[str, Any]]:
    """How many rows of each group, and from when to when; in memory bounded by a batch, however many rows there are."""
    present = set(parquet.schema_arrow.names)
    by = _GROUPED_BY[table]
    wanted = [name for name in by if name in present]
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for batch in parquet.iter_batches(_BATCH_ROWS, columns=[*wanted, "timestamp_ns"]):
        plain = {name: _plain(batch.column(name)) for name in batch.schema.names}
        for name in set(by) - plain.keys():
            plain[name] = pa.array([_default(TABLES[table].field(name).type)] * len(batch))
        groups = pa.table(plain).group_by(by, use_threads=False)
        told = groups.aggregate([("timestamp_ns", "min"), ("timestamp_ns", "max"), ([], "count_all")])
        for group in told.to_pylist():
            key = tuple(group[name] for name in by)
            if key not in found and len(found) >= _MOST_GROUPS:  # of no recording: they are counted together
                key, group = (), group | dict.fromkeys(by)
            known = found.setdefault(key, group | {"count_all": 0})
            known["count_all"] += group["count_all"]
            for name, of in (("timestamp_ns_min", min), ("timestamp_ns_max", max)):
                known[name] = of(known[name] or 0, group[name] or 0)
    return list(found.values())


def _sum_up(table: str, rows: pa.Table, sums: list[dict[str, Any]]) -> None:
    """Adds accounts to those of the same in `sums`: what they count as lost stays lost."""
    for given in rows.select([name for name in TABLES[table].names if name in rows.column_names]).to_pylist():
        row = _blank(TABLES[table]) | {name: value for name, value in given.items() if value is not None}
        if table == "device_windows":
            # Its rows are given up too, or in the store: what is left is what was lost, and no time was covered.
            row |= {"executions": 0, "to_ns": row["from_ns"], "ended": "shed"}
        same = next((one for one in sums if all(one[name] == row[name] for name in _SAME[table])), None)
        if same is None:
            sums.append(row)
            continue
        for name in _ADDED_UP[table]:
            same[name] += row[name]
        same["from_ns"] = min(same["from_ns"], row["from_ns"])
        for name in _GREATEST[table]:
            same[name] = max(same[name], row[name])
        if table == "device_windows":
            same["to_ns"] = same["from_ns"]


def _health_row(group: dict[str, Any]) -> dict[str, Any]:
    return (
        _blank(AGENT_HEALTH)
        | {"from_ns": group["timestamp_ns_min"] or 0, "to_ns": (group["timestamp_ns_max"] or 0) + 1}
        | {name: group[name] or "" for name in ("service", "host")}
        | {"lost_syncs" if group.get("kind") == KIND_SYNC else "lost_launches": group["count_all"]}
    )


def _window_row(group: dict[str, Any]) -> dict[str, Any]:
    """A window without length: it counts, and no call lies in it."""
    return (
        _blank(DEVICE_WINDOWS)
        | {"from_ns": group["timestamp_ns_min"] or 0, "to_ns": group["timestamp_ns_min"] or 0}
        | {name: group[name] or "" for name in ("service", "host", "container_id")}
        | {"pid": group["pid"] or 0, "lost": group["count_all"], "ended": "shed"}
    )


def _plain(column: pa.Array) -> pa.Array:
    return pc.cast(column, pa.string()) if pa.types.is_dictionary(column.type) else column


def _blank(schema: pa.Schema) -> dict[str, Any]:
    return {column.name: _default(column.type) for column in schema}


def _default(kind: pa.DataType) -> str | int:
    return "" if pa.types.is_dictionary(kind) or pa.types.is_string(kind) else 0
