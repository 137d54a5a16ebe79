"""Confidence limits for a tail quantile of autocorrelated durations, and for the ratio of two of them.

One window gives an estimate of its q-quantile with a standard error on the probability scale, from the
counts of exceedances in each stretch of time. Woodruff (1952) turns that into limits in ns, and MOVER (Zou
& Donner 2008, Donner & Zou 2012) joins the limits of two windows into limits for the ratio. No resampling:
the same events give the same answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis import bins, quantiles
from kdiff.analysis.sample import Sample

RECOMMENDED_BUCKETS = 120
"""Stretches to cut a window into: 9 degrees of freedom, enough to tell one kernel among hundreds."""
SLOWEST = 4
"""The fewest cosines that estimate a variance."""
BURST_SCALE = 4.0
"""Bursts are scaled by no more than this: beyond it the few launches of the far tail are all there is to scale."""


@dataclass(frozen=True, eq=False)
class TailEstimate:
    """The q-quantile of one window and how well it is known.

    Attributes:
        ordered: the durations in ns.
        q: the probability of the quantile.
        value: the q-quantile in ns.
        n: number of durations.
        variance: V, the long-run variance of the number of exceedances; at least n q (1-q).
        nu: degrees of freedom of V.
        filled: buckets that hold a launch.
        even: (sum n_t)^2 / sum n_t^2, the buckets' number if the launches were spread evenly over them.
        quantum: tick of the timer in ns, from the data; 1 if none shows.
        binned: that of the sample.
        steps: shape (m,), `value` and the distinct durations above it, ns, ascending.
        evidence: shape (m,), t statistic against "the quantile lies above this step", non-decreasing.
        weighted: the distribution that the quantile is of, where durations have weights; None: that of `ordered`.
        informative: launches of one weight that would tell as much of the quantile; n where all have one.
        clustered: that of the sample.
        levels: shape (T,), of a clustered sample the same quantile of each host's launches, ns; NaN where they are
            too few to have one. None of others.
        inflation: what the standard error was multiplied by.
    """

    ordered: quantiles.Ordered = field(repr=False)
    q: float
    value: int
    n: int
    variance: float
    nu: int
    filled: int
    even: float
    quantum: int
    binned: bool
    steps: NDArray[np.int64] = field(repr=False)
    evidence: NDArray[np.float64] = field(repr=False)
    weighted: quantiles.Weighted | None = field(default=None, repr=False)
    informative: float = math.inf
    clustered: bool = False
    levels: NDArray[np.float64] | None = field(default=None, repr=False)
    inflation: float = 1.0

    @property
    def se(self) -> float:
        """Standard error of the empirical distribution function at the quantile (probability scale)."""
        return math.sqrt(self.variance) / self.n

    @property
    def n_eff(self) -> float:
        """Independent launches that would know the quantile as well: n * binomial variance / V."""
        return self.n * (self.n * self.q * (1.0 - self.q)) / self.variance

    def limits(self, alpha: float) -> tuple[float, float]:
        """One-sided lower and upper limits of the quantile in ns, each wrong with probability alpha.

        The lower one is Woodruff's (1952). The upper one is the first step at which "the quantile lies above" is
        rejected. A limit is infinite where the sample does not bound the quantile on that side.

        Raises:
            ValueError: if alpha is not in (0, 0.5].
        """
        if not 0.0 < alpha <= 0.5:
            raise ValueError(f"the error rate of a limit lies in (0, 0.5], not {alpha}")
        critical = max(0.0, -student_quantile(self.nu, alpha))
        low = self.q - critical * self.se
        lower = float(self._quantile(low)) if low > 0.0 else -math.inf
        first = int(self.evidence.searchsorted(critical))
        upper = float(self.steps[first]) if first < self.steps.size else math.inf
        return lower, upper

    def longer_for(self, alpha: float) -> float:
        """How many times as many launches would bound the quantile at `alpha`; at most 1: these do."""
        critical = max(0.0, -student_quantile(self.nu, alpha))
        most = float(self.evidence[-1])
        above = critical / most if most > 0.0 else math.inf
        return max(critical * self.se / self.q, above) ** 2

    @property
    def as_it_was(self) -> TailEstimate:
        """The same without inflation."""
        evidence, variance = self.evidence * self.inflation, self.variance / self.inflation**2
        return replace(self, evidence=evidence, variance=variance, inflation=1.0)

    def _quantile(self, p: float) -> int:
        return quantiles.quantile(self.ordered, p) if self.weighted is None else self.weighted.quantile(p)

    def rounding(self, alpha: float) -> float:
        """By how much the logarithms of the quantile and its limits may be off because durations are binned."""
        return bins.rounding(*self.limits(alpha)) if self.binned else 0.0


class RatioLimits(NamedTuple):
    """log(after/before) of a quantile with one-sided limits, each wrong with probability alpha."""

    log_ratio: float
    low: float
    high: float

    @property
    def ratio(self) -> float:
        """after/before."""
        return _exp(self.log_ratio)

    @property
    def ci(self) -> tuple[float, float]:
        """Limits of after/before."""
        return _exp(self.low), _exp(self.high)


def degrees_of_freedom(filled: int) -> int:
    """Number of cosines: max(4, floor(0.4 T^(2/3))) for T filled buckets (Lazarus et al. 2018)."""
    return max(SLOWEST, math.floor(0.4 * math.pow(filled, 2.0 / 3.0)))


def tail_estimate(sample: Sample, q: float, inflation: float = 1.0) -> TailEstimate:
    """Estimate the q-quantile of a window.

    V is the equal-weighted cosine estimate (Mueller 2007; Lazarus et al. 2018) of the variance of the exceedance
    count, floored at its binomial value. Ties: as if the values were spread inside their tick at random, the share
    w of the launches equal to the quantile counts as exceeding, which makes the residuals sum to zero; V gets
    w(1-w) for each of them, the variance that the spreading would have added. Flooring a spread value gives back
    the tick, and quantiles commute with flooring, so limits valid for the spread values are valid here, without
    any random number.

    `inflation` >= 1 multiplies the standard error: history may show that it is too small.

    Of durations with weights, or in hosts, see weighted.

    Raises:
        ValueError: if the sample is empty, q is not in (0, 1), or its quantile lies among what is not told one by one.
    """
    n = sample.size
    if not 0.0 < q < 1.0:
        raise ValueError(f"the quantile lies in (0, 1), not {q}")
    if n == 0:
        raise ValueError("a quantile needs at least one value")
    if sample.weights is not None or sample.clustered:
        from kdiff.analysis.weighted import weighted_estimate  # it builds on this module

        return weighted_estimate(sample, q, inflation)
    ordered = sample.ordered
    value = quantiles.quantile(ordered, q)
    if sample.below is not None and sample.below.size and value <= sample.below.values[-1]:
        raise ValueError(f"the {q}-quantile lies among the durations that are told as a whole")
    counts = np.ones(1) if sample.counts is None else sample.counts.astype(np.float64)
    counts = np.broadcast_to(counts, sample.bucket.shape)

    def per_bucket_of(chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        return np.bincount(sample.bucket[chosen], counts[chosen], sample.buckets).astype(np.float64)

    per_bucket = sample.per_bucket
    if per_bucket is None:
        per_bucket = np.bincount(sample.bucket, counts, sample.buckets).astype(np.float64)
    # Empty buckets carry no information: production gaps must not add degrees of freedom.
    busy = per_bucket > 0
    filled = int(busy.sum())
    nu = degrees_of_freedom(filled)
    waves = cosines(filled, nu)
    if filled < sample.buckets:
        waves = np.zeros((nu, sample.buckets))
        waves[:, busy] = cosines(filled, nu)

    is_above = sample.durations_ns > value
    tail, tail_bucket, tail_counts = sample.durations_ns[is_above], sample.bucket[is_above], counts[is_above]
    equal = per_bucket_of(sample.durations_ns == value)
    ties = float(equal.sum())
    expected = (1.0 - q) * n
    # rank = ceil(q n) puts #{x > value} <= (1-q) n <= #{x >= value}, up to rounding.
    share = min(1.0, max(0.0, (expected - float(tail_counts.sum())) / ties))
    above = per_bucket_of(is_above)
    serial = long_run(waves @ (above + share * equal - (1.0 - q) * per_bucket))
    variance = max(float(serial) + share * (1.0 - share) * ties, n * q * (1.0 - q)) * inflation**2

    order = np.lexsort((tail_bucket, tail))  # sums of cosines must not depend on the order of rows
    total = waves @ per_bucket
    steps, evidence = _evidence_above(value, tail[order], tail_counts[order], waves[:, tail_bucket[order]], total, n, q)
    return TailEstimate(
        ordered=ordered,
        q=q,
        value=value,
        n=n,
        variance=variance,
        nu=nu,
        filled=filled,
        even=n * n / float(per_bucket @ per_bucket),
        quantum=sample.tick or quantiles.timer_quantum(ordered),
        binned=sample.binned,
        steps=steps,
        evidence=evidence / inflation,
        inflation=inflation,
    )


def joint_quantum(before: TailEstimate, after: TailEstimate) -> int:
    """The timer's tick in ns that both windows agree on: the smaller of the two estimates."""
    return min(before.quantum, after.quantum)


