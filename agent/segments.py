"""Segments: immutable Parquet files, one folder a table, that may be read while more are written.

A segment is written under a hidden name, fsynced and renamed, so that a reader sees a whole segment or none, also
after a kill or a power cut.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from kdiff.agent.errors import AgentError
from kdiff.queries.locks import lock
from kdiff.queries.segments_write import layout, replacing, required, sync_directory
from kdiff.queries.tables import TABLES

_KEEP_AT_MOST_ROWS: Final = 5_000_000  # about 500 MB
_MANY_ROWS: Final = ("cuda_events", "kernel_executions", "gpu_samples")


class SegmentWriter:
    """Writes the tables of one capture directory."""

    def __init__(self, directory: Path, host: str, boot_id: str, began_ns: int) -> None:
        """Creates the directory. Raises AgentError when that cannot be."""
        self.directory = directory
        self._prefix = f"{_safe(host)}-{boot_id[:8]}-{began_ns}"
        self._sequence = 0
        self.bytes_written = 0
        self.segments_written = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            probe = directory / f".{self._prefix}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise AgentError(
                f"{directory} cannot be written ({error.strerror}): name another directory with -o"
            ) from error

    def next_path(self, table: str, ahead: int = 0) -> Path:
        """Where the next segment will be, or the one that many after it, if it is one of `table`."""
        return self.directory / table / f"{self._prefix}-{self._sequence + ahead:08d}.parquet"

    def write(self, table: str, rows: pa.Table) -> Path:
        """Writes one segment and returns its path. Raises OSError, leaving no trace, when the disk refuses."""
        final = self.next_path(table)
        if not final.parent.is_dir():
            final.parent.mkdir(exist_ok=True)
            sync_directory(self.directory)
        whole = pa.Table.from_arrays(rows.columns, schema=required(rows.schema))
        with replacing(final, exclusive=True) as file:
            pq.write_table(whole, file, **layout(TABLES[table]))
            size = file.tell()
        self._sequence += 1
        self.bytes_written += size
        self.segments_written += 1
        return final


def hold(directory: Path) -> int:
    """Keeps the directory for this recording while the returned descriptor is open. Raises AgentError.

    Two recordings of one program at a time would count each launch twice.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    if not lock(fd):
        os.close(fd)
        raise AgentError(f"another kdiff-agent records to {directory}: name another directory with -o")
    return fd


class Spool:
    """Tables on their way to the disk, in order. While the disk refuses them they wait in memory, which is bounded."""

    def __init__(self, writer: SegmentWriter, keep_at_most: int = _KEEP_AT_MOST_ROWS) -> None:
        self.writer = writer
        self._keep_at_most = keep_at_most
        self._waiting: deque[tuple[str, pa.Table]] = deque()
        self.dropped_executions = 0  # rows of `kernel_executions` that went for room

    @property
    def events(self) -> int:
        """Rows of `cuda_events` that are not on the disk yet."""
        return self._rows("cuda_events")

    def _rows(self, *tables: str) -> int:
        return sum(len(rows) for table, rows in self._waiting if table in tables)

    @property
    def waiting(self) -> bool:
        """Whether anything is not on the disk yet."""
        return bool(self._waiting)

    def put(self, table: str, rows: pa.Table) -> None:
        """Queues rows behind those that wait."""
        self._waiting.append((table, rows))

    def write(self) -> tuple[OSError | None, int]:
        """Writes what waits; returns why that stopped, if it did, and how many of the oldest events went for room."""
        while self._waiting:
            try:
                self.writer.write(*self._waiting[0])
            except OSError as error:
                return error, self._make_room()
            self._waiting.popleft()
        return None, 0

    def _make_room(self) -> int:
        dropped = 0
        while self._rows(*_MANY_ROWS) > self._keep_at_most:
            oldest = next(entry for entry in self._waiting if entry[0] in _MANY_ROWS)
            self._waiting.remove(oldest)
            if oldest[0] == "cuda_events":
                dropped += len(oldest[1])
            elif oldest[0] == "kernel_executions":
                self.dropped_executions += len(oldest[1])
        return dropped


def _safe(host: str) -> str:
    return "".join(c if c.isalnum() or c in "-." else "_" for c in host) or "host"
