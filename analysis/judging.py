"""The verdict on each kernel from its values in both windows, all kernels of a run together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple, TypeVar

from kdiff.analysis import clusters
from kdiff.analysis.calibration import Excess, device_interval
from kdiff.analysis.controls import Adjusted, Controls, Roles, adjusted_reason
from kdiff.analysis.decision import ROUNDING, Decidable
from kdiff.analysis.interval import RatioLimits, TailEstimate, joint_quantum, ratio_interval, tail_estimate
from kdiff.analysis.mix import LARGE, LEAST_SHARE, Mix, Mixed
from kdiff.analysis.mix_words import undecided_by_shape, with_mix
from kdiff.analysis.multiple import regressed as regressed_among
from kdiff.analysis.quantiles import Quantiles, summary
from kdiff.analysis.sample import Sample
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
from kdiff.analysis.widening import APART

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

    @property
    def independent(self) -> float:
        """By the window where it is larger."""
        both = self.before, self.after
        if self.excess is not None or any(one.clustered or one.weighted is not None for one in both):
            return 1.0
        return max(one.n_eff / one.n for one in both)


def judge(before: Sample | None, after: Sample | None, policy: Policy) -> Judgement:
    """The verdict on one kernel judged alone. None or an empty sample means that the kernel did not run."""
    return judge_all({None: (before, after)}, policy)[None]


def judge_all(
    samples: Mapping[K, tuple[Sample | None, Sample | None]],
    policy: Policy,
    excesses: Mapping[K, Excess] | None = None,
    totals: Mapping[K, Totals] | None = None,
    inflation: Mapping[K, float] | None = None,
    margins: Mapping[K, float] | None = None,
    roles: Roles[K] | None = None,
    hosts: tuple[Sequence[str], Sequence[str]] = ((), ()),
    mixes: Mapping[K, Mix] | None = None,
) -> dict[K, Judgement]:
    """The verdicts on all kernels of a run, in the order given, those of `totals`, groups of kernels, last.

    A kernel in `excesses` has values that bound its device time: the verdict is about the device time. A group is
    judged by its mean, see totals. `inflation`: by how much the standard errors of a kernel are too small (1: not).
    `margins`: of kernels whose tolerance is not the policy's. `roles`: which kernels are controls, see controls.
    `hosts`: what the stretches of samples before and after are called where they are hosts, see clusters.
    `mixes`: of kernels of several strata, which are judged at one mix and by stratum, see mix.

    Holm's procedure over the kernels with enough data keeps the chance of any false REGRESSED in the run below
    `alpha_regressed`; where it is known which kernels were swapped, that of any among these, see multiple. A kernel
    that would be REGRESSED alone but not among so many is INCONCLUSIVE and says so.
    """
    policies = {key: replace(policy, tolerance=margin) for key, margin in (margins or {}).items()}
    pairs: dict[K, _Pair | Totals] = {}
    mixed: dict[K, Mixed] = {}
    for key, (before, after) in samples.items():
        if before is not None and after is not None and before.size and after.size:
            its, excess = policies.get(key, policy), (excesses or {}).get(key)
            pair_of = partial(_pair, policy=its, excess=excess, inflation=(inflation or {}).get(key, 1.0))
            mix = (mixes or {}).get(key)
            if mix is None or mix.standardised is None:
                pairs[key] = pair_of(before, after)
                continue
            pairs[key] = at_one_mix = pair_of(*mix.standardised)
            every = {stratum: pair_of(*windows) for stratum, windows in mix.strata.items()}
            mixed[key] = Mixed(at_one_mix, every, mix.holding(LEAST_SHARE), mix.holding(LARGE))
    pairs |= totals or {}
    roles = roles or Roles()
    like = {key: pair for key, pair in pairs.items() if key in mixed or key not in (mixes or {})}
    controls = Controls(like, roles, policy)
    adjusted = {key: found for key in like if (found := controls.of(key)) is not None}
    mixed |= {key: mixed[key].beyond(common) for key, common in adjusted.items() if key in mixed}
    asked: dict[K, Decidable] = {**like, **adjusted, **mixed}
    p_values = {key: one.p_regressed() for key, one in asked.items() if not one.lack}
    regressed = regressed_among(
        p_values, lambda key, level: asked[key].regressed_at(level), policy.alpha_regressed, roles.swapped, roles.known
    )
    families = [sum((key in roles.swapped) == named for key in p_values) for named in (False, True)]
    verdicts: dict[K, Judgement] = {}
    for key in [*samples, *(key for key in totals or {} if key not in samples)]:
        if key in pairs:
            its, beside = policies.get(key, policy), adjusted.get(key)
            family = families[key in roles.swapped]
            judged = _judged(pairs[key], p_values.get(key), key in regressed, family, its, beside, mixed.get(key))
            mix, by_shape = (mixes or {}).get(key), mixed.get(key)
            if isinstance(one := pairs[key], _Pair) and judged.verdict in (Verdict.REGRESSED, Verdict.INCONCLUSIVE):
                slow = [
                    *clusters.apart("before", one.before, one.margin, hosts[0]),
                    *clusters.apart("after", one.after, one.margin, hosts[1]),
                ]
                judged = replace(judged, reasons=(*judged.reasons, *slow))
            if mix is not None:
                judged = with_mix(judged, samples[key], mix, by_shape, its)
            verdicts[key] = replace(judged, common=controls.common(key))
        else:
            verdicts[key] = _one_sided(*samples[key], policies.get(key, policy))
    return verdicts


def _pair(before: Sample, after: Sample, policy: Policy, excess: Excess | None, inflation: float) -> _Pair:
    b, a = (tail_estimate(sample, policy.quantile, inflation) for sample in (before, after))
    return paired(b, a, policy, excess)


def paired(b: TailEstimate, a: TailEstimate, policy: Policy, excess: Excess | None = None) -> _Pair:
    """What is judged of a kernel whose windows, before and after, are estimated already."""
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
    if estimate.informative < needed <= estimate.n:
        return [
            f"At the mix that they are compared at the {name} window's {estimate.n:,} launches tell no more than "
            f"{estimate.informative:,.0f}; {what} needs {needed:,}: take a longer window."
        ]
    if estimate.n < needed:
        return [
            f"The {name} window has {estimate.n:,} launches; {what} needs {needed:,}: "
            f"{needed - estimate.n:,} more, or a window {needed / estimate.n:.1f} times as long."
        ]
    if estimate.clustered:
        return clusters.lack(name, estimate, policy)
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
    both = policy.alpha_regressed, policy.alpha_pass
    limits = [estimate.limits(alpha) for alpha in both]
    width = max(high - low for low, high in limits)
    # Where the limits stay within the timer's reach of each other, bursts or not, there is nothing left to learn.
    if width <= QUANTA * estimate.quantum:
        return []
    factor = MIN_EFFECTIVE_EXCEEDANCES / (tail * estimate.n_eff)
    if factor > 1.0 or not math.isfinite(width):
        return [_unsure(name, estimate, max(factor, *map(estimate.longer_for, both)), policy)]
    return []


def _unsure(name: str, estimate: TailEstimate, longer: float, policy: Policy) -> str:
    """The sentence on a window of which `longer` times as many launches are needed: by its bursts, by the history that
    its standard error is inflated by, or by both."""
    mend = f"take a window about {max(longer, 1.1):.1f} times as long"
    if not longer < _FAR:
        mend = "that takes more than any window of practical length"
    elif estimate.inflation > 1.0 and longer > APART:
        mend += ", and run `kdiff calibrate` for that length"
    if estimate.inflation <= 1.0:
        return (
            f"The {name} window's slow launches come in bursts, so that its {estimate.n:,} launches tell no more "
            f"than {estimate.n_eff:,.0f} independent ones: {mend}."
        )
    own, by = estimate.as_it_was, f"x{estimate.inflation:.2f}"
    if _lack(name, own, policy):
        return (
            f"The {name} window's slow launches come in bursts, so that its {estimate.n:,} launches tell no more "
            f"than {own.n_eff:,.0f} independent ones, and {estimate.n_eff:,.0f} where the history widens its "
            f"interval {by}: {mend}."
        )
    return (
        f"The {name} window's {estimate.n:,} launches would do by themselves, but the history widens its interval "
        f"{by}, so that they tell no more than {estimate.n_eff:,.0f} independent ones: {mend}."
    )


def _judged(
    pair: _Pair | Totals,
    p: float | None,
    regressed: bool,
    family: int,
    policy: Policy,
    adjusted: Adjusted | None,
    mixed: Mixed | None,
) -> Judgement:
    asked: Decidable = mixed or adjusted or pair
    before, after = _shown(pair.before), _shown(pair.after)
    if isinstance(pair, Totals):
        shown, tick, ticks = pair.limits(policy.alpha_pass), pair.tick, "The ticks of the group's kernels are together"
    else:
        shown, tick = ratio_interval(pair.before, pair.after, policy.alpha_pass), pair.quantum
        ticks = "The timer ticks every"
    reasons: list[str] = []
    if pair.margin > policy.tolerance:
        reasons.append(f"{ticks} {tick} ns: the margin is {QUANTA} ticks, {100 * pair.margin:.1f}%.")
    if adjusted is not None:
        reasons.append(adjusted_reason(adjusted, policy.alpha_pass))
    if pair.lack and not regressed:
        verdict = Verdict.NOT_ENOUGH_DATA
        reasons = [*pair.lack, *reasons]
    elif regressed:
        verdict = Verdict.REGRESSED
    elif asked.passes_at(policy.alpha_pass):
        # A gain of no more than a tick may be the timer's.
        gain = 1.0 - tick / max(before.value, tick)
        highest = max(one.limits(policy.alpha_pass).high for one in (pair, asked))
        verdict = Verdict.IMPROVED if gain > 0.0 and highest < math.log(gain) else Verdict.PASS
    elif adjusted is not None and adjusted.confounded(policy.alpha_pass):
        verdict = Verdict.CONFOUNDED
    else:
        verdict = Verdict.INCONCLUSIVE
        shapes = undecided_by_shape(mixed, policy) if mixed else ""
        reasons.insert(0, shapes or _undecided(pair, family, policy, asked))  # the one that a headline tells
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
        adjusted_ratio=adjusted.limits(policy.alpha_pass).ratio if adjusted else None,
        adjusted_ci=adjusted.limits(policy.alpha_pass).ci if adjusted else None,
    )


class _Shown(NamedTuple):
    """What is shown of one window."""

    value: int
    quantiles: Quantiles | None


def _shown(window: TailEstimate | Total) -> _Shown:
    if isinstance(window, Total):
        return _Shown(round(window.mean), None)
    return _Shown(window.value, summary(window.ordered))


def _undecided(pair: _Pair | Totals, family: int, policy: Policy, asked: Decidable) -> str:
    """What would decide it. Limits shrink with the root of the window's length."""
    if asked.regressed_at(policy.alpha_regressed):
        return (
            f"Alone this kernel would be REGRESSED, but among {family} kernels a difference of this size is "
            f"expected by chance too often: if it is what was swapped, name it (--swapped), or take longer windows."
        )
    if isinstance(pair, _Pair) and pair.excess is not None:
        return "What the bound leaves open of the device time holds the margin: record device time in both windows."
    decided = pair.regressed_at(policy.alpha_regressed) or pair.passes_at(policy.alpha_pass)
    one, what = (asked, "The ratio beyond what is common") if decided else (pair, "The ratio")
    theta, _, high = one.limits(policy.alpha_pass)
    low = one.limits(policy.alpha_regressed).low
    gap = abs(pair.bar - theta)
    below = theta <= pair.bar + ROUNDING
    reach = high - theta if below else theta - low
    side = "below" if below else "above"
    text = f"{what} is {side} the margin of {100 * pair.margin:.1f}%, but not by more than its uncertainty"
    factor = (reach / gap) ** 2 if gap > 0.0 and math.isfinite(reach) else math.inf
    if not factor < _FAR:
        return f"{text}: it is too close to the margin for any window of practical length."
    factor = max(factor, 1.1)
    if isinstance(pair, _Pair) and pair.after.clustered:
        return f"{text}: it would take about {factor:.{1 if factor < 10 else 0}f} times as many hosts in each window."
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
