"""Segments: immutable Parquet files, one folder a table, that may be read while more are written.

A segment is written under a hidden name, fsynced and renamed, so that a reader sees a whole segment or none, also
after a kill or a power cut.
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from kdiff.agent.errors import AgentError
from kdiff.agent.health import Losses
from kdiff.queries.locks import lock
from kdiff.queries.segments_write import layout, remove_torn, replacing, required, sync_directory
from kdiff.queries.tables import TABLES

_KEEP_AT_MOST_ROWS: Final = 5_000_000  # about 500 MB
_PATIENCE_S: Final = 2.0  # a process that a killed recording was starting has its descriptors for a moment
_MANY_ROWS: Final = ("cuda_events", "kernel_executions", "gpu_samples")


class SegmentWriter:
    """Writes the tables of one capture directory."""

    def __init__(self, directory: Path, host: str, boot_id: str, began_ns: int) -> None:
        """Creates the directory. Raises AgentError when that cannot be."""
        self.directory = directory
        self._prefix = f"{_safe(host)}-{boot_id[:8]}-{began_ns}"
        self._sequence = 0
        self._held = -1
        self.bytes_written = 0
        self.segments_written = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            probe = directory / ".writable"
            probe.touch()
            probe.unlink(missing_ok=True)
        except OSError as error:
            raise AgentError(
                f"{directory} cannot be written ({error.strerror}): name another directory with -o"
            ) from error

    def hold(self) -> None:
        """Keeps the directory for this recording, until `let_go`. Raises AgentError."""
        self._held = hold(self.directory)

    def let_go(self) -> None:
        """Leaves the directory to other recordings."""
        if self._held >= 0:
            os.close(self._held)
        self._held = -1

    def renewed(self) -> bool:
        """Makes a directory that is held and was removed anew, and holds that; whether it was so. Raises OSError."""
        if self._held < 0:
            return False
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self.directory), os.fstat(self._held)):
                return False
        self.directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        if not lock(fd):
            os.close(fd)
            raise OSError(errno.EBUSY, "another kdiff-agent records there")
        self.let_go()
        self._held = fd
        return True

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

    Two recordings of one program at a time would count each launch twice. What one that was killed left half written
    goes.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise AgentError(f"{directory} cannot be read ({error.strerror}): name another directory with -o") from error
    until = time.monotonic() + _PATIENCE_S
    while not lock(fd):
        if time.monotonic() > until:
            os.close(fd)
            raise AgentError(f"another kdiff-agent records to {directory}: name another directory with -o")
        time.sleep(0.02)
    remove_torn(directory)
    return fd


class Spool:
    """Tables on their way to the disk, in order. While the disk refuses them they wait in memory, which is bounded."""

    def __init__(
        self,
        writer: SegmentWriter,
        keep_at_most: int = _KEEP_AT_MOST_ROWS,
        *,
        names: Callable[[], list[pa.Table]] = list,
    ) -> None:
        """`names`: what `kernels` is to have again where the directory was removed, all that waits for it included."""
        self.writer = writer
        self._kernels_again = names
        self._keep_at_most = keep_at_most
        self._waiting: deque[tuple[str, pa.Table]] = deque()
        self.renewed = False  # whether the directory was removed, and made anew
        self.dropped_executions = 0  # rows of `kernel_executions` that went for room
        self._dropped: Counter[tuple[str, str]] = Counter()  # events by service and kind

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
        try:
            if self.writer.renewed():
                self._name_again()
            while self._waiting:
                self.writer.write(*self._waiting[0])
                self._waiting.popleft()
        except OSError as error:
            return error, self._make_room()
        return None, 0

    def _name_again(self) -> None:
        """The names of kernels went with the directory: rows that follow need them."""
        self.renewed = True
        again = self._kernels_again()
        known = {pair for rows in again for pair in _pairs(rows)}
        # What waits may have been forgotten since, where one flush has more kernels than are remembered.
        others = [entry for entry in self._waiting if entry[0] != "kernels" or not known.issuperset(_pairs(entry[1]))]
        self._waiting = deque([*(("kernels", rows) for rows in again), *others])

    def take_dropped(self) -> dict[str, Losses]:
        """The events of each service that went for room since this was last asked."""
        dropped: dict[str, Losses] = {}
        for (service, kind), count in self._dropped.items():
            lost = Losses(syncs=count) if kind == "sync" else Losses(launches=count)
            dropped[service] = dropped.get(service, Losses()) + lost
        self._dropped.clear()
        return dropped

    def _make_room(self) -> int:
        dropped = 0
        while self._rows(*_MANY_ROWS) > self._keep_at_most:
            oldest = next(entry for entry in self._waiting if entry[0] in _MANY_ROWS)
            self._waiting.remove(oldest)
            if oldest[0] == "cuda_events":
                dropped += len(oldest[1])
                self._dropped.update(zip(*(oldest[1][name].to_pylist() for name in ("service", "kind")), strict=True))
            elif oldest[0] == "kernel_executions":
                self.dropped_executions += len(oldest[1])
        return dropped


def _safe(host: str) -> str:
    return "".join(c if c.isalnum() or c in "-." else "_" for c in host) or "host"


def _pairs(kernels: pa.Table) -> set[tuple[int, str]]:
    return set(zip(kernels["kernel_id"].to_pylist(), kernels["service"].to_pylist(), strict=True))
