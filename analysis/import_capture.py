"""Traces as a capture directory: executions, the launches that are known, when the device was timed, names.

No account of an agent is among it: what a profiler lost is not told.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, count
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kdiff.analysis import import_csv, import_kineto, import_nsys
from kdiff.analysis.import_source import Format, TraceError, shown
from kdiff.analysis.import_trace import KERNEL, NO_NAME, UNIX_NS, Collector, Extent, Labels, Trace, keys
from kdiff.analysis.terminal import Advance
from kdiff.analysis.window import HOUR_NS, length_text, utc_short
from kdiff.queries.export import MAX_ROWS, Segments, appearing
from kdiff.queries.kernel_names import kernel_id
from kdiff.queries.segments_write import required
from kdiff.queries.tables import KIND_LAUNCH, TABLES

READERS: Final[dict[Format, Callable[[Collector, int, Advance], None]]] = {
    "kineto": import_kineto.read,
    "nsys": import_nsys.read,
    "csv": import_csv.read,
}
UNKNOWN_HOST: Final = "imported"
_AHEAD_NS: Final = HOUR_NS
"""How far clocks of hosts may differ before a trace is of the future."""
_LONGEST_QUEUE_NS: Final = HOUR_NS
_SPILL: Final = ".rows"
_SOURCE: Final = "device"
_UNRESOLVED: Final = "unresolved"
_GRAPH: Final = "GraphLaunch"


@dataclass(frozen=True)
class Imported:
    """What was written."""

    from_ns: int
    to_ns: int
    counts: Mapping[str, int]
    """Rows by table."""
    uncollected: int
    notes: Sequence[str]


def import_traces(
    sources: Sequence[tuple[Path, Format]],
    root: Path,
    service: str,
    start_ns: int | None,
    progress: Callable[[Path, Format], Any],
) -> Imported:
    """Writes the traces as the capture `root`.

    `start_ns`: when the first kernel of all started, in place of what the traces say. `progress(path, format)`: a
    context whose value takes what was read. Raises TraceError, StoreError; then there is nothing at `root`.
    """
    labels = Labels()
    with appearing(root) as beside:
        spill = beside / _SPILL
        spill.mkdir()
        traces = []
        for number, (path, kind) in enumerate(sources, 1):
            trace = Trace(path, spill / str(number))
            with progress(path, kind) as advance, trace.rows.open("wb") as file:
                READERS[kind](Collector(trace, labels, file), number, advance)
            if not trace.count:
                raise TraceError(
                    f"{shown(path)} has {trace.uncollected:,} kernels, none with times that make sense: record it again"
                )
            trace.host = trace.host or UNKNOWN_HOST
            traces.append(trace)
        _refuse_twice(traces)
        shifts, notes = _placed(traces, start_ns)
        writer = _Writer(beside, labels, service)
        for trace, shift in zip(traces, shifts, strict=True):
            writer.add(trace, shift)
        counts = writer.finish()
        shutil.rmtree(spill)
    return Imported(
        min(t.first_ns + shift for t, shift in zip(traces, shifts, strict=True)),
        max(t.last_ns + shift for t, shift in zip(traces, shifts, strict=True)),
        counts,
        sum(trace.uncollected for trace in traces),
        [*notes, *(note for trace in traces for note in trace.notes)],
    )


def _refuse_twice(traces: Sequence[Trace]) -> None:
    """Raises TraceError where two files hold the same kernels: each would count twice."""
    for one, other in combinations(traces, 2):
        names = f"{shown(one.path)} and {shown(other.path)}"
        alike = one.count, one.duration_ns, one.first_ns, one.last_ns
        if alike == (other.count, other.duration_ns, other.first_ns, other.last_ns):
            raise TraceError(f"{names} hold the same {one.count:,} kernels: name each trace once")
        if one.host != other.host or one.unix != other.unix:
            continue
        for pid in sorted(one.extents.keys() & other.extents.keys()):
            mine, theirs = one.extents[pid], other.extents[pid]
            if mine.first_ns < theirs.last_ns and theirs.first_ns < mine.last_ns:
                raise TraceError(
                    f"{names} hold the same time of the process {pid} on {one.host}: import one, or each by itself"
                )


def _placed(traces: Sequence[Trace], start_ns: int | None) -> tuple[list[int], list[str]]:
    """What to add to the times of each trace, and what to say of it. Raises TraceError."""
    now_ns = time.time_ns()
    notes = []
    for trace in traces:
        if trace.first_ns < UNIX_NS <= trace.last_ns:
            raise TraceError(
                f"{shown(trace.path)} has kernels with times since 1970 and others, like {trace.first_ns:,} ns, that "
                "are not: export it again, or leave these out"
            )
    if start_ns is not None:
        if len({trace.unix for trace in traces}) > 1:
            bare = next(trace for trace in traces if not trace.unix)
            raise TraceError(
                f"{shown(bare.path)} does not say when it was recorded, and others do: import it by itself"
            )
        shift = start_ns - min(trace.first_ns for trace in traces)
        shifts = [shift] * len(traces)
    else:
        shifts = []
        for trace in traces:
            shift = 0 if trace.unix else _as_of(trace.path, now_ns) - trace.last_ns
            if not trace.unix:
                notes.append(
                    f"{shown(trace.path)} does not say when it was recorded: taken to end when the file was written, "
                    f"{utc_short(trace.last_ns + shift)}; --start TIME says otherwise"
                )
            shifts.append(shift)
    for trace, shift in zip(traces, shifts, strict=True):
        first, last = trace.first_ns + shift, trace.last_ns + shift
        if first < 0:
            raise TraceError(
                f"{shown(trace.path)} begins {length_text(-first)} before 1970: say with --start TIME when its first "
                "kernel started"
            )
        if last > now_ns + _AHEAD_NS:
            raise TraceError(
                f"{shown(trace.path)} ends in the future, {utc_short(last)} (it is {utc_short(now_ns)}): say with "
                "--start TIME when its first kernel started"
            )
    return shifts, notes


def _as_of(path: Path, now_ns: int) -> int:
    try:
        return min(path.stat().st_mtime_ns, now_ns)
    except OSError:
        return now_ns


class _Writer:
    """Writes the segments of a capture."""

    def __init__(self, root: Path, labels: Labels, service: str) -> None:
        self._segments = Segments(root, "import")
        self._labels = labels
        self._service = service
        self._number = count(1)
        self._windows: list[dict[str, Any]] = []
        self._seen: dict[tuple[int, str], int] = {}
        mangled = [mangled for mangled, _ in labels.kernels]
        self._names = [name for _, name in labels.kernels]
        self._ids = np.array([kernel_id(name) for name in mangled], np.uint64)
        self._graphs = np.array([_GRAPH in api for api in labels.apis] or [False])

    def add(self, trace: Trace, shift_ns: int) -> None:
        """Writes a trace whose times are `shift_ns` later. Raises OSError."""
        extents = {pid: Extent(its.first_ns, its.last_ns) for pid, its in trace.extents.items() if its.executions}
        launched = np.zeros(len(trace.launches), bool)
        for rows in _chunks(trace):
            call = _launches_of(trace, rows, self._graphs)
            self._executions(trace, rows, call, shift_ns)
            fresh = np.flatnonzero(call >= 0)
            fresh = fresh[np.unique(call[fresh], return_index=True)[1]]
            fresh = fresh[~launched[call[fresh]]]
            fresh = fresh[np.argsort(trace.launches["start_ns"][call[fresh]], kind="stable")]
            launched[call[fresh]] = True
            launches = trace.launches[call[fresh]]
            self._launches(trace, rows[fresh], launches, shift_ns)
            for pid, extent in extents.items():
                its = launches[launches["pid"] == pid]
                if len(its):
                    extent.first_ns = min(extent.first_ns, int(its["start_ns"].min()))
        for pid, extent in extents.items():
            self._windows.append(
                {
                    "from_ns": extent.first_ns + shift_ns,
                    "to_ns": extent.last_ns + shift_ns,
                    "service": self._service,
                    "host": trace.host,
                    "pid": pid,
                    "executions": trace.extents[pid].executions,
                    "uncollected": trace.extents[pid].uncollected,
                }
            )

    def finish(self) -> dict[str, int]:
        """Writes names and device windows, and returns the rows of each table. Raises OSError."""
        kernels = list(self._labels.kernels)
        seen = [
            {
                "kernel_id": int(self._ids[place]),
                "mangled_name": kernels[place][0],
                "kernel_name": kernels[place][1],
                "name_source": _UNRESOLVED if kernels[place][0] == NO_NAME else _SOURCE,
                "first_seen_ns": first_ns,
                "service": self._service,
                "host": host,
            }
            for (place, host), first_ns in sorted(self._seen.items())
        ]
        self._write("kernels", {key: [row[key] for row in seen] for key in seen[0]}, len(seen))
        windows = self._windows
        self._write("device_windows", {key: [row[key] for row in windows] for key in windows[0]}, len(windows))
        return self._segments.counts

    def _executions(self, trace: Trace, rows: NDArray[np.void], call: NDArray[np.int64], shift_ns: int) -> None:
        queue = np.zeros(len(rows), np.int64)
        known = np.flatnonzero(call >= 0)
        queue[known] = rows["start_ns"][known] - trace.launches["start_ns"][call[known]]
        start = rows["start_ns"] + shift_ns
        self._write(
            "kernel_executions",
            {
                **self._common(trace, rows),
                "timestamp_ns": start,
                "duration_ns": rows["duration_ns"],
                **{
                    name: rows[name]
                    for name in ("registers", "static_shared", "dynamic_shared", "local_bytes", "graph_id")
                },
                "graph_node_id": rows["graph_node_id"],
                "queue_ns": queue,
            },
            len(rows),
        )
        order = np.lexsort((start, rows["name"]))
        places, first = np.unique(rows["name"][order], return_index=True)
        for place, at in zip(places.tolist(), first.tolist(), strict=True):
            key = place, trace.host
            self._seen[key] = min(self._seen.get(key, 2**63 - 1), int(start[order[at]]))

    def _launches(self, trace: Trace, rows: NDArray[np.void], launches: NDArray[np.void], shift_ns: int) -> None:
        if not len(rows):
            return
        self._write(
            "cuda_events",
            {
                **self._common(trace, rows),
                "timestamp_ns": launches["start_ns"] + shift_ns,
                "duration_ns": launches["duration_ns"],
                "kind": KIND_LAUNCH,
                "api": (launches["api"].astype(np.int32), list(self._labels.apis)),
                "tid": launches["tid"],
                "shared_bytes": rows["dynamic_shared"],
            },
            len(rows),
        )

    def _common(self, trace: Trace, rows: NDArray[np.void]) -> dict[str, Any]:
        return {
            "kernel_name": (rows["name"].astype(np.int32), self._names),
            "kernel_id": self._ids[rows["name"]],
            "service": self._service,
            "host": trace.host,
            "gpu_uuid": (rows["gpu"].astype(np.int32), list(self._labels.gpus)),
            "pid": rows["pid"],
            "stream": rows["context"].astype(np.uint64) << np.uint64(32) | rows["stream"],
            **{f"{shape}_{axis}": rows[f"{shape}_{axis}"] for shape in ("grid", "block") for axis in "xyz"},
        }

    def _write(self, table: str, columns: Mapping[str, Any], rows: int) -> None:
        # Segments are shipped in the order of their numbers, and names of kernels before their rows.
        number = 0 if table == "kernels" else next(self._number)
        schema = required(TABLES[table])
        arrays = [_array(field, columns.get(field.name), rows) for field in schema]
        self._segments.write(table, number, pa.Table.from_arrays(arrays, schema=schema))


def _array(field: pa.Field, value: Any, rows: int) -> pa.Array:
    """A column; one that a trace does not know is 0 or ''. Texts are one, a list, or (places, texts)."""
    if value is None and field.nullable:
        return pa.nulls(rows, field.type)
    if not pa.types.is_dictionary(field.type):
        if value is None:
            value = [""] * rows if pa.types.is_string(field.type) else np.zeros(rows, np.int8)
        if isinstance(value, list):
            return pa.array(value, field.type)
        return pa.array(np.ascontiguousarray(value)).cast(field.type)
    if isinstance(value, list):
        return pa.array(value, pa.string()).dictionary_encode()
    places, texts = value if isinstance(value, tuple) else (np.zeros(rows, np.int32), [value or ""])
    # Only what occurs: each segment would hold all names of the import.
    used, places = np.unique(places, return_inverse=True)
    names = pa.array([texts[place] for place in used.tolist()], pa.string())
    encoded = names.dictionary_encode()  # of names that were mangled differently, one
    return pa.DictionaryArray.from_arrays(encoded.indices.take(pa.array(places)), encoded.dictionary)


def _chunks(trace: Trace) -> Iterator[NDArray[np.void]]:
    """The rows of a trace, some at a time, in order of time among themselves."""
    with trace.rows.open("rb") as file:
        while raw := file.read(MAX_ROWS * KERNEL.itemsize):
            rows = np.frombuffer(bytearray(raw), KERNEL)
            rows["start_ns"] += trace.shift_ns
            if trace.pid is not None:
                rows["pid"] = trace.pid
            yield rows[np.argsort(rows["start_ns"], kind="stable")]


def _launches_of(trace: Trace, rows: NDArray[np.void], graphs: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each kernel the place of the call that launched it, -1 where that is not known.

    Kernels of graphs share the launch of the graph, which is not theirs. `graphs`: which of the functions launch these.
    """
    found = np.full(len(rows), -1, np.int64)
    launches = trace.launches
    if not len(launches):
        return found
    known, wanted = keys(launches), keys(rows)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    queue = rows["start_ns"] - launches["start_ns"][at]
    fits = (known[at] == wanted) & (rows["correlation"] > 0) & (queue > 0) & (queue < _LONGEST_QUEUE_NS)
    fits &= ~graphs[launches["api"][at]] & (rows["graph_id"] == 0)
    return np.where(fits, at, found)