def ratio_interval(before: TailEstimate, after: TailEstimate, alpha: float) -> RatioLimits:
    """Limits of log(after/before) by MOVER (Zou & Donner 2008; Donner & Zou 2012), each wrong with
    probability alpha.

    A duration below one tick is read as one tick, so that a quantile of zero has a logarithm. A limit is
    infinite where one of the windows does not bound its quantile on the side that matters. Rounding to bins does not
    even out by chance: the limits are moved by all of it. Of hosts both this and what `among_hosts` says must hold.
    """
    tick = joint_quantum(before, after)
    logs, rounding = [], 0.0
    for estimate in (before, after):
        limits = estimate.limits(alpha)
        logs.append(_logs(estimate.value, *limits, tick))
        rounding += bins.rounding(*limits) if estimate.binned else 0.0
    found = among_hosts(mover(*logs), before, after, alpha, tick)
    return RatioLimits(found.log_ratio, found.low - rounding, found.high + rounding)


def among_hosts(
    found: RatioLimits, before: TailEstimate, after: TailEstimate, alpha: float, tick: int, shift: int = 0
) -> RatioLimits:
    """Limits that hold for the means of the hosts' own log quantiles, too, by Welch's t (Biometrika 34 (1947) 28).

    Where hosts differ by more than their launches do, the tail of all launches is one host's, whose exceedances do not
    show how rare such hosts are. `shift`, ns, is taken off each quantile. Those without hosts are returned as they are.
    """
    if before.levels is None or after.levels is None:
        return found
    logs = []
    for levels in (before.levels, after.levels):
        known = levels[np.isfinite(levels)] - shift
        if known.size < 2 or (shift and known.min() < tick):
            return RatioLimits(found.log_ratio, -math.inf, math.inf)
        logs.append(np.log(np.maximum(known, tick)))
    errors = [float(values.var(ddof=1)) / values.size for values in logs]
    theta = float(logs[1].mean() - logs[0].mean())
    reach = 0.0
    if sum(errors) > 0.0:
        freedom = sum(errors) ** 2 / sum(e * e / (values.size - 1) for e, values in zip(errors, logs, strict=True))
        reach = max(0.0, -student_quantile(max(1, math.floor(freedom + 1e-9)), alpha)) * math.sqrt(sum(errors))
    return RatioLimits(found.log_ratio, min(found.low, theta - reach), max(found.high, theta + reach))


