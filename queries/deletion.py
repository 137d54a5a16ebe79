"""Deleting what is older than a time: which rows of which tables, and doing it to a capture directory.

The order of tables is that in which they lose rows: an agent's account goes before what it accounts for, so that
none ever claims rows that are gone. Names of kernels go last, once nothing of their service is left.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kdiff.queries.errors import StoreError
from kdiff.queries.locks import lock
from kdiff.queries.printable import printable
from kdiff.queries.segments_read import scan
from kdiff.queries.segments_write import sync_directory, write_batches
from kdiff.queries.shipping_notes import BEGUN, CONFIRMED, OWN_NAME, read_marks

MINUTE_NS: Final = 60_000_000_000
HOUR_NS: Final = 60 * MINUTE_NS
ENDS: Final = {
    "agent_health": "to_ns",
    "device_windows": "to_ns",
    "kernel_executions": "timestamp_ns",
    "cuda_events": "timestamp_ns",
    "gpu_samples": "timestamp_ns",
}
"""The column that tells whether a row is older: a stretch of time is once it has ended."""
NAMES: Final = "kernels"
_PATIENCE_S: Final = 10.0
_BATCH_ROWS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows older than `before_ns`, a whole minute, of `service`; None is every service."""

    before_ns: int
    service: str | None

    def __post_init__(self) -> None:
        if self.before_ns % MINUTE_NS:
            raise ValueError("before_ns is a whole minute")


class Deletion(Protocol):
    """What a deletion would take, and doing it."""

    @property
    def rows(self) -> dict[str, int]:
        """Rows to delete of each table that has any."""

    @property
    def steps(self) -> int:
        """How many steps `run` reports."""

    @property
    def warnings(self) -> list[str]:
        """What cannot be deleted and why, one line each."""

    def run(self, advance: Callable[[int], None]) -> None:
        """Delete. Safe to repeat after it was killed anywhere. Raises StoreError."""


@dataclass(slots=True)
class CaptureDeletion:
    """A deletion from the segments of a capture: whole ones go, mixed ones are written anew without the rows."""

    root: Path
    selection: Selection
    rows: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    _segments: list[tuple[str, Path]] = field(default_factory=list)
    _mixed: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Count the rows. Raises StoreError."""
        snapshot = scan(self.root)
        self.warnings = snapshot.warnings
        left = False
        for table, column in ENDS.items():
            for segment in snapshot.files.get(table, []):
                with _told(segment.path):
                    left = self._plan(table, segment.path, column) or left
        if left:
            return
        for segment in snapshot.files.get(NAMES, []):
            with _told(segment.path):
                self._plan(NAMES, segment.path, None)

    @property
    def steps(self) -> int:
        """Segments to remove or to write anew."""
        return len(self._segments)

    def run(self, advance: Callable[[int], None]) -> None:
        """Delete. Each segment is replaced or removed at once: a kill leaves the old one or the new one."""
        with _held(self.root):
            self._require_rewritable()
            for table, path in self._segments:
                with _told(path), contextlib.suppress(FileNotFoundError):
                    self._shrink(path, ENDS.get(table))
                advance(1)

    def _plan(self, table: str, path: Path, column: str | None) -> bool:
        """Note a segment that loses rows; whether rows of the same service stay in it."""
        gone = kept = 0
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=self._needed(file, column)):
                ours, old = self._ours(batch), self._old(batch, column)
                gone += int((ours & old).sum())
                kept += int((ours & ~old).sum())
            rows = file.metadata.num_rows
        if gone:
            self.rows[table] = self.rows.get(table, 0) + gone
            self._segments.append((table, path))
            if gone < rows:
                self._mixed.append(path)
        return bool(kept)

    def _shrink(self, path: Path, column: str | None) -> None:
        with _alone(path), pq.ParquetFile(path) as file:
            kept = 0
            for batch in file.iter_batches(_BATCH_ROWS, columns=self._needed(file, column)):
                kept += int((~(self._ours(batch) & self._old(batch, column))).sum())
            if kept:
                write_batches(path, file.schema_arrow, self._kept(file, column))
            else:
                path.unlink()
                sync_directory(path.parent)

    def _require_rewritable(self) -> None:
        """What a server may have in part is known to it by the place of the rows: those must not move."""
        marks = read_marks(self.root) if self._mixed else {}
        for path in self._mixed:
            mark = marks.get(f"{path.parent.name}/{path.name}")
            if mark == BEGUN or (mark == CONFIRMED and not OWN_NAME.fullmatch(path.name)):
                raise StoreError(
                    f"{printable(str(path))} holds rows to keep and is known to a server: ship the capture to its end "
                    "with `kdiff-agent ship DIR`, remove the segment there, or delete whole segments only"
                )

    def _kept(self, file: pq.ParquetFile, column: str | None) -> Iterator[pa.RecordBatch]:
        for batch in file.iter_batches(_BATCH_ROWS):
            yield batch.filter(pa.array(~(self._ours(batch) & self._old(batch, column))))

    def _needed(self, file: pq.ParquetFile, column: str | None) -> list[str]:
        """The columns that tell which rows go; of names any one, so that they are counted."""
        there = file.schema_arrow.names
        return [name for name in ("service", column) if name is not None and name in there] or there[:1]

    def _ours(self, batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        if self.selection.service is None:
            return np.ones(len(batch), np.bool_)
        if "service" not in batch.schema.names:
            return np.full(len(batch), self.selection.service == "")
        text = batch.column("service").cast(pa.string())
        return np.asarray(pc.equal(pc.fill_null(text, ""), self.selection.service).to_numpy(zero_copy_only=False))

    def _old(self, batch: pa.RecordBatch, column: str | None) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        if column is None:
            return np.ones(len(batch), np.bool_)
        times = np.asarray(batch.column(column).to_numpy(zero_copy_only=False))
        return times <= self.selection.before_ns if column == "to_ns" else times < self.selection.before_ns


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Not while the segment is being shipped: that holds a shared lock of the file."""
    with open(path, "rb") as held:
        until = time.monotonic() + _PATIENCE_S
        while not lock(held.fileno()):
            if time.monotonic() > until:
                raise StoreError(f"{printable(str(path))} is being shipped: wait until it is, and delete again")
            time.sleep(0.05)
        yield


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Errors of one segment become a sentence; that it is gone already is no error."""
    try:
        yield
    except FileNotFoundError:
        return
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise StoreError(
            f"{printable(str(path))} cannot be changed ({printable(reason)}): what was to stay is still there; "
            "mend that and delete again"
        ) from error


@contextlib.contextmanager
def _held(root: Path) -> Iterator[None]:
    """Two deletions at a time would undo each other's work. An agent that writes meanwhile disturbs nothing."""
    with contextlib.ExitStack() as stack:
        for table in (*ENDS, NAMES):
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(root / table, os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, fd)
                if not lock(fd):
                    raise StoreError(f"another kdiff deletes from {printable(str(root))}: wait until it is done")
        yield
