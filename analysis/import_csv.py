"""Kernels as CSV: `nsys stats --report cuda_gpu_trace --format csv`, nvprof's --csv trace, or what anybody writes.

Columns are found by name, in the spellings of CUPTI's records, of nsys and of nvprof, whatever their case, blanks and
underscores. A unit stands in the header, "Start (us)", "Duration:dur_ns", "start_us", or in a row below it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from decimal import Decimal, DecimalException
from itertools import chain, islice
from pathlib import Path
from typing import Final, cast

from kdiff.analysis.import_source import TraceError, opened, reading, shown
from kdiff.analysis.import_trace import BATCH, U16, U32, U64, UNIX_NS, Collector, signed, unsigned
from kdiff.analysis.terminal import Advance
from kdiff.queries.printable import printable, shorten

_COLUMNS: Final = {
    "start": ("start", "timestamp"),
    "duration": ("duration", "dur"),
    "end": ("end",),
    "name": ("name", "kernelname", "kernel"),
    "pid": ("pid", "processid"),
    "device": ("device", "deviceid", "gpu"),
    "context": ("ctx", "context", "contextid"),
    "stream": ("strm", "stream", "streamid"),
    "correlation": ("corrid", "correlation", "correlationid"),
    **{f"grid_{axis}": (f"grd{axis}", f"grid{axis}") for axis in "xyz"},
    **{f"block_{axis}": (f"blk{axis}", f"block{axis}") for axis in "xyz"},
    "registers": ("regtrd", "registers", "registersperthread"),
    "static_shared": ("stcsmem", "staticsmem", "staticshared", "staticsharedmemory"),
    "dynamic_shared": ("dymsmem", "dynamicsmem", "dynamicshared", "dynamicsharedmemory", "sharedmemory"),
    "local_bytes": ("localmem", "local", "localmemoryperthread"),
    "graph_id": ("graphid",),
    "graph_node_id": ("graphnodeid",),
}
_COLUMN_OF: Final = {name: column for column, names in _COLUMNS.items() for name in names}
_NS: Final = {"ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "sec": 1_000_000_000}
_BYTES: Final = {
    **dict.fromkeys(("b", "byte", "bytes"), 1),
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
_TIMES: Final = ("start", "duration", "end")
_MEMORY: Final = ("static_shared", "dynamic_shared", "local_bytes")
_HEADER: Final = re.compile(
    r"(?P<name>.*?)(?:\s*[(\[](?P<a>[^)\]]*)[)\]]|:(?:ts|dur|mem|thru)_(?P<b>\w+)"
    r"|[_ ](?P<c>ns|us|ms|s|bytes|kb|mb|kib|mib))?"
)
_DEVICE: Final = re.compile(r"(?:.*\()?(\d{1,9})\)?")
_NO_KERNEL: Final = "[CUDA "
"""So nsys and nvprof begin the names of copies and of filling memory."""
_REST: Final = (
    ("correlation", U32),
    ("context", U32),
    ("stream", U32),
    *[(f"{shape}_{axis}", U32) for shape in ("grid", "block") for axis in "xyz"],
    ("registers", U16),
    *[(column, U32) for column in (*_MEMORY, "graph_id")],
    ("graph_node_id", U64),
)
"""Columns of numbers, in the order of KERNEL, and the most that each holds."""
Row = tuple[int, ...]
_PREAMBLE: Final = 200
"""Lines before the header: what nsys and nvprof say to people."""
_LONGEST_LINE: Final = 1 << 20
_NEEDED: Final = "start, duration (or end) and name"


def read(collector: Collector, number: int, advance: Advance) -> None:
    """Reads a CSV; `number` is the pid of rows that do not say. Raises TraceError, OSError."""
    trace = collector.trace
    path = trace.path
    csv.field_size_limit(_LONGEST_LINE)
    with opened(path, advance) as file:
        lines = _Lines(path, io.TextIOWrapper(cast(io.BufferedReader, file), "utf-8-sig", "replace", newline=""))
        header, units, rows = _header(path, _rows(path, lines))
        found = _kernels(path, _Table(path, header, units), rows, collector, number, lines)
        while batch := list(islice(found, BATCH)):
            collector.kernels(batch)
    collector.finish()
    trace.unix = bool(trace.count) and trace.first_ns >= UNIX_NS
    if not trace.count and not trace.uncollected:
        raise TraceError(f"{shown(path)} holds no kernels below its header: export the kernels of the trace")


class _Lines:
    """The lines of a file; what goes wrong with it is told as the trace's, not as the capture's."""

    def __init__(self, path: Path, file: io.TextIOWrapper) -> None:
        self._path = path
        self._file = file
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        with reading(self._path):
            line = self._file.readline(_LONGEST_LINE)
        if not line:
            raise StopIteration
        self.number += 1
        return line


class _Table:
    """Which column is what, and in what unit."""

    def __init__(self, path: Path, header: list[str], units: list[str]) -> None:
        self.at: dict[str, int] = {}
        self.unit: dict[str, int] = {}
        for place, text in enumerate(header):
            column, unit = _column(text)
            if column is None or column in self.at:
                continue
            self.at[column] = place
            unit = unit or (units[place].strip().lower() if place < len(units) else "")
            known = _NS if column in _TIMES else _BYTES if column in _MEMORY else {}
            if unit and known and unit not in known:
                raise TraceError(
                    f"{shown(path)} has {printable(text)[:60]} in the unit {printable(unit)[:20]}, which is not known: "
                    f"write {', '.join(known)}"
                )
            self.unit[column] = known.get(unit, 1)


def _column(text: str) -> tuple[str | None, str]:
    """What a header names, None if nothing that is read, and its unit, '' if it has none."""
    match = _HEADER.fullmatch(text.strip()[:200])
    if match is None:
        return None, ""
    name = re.sub(r"[^a-z0-9]", "", match["name"].lower())
    return _COLUMN_OF.get(name), (match["a"] or match["b"] or match["c"] or "").lower()


def _header(path: Path, rows: Iterator[list[str]]) -> tuple[list[str], list[str], Iterator[list[str]]]:
    """The header, the row of units below it or [], and the rows that follow."""
    best: list[str] = []
    most = 0
    for row in islice(rows, _PREAMBLE):
        columns = {_column(text)[0] for text in row} - {None}
        if {"start", "name"} <= columns and columns & {"duration", "end"}:
            below = next(rows, [])
            if any(cell.strip().lower() in _NS for cell in below) and not any(map(_is_number, below)):
                return row, below, rows
            return row, [], chain([below], rows)
        if not best or len(columns) > most:
            best, most = row, len(columns)
    seen = shorten(printable(", ".join(text.strip() for text in best)), 100)
    raise TraceError(f"{shown(path)} is no CSV of kernels: it needs the columns {_NEEDED}, and has '{seen}'")


def _rows(path: Path, lines: _Lines) -> Iterator[list[str]]:
    try:
        yield from csv.reader(lines)
    except csv.Error as error:
        raise TraceError(f"{shown(path)} is no CSV ({printable(str(error))}): export it again") from error


def _kernels(
    path: Path, table: _Table, rows: Iterator[list[str]], collector: Collector, number: int, lines: _Lines
) -> Iterator[Row]:
    at, unit = table.at, table.unit
    start_at, name_at, span_at = at["start"], at["name"], at.get("duration", at.get("end", 0))
    start_unit, span_unit = unit["start"], unit["duration" if "duration" in at else "end"]
    ends = "duration" not in at
    device_at, pid_at = at.get("device"), at.get("pid")
    needed = max(start_at, name_at, span_at)
    rest = [(at.get(column), unit.get(column, 1), most) for column, most in _REST]
    names: dict[str, int] = {}
    gpus: dict[str, int] = {}
    for row in rows:
        if len(row) <= needed:
            if any(cell.strip() for cell in row):
                raise TraceError(
                    f"{shown(path)} is cut off or broken in line {lines.number:,}, which lacks columns: export it again"
                )
            continue
        name = row[name_at]
        if name.startswith(_NO_KERNEL):
            continue
        start, span = _scaled(row[start_at], start_unit), _scaled(row[span_at], span_unit)
        if start is None:
            raise TraceError(
                f"{shown(path)} has no number but '{shorten(printable(row[start_at]), 40)}' as the start in line "
                f"{lines.number:,}: export it again"
            )
        if name not in names:
            names[name] = collector.labels.kernel(name)
        device = row[device_at] if device_at is not None and device_at < len(row) else ""
        if device not in gpus:
            gpus[device] = collector.labels.gpu(_gpu(device))
        pid = unsigned(row[pid_at]) if pid_at is not None and pid_at < len(row) and row[pid_at] else number
        width = len(row)
        yield (
            signed(start),
            signed((0 if span is None else span) - (start if ends and span is not None else 0)),
            names[name],
            gpus[device],
            pid,
            *[
                0 if place is None or place >= width or not (cell := row[place]) else _unsigned(cell, factor, most)
                for place, factor, most in rest
            ],
        )


def _scaled(text: str, unit: int) -> int | None:
    """The number in a cell in units of `unit`, rounded; None where there is none."""
    try:
        return int(text) * unit
    except ValueError:
        pass
    try:
        value = Decimal(text.strip()) * unit
        return round(value) if value.is_finite() and abs(value) < U64 else None
    except DecimalException:
        return None


def _unsigned(text: str, unit: int, most: int) -> int:
    value = _scaled(text, unit)
    return 0 if value is None else unsigned(value, most)


def _is_number(text: str) -> bool:
    return _scaled(text, 1) is not None


def _gpu(text: str) -> str:
    """'NVIDIA H200 (1)', as nsys says, and 1 are device 1; other text stays."""
    text = text.strip()
    match = _DEVICE.fullmatch(text)
    return f"device {int(match[1])}" if match else text[:255] or "device 0"
