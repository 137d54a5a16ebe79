"""A PASS must hold with the ordinary traffic, too, that cleaning left out since its record is not sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kdiff.analysis.calibration import Excess
from kdiff.analysis.cleaning import Cleaned
from kdiff.analysis.judging import judge_all
from kdiff.analysis.measure import Plan, gather
from kdiff.analysis.report import KernelReport
from kdiff.analysis.verdict import Policy, Verdict

_PASSES = (Verdict.PASS, Verdict.IMPROVED)


def with_traffic(
    cleaned: Cleaned,
    plans: Sequence[Plan],
    rows: Sequence[KernelReport],
    policy: Policy,
    excesses: Mapping[int, Excess],
    margins: Mapping[int, float],
) -> list[KernelReport]:
    """The rows, in order, of the plans. One that passes but regressed with what was left out is undecided.

    An agent loses events where most happens: what is slower there must not disappear with them. Nothing is read where
    no such stretch was left out. Raises StoreError.
    """
    rows = list(rows)
    passing = [i for i, row in enumerate(rows) if row.verdict in _PASSES and plans[i].metric is not None]
    if cleaned.with_traffic is None or not passing:
        return rows
    samples = gather(*cleaned.with_traffic, [plans[i] for i in passing])
    asked = {i: samples[place] for place, i in enumerate(passing)}
    judged = judge_all(asked, policy, {i: excesses[i] for i in passing if i in excesses}, margins=margins)
    for i, judgement in judged.items():
        if judgement.verdict is Verdict.REGRESSED and judgement.ratio is not None:
            reason = (
                f"With the stretches that are left out since their record is not sound it is slower, "
                f"{100 * (judgement.ratio - 1):+.1f}%: no PASS; choose windows without them, or judge all of it with "
                "--no-cleaning."
            )
            rows[i] = replace(rows[i], verdict=Verdict.INCONCLUSIVE, reasons=(reason, *rows[i].reasons))
    return rows
