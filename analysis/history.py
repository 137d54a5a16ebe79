"""`kdiff history`: the verdicts that were kept, the newest first, as a table or as JSON."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from kdiff.analysis import output_text as text
from kdiff.analysis.report import quantile_name
from kdiff.analysis.window import Window, length_text, utc, utc_second, utc_short
from kdiff.queries.printable import printable
from kdiff.queries.verdicts import KeptVerdict

SCHEMA: Final = "kdiff-history/1"
_RUN: Final = "(no kernel)"
_MIN_WIDTH: Final = 40


def as_json(store: str, verdicts: list[KeptVerdict]) -> str:
    """One object, schema kdiff-history/1: docs/json.md."""
    document = {"schema": SCHEMA, "store": store, "verdicts": [_document(verdict) for verdict in verdicts]}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def as_table(store: str, verdicts: list[KeptVerdict], width: int) -> str:
    """Lines of at most `width` cells (40 at least): a line of numbers a verdict, below it windows and reasons."""
    width = max(width, _MIN_WIDTH)
    names = sorted({verdict.kernel_name for verdict in verdicts})
    what = printable(names[0] or _RUN) if len(names) == 1 else f"{len(names)} kernels"
    lines = text.wrap(f"{what} in {store}, the newest first", width, 2)
    columns: list[tuple[str, list[str]]] = [
        ("judged at", [utc_second(verdict.judged_at_ns) for verdict in verdicts]),
        ("verdict", [printable(verdict.verdict) for verdict in verdicts]),
        ("before", [text.duration(verdict.value_before) for verdict in verdicts]),
        ("after", [text.duration(verdict.value_after) for verdict in verdicts]),
        ("change", [text.change(verdict.ratio) for verdict in verdicts]),
        ("interval", [_interval(verdict) for verdict in verdicts]),
    ]
    widths = [max(len(title), *map(len, cells)) for title, cells in columns]
    # What the narrow have no room for, in this order; when and what stay.
    for place in (5, 3, 2, 4):
        if sum(widths) + len(widths) - 1 > width:
            del columns[place if place < len(columns) else -1]
            widths = [max(len(title), *map(len, cells)) for title, cells in columns]

    def line(values: list[str]) -> str:
        first = [value.ljust(w) for value, w in zip(values[:2], widths[:2], strict=True)]
        return " ".join([*first, *(v.rjust(w) for v, w in zip(values[2:], widths[2:], strict=True))]).rstrip()

    lines += ["", line([title for title, _ in columns])]
    for place, verdict in enumerate(verdicts):
        lines.append(line([cells[place] for _, cells in columns]))
        if len(names) > 1:
            room = width - 2
            lines.append("  " + text.short_names([verdict.kernel_name or _RUN], room)[verdict.kernel_name or _RUN])
        for told in _facts(verdict):
            lines += text.wrap(f"  {told}", width, 2)
    return "\n".join(lines) + "\n"


def _facts(verdict: KeptVerdict) -> list[str]:
    before = Window(verdict.before_from_ns, verdict.before_to_ns)
    after = Window(verdict.after_from_ns, verdict.after_to_ns)
    facts = [
        f"{utc_short(before.from_ns)}/{length_text(before.length_ns)} before, "
        f"{utc_short(after.from_ns)}/{length_text(after.length_ns)} after",
        f"{quantile_name(verdict.quantile)} of {printable(verdict.metric)}, tolerance {100 * verdict.tolerance:g}%, "
        f"{verdict.n_before:,} before and {verdict.n_after:,} after",
    ]
    named = {"label": verdict.label, "service": verdict.service}
    if any(named.values()):
        facts.insert(0, ", ".join(f"{what} {printable(name)}" for what, name in named.items() if name))
    facts += map(printable, verdict.reasons)
    if verdict.run_cause:
        facts.append(f"The run: {printable(verdict.run_cause)}.")
    return facts


def _interval(verdict: KeptVerdict) -> str:
    if verdict.ci_low is None and verdict.ci_high is None:
        return "-"
    high = math.inf if verdict.ci_high is None else verdict.ci_high
    return f"[{text.change(verdict.ci_low)}, {text.change(high)}]"


def _document(verdict: KeptVerdict) -> dict[str, Any]:
    """Keys in a fixed order; no NaN, no Infinity."""
    return {
        "judged_at": utc(verdict.judged_at_ns),
        "judged_at_ns": verdict.judged_at_ns,
        "run_id": verdict.run_id,
        "kernel": verdict.kernel_name,
        "service": verdict.service,
        "label": verdict.label,
        "verdict": verdict.verdict,
        "metric": verdict.metric,
        "quantile": verdict.quantile,
        "tolerance": verdict.tolerance,
        "before": _window(verdict.before_from_ns, verdict.before_to_ns),
        "after": _window(verdict.after_from_ns, verdict.after_to_ns),
        "n_before": verdict.n_before,
        "n_after": verdict.n_after,
        "value_before": verdict.value_before,
        "value_after": verdict.value_after,
        "ratio": verdict.ratio,
        "ci": None if verdict.ci_low is None and verdict.ci_high is None else [verdict.ci_low, verdict.ci_high],
        "reasons": list(verdict.reasons),
        "run_verdict": verdict.run_verdict,
        "run_cause": verdict.run_cause,
    }


def _window(from_ns: int, to_ns: int) -> dict[str, str | int]:
    return {"from": utc(from_ns), "to": utc(to_ns), "from_ns": from_ns, "to_ns": to_ns}
