"""A PASS must hold with the ordinary traffic, too, that cleaning left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kdiff.analysis.cleaning import TRAFFIC, Cleaned
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.output_text import change
from kdiff.analysis.report import KernelReport
from kdiff.analysis.verdict import Judgement, Verdict

_PASSES: Final = (Verdict.PASS, Verdict.IMPROVED)
_AGAIN: Final = {"warm_up": "warm-up", "autotune": "autotuning"}


def with_traffic(
    cleaned: Cleaned, rows: Sequence[KernelReport], judge: Callable[[Evidence, Evidence], Mapping[int, Judgement]]
) -> list[KernelReport]:
    """The rows, by the index of their plans. One that passes but is slower with what was left out is undecided.

    An agent loses events where most happens: what is slower there must not disappear with them. All kernels are judged
    again, by `judge` as they were, with that. Nothing is read where no ordinary traffic was left out.

    Raises StoreError.
    """
    rows = list(rows)
    if cleaned.with_traffic is None or not any(row.verdict in _PASSES for row in rows):
        return rows
    judged = judge(*cleaned.with_traffic)
    for index, row in enumerate(rows):
        slower = _slower(judged[index]) if row.verdict in _PASSES and index in judged else None
        if slower is not None:
            reason = (
                f"With {_what(cleaned.traffic)} it is slower, {change(slower)}: no PASS; choose windows without "
                "them, or judge all of it with --no-cleaning."
            )
            rows[index] = replace(row, verdict=Verdict.INCONCLUSIVE, reasons=(reason, *row.reasons))
    return rows


def _slower(judged: Judgement) -> float | None:
    """The ratio of a kernel that does not pass and is above its margin, sure or not; else None.

    Few stretches make wide intervals: where these do not tell, the ratio does.
    """
    if judged.verdict in _PASSES:
        return None
    worst = judged.mix.worst if judged.mix is not None else None
    if judged.mix is not None and judged.mix.decides and worst is not None:
        return worst.ratio
    ratio = judged.ratio if judged.adjusted_ratio is None else judged.adjusted_ratio
    regressed = judged.verdict is Verdict.REGRESSED
    return ratio if ratio is not None and (regressed or ratio > 1.0 + judged.margin) else None


def _what(traffic: Sequence[str]) -> str:
    parts = []
    if TRAFFIC.intersection(traffic):
        parts.append("the stretches that are left out since their record is not sound")
    again = [_AGAIN[step] for step in traffic if step in _AGAIN]
    if again:
        parts.append(f"the {' and '.join(again)} that comes again and again and is left out")
    return " and with ".join(parts)
