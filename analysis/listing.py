"""`kdiff kernels`: what ran in a window, how long it took, and how much of it was lost."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis import output_text as text
from kdiff.analysis.calibration import calibrate, excesses
from kdiff.analysis.counts import Recording
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.recorded import only_rolled_up, only_rows
from kdiff.analysis.window import NS, Window, length_text, utc, utc_short
from kdiff.queries.printable import cells, printable
from kdiff.queries.tables import KIND_GRAPH_LAUNCH

_DAY_NS: Final = 86_400 * NS
_OF_GRAPHS: Final = ("launches", "completions", "completion_avg_ns", "completion_p99_ns", "first_ns", "last_ns")
_NO_EXCESS: Final[dict[str, int | None]] = {"excess_n": 0, "excess_p50_ns": None, "excess_p99_ns": None}


@dataclass(frozen=True, slots=True)
class Listing:
    """The rows of queries/sql/kernels_between.sql with each kernel's excess, and how well their window was recorded.

    `graphs`: those of CUDA graphs, which the host launches as one: their kernels are on the device only.
    """

    store: str
    window: Window
    recording: Recording
    rows: list[dict[str, Any]]
    graphs: list[dict[str, Any]]
    warnings: list[str]


def read(evidence: Evidence) -> Listing:
    """Read the kernels of a window. Raises StoreError."""
    every = evidence.kernels()
    rows = [row for row in every if row["kind"] != KIND_GRAPH_LAUNCH]
    graphs = [row for row in every if row["kind"] == KIND_GRAPH_LAUNCH]
    excess = _excess(evidence) if any(row["executions"] and row["completions"] for row in rows) else {}
    rows = [row | excess.get(row["kernel_key"], _NO_EXCESS) for row in rows]
    recording = evidence.recording()
    warnings = []
    if not recording.hosts:
        warnings.append("no agent's account covers the window: what was lost is not known")
    if not evidence.rolled and (gone := evidence.missing_rows):
        warnings.append(f"of the window {only_rolled_up(gone)}")
    if lacking := evidence.missing_rollups:
        warnings.append(f"of the window {only_rows(lacking, evidence.hourly)}")
    return Listing(evidence.store.name, evidence.window, recording, rows, graphs, warnings)


def _excess(evidence: Evidence) -> dict[int, dict[str, int]]:
    """How far the completions of isolated launches lie above their device times, by kernel key, all hosts together."""
    found: dict[int, list[NDArray[np.int64]]] = {}
    for (key, _), values in excesses(evidence, [], always=False).items():
        found.setdefault(key, []).append(values)
    told = {}
    for key, parts in found.items():
        excess = calibrate(np.concatenate(parts), 0.99, (), foreign=False)
        if excess is not None:
            told[key] = {"excess_n": excess.n, "excess_p50_ns": excess.p50, "excess_p99_ns": excess.high}
    return told


def as_json(found: Listing) -> str:
    """One object: `kernels` holds a row a kernel, `graphs` one a graph; times in ns, null where nothing was timed."""
    document = {
        "schema": "kdiff-kernels/1",
        "store": found.store,
        "from": utc(found.window.from_ns),
        "to": utc(found.window.to_ns),
        "lost": found.recording.lost,
        "loss": found.recording.loss(with_syncs=True),
        "coverage": found.recording.coverage,
        "kernels": [{k: _finite(v) for k, v in row.items() if k not in ("kernel_key", "kind")} for row in found.rows],
        "graphs": [{"graph": row["kernel_name"]} | {k: _finite(row[k]) for k in _OF_GRAPHS} for row in found.graphs],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def as_table(found: Listing, width: int) -> str:
    """A line a kernel, the longest running first, and one a graph; the columns that the width has room for."""
    loss = found.recording.loss(with_syncs=True)
    executions = sum(r["executions"] for r in found.rows)
    lines = [
        found.store,
        f"{utc_short(found.window.from_ns)} .. {utc_short(found.window.to_ns)} ({length_text(found.window.length_ns)})",
        _launches(found.rows, "kernel")
        + (_launches(found.graphs, "graph") if found.graphs else "")
        + ("loss not known" if loss is None else f"lost {found.recording.lost:,} ({text.two_digits(loss)})")
        + f", recorded {100 * found.recording.coverage:.0f}%"
        + (f", {executions:,} timed on the device" if executions else ""),
    ]
    lines = [piece for whole in lines for piece in text.wrap(whole, max(width, 40), 2)]
    if not found.rows and not found.graphs:
        return "\n".join([*lines, "no kernel ran"]) + "\n"
    moment = slice(11, 19) if found.window.length_ns <= _DAY_NS else slice(0, 16)
    lines += _kernels(found, moment, width) if found.rows else []
    lines += _graphs(found, moment, width) if found.graphs else []
    return "\n".join(lines) + "\n"


def _launches(rows: list[dict[str, Any]], noun: str) -> str:
    return f"{sum(r['launches'] for r in rows):,} launches of {len(rows)} {noun}{'s' * (len(rows) != 1)}, "


def _kernels(found: Listing, moment: slice, width: int) -> list[str]:
    columns = [_count(found.rows)]
    if any(r["executions"] for r in found.rows):
        columns += [_times(found.rows, f"device {what}", f"device_{what}_ns") for what in ("avg", "p99")]
    if any(r["completions"] for r in found.rows):
        columns += [_times(found.rows, f"compl. {what}", f"completion_{what}_ns") for what in ("avg", "p99")]
    if any(r["excess_n"] for r in found.rows):
        columns += [_times(found.rows, f"excess {level}", f"excess_{level}_ns") for level in ("p50", "p99")]
    columns += [_seen(found.rows, end, moment) for end in ("last", "first")]
    return _table("kernel", found.rows, columns, width)


def _graphs(found: Listing, moment: slice, width: int) -> list[str]:
    columns = [_count(found.graphs), _seen(found.graphs, "first", moment)]
    if any(r["completions"] for r in found.graphs):
        columns += [_times(found.graphs, f"compl. {what}", f"completion_{what}_ns") for what in ("p99", "avg")]
    return _table("graph", found.graphs, [*columns, _seen(found.graphs, "last", moment)], width)


_Column = tuple[str, list[str]]  # its title, and a value a row


def _count(rows: list[dict[str, Any]]) -> _Column:
    return "launches", [f"{r['launches']:,}" for r in rows]


def _times(rows: list[dict[str, Any]], title: str, key: str) -> _Column:
    return title, [text.duration(r[key]) for r in rows]


def _seen(rows: list[dict[str, Any]], end: str, moment: slice) -> _Column:
    return f"{end} seen", [utc(r[f"{end}_ns"])[moment] for r in rows]


def _table(title: str, rows: list[dict[str, Any]], columns: list[_Column], width: int) -> list[str]:
    """A heading and a line a row; the last columns give way to names first."""
    widths = [max(len(title), *(len(v) for v in values)) for title, values in columns]
    names = [r["kernel_name"] for r in rows]
    wanted = min(max(cells(printable(name)) for name in names), 30)
    while sum(widths) + len(widths) + wanted > max(width, 40) and len(widths) > 1:
        widths.pop()
        columns.pop()
    room = max(max(width, 40) - sum(widths) - len(widths), 12)
    short = text.short_names(names, room)
    room = min(room, max(6, *(cells(s) for s in short.values())))

    def line(name: str, values: list[str]) -> str:
        padded = name + " " * (room - cells(name))
        return " ".join([padded, *(v.rjust(w) for v, w in zip(values, widths, strict=True))])

    heading = ["", line(title, [heading for heading, _ in columns])]
    return heading + [line(short[name], [values[i] for _, values in columns]) for i, name in enumerate(names)]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
