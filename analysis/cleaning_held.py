"""A PASS must hold with the ordinary traffic, too, that cleaning left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from kdiff.analysis.calibration import Excess
from kdiff.analysis.cleaning import TRAFFIC, Cleaned
from kdiff.analysis.controls import Roles
from kdiff.analysis.groups import read_groups
from kdiff.analysis.judging import judge_all
from kdiff.analysis.measure import Plan, gather, unlike
from kdiff.analysis.mixing import read_mixes
from kdiff.analysis.output_text import change
from kdiff.analysis.pairing import Group
from kdiff.analysis.report import KernelReport
from kdiff.analysis.verdict import Judgement, Policy, Verdict

_PASSES: Final = (Verdict.PASS, Verdict.IMPROVED)
_AGAIN: Final = {"warm_up": "warm-up", "autotune": "autotuning"}


def with_traffic(
    cleaned: Cleaned,
    plans: Sequence[Plan],
    rows: Sequence[KernelReport],
    policy: Policy,
    excesses: Mapping[int, Excess],
    margins: Mapping[int, float],
    groups: Mapping[int, Group],
    roles: Roles[int],
    inflation: Mapping[int, float],
    strata: bool,
) -> list[KernelReport]:
    """The rows, in order, of the plans. One that passes but is slower with what was left out is undecided.

    An agent loses events where most happens: what is slower there must not disappear with them. All kernels are judged
    again as they were, with that; `groups`: those that were judged, and the rest as judging.judge_all and
    mixing.read_mixes say. Nothing is read where no ordinary traffic was left out. Raises StoreError.
    """
    rows = list(rows)
    if cleaned.with_traffic is None or not any(row.verdict in _PASSES for row in rows):
        return rows
    before, after = cleaned.with_traffic
    samples = gather(before, after, plans)
    judged = judge_all(
        samples,
        policy,
        excesses,
        read_groups(before, after, groups, policy, margins),
        inflation=inflation,
        margins=margins,
        roles=roles,
        hosts=(before.scope.hosts, after.scope.hosts),
        mixes=read_mixes(before, after, plans, samples, groups, unlike(before, after), policy, margins)
        if strata
        else {},
    )
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
