"""Small captures with known values, written straight from the table schemas as an agent would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kdiff.analysis.compare import Options, compare
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.output import output_format
from kdiff.analysis.report import KernelReport, Report
from kdiff.analysis.window import Window
from kdiff.queries.store import CaptureStore
from kdiff.queries.tables import TABLES, WAITS

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
T0 = 1_764_237_600 * SECOND  # 2025-11-27T10:00:00Z
BEFORE = Window(T0, T0 + 10 * MINUTE)
AFTER = Window(T0 + 10 * MINUTE, T0 + 20 * MINUTE)


def table(name: str, columns: Mapping[str, Any], rows: int | None = None) -> pa.Table:
    """A table of schema `name`; a scalar is repeated, a column not given is 0 or '', what threads waited null."""
    schema = TABLES[name]
    if rows is None:
        rows = max((len(v) for v in columns.values() if not isinstance(v, (str, int))), default=1)
    unknown = set(columns) - set(schema.names)
    assert not unknown, unknown
    arrays = []
    for column in schema:
        if pa.types.is_list(column.type):
            arrays.append(pa.array(columns.get(column.name, [[]] * rows), column.type))
            continue
        if column.name in WAITS.names and column.name not in columns:
            arrays.append(pa.nulls(rows, column.type))
            continue
        text = pa.types.is_dictionary(column.type) or pa.types.is_string(column.type)
        value = columns.get(column.name, "" if text else 0)
        if text:
            values = [value] * rows if isinstance(value, str) else list(value)
            arrays.append(pa.array(values, pa.string()).cast(column.type))
        else:
            arrays.append(pa.array(np.broadcast_to(np.asarray(value), rows), column.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def write(root: Path, name: str, data: pa.Table, segment: str = "000001") -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{segment}.parquet"
    pq.write_table(data, path, compression="zstd")
    return path


def launches(kernel: str | Sequence[str], times: Sequence[int] | np.ndarray, **columns: Any) -> pa.Table:
    """Rows of cuda_events; isolated launches of service 'svc' unless told otherwise."""
    given: dict[str, Any] = {
        "timestamp_ns": times,
        "duration_ns": 8_000,
        "kind": "launch",
        "api": "cudaLaunchKernel",
        "kernel_name": kernel,
        "service": "svc",
        "host": "host-1",
        "batch_launches": 1,
    }
    return table("cuda_events", given | columns, rows=len(times))


def executions(
    kernel: str | Sequence[str], times: Sequence[int] | np.ndarray, durations: Any, **columns: Any
) -> pa.Table:
    given: dict[str, Any] = {
        "timestamp_ns": times,
        "duration_ns": durations,
        "kernel_name": kernel,
        "service": "svc",
        "host": "host-1",
    }
    return table("kernel_executions", given | columns, rows=len(times))


def health(from_ns: int, to_ns: int, events: int = 1000, step: int = 10 * SECOND, **columns: Any) -> pa.Table:
    """Rows of agent_health that tile [from_ns, to_ns)."""
    starts = np.arange(from_ns, to_ns, step)
    given: dict[str, Any] = {
        "from_ns": starts,
        "to_ns": np.minimum(starts + step, to_ns),
        "service": "svc",
        "host": "host-1",
        "layer": "both",
        "events": events,
    }
    return table("agent_health", given | columns, rows=len(starts))


def spread(from_ns: int, to_ns: int, count: int) -> np.ndarray:
    """`count` times at equal distances in [from_ns, to_ns)."""
    return from_ns + (np.arange(count) * ((to_ns - from_ns) / count)).astype(np.int64)


def device_windows(starts: Sequence[int] | np.ndarray, length: int = SECOND, **columns: Any) -> pa.Table:
    """Rows of device_windows, each `length` ns long."""
    begin = np.asarray(starts, np.int64)
    given: dict[str, Any] = {
        "from_ns": begin,
        "to_ns": begin + length,
        "service": "svc",
        "host": "host-1",
        "ended": "duration",
    }
    return table("device_windows", given | columns, rows=len(begin))


def inside(times: np.ndarray, starts: np.ndarray, length: int = SECOND) -> np.ndarray:
    """Which of `times` lie in one of the stretches of `length` that begin at `starts`, ascending; a mask."""
    place = np.searchsorted(starts, times, side="right") - 1
    return (place >= 0) & (times < starts[np.maximum(place, 0)] + length)


class TwoWindows:
    """A capture of BEFORE and AFTER under construction, an agent's account of both in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.segments = 0
        self.add("agent_health", health(BEFORE.from_ns, AFTER.to_ns))

    def add(self, name: str, data: pa.Table) -> None:
        """One more segment."""
        self.segments += 1
        write(self.root, name, data, f"{self.segments:06d}")

    def compare(self, **options: Any) -> Report:
        """The comparison, with these Options."""
        with CaptureStore(self.root) as store:
            report = compare(Evidence(store, BEFORE), Evidence(store, AFTER), Options(**options))
        for name in ("json", "argo"):  # held to their schema, see conftest.py
            output_format(name).render(report, 80, colour=False)
        return report


def only(report: Report, name: str = "gelu") -> KernelReport:
    """The one row of a kernel."""
    (row,) = [row for row in report.kernels if row.kernel == name]
    return row
