"""Which segments of a capture directory can be read, decided from their footers, and why the others cannot.

The agent writes DIR/<table>/<segment>.parquet beside its place (a dot-file or a .tmp name), fsyncs and
renames it. So what is visible under a segment's name and torn was torn by something else, and is skipped
with a warning.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from kdiff.queries.errors import StoreError
from kdiff.queries.printable import printable
from kdiff.queries.tables import TABLES

SUFFIX: Final = ".parquet"

# Without these a file is not a segment of the table; any other column that is missing is read as 0 or ''.
_ESSENTIAL: Final = {
    "cuda_events": ("timestamp_ns", "kind", "kernel_name"),
    "kernel_executions": ("timestamp_ns", "duration_ns", "kernel_name"),
    "device_windows": ("from_ns", "to_ns", "executions"),
    "kernels": ("kernel_id", "kernel_name"),
    "agent_health": ("from_ns", "to_ns", "events"),
    "gpu_samples": ("timestamp_ns", "gpu_uuid"),
}


# Where the footer tells from when to when a segment's rows are.
_TIMES: Final = {
    "cuda_events": ("timestamp_ns", "timestamp_ns"),
    "kernel_executions": ("timestamp_ns", "timestamp_ns"),
    "device_windows": ("from_ns", "to_ns"),
    "agent_health": ("from_ns", "to_ns"),
    "gpu_samples": ("timestamp_ns", "timestamp_ns"),
}


class UnreadableError(Exception):
    """Why a file cannot be read as a segment; '' if it is gone."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A readable segment. No row of it is outside [first_ns, last_ns]; None where the footer does not say.

    `size`: of the file, bytes. `footer_size`: of the footer in it.
    """

    path: Path
    first_ns: int | None = None
    last_ns: int | None = None
    rows: int = 0
    size: int = 0
    footer_size: int = 0

    def overlaps(self, from_ns: int, to_ns: int) -> bool:
        """Whether a row may lie in [from_ns, to_ns)."""
        return self.first_ns is None or self.last_ns is None or (self.first_ns < to_ns and self.last_ns >= from_ns)


@dataclass(slots=True)
class Snapshot:
    """The readable segments of one capture at one moment."""

    root: Path
    files: dict[str, list[Segment]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def scan(root: Path) -> Snapshot:
    """List the segments of the capture at `root`. Opens footers only.

    Raises StoreError where there is no capture, it may not be read, or none of its files can be read.
    """
    _require_directory(root)
    snapshot = Snapshot(root)
    tables = 0
    for table, schema in TABLES.items():
        folder = root / table
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            raise _no_permission(folder) from error
        except OSError as error:
            problem = f"{_show(folder)} cannot be listed ({error.strerror}): check the disk"
            raise StoreError(problem) from error
        tables += 1
        good = snapshot.files.setdefault(table, [])
        for path in _segments(entries, snapshot.warnings):
            try:
                good.append(read_footer(path, table, schema))
            except UnreadableError as error:
                if str(error):
                    snapshot.warnings.append(f"skipped {_show(path)}: {error}")
    if not tables:
        raise StoreError(f"there is no capture at {_show(root)} (no folder of a known table in it): {_MEND}")
    if not any(snapshot.files.values()):
        if snapshot.warnings:
            raise StoreError(
                f"none of the segments at {_show(root)} can be read ({snapshot.warnings[0]}): record the capture again"
            )
        raise StoreError(
            f"the capture at {_show(root)} holds no segment yet: wait for the agent's next flush, "
            "or name another with --store"
        )
    return snapshot


def read_footer(path: Path, table: str, schema: pa.Schema) -> Segment:
    """The segment of `table` at `path`. Raises UnreadableError."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):  # opening a FIFO would wait for ever
            raise UnreadableError("not a regular file")
        if info.st_size == 0:
            raise UnreadableError("empty file")
        footer = pq.read_metadata(path)
        problem = _why_other_table(footer.schema.to_arrow_schema(), table, schema)
    except FileNotFoundError as error:
        # Not a link: retention removed it since the listing.
        raise UnreadableError("a link to nothing" if path.is_symlink() else "") from error
    except PermissionError as error:
        raise UnreadableError("no permission to read it") from error
    except (OSError, pa.ArrowException, ValueError) as error:
        raise UnreadableError(f"torn or not a Parquet file ({_first_line(error)})") from error
    if problem:
        raise UnreadableError(problem)
    first, last = _TIMES.get(table, ("", ""))
    bounds = _bound(footer, first, min), _bound(footer, last, max)
    return Segment(path.absolute(), *bounds, footer.num_rows, info.st_size, footer.serialized_size)


def _bound(footer: pq.FileMetaData, column: str, of: Callable[[list[int]], int]) -> int | None:
    """The least or greatest value of a column by the statistics of its row groups; None where one does not say."""
    if column not in footer.schema.names or not footer.num_row_groups:
        return None
    place = footer.schema.names.index(column)
    found = [footer.row_group(i).column(place).statistics for i in range(footer.num_row_groups)]
    if not all(s is not None and s.has_min_max for s in found):
        return None
    return of([end for s in found for end in (s.min, s.max)])


def _why_other_table(found: pa.Schema, table: str, schema: pa.Schema) -> str | None:
    names = set(found.names)
    missing = [name for name in _ESSENTIAL[table] if name not in names]
    if missing:
        return f"not a segment of {table} (no column {', '.join(missing)})"
    if len(names) != len(found.names):
        return "two columns of one name"
    for column in schema:
        if column.name not in names:
            continue
        actual = found.field(column.name).type
        if _plain(actual) != _plain(column.type):
            return f"column {column.name} is {actual}, not {column.type}"
    return None


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without its encoding: a dictionary of strings, a large string and a string read alike."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.string() if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) else kind


def _segments(entries: list[os.DirEntry[str]], warnings: list[str]) -> Iterator[Path]:
    for entry in entries:
        if entry.name.startswith(".") or entry.name.endswith(".tmp"):
            continue  # being written
        if entry.name.endswith(SUFFIX):
            yield Path(entry.path)
        else:
            warnings.append(f"skipped {_show(Path(entry.path))}: not named *{SUFFIX}")


_MEND: Final = "record one with `kdiff-agent record -o DIR -- COMMAND`, or name another with --store"


def _require_directory(root: Path) -> None:
    try:
        info = root.stat()
        if stat.S_ISDIR(info.st_mode):
            with os.scandir(root):
                return
    except FileNotFoundError as error:
        mend = _MEND.replace("DIR", _show(root))
        raise StoreError(f"there is no capture at {_show(root)}: {mend}") from error
    except PermissionError as error:
        raise _no_permission(root) from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{_show(root)} cannot be opened ({_first_line(error)}): {_MEND}") from error
    raise StoreError(f"{_show(root)} is not a directory: a capture is a directory; name one with --store")


def _no_permission(path: Path) -> StoreError:
    return StoreError(f"no permission to read {_show(path)}: run as its owner or as root")


def _first_line(error: Exception) -> str:
    return printable((str(error).splitlines() or [type(error).__name__])[0])[:160]


def _show(path: Path) -> str:
    return printable(str(path))
