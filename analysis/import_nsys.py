"""SQLite exports of Nsight Systems, `nsys export --type sqlite`.

Columns come and go between versions: but for start, end and a name each one that is missing is 0. Times are ns since
the session began, which TARGET_INFO_SESSION_START_TIME says; processes are bits 24 to 47 of `globalPid`, `globalTid`:
docs.nvidia.com/nsight-systems, "SQLite Schema Reference" and "Serialized Process and Thread Identifiers".
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from kdiff.analysis.import_source import SQLITE, TraceError, reading, shown
from kdiff.analysis.import_trace import BATCH, U16, U32, UNIX_NS, Collector, unsigned
from kdiff.analysis.terminal import Advance
from kdiff.queries.printable import printable

_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_NAMES: Final = ("mangledName", "demangledName", "shortName")  # the first is what kdiff demangles as the agent does
_SHAPES: Final = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_MOST_NS: Final = 2**62
_AGAIN: Final = "export it again with `nsys export --type sqlite --force-overwrite true`"


def read(collector: Collector, _number: int, advance: Advance) -> None:
    """Reads an export, of any number of processes; `advance` is told of rows. Raises TraceError, OSError."""
    trace = collector.trace
    path = trace.path
    _whole(path)
    with _database(path) as database:
        tables = _tables(database)
        graphs = database.execute(f"SELECT count(*) FROM {_GRAPHS}").fetchone()[0] if _GRAPHS in tables else 0
        if _KERNELS not in tables or "StringIds" not in tables:
            raise _no_kernels(path, tables, graphs)
        columns = tables[_KERNELS]
        names = [name for name in _NAMES if name in columns]
        if not {"start", "end"} <= columns or not names:
            raise TraceError(f"{shown(path)} has kernels without start, end or name: {_AGAIN}")
        began = _began(database, tables)
        trace.unix, shift = began is not None, began or 0
        trace.host = _host(database, tables)
        gpus = _Gpus(database, tables)
        _read_calls(database, tables, collector, shift)
        _read_kernels(database, columns, names, collector, gpus, shift, advance)
        collector.finish()
        if not trace.count and not trace.uncollected:
            raise _no_kernels(path, tables, 0)
        if graphs:
            trace.notes.append(
                f"{shown(path)} has {graphs:,} launches of graphs whose kernels were not recorded: profile with "
                "`nsys profile --cuda-graph-trace=node` to have these too"
            )


def rows_of(path: Path) -> int:
    """About how many kernels it holds, for a progress bar; 1 where it does not say."""
    try:
        with _database(path) as database:
            return int(database.execute(f"SELECT max(rowid) FROM {_KERNELS}").fetchone()[0] or 1)
    except (TraceError, TypeError, ValueError):
        return 1


def _whole(path: Path) -> None:
    """Raises TraceError where the file is shorter than its header says, or was being written."""
    with reading(path):
        with path.open("rb") as file:
            head = file.read(100)
            size = file.seek(0, 2)
        journal = path.with_name(path.name + "-journal")
        hot = journal.exists() and journal.stat().st_size > 0
    if not head.startswith(SQLITE):
        raise TraceError(f"{shown(path)} is no SQLite database: make one with `nsys export --type sqlite`")
    page = int.from_bytes(head[16:18], "big")
    page = 65_536 if page == 1 else page
    pages = int.from_bytes(head[28:32], "big")
    # The count is valid if the version beside it is that of the last change: sqlite.org/fileformat.html.
    if head[24:28] == head[92:96] and page * pages > size:
        raise TraceError(f"{shown(path)} was cut off, {size:,} of {page * pages:,} bytes: copy it again")
    if hot:
        raise TraceError(f"{shown(path)} is being written, or its writer was ended (it has a journal): {_AGAIN}")


@contextmanager
def _database(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        address = f"file:{quote(str(path.absolute()))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            database.execute("PRAGMA query_only = 1")
            yield database
    except sqlite3.OperationalError as error:
        raise TraceError(f"{shown(path)} cannot be read ({printable(str(error))}): {_AGAIN}") from error
    except (sqlite3.Error, ValueError, OverflowError) as error:  # messages of SQLite that are no UTF-8 are the second
        raise TraceError(f"{shown(path)} is damaged ({printable(str(error))}): copy or {_AGAIN}") from error


def _tables(database: sqlite3.Connection) -> dict[str, set[str]]:
    """The tables that matter, no views, with their columns."""
    found: dict[str, set[str]] = {}
    for name, columns in database.execute(
        "SELECT m.name, c.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c WHERE m.type = 'table'"
    ):
        found.setdefault(name, set()).add(columns)
    return found


def _number(column: str, columns: set[str], most: int = U32) -> str:
    """The SQL of a column as an unsigned number."""
    if column not in columns:
        return "0"
    return f'MIN(MAX(CAST(COALESCE("{column}", 0) AS INTEGER), 0), {most})'


def _time(column: str) -> str:
    return f'MIN(MAX(CAST(COALESCE("{column}", 0) AS INTEGER), {-_MOST_NS}), {_MOST_NS})'


def _pid(column: str, columns: set[str]) -> str:
    return f'((CAST(COALESCE("{column}", 0) AS INTEGER) >> 24) & 16777215)' if column in columns else "0"


def _read_calls(database: sqlite3.Connection, tables: dict[str, set[str]], collector: Collector, shift: int) -> None:
    columns = tables.get(_CALLS, set())
    if not {"start", "end", "correlationId", "nameId"} <= columns:
        return
    apis = {
        number: collector.labels.api(str(name).partition("_v")[0])
        for number, name in database.execute("SELECT id, value FROM StringIds WHERE value LIKE 'cu%aunch%'")
        if isinstance(number, int)
    }
    if not apis:
        return
    wanted = ", ".join(map(str, apis))
    thread = '(CAST(COALESCE("globalTid", 0) AS INTEGER) & 16777215)' if "globalTid" in columns else "0"
    found = database.execute(
        f"SELECT {_pid('globalTid', columns)}, {_number('correlationId', columns)}, {_time('start')}, "
        f"{_time('end')}, {thread}, CAST(nameId AS INTEGER) FROM {_CALLS} WHERE CAST(nameId AS INTEGER) IN ({wanted})"
    )
    while rows := found.fetchmany(BATCH):
        collector.launches([(p, c, a + shift, max(b - a, 0), t, apis[n]) for p, c, a, b, t, n in rows])


def _read_kernels(
    database: sqlite3.Connection,
    columns: set[str],
    names: Sequence[str],
    collector: Collector,
    gpus: _Gpus,
    shift: int,
    advance: Advance,
) -> None:
    name = f"COALESCE({', '.join(names)}, 0)" if len(names) > 1 else names[0]
    node = 'CAST(COALESCE("graphNodeId", 0) AS INTEGER)' if "graphNodeId" in columns else "0"
    graph = _number("graphId", columns)
    texts = {
        number: collector.labels.kernel(text if isinstance(text, str) else "")
        for number, text in database.execute(
            f"SELECT id, value FROM StringIds WHERE id IN (SELECT DISTINCT {name} FROM {_KERNELS})"
        )
    }
    unnamed = collector.labels.kernel("")
    found = database.execute(
        f"SELECT {_time('start')}, {_time('end')}, {name}, {_number('deviceId', columns)}, "
        f"{_pid('globalPid', columns)}, {_number('correlationId', columns)}, {_number('contextId', columns)}, "
        f"{_number('streamId', columns)}, {', '.join(_number(shape, columns) for shape in _SHAPES)}, "
        f"{_number('registersPerThread', columns, U16)}, {_number('staticSharedMemory', columns)}, "
        f"{_number('dynamicSharedMemory', columns)}, {_number('localMemoryPerThread', columns)}, "
        # The upper half of a node's number is its graph's, where that is not told.
        f"COALESCE(NULLIF({graph}, 0), ({node} >> 32) & {U32}), MAX({node}, 0) FROM {_KERNELS}"
    )
    while rows := found.fetchmany(BATCH):
        collector.kernels(
            [
                (start + shift, end - start, texts.get(text, unnamed), gpus.place(collector, pid, device), pid, *rest)
                for start, end, text, device, pid, *rest in rows
            ]
        )
        advance(len(rows))


class _Gpus:
    """Which GPU a process calls by a number: the same number is another GPU in another process."""

    def __init__(self, database: sqlite3.Connection, tables: dict[str, set[str]]) -> None:
        self._places: dict[tuple[int, int], int] = {}
        self._of_gpu: dict[int, str] = {}
        self._of_process: dict[tuple[int, int], str] = {}
        if {"id", "uuid"} <= tables.get("TARGET_INFO_GPU", set()):
            for number, text in database.execute("SELECT id, uuid FROM TARGET_INFO_GPU"):
                self._of_gpu[unsigned(number)] = _uuid(text)
        columns = tables.get("TARGET_INFO_CUDA_DEVICE", set())
        if {"gpuId", "cudaId", "pid"} <= columns:
            known = "uuid" if "uuid" in columns else "NULL"
            for gpu, number, pid, text in database.execute(
                f"SELECT gpuId, cudaId, pid, {known} FROM TARGET_INFO_CUDA_DEVICE"
            ):
                found = _uuid(text) or self._of_gpu.get(unsigned(gpu), "") or f"device {unsigned(gpu)}"
                self._of_process[unsigned(pid), unsigned(number)] = found

    def place(self, collector: Collector, pid: int, device: int) -> int:
        """Its place among the labels."""
        place = self._places.get((pid, device))
        if place is None:
            found = self._of_process.get((pid, device)) or self._of_gpu.get(device) or f"device {device}"
            place = self._places[pid, device] = collector.labels.gpu(found)
        return place


def _uuid(value: Any) -> str:
    """As the agent writes it; '' where there is none."""
    if not isinstance(value, str) or not value:
        return ""
    try:
        return f"GPU-{uuid.UUID(value.removeprefix('GPU-'))}"
    except ValueError:
        return value


def _began(database: sqlite3.Connection, tables: dict[str, set[str]]) -> int | None:
    """Unix ns of the session's zero; None where it is not told."""
    if "utcEpochNs" not in tables.get("TARGET_INFO_SESSION_START_TIME", set()):
        return None
    row = database.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    began = row[0] if row else None
    return began if isinstance(began, int) and UNIX_NS <= began < _MOST_NS else None


def _host(database: sqlite3.Connection, tables: dict[str, set[str]]) -> str:
    if not {"name", "value"} <= tables.get("TARGET_INFO_SYSTEM_ENV", set()):
        return ""
    row = database.execute("SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'").fetchone()
    return row[0][:255] if row and isinstance(row[0], str) else ""


def _no_kernels(path: Path, tables: dict[str, set[str]], graphs: int) -> TraceError:
    if graphs:
        return TraceError(
            f"{shown(path)} holds {graphs:,} launches of graphs, but not their kernels: profile with "
            "`nsys profile --cuda-graph-trace=node`"
        )
    if "StringIds" in tables:
        return TraceError(f"{shown(path)} holds no kernels: profile with `nsys profile --trace=cuda`, on a GPU")
    return TraceError(
        f"{shown(path)} is no export of Nsight Systems (it has no table StringIds): make one with "
        "`nsys export --type sqlite`"
    )
