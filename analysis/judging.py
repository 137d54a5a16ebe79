"""The verdict on each kernel from its values in both windows, all kernels of a run together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from kdiff.analysis.calibration import Excess, device_interval
from kdiff.analysis.decision import ROUNDING, Decidable
from kdiff.analysis.interval import RatioLimits, Sample, TailEstimate, joint_quantum, ratio_interval, tail_estimate
from kdiff.analysis.multiple import holm
from kdiff.analysis.quantiles import Quantiles, summary
from kdiff.analysis.totals import Total, Totals
from kdiff.analysis.verdict import (
    MIN_BUCKETS,
    MIN_EFFECTIVE_EXCEEDANCES,
    MIN_EVEN_BUCKETS,
    QUANTA,
    RAN_ONLY,
    Judgement,
    Policy,
    Verdict,
    values_needed,
)

K = TypeVar("K")

_FAR: Final = 1000.0


@dataclass(frozen=True, eq=False)
class _Pair(Decidable):
    """Both windows of a kernel, estimated once."""

    before: TailEstimate
    after: TailEstimate
    margin: float
    quantum: int
    lack: tuple[str, ...]
    excess: Excess | None = None

    def limits(self, level: float) -> RatioLimits:
        """Of the ratio that is judged: that of the values, or of the device time that they bound."""
        if self.excess is not None:
            return device_interval(self.before, self.after, self.excess, level)
        return ratio_interval(self.before, self.after, level)


def judge(before: Sample | None, after: Sample | None, policy: Policy) -> Judgement:
    """The verdict on one kernel judged alone. None or an empty sample means that the kernel did not run."""
    return judge_all({None: (before, after)}, policy)[None]


def judge_all(
    samples: Mapping[K, tuple[Sample | None, Sample | None]],
    policy: Policy,
    excesses: Mapping[K, Excess] | None = None,
    totals: Mapping[K, Totals] | None = None,
    inflation: Mapping[K, float] | None = None,
) -> dict[K, Judgement]:
    """The verdicts on all kernels of a run, in the order given, those of `totals`, groups of kernels, last.

    A kernel in `excesses` has values that bound its device time: the verdict is about the device time. A group is
    judged by its mean, see totals. `inflation`: by how much the standard errors of a kernel are too small (1: not).

    Holm's procedure over the kernels with enough data keeps the chance of any false REGRESSED in the run below
    `alpha_regressed`. A kernel that would be REGRESSED alone but not among so many is INCONCLUSIVE and says so.
    """
    pairs: dict[K, _Pair | Totals] = {}
    for key, (before, after) in samples.items():
        if before is not None and after is not None and before.size and after.size:
            pairs[key] = _pair(before, after, policy, (excesses or {}).get(key), (inflation or {}).get(key, 1.0))
    pairs |= totals or {}
    p_values = {key: pair.p_regressed() for key, pair in pairs.items() if not pair.lack}
    regressed = holm(p_values, lambda key, level: pairs[key].regressed_at(level), policy.alpha_regressed)
    verdicts: dict[K, Judgement] = {}
    for key in [*samples, *(key for key in totals or {} if key not in samples)]:
        if key in pairs:
            verdicts[key] = _judged(pairs[key], p_values.get(key), key in regressed, len(p_values), policy)
        else:
            verdicts[key] = _one_sided(*samples[key], policy)
    return verdicts


def _pair(before: Sample, after: Sample, policy: Policy, excess: Excess | None, inflation: float) -> _Pair:
    b, a = (tail_estimate(sample, policy.quantile, inflation) for sample in (before, after))
    quantum = joint_quantum(b, a)
    # Without a visible tick the clock counts ns, and two of them are the least that can be told apart.
    value = b.value - (excess.p50 if excess else 0)
    margin = max(policy.tolerance, QUANTA * quantum / max(value, quantum))
    lack = tuple(reason for name, estimate in (("before", b), ("after", a)) for reason in _lack(name, estimate, policy))
    return _Pair(b, a, margin, quantum, lack, excess)


def _lack(name: str, estimate: TailEstimate, policy: Policy) -> list[str]:
    """Why this window cannot be judged, one sentence each."""
    tail = 1.0 - policy.quantile
    what = f"p{100 * policy.quantile:g}"
    needed = values_needed(policy.quantile)
    if estimate.n < needed:
        return [
            f"The {name} window has {estimate.n:,} launches; {what} needs {needed:,}: "
            f"{needed - estimate.n:,} more, or a window {needed / estimate.n:.1f} times as long."
        ]
    if estimate.filled < MIN_BUCKETS:
        return [
            f"The {name} window has launches in {estimate.filled} stretches of time; {MIN_BUCKETS} are needed: "
            f"take a longer window."
        ]
    if estimate.even < MIN_EVEN_BUCKETS:
        return [
            f"The {name} window's launches crowd into the equal of {estimate.even:.1f} stretches of time; "
            f"{MIN_EVEN_BUCKETS:g} are needed: take a longer window, or one of steadier traffic."
        ]
    limits = [estimate.limits(alpha) for alpha in (policy.alpha_regressed, policy.alpha_pass)]
    width = max(high - low for low, high in limits)
    # Where the limits stay within the timer's reach of each other, bursts or not, there is nothing left to learn.
    if width <= QUANTA * estimate.quantum:
        return []
    factor = MIN_EFFECTIVE_EXCEEDANCES / (tail * estimate.n_eff)
    if factor > 1.0 or not math.isfinite(width):
        return [
            f"The {name} window's slow launches come in bursts, so that its {estimate.n:,} launches tell no more "
            f"than {estimate.n_eff:,.0f} independent ones: take a window about {max(factor, 1.5):.1f} times as long."
        ]
    return []


def _judged(pair: _Pair | Totals, p: float | None, regressed: bool, family: int, policy: Policy) -> Judgement:
    before, after = _shown(pair.before), _shown(pair.after)
    if isinstance(pair, Totals):
        shown, tick, ticks = pair.limits(policy.alpha_pass), pair.tick, "The ticks of the group's kernels are together"
    else:
        shown, tick = ratio_interval(pair.before, pair.after, policy.alpha_pass), pair.quantum
        ticks = "The timer ticks every"
    reasons: list[str] = []
    if pair.margin > policy.tolerance:
        reasons.append(f"{ticks} {tick} ns: the margin is {QUANTA} ticks, {100 * pair.margin:.1f}%.")
    if pair.lack:
        verdict = Verdict.NOT_ENOUGH_DATA
        reasons += pair.lack
    elif regressed:
        verdict = Verdict.REGRESSED
    elif pair.passes_at(policy.alpha_pass):
        # A gain of no more than a tick may be the timer's.
        gain = 1.0 - tick / max(before.value, tick)
        verdict = (
            Verdict.IMPROVED if gain > 0.0 and pair.limits(policy.alpha_pass).high < math.log(gain) else Verdict.PASS
        )
    else:
        verdict = Verdict.INCONCLUSIVE
        reasons.append(_undecided(pair, family, policy))
    return Judgement(
        verdict=verdict,
        n_before=pair.before.n,
        n_after=pair.after.n,
        quantiles_before=before.quantiles,
        quantiles_after=after.quantiles,
        value_before=before.value,
        value_after=after.value,
        ratio=shown.ratio,
        ci=shown.ci,
        p_regressed=p,
        margin=pair.margin,
        quantum_ns=tick,
        reasons=tuple(reasons),
    )


class _Shown(NamedTuple):
    """What is shown of one window."""

    value: int
    quantiles: Quantiles | None


def _shown(window: TailEstimate | Total) -> _Shown:
    if isinstance(window, Total):
        return _Shown(round(window.mean), None)
    return _Shown(window.value, summary(window.ordered))


def _undecided(pair: _Pair | Totals, family: int, policy: Policy) -> str:
    """What would decide it. Limits shrink with the root of the window's length."""
    if pair.regressed_at(policy.alpha_regressed):
        return (
            f"Alone this kernel would be REGRESSED, but among {family} kernels a difference of this size is "
            f"expected by chance too often: judge it alone (--kernel), or take longer windows."
        )
    if isinstance(pair, _Pair) and pair.excess is not None:
        return "What the bound leaves open of the device time holds the margin: record device time in both windows."
    theta, _, high = pair.limits(policy.alpha_pass)
    low = pair.limits(policy.alpha_regressed).low
    gap = abs(pair.bar - theta)
    below = theta <= pair.bar + ROUNDING
    reach = high - theta if below else theta - low
    side = "below" if below else "above"
    text = f"The ratio is {side} the margin of {100 * pair.margin:.1f}%, but not by more than its uncertainty"
    factor = (reach / gap) ** 2 if gap > 0.0 and math.isfinite(reach) else math.inf
    if not factor < _FAR:
        return f"{text}: it is too close to the margin for any window of practical length."
    factor = max(factor, 1.1)
    return (
        f"{text}: it would take about {factor:.{1 if factor < 10 else 0}f} times as many launches in each window, "
        f"{math.ceil((factor - 1.0) * pair.before.n):,} more before and "
        f"{math.ceil((factor - 1.0) * pair.after.n):,} more after, if the ratio stays where it is."
    )


def _one_sided(before: Sample | None, after: Sample | None, policy: Policy) -> Judgement:
    shown = [None if s is None or not s.size else tail_estimate(s, policy.quantile) for s in (before, after)]
    b, a = shown
    if b is None and a is None:
        verdict, reason = Verdict.NOT_ENOUGH_DATA, "The kernel ran in neither window."
    elif b is None:
        verdict, reason = Verdict.NEW, f"{RAN_ONLY} the after window."
    else:
        verdict, reason = Verdict.GONE, f"{RAN_ONLY} the before window."
    return Judgement(
        verdict=verdict,
        n_before=b.n if b else 0,
        n_after=a.n if a else 0,
        quantiles_before=summary(b.ordered) if b else None,
        quantiles_after=summary(a.ordered) if a else None,
        value_before=b.value if b else None,
        value_after=a.value if a else None,
        ratio=None,
        ci=None,
        p_regressed=None,
        margin=policy.tolerance,
        quantum_ns=next((e.quantum for e in shown if e), 1),
        reasons=(reason,),
    )
