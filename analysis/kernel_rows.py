"""What is reported of one kernel: its judgement, and what of its launches makes the verdict doubtful."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kdiff.analysis.calibration import Excess
from kdiff.analysis.context import failing_more
from kdiff.analysis.interval import tail_estimate
from kdiff.analysis.measure import NO_DEVICE_TIME, Plan
from kdiff.analysis.pairing import pairing_reason
from kdiff.analysis.reasons import calibration_reason, calibration_report
from kdiff.analysis.report import KernelReport
from kdiff.analysis.sample import Sample
from kdiff.analysis.verdict import Judgement, Policy, Verdict

MIN_ISOLATED_SHARE: Final = 0.1
"""Isolated launches that are a smaller share of a kernel's launches do not speak for the kernel."""


@dataclass(frozen=True, slots=True)
class _Doubt:
    """What makes a kernel's numbers doubtful: no verdict but INCONCLUSIVE, or only no PASS."""

    reason: str
    bars_pass_only: bool


def kernel_row(plan: Plan, judgement: Judgement, max_loss: float) -> KernelReport:
    """The row of the kernel of `plan`; `max_loss` as in compare.Options."""
    pair, verdict = plan.pair, judgement.verdict
    reasons = list(judgement.reasons)
    one_sided = not plan.in_both
    if one_sided:
        # Presence is decided by launches, not by what happens to have a value.
        verdict = Verdict.NEW if pair.in_after else Verdict.GONE
        reasons = [f"The kernel ran only in the {'after' if pair.in_after else 'before'} window."]
    elif plan.why:
        verdict, reasons = Verdict.INCONCLUSIVE, [plan.why]
    elif verdict in (Verdict.NEW, Verdict.GONE):
        verdict, reasons = Verdict.NOT_ENOUGH_DATA, ["It ran in both windows, but only one has times for it."]
    if not one_sided:
        for doubt in _doubts(plan, max_loss):
            if not doubt.bars_pass_only or verdict in (Verdict.PASS, Verdict.IMPROVED):
                verdict = Verdict.INCONCLUSIVE
            reasons.append(doubt.reason)
    reasons = [*pairing_reason(pair), *reasons, *_left_out(plan)]
    return KernelReport(
        kernel=pair.kernel,
        verdict=verdict,
        metric=plan.metric or "none",
        n_before=judgement.n_before if plan.metric else pair.before.ran,
        n_after=judgement.n_after if plan.metric else pair.after.ran,
        quantiles_before=judgement.quantiles_before,
        quantiles_after=judgement.quantiles_after,
        value_before=judgement.value_before,
        value_after=judgement.value_after,
        ratio=judgement.ratio,
        ci=judgement.ci,
        p_regressed=judgement.p_regressed,
        margin=judgement.margin,
        adjusted_ratio=judgement.adjusted_ratio,
        adjusted_ci=judgement.adjusted_ci,
        reasons=tuple(reasons),
        isolated=plan.isolated,
        before_names=pair.old,
        paired_by=pair.by,
        mix=judgement.mix,
    )


def calibrated(
    row: KernelReport,
    samples: tuple[Sample | None, Sample | None],
    excess: Excess,
    decides: bool,
    policy: Policy,
    inflation: float = 1.0,
) -> KernelReport:
    """The row with what its bound says of the device; `inflation` as in judging.judge_all."""
    before, after = samples
    if before is None or after is None:
        return row
    estimates = [tail_estimate(sample, policy.quantile, inflation) for sample in (before, after)]
    calibration = calibration_report(estimates[0], estimates[1], excess, decides, policy.alpha_pass)
    reason = calibration_reason(calibration, policy.quantile)
    return replace(row, calibration=calibration, reasons=(reason, *row.reasons))


def _doubts(plan: Plan, max_loss: float) -> list[_Doubt]:
    pair = plan.pair
    doubts = []
    for side, counts in (("before", pair.before), ("after", pair.after)):
        where = f"of the launches in the {side} window"
        unresolved = _share(counts.unresolved, counts.launches)
        if unresolved > max_loss:
            doubts.append(_Doubt(f"The name is not certain for {unresolved:.1%} {where}.", bars_pass_only=False))
        failed = _share(counts.failed, counts.launches)
        if failed > max_loss:
            doubts.append(_Doubt(f"{failed:.1%} {where} failed and have no time.", bars_pass_only=True))
        if side == "after" and not failed > max_loss and (why := failing_more(pair.before, counts)):
            doubts.append(_Doubt(why, bars_pass_only=True))
        if plan.metric and plan.isolated and counts.isolated < MIN_ISOLATED_SHARE * counts.ran:
            share = f"{_share(counts.isolated, counts.ran):.1%} {where}"
            reason = f"{NO_DEVICE_TIME}: the isolated launches, {share}, are too few to speak for the kernel."
            doubts.append(_Doubt(reason, bars_pass_only=True))
    return doubts


def _left_out(plan: Plan) -> list[str]:
    """What of a kernel was not judged, counted."""
    before, after = plan.pair.before, plan.pair.after
    parts = []
    for name, numbers in (
        ("failed launches", (before.failed, after.failed)),
        ("launches captured into graphs", (before.captured, after.captured)),
    ):
        if any(numbers):
            parts.append(f"Left out: {name}, {numbers[0]:,} before and {numbers[1]:,} after.")
    if plan.metric and plan.isolated and (before.isolated < before.ran or after.isolated < after.ran):
        parts.append(
            f"Judged on isolated launches: {before.isolated:,} of {before.ran:,} before, "
            f"{after.isolated:,} of {after.ran:,} after."
        )
    return parts


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