def mover(before: tuple[float, float, float], after: tuple[float, float, float]) -> RatioLimits:
    """Limits of a difference of logarithms from (value, lower, upper) of each."""
    value_b, lower_b, upper_b = before
    value_a, lower_a, upper_a = after
    theta = value_a - value_b
    low = theta - math.hypot(value_a - lower_a, upper_b - value_b)
    high = theta + math.hypot(upper_a - value_a, value_b - lower_b)
    return RatioLimits(theta, low, high)


def _logs(value: int, lower: float, upper: float, tick: int) -> tuple[float, float, float]:
    log_lower = math.log(max(lower, tick)) if lower > -math.inf else -math.inf
    return math.log(max(value, tick)), log_lower, math.log(max(upper, tick))


@lru_cache(4096)  # every kernel is asked about at levels of its own, and kdiff watch may run for months
def student_quantile(nu: int, alpha: float) -> float:
    """The alpha-quantile of Student's distribution with nu degrees of freedom."""
    from scipy.special import stdtrit  # 0.15 s, by then a server works on what is asked next

    return float(stdtrit(nu, alpha))


@lru_cache(32)  # the windows of a run have few lengths
def cosines(size: int, nu: int) -> NDArray[np.float64]:
    """sqrt(2) cos(pi j (t + 1/2) / T) for j = 1..nu and t = 0..T-1; shape (nu, T), not to be written to."""
    frequency = np.arange(1, nu + 1, dtype=np.float64)[:, None]
    angle: NDArray[np.float64] = np.pi * frequency * (np.arange(size) + 0.5) / size
    waves: NDArray[np.float64] = math.sqrt(2.0) * np.cos(angle)
    waves.flags.writeable = False
    return waves


