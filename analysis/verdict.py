"""The verdict on one kernel, on all kernels of a run, and on the run.

A verdict is a statement about one quantile (p99 unless the policy says otherwise). The other quantiles are shown
beside it and gate nothing: a slow median does not show at p99, nor the reverse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar

from kdiff.analysis.calibration import Excess, device_interval
from kdiff.analysis.decision import ROUNDING, Decidable
from kdiff.analysis.interval import RatioLimits, Sample, TailEstimate, joint_quantum, ratio_interval, tail_estimate
from kdiff.analysis.multiple import holm
from kdiff.analysis.quantiles import Quantiles, summary
from kdiff.analysis.totals import Total, Totals

K = TypeVar("K")

MIN_EXCEEDANCES = 20
"""Launches above the quantile that a window must hold (2,000 launches at p99)."""
MIN_EFFECTIVE_EXCEEDANCES = 6.0
"""The same after the allowance for autocorrelation, which is itself an estimate and so gets slack."""
MIN_BUCKETS = 30
"""Buckets with launches that a window must have for its autocorrelation to be estimated."""
MIN_EVEN_BUCKETS = 20.0
"""The same when unequal buckets count for less: (sum n_t)^2 / sum n_t^2."""
RAN_ONLY = "The kernel ran only in"
"""How the reason of NEW and of GONE begins."""
QUANTA = 2
"""Ticks of the timer that no verdict may rest on: each end of an execution is read to a tick."""
_FAR = 1000.0


class Verdict(StrEnum):
    """What is said of a kernel, or of a run."""

    REGRESSED = "REGRESSED"
    PASS = "PASS"
    IMPROVED = "IMPROVED"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_ENOUGH_DATA = "NOT_ENOUGH_DATA"
    NEW = "NEW"
    GONE = "GONE"
    RENAME_SUSPECTED = "RENAME_SUSPECTED"


NOT_COMPARED = frozenset({Verdict.NEW, Verdict.GONE, Verdict.RENAME_SUSPECTED})
"""Of kernels that were not compared: they decide nothing by themselves."""


@dataclass(frozen=True)
class Policy:
    """What is judged and how sure a verdict must be.

    Attributes:
        tolerance: M, the slowdown that is accepted (0.05 is 5%).
        quantile: the quantile that is judged.
        alpha_regressed: chance of a REGRESSED kernel in a run where none got slower than the tolerance.
        alpha_pass: chance that a kernel slower than the tolerance passes.

    Raises:
        ValueError: if a value is outside its range.
    """

    tolerance: float = 0.05
    quantile: float = 0.99
    alpha_regressed: float = 0.01
    alpha_pass: float = 0.05

    def __post_init__(self) -> None:
        if not (self.tolerance >= 0.0 and math.isfinite(self.tolerance)):
            raise ValueError(f"the tolerance is a finite number >= 0, not {self.tolerance}")
        if not 0.0 < self.quantile < 1.0:
            raise ValueError(f"the quantile lies in (0, 1), not {self.quantile}")
        for alpha in (self.alpha_regressed, self.alpha_pass):
            if not 0.0 < alpha < 0.5:
                raise ValueError(f"an error rate lies in (0, 0.5), not {alpha}")


@dataclass(frozen=True)
class Judgement:
    """A verdict with the numbers it rests on.

    Attributes:
        verdict: the verdict.
        n_before, n_after: launches in each window.
        quantiles_before, quantiles_after: in ns; None for a window without launches.
        value_before, value_after: the judged quantile in ns; None for a window without launches.
        ratio: after / before of the judged quantile, None unless both windows have launches.
        ci: limits of the ratio at level 1 - 2 alpha_pass (90%): the kernel passes exactly when the upper one is at most
            1 + margin. The upper one may be inf and the lower one 0.
        p_regressed: one-sided p-value of "the ratio is at most 1 + margin", before the allowance for the number of
            kernels; None where no verdict is possible.
        margin: the tolerance, or 2 ticks of the timer if that is more.
        quantum_ns: the tick of the timer seen in the data; 1 if none shows.
        reasons: sentences for people.
    """

    verdict: Verdict
    n_before: int
    n_after: int
    quantiles_before: Quantiles | None
    quantiles_after: Quantiles | None
    value_before: int | None
    value_after: int | None
    ratio: float | None
    ci: tuple[float, float] | None
    p_regressed: float | None
    margin: float
    quantum_ns: int
    reasons: tuple[str, ...]


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
) -> dict[K, Judgement]:
    """The verdicts on all kernels of a run, in the order given, those of `totals`, groups of kernels, last.

    A kernel in `excesses` has values that bound its device time: the verdict is about the device time. A group is
    judged by its mean, see totals.

    Holm's procedure over the kernels with enough data keeps the chance of any false REGRESSED in the run below
    `alpha_regressed`. A kernel that would be REGRESSED alone but not among so many is INCONCLUSIVE and says so.
    """
    pairs: dict[K, _Pair | Totals] = {}
    for key, (before, after) in samples.items():
        if before is not None and after is not None and before.size and after.size:
            pairs[key] = _pair(before, after, policy, (excesses or {}).get(key))
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


def values_needed(quantile: float) -> int:
    """How many launches a window needs for this quantile: 2,000 for a p99."""
    return math.ceil(round(MIN_EXCEEDANCES / (1.0 - quantile), 6))


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on a run.

    REGRESSED if any kernel is; else INCONCLUSIVE or NOT_ENOUGH_DATA if any kernel is; else PASS. A kernel that is NEW
    or GONE, or perhaps renamed, fails nothing beside others that were compared. But where nothing was compared (all NEW
    or GONE, as after a rename, or no kernel at all) a PASS would say that someone looked: the run is INCONCLUSIVE.
    """
    seen = set(verdicts)
    for verdict in (Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.NOT_ENOUGH_DATA):
        if verdict in seen:
            return verdict
    return Verdict.PASS if seen & {Verdict.PASS, Verdict.IMPROVED} else Verdict.INCONCLUSIVE


def _pair(before: Sample, after: Sample, policy: Policy, excess: Excess | None) -> _Pair:
    b, a = tail_estimate(before, policy.quantile), tail_estimate(after, policy.quantile)
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
