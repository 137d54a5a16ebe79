"""What was swapped and what stood by: --swapped, and what control kernels say of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from kdiff.analysis.controls import MIN_CONTROLS, Roles
from kdiff.analysis.measure import Plan
from kdiff.analysis.output_text import change, interval
from kdiff.analysis.pairing import Pair, PairingError, show
from kdiff.analysis.report import KernelReport
from kdiff.analysis.surroundings import ControlsReport
from kdiff.analysis.tolerances import names_match
from kdiff.analysis.verdict import Judgement, Verdict

_MOVED_BY_ALL: Final = ("device", "completion")
"""The measures that clocks, heat and neighbours move. A host call waits for none of them, a graph is many kernels."""
_BY_MAP: Final = ("map", "group")


def roles(
    plans: Sequence[Plan], patterns: Sequence[str], calibrated: Collection[int], ran: Iterable[Pair]
) -> Roles[int]:
    """Which kernels of `plans`, by index, are controls.

    With `patterns` (of --swapped) none that match one or that --map paired; without any all are.
    `calibrated` are judged by another measure than their plan's. Raises PairingError: a pattern matches none of those
    that `ran`.
    """
    pairs = list(ran)
    for pattern in patterns:
        if not pattern:
            raise PairingError("--swapped '' names nothing: give part of a kernel's name, or leave the option out")
        if not any(names_match(pair, pattern) for pair in pairs):
            raise PairingError(f"--swapped {show(pattern)}: no kernel of either window matches it; see `kdiff kernels`")
    measures = {
        index: f"{plan.metric} (calibrated)" if index in calibrated else str(plan.metric)
        for index, plan in enumerate(plans)
        if plan.metric in _MOVED_BY_ALL and plan.in_both
    }
    if not patterns:
        return Roles(measures)
    named = (
        index
        for index, plan in enumerate(plans)
        if plan.pair.by in _BY_MAP or any(names_match(plan.pair, pattern) for pattern in patterns)
    )
    return Roles(measures, frozenset(named), known=True)


def reports(judgements: Mapping[int, Judgement]) -> tuple[ControlsReport, ...]:
    """What the controls of each measure did."""
    commons = {judged.common.measure: judged.common for judged in judgements.values() if judged.common}
    return tuple(
        ControlsReport(measure, common.n, common.ratio, common.ci, common.apart, common.adjusted)
        for measure, common in sorted(commons.items())
    )


def notes(controls: Sequence[ControlsReport], asked: Roles[int]) -> list[str]:
    """What a reader must know of the controls, one sentence each; nothing where they say nothing."""
    found = []
    for one in controls:
        moved = (
            f"{one.n} control kernels moved together by {change(one.common_ratio)} {interval(one.ci)} ({one.metric})"
        )
        if one.adjusted:
            held = (
                "" if asked.known else ", which holds if fewer than half of them were changed (--swapped names those)"
            )
            found.append(f"{moved}: verdicts allow for it{held}.")
        elif one.apart > one.n / 3:
            found.append(
                f"The {one.n} control kernels did not move together ({one.metric}): {one.apart} of them are away from "
                "their median by more than their margin. Nothing common to all can be told, and verdicts are not "
                "adjusted."
            )
    if asked.known and asked.measures and not controls:
        others = sum(index not in asked.swapped for index in asked.measures)
        found.append(
            f"Fewer than {MIN_CONTROLS} kernels with enough data were not swapped ({others} were compared): what moved "
            "all of them cannot be told from the swap."
        )
    return found


def unseen(rows: Sequence[KernelReport], patterns: Sequence[str], controls: Sequence[ControlsReport]) -> list[str]:
    """That `patterns` (of --kernel) left out what a common shift is told from, where a kernel is REGRESSED."""
    if not patterns or controls or not any(row.verdict is Verdict.REGRESSED for row in rows):
        return []
    return [
        "Only kernels that --kernel chose were compared, too few to tell what moved all kernels: without it the "
        "others are controls."
    ]
