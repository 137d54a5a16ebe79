"""A window of a store as a capture directory of its own.

The rows come in slices of time that are small enough to hold in memory; a window of any length is exported in the
same memory. The directory appears once it is whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from kdiff.queries.errors import StoreError
from kdiff.queries.locks import lock
from kdiff.queries.printable import printable
from kdiff.queries.segments_write import required, sync_directory, write_batches
from kdiff.queries.store import Params, Store
from kdiff.queries.tables import TABLES

MAX_ROWS: Final = 250_000
"""Rows of one question and of one segment: with names of kernels of 1 kB, 250 MB."""
_SLICES: Final = 1_000
_SUFFIX: Final = ".partial"
_LEFT_AFTER_S: Final = 60.0
"""A directory is made a moment before it is locked."""
_LARGE: Final = ("cuda_events", "kernel_executions", "gpu_samples")


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of a large table in [from_ns, to_ns)."""

    table: str
    from_ns: int
    to_ns: int
    rows: int


class Segments:
    """Writes the segments of a capture that is being made.

    They are named as a recording names its own: shipping relies on it that no other is called the same.
    """

    def __init__(self, root: Path, maker: str) -> None:
        self.counts: dict[str, int] = {}
        """Rows by table."""
        self._root = root
        self._prefix = f"{maker}-{secrets.token_hex(4)}-{time.time_ns()}"

    def write(self, table: str, number: int, rows: pa.Table) -> None:
        """Writes the segment `number` of `table`; `rows` are in its schema, as `required` makes it. Raises OSError."""
        folder = self._root / table
        folder.mkdir(exist_ok=True)
        batches = rows.combine_chunks().to_batches()
        write_batches(folder / f"{self._prefix}-{number:08d}.parquet", rows.schema, batches)
        self.counts[table] = self.counts.get(table, 0) + rows.num_rows


def slices(store: Store, from_ns: int, to_ns: int, service: str) -> list[Slice]:
    """The window cut so that no piece has over MAX_ROWS rows, unless they are of one nanosecond. Raises StoreError."""
    found: list[Slice] = []
    width = max(1, -(-(to_ns - from_ns) // _SLICES))
    params: Params = {"from_ns": from_ns, "to_ns": to_ns, "slice_ns": width, "service": service}
    for row in store.query("rows_in_slices", params).to_pylist():
        start = from_ns + row["slice"] * width
        piece = Slice(row["source"], start, min(start + width, to_ns), row["rows"])
        if piece.rows > MAX_ROWS and width > 1:
            found += [s for s in slices(store, piece.from_ns, piece.to_ns, service) if s.table == piece.table]
        elif found and found[-1].table == piece.table and found[-1].rows + piece.rows <= MAX_ROWS:
            found[-1] = Slice(piece.table, found[-1].from_ns, piece.to_ns, found[-1].rows + piece.rows)
        else:
            found.append(piece)
    return found


def write_capture(
    store: Store, service: str, window: tuple[int, int], pieces: list[Slice], root: Path, advance: Callable[[int], None]
) -> dict[str, int]:
    """Write the window as the capture `root` and return the rows of each table; `advance` is told of each row.

    `pieces` are those that `slices` found. Raises StoreError; then there is nothing at `root`.
    """
    small = [Slice(table, *window, rows=0) for table in TABLES if table not in _LARGE]
    with appearing(root) as beside:
        segments = Segments(beside, "export")
        for number, piece in enumerate((*pieces, *small)):
            params: Params = {"from_ns": piece.from_ns, "to_ns": piece.to_ns, "service": service}
            rows = store.query(f"rows_{piece.table}", params)
            if not rows.num_rows:
                continue
            segments.write(piece.table, number, _in_schema(rows, required(TABLES[piece.table])))
            advance(rows.num_rows)
        if not segments.counts:
            raise StoreError(f"{store.name} holds nothing of that window: choose another")
    return segments.counts


def require_free(root: Path) -> None:
    """Raises StoreError unless `root` is missing or an empty directory, in one that can be written."""
    shown = printable(str(root))
    try:
        if root.is_symlink() or (root.exists() and (not root.is_dir() or any(root.iterdir()))):
            raise StoreError(f"{shown} is there already and not an empty directory: name another with -o")
        if not os.access(root.parent, os.W_OK | os.X_OK):
            raise StoreError(f"no directory can be made in {printable(str(root.parent))}: name another with -o")
    except (OSError, ValueError) as error:
        raise StoreError(f"{shown} cannot be used ({printable(str(error))}): name another with -o") from error


@contextmanager
def appearing(root: Path) -> Iterator[Path]:
    """A directory beside `root` that takes its place at the end; where that fails nothing is left. Raises StoreError.

    An OSError inside is taken for one of writing.
    """
    require_free(root)
    _remove_left(root)
    held = -1
    try:
        beside = Path(tempfile.mkdtemp(prefix=_prefix(root), suffix=_SUFFIX, dir=root.parent))
        try:
            held = os.open(beside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            lock(held)
            yield beside
            beside.chmod(0o755)
            for folder in (*beside.iterdir(), beside):
                sync_directory(folder)
            beside.rename(root)
            sync_directory(root.parent)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise StoreError(f"{printable(str(root))} was made by another meanwhile: name another with -o") from error
        raise StoreError(
            f"{printable(str(root))} cannot be written ({error.strerror}): free space, or name another with -o"
        ) from error
    finally:
        if held >= 0:
            os.close(held)


def _prefix(root: Path) -> str:
    return f".{root.name[:100]}."


def _remove_left(root: Path) -> None:
    """What was being made for `root` by this user and whose maker was killed: nobody holds its lock."""
    with contextlib.suppress(OSError):
        for path in root.parent.glob(f"{glob.escape(_prefix(root))}????????{_SUFFIX}"):
            with contextlib.suppress(OSError):
                held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    info = os.fstat(held)
                    if info.st_uid == os.geteuid() and time.time() - info.st_mtime > _LEFT_AFTER_S:
                        # Where there are no locks, who is still at work cannot be told from who was killed.
                        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(path)
                finally:
                    os.close(held)


def _in_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of `schema` alone, in its order and types. Raises StoreError where a table was altered."""
    columns = []
    for column in schema:
        try:
            values = rows.column(column.name)
            if pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(values.type):
                values = values.dictionary_encode()
            columns.append(values.cast(column.type))
        except (KeyError, pa.ArrowException) as error:
            raise StoreError(f"the column {column.name} is not what kdiff writes: was its table altered?") from error
        if columns[-1].null_count and not column.nullable:
            raise StoreError(f"the column {column.name} lacks values, which kdiff never writes: was its table altered?")
    return pa.Table.from_arrays(columns, schema=schema)