def long_run(projected: NDArray[np.float64]) -> NDArray[np.float64]:
    """V = (T/nu) sum_j L_j^2 from the residuals' products with `cosines`; shape (nu, ...) to (...).

    The slowest 4 cosines alone set it if they say more: the others average away what moves as slowly as the window.
    """
    power = np.square(projected)
    return np.asarray(np.maximum(power.mean(axis=0), power[:SLOWEST].mean(axis=0)), dtype=np.float64)


def _evidence_above(
    value: int,
    tail: NDArray[np.int64],
    tail_counts: NDArray[np.float64],
    tail_cosines: NDArray[np.float64],
    total: NDArray[np.float64],
    n: int,
    q: float,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The steps from `value` up, and the t statistic against "the quantile lies above the step" at each.

    If the quantile lies above x, at least p = 1-q of all launches exceed x, where a share s of this window's did.
    Bursts multiply a rate, so what the variance of that count holds beyond the binomial is scaled by (p/s)^2 to what
    it would be at p. Without this a window that by chance saw few bursts also reports a small variance, and the
    two errors agree: on ties the 1% limit was wrong in up to 15% of windows, not 3%.

    Args:
        value: the quantile, ns.
        tail: shape (k,), the durations above it, ascending.
        tail_counts: shape (k,), how many launches each stands for.
        tail_cosines: shape (nu, k), column i for the bucket of tail[i].
        total: shape (nu,), the cosines summed over all n launches.
        n: launches.
        q: probability of the quantile.
    """
    first = np.flatnonzero(np.diff(tail, prepend=value) != 0)
    steps = np.concatenate([[value], tail[first]]).astype(np.int64)
    # Launches above steps[i] are tail[cut[i]:].
    cut = np.append(first, tail.size)
    count = np.append(np.cumsum(tail_counts[::-1])[::-1], 0.0)[cut]
    running = np.cumsum((tail_cosines * tail_counts)[:, ::-1], axis=1)
    running = np.concatenate([np.zeros((total.size, 1)), running], axis=1)[:, tail.size - cut]
    observed = long_run(running - total[:, None] * count / n)
    expected = (1.0 - q) * n
    excess = np.maximum(0.0, observed - count * (1.0 - count / n))
    excess *= np.minimum(BURST_SCALE, expected / np.maximum(count, 1.0)) ** 2
    # No launch exceeds the last step; its excess is not measured, and the step below it is the nearest that is.
    if excess.size > 1:
        excess[-1] = excess[-2]
    statistic = (expected - count) / np.sqrt(expected * q + excess)
    return steps, np.maximum.accumulate(statistic)


def _exp(x: float) -> float:
    return math.exp(x) if x < 709.0 else math.inf
