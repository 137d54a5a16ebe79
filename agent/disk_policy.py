"""What goes when a spool is larger than it may be: first what the server has, then the oldest rows, which are counted.

Rows that are given up are accounted for in `agent_health` and `device_windows`, in the stretch of time in which they
lay: those accounts are segments as all others and are shipped as they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kdiff.agent.blocks import hold_for_shedding
from kdiff.agent.errors import AgentError
from kdiff.agent.journal import Journal
from kdiff.agent.segment_files import Listing, SegmentFile
from kdiff.agent.segments import SegmentWriter
from kdiff.queries.printable import printable
from kdiff.queries.segments_read import SUFFIX, UnreadableError, read_footer
from kdiff.queries.segments_write import sync_directory
from kdiff.queries.tables import AGENT_HEALTH, DEVICE_WINDOWS, KIND_SYNC, TABLES

_INTENT: Final = ".shedding"
_TORN_AFTER_S: Final = 3600.0
_DOWN_TO: Final = 0.9  # of the bound: a batch has one account
_RESERVE_BYTES: Final = 256 << 20  # of free space, as far as confirmed segments can give it
# What is given up first comes first. Names and accounts are small, and say what the rest means.
_SHED_ORDER: Final = {
    "cuda_events": 0,
    "kernel_executions": 0,
    "device_windows": 1,
    "agent_health": 2,
    "kernels": 2,
}


@dataclass
class Shed:
    """What went so far."""

    rows: dict[str, int] = field(default_factory=dict)  # given up, by table
    segments: int = 0
    removed: int = 0  # segments that the server had


class DiskPolicy:
    """Keeps a spool within a bound. One for a directory at a time; a shipper may run beside it."""

    def __init__(
        self,
        listing: Listing,
        max_bytes: int,
        journal: Journal,
        writer: Callable[[], SegmentWriter],
        note: Callable[[str], None],
    ) -> None:
        """`writer` is asked for once there is an account: before that a full disk may refuse one.

        `note` is told once that rows are given up. Ends what a kill cut short.
        """
        self._listing = listing
        self._root = listing.root
        self._max_bytes = max_bytes
        self._journal = journal
        self._open_writer = writer
        self._opened: SegmentWriter | None = None
        self._note: Callable[[str], None] | None = note
        self._owed: list[tuple[str, pa.Table]] = []  # accounts that the disk has refused
        self._counted: set[str] = set()  # segments that are accounted for and cannot be removed
        self.shed = Shed()
        self.bytes = 0  # in the spool
        self.waiting = self.waiting_bytes = 0  # of it, what no server has confirmed
        self._recover()

    @property
    def _writer(self) -> SegmentWriter:
        if self._opened is None:
            self._opened = self._open_writer()
        return self._opened

    def apply(self) -> None:
        """Removes what is too much. Raises OSError, StoreError."""
        with contextlib.suppress(OSError, AgentError):
            self._write_owed()
        files = self._listing.read()
        self.bytes = sum(file.size for file in files)
        waiting = [file.size for file in files if not self._journal.is_confirmed(file.key)]
        self.waiting, self.waiting_bytes = len(waiting), sum(waiting)
        free = os.statvfs(self._root)
        short = min(_RESERVE_BYTES, free.f_blocks * free.f_frsize // 100) - free.f_bavail * free.f_frsize
        self._remove_confirmed(files, max(self.bytes - self._max_bytes, short))
        if self.bytes > self._max_bytes:
            self._give_up(files, self.bytes - int(self._max_bytes * _DOWN_TO))

    def _remove_confirmed(self, files: Iterable[SegmentFile], excess: int) -> None:
        for file in files:
            if excess <= 0:
                return
            if self._journal.is_confirmed(file.key) and file.path.exists():
                file.path.unlink(missing_ok=True)
                self._journal.forget(file.key)
                self.shed.removed += 1
                self.bytes -= file.size
                excess -= file.size

    def _give_up(self, files: list[SegmentFile], excess: int) -> None:
        with ExitStack() as held:
            victims: list[SegmentFile] = []
            for file in sorted(files, key=lambda file: (_SHED_ORDER[file.table], file.order)):
                if excess <= 0:
                    break
                # What the server may have is not called lost.
                if self._journal.is_confirmed(file.key) or self._journal.in_doubt(file.key):
                    continue
                if file.key in self._counted:
                    continue
                stream = hold_for_shedding(file.path)
                if stream is not None:
                    held.enter_context(stream)
                    victims.append(file)
                    excess -= file.size
            accounts = [file for file in victims if file.table == "agent_health"]
            if len(accounts) == 1:  # nothing to sum up
                victims.remove(accounts[0])
            if not victims:
                return
            if self._note is not None:
                self._note(
                    f"{printable(str(self._root))} is over its {self._max_bytes:,} bytes and no server has confirmed "
                    "what it holds: the oldest rows are given up and counted as lost"
                )
                self._note = None
            self._account_and_remove(victims)

    def _account_and_remove(self, victims: list[SegmentFile]) -> None:
        health: list[dict[str, Any]] = []
        windows: list[dict[str, Any]] = []
        for file in victims:
            rows = _account(file, health, windows)
            if file.table != "agent_health":  # those are summed up
                self.shed.rows[file.table] = self.shed.rows.get(file.table, 0) + rows
            self.shed.segments += 1
        # The last one is the one that counts: once it is there, the victims are lost.
        accounts = [("device_windows", pa.Table.from_pylist(windows, DEVICE_WINDOWS))] if windows else []
        if health:
            accounts.append(("agent_health", pa.Table.from_pylist(health, AGENT_HEALTH)))
        self._owed += accounts
        with contextlib.suppress(OSError, AgentError):  # a full disk has no room for an account: the victims make it
            self._intend(victims, accounts)
            self._write_owed()
        self._counted |= {file.key for file in victims}
        self._remove(file.path for file in victims)
        self._counted -= {file.key for file in victims}
        self.bytes -= sum(file.size for file in victims)
        for file in victims:
            self._journal.forget(file.key)
        with contextlib.suppress(OSError, AgentError):
            self._write_owed()
            (self._root / _INTENT).unlink(missing_ok=True)

    def _write_owed(self) -> None:
        while self._owed:
            self._writer.write(*self._owed[0])
            del self._owed[0]

    def _intend(self, victims: list[SegmentFile], accounts: list[tuple[str, pa.Table]]) -> None:
        """Notes what is about to happen, so that a kill in between counts nothing twice."""
        if not accounts:
            return
        before = len(self._owed) - len(accounts)  # older ones, which are written first
        paths = [
            self._writer.next_path(table, before + ahead).relative_to(self._root)
            for ahead, (table, _) in enumerate(accounts)
        ]
        intent = {"accounts": [str(path) for path in paths], "victims": [file.key for file in victims]}
        beside = self._root / f"{_INTENT}.tmp"
        beside.write_text(json.dumps(intent), encoding="ascii")
        beside.replace(self._root / _INTENT)

    def _recover(self) -> None:
        for torn in self._root.glob("*/.*.tmp"):  # of a writer that was killed
            with contextlib.suppress(OSError):
                if time.time() - torn.stat().st_mtime > _TORN_AFTER_S:
                    torn.unlink()
        path = self._root / _INTENT
        try:
            if not path.is_file():  # opening a FIFO would wait for ever
                return
            intent = json.loads(path.read_text(encoding="ascii"))
            accounts = [self._segment(name) for name in intent["accounts"]]
            victims = [self._segment(key) for key in intent["victims"]]
            self._remove(victims if accounts[-1].exists() else accounts)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            pass
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

    def _segment(self, key: str) -> Path:
        """Of this spool; ValueError for any other path: the note may have come with a copy from anywhere."""
        table, _, name = key.partition("/")
        if table not in TABLES or "/" in name or not name.endswith(SUFFIX):
            raise ValueError(key)
        return self._root / table / name

    def _remove(self, paths: Iterable[Path]) -> None:
        folders, refused = set(), None
        for path in paths:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                refused = error
            folders.add(path.parent)
        for folder in folders:
            if folder.is_dir():
                sync_directory(folder)
        if refused is not None:
            raise refused


def _account(file: SegmentFile, health: list[dict[str, Any]], windows: list[dict[str, Any]]) -> int:
    """The rows of a segment; those that are accounted for are added to `health` or `windows`.

    A segment that cannot be read has no rows: it could not have been shipped either.
    """
    schema = TABLES[file.table]
    try:
        read_footer(file.path, file.table, schema)
        with pq.ParquetFile(file.path) as parquet:
            rows = int(parquet.metadata.num_rows)
            if file.table == "agent_health":
                _sum_up(parquet.read(), health)
            if file.table not in _GROUPED_BY or not rows:
                return rows
            present = set(parquet.schema_arrow.names)
            wanted = [name for name in _GROUPED_BY[file.table] if name in present]
            table = parquet.read([*wanted, "timestamp_ns"])
    except (OSError, ValueError, pa.ArrowException, UnreadableError):
        return 0
    plain = {name: _plain(table.column(name)) for name in table.column_names}
    for name in set(_GROUPED_BY[file.table]) - plain.keys():
        plain[name] = pa.array([_default(schema.field(name).type)] * rows)
    groups = pa.table(plain).group_by(_GROUPED_BY[file.table])
    found = groups.aggregate([("timestamp_ns", "min"), ("timestamp_ns", "max"), ([], "count_all")]).to_pylist()
    if file.table == "cuda_events":
        health += [_health_row(group) for group in found]
    else:
        windows += [_window_row(group) for group in found]
        health.append(_health_row(found[0] | {"count_all": 0}))  # by which the others count
    return rows


_GROUPED_BY: Final = {
    "cuda_events": ["service", "host", "kind"],
    "kernel_executions": ["service", "host", "pid", "container_id"],
}


_ADDED_UP: Final = ("events", "lost_launches", "lost_syncs", "lost_other", "agent_cpu_ns", "unresolved_launches")


def _sum_up(rows: pa.Table, health: list[dict[str, Any]]) -> None:
    """Adds accounts to those of their service and host in `health`: what they count as lost stays lost."""
    for given in rows.select([name for name in AGENT_HEALTH.names if name in rows.column_names]).to_pylist():
        row = _blank(AGENT_HEALTH) | {name: value for name, value in given.items() if value is not None}
        same = [one for one in health if (one["service"], one["host"]) == (row["service"], row["host"])]
        if not same:
            health.append(row)
            continue
        for name in _ADDED_UP:
            same[0][name] += row[name]
        same[0]["from_ns"] = min(same[0]["from_ns"], row["from_ns"])
        for name in ("to_ns", "drain_lag_ns", "attached_probes"):
            same[0][name] = max(same[0][name], row[name])


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


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(column, pa.string()) if pa.types.is_dictionary(column.type) else column


def _blank(schema: pa.Schema) -> dict[str, Any]:
    return {column.name: _default(column.type) for column in schema}


def _default(kind: pa.DataType) -> str | int:
    return "" if pa.types.is_dictionary(kind) or pa.types.is_string(kind) else 0
