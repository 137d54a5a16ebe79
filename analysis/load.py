"""How often each kernel ran and for how long in all: what its own speed does not tell."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from kdiff.analysis.counts import Counts, is_graph
from kdiff.analysis.measure import Plan
from kdiff.analysis.output_text import duration
from kdiff.analysis.report import KernelReport, Load
from kdiff.analysis.verdict import Verdict

_OFTEN: Final = 1.5
"""How many times as often as before, beside the other kernels, is worth a sentence."""
_FINE: Final = (Verdict.PASS, Verdict.IMPROVED)

Census = Mapping[str, Counts]


def with_loads(
    rows: Sequence[KernelReport],
    plans: Sequence[Plan],
    census: tuple[Census, Census],
    recorded_ns: tuple[float, float],
    length_ns: tuple[float, float],
    tolerance: float,
) -> list[KernelReport]:
    """Each row with its load before and after, and a sentence where a kernel that passes costs more all the same.

    `recorded_ns`: for how long calls were recorded; `length_ns`: of the windows,
    on all hosts of an arm together.
    """
    device = [sum(counts.device_ns for counts in side.values()) for side in census]
    loads = [
        [_load(counts, recorded_ns[i], length_ns[i], device[i]) for i, counts in enumerate(_sides(plan))]
        for plan in plans
    ]
    told = []
    for index, row in enumerate(rows):
        before, after = loads[index]
        row = replace(row, load_before=before, load_after=after)
        others = [found for place, sides in enumerate(loads) if place != index and (found := _times(*sides))]
        reason = _reason(row, statistics.median(others) if others else 1.0, tolerance)
        told.append(replace(row, reasons=(*row.reasons, reason)) if reason else row)
    return told


def _sides(plan: Plan) -> tuple[Counts | None, Counts | None]:
    pair = plan.pair
    return pair.before if pair.in_before else None, pair.after if pair.in_after else None


def _load(counts: Counts | None, recorded_ns: float, length_ns: float, device_ns: float) -> Load | None:
    if counts is None:
        return None
    timed = counts.executions > 0 and length_ns > 0
    return Load(
        launches_per_s=counts.runs / recorded_ns * 1e9 if recorded_ns > 0 else None,
        device_ns_per_s=counts.device_ns / length_ns * 1e9 if timed else None,
        device_share=counts.device_ns / device_ns if timed and device_ns > 0 else None,
    )


def _times(before: Load | None, after: Load | None) -> float | None:
    """How many times as often it ran after; None where that is not known."""
    if before is None or after is None or not before.launches_per_s or after.launches_per_s is None:
        return None
    return after.launches_per_s / before.launches_per_s


def _reason(row: KernelReport, usual: float, tolerance: float) -> str:
    """That it is launched more often than the others are, by so much that it costs more; '' if not."""
    before, after, times = row.load_before, row.load_after, _times(row.load_before, row.load_after)
    if row.verdict not in _FINE or is_graph(row.kernel) or not times or before is None or after is None:
        return ""
    if times < _OFTEN * max(usual, 1e-9) or times < _OFTEN:
        return ""
    often = f"called {times:.2g} times as often, {_rate(before)} -> {_rate(after)} a second"
    faster = "Faster, but " if row.verdict is Verdict.IMPROVED else "No slower, but "
    old, new = before.device_ns_per_s, after.device_ns_per_s
    if old is None or new is None:
        return f"{faster}{often}."
    if new <= (1.0 + tolerance) * old:
        return ""
    return f"{faster}{often}: {duration(old)} -> {duration(new)} of device time a second."


def _rate(load: Load) -> str:
    rate = load.launches_per_s or 0.0
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
