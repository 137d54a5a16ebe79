"""Confidence limits for a tail quantile of autocorrelated durations, and for the ratio of two of them.

One window gives an estimate of its q-quantile with a standard error on the probability scale, from the
counts of exceedances in each stretch of time. Woodruff (1952) turns that into limits in ns, and MOVER (Zou
& Donner 2008, Donner & Zou 2012) joins the limits of two windows into limits for the ratio. No resampling:
the same events give the same answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from kdiff.analysis import quantiles
from numpy.typing import NDArray
from scipy.special import stdtrit


@dataclass(frozen=True, eq=False)
class Sample:
    """The durations of one kernel in one window.

    Attributes:
        durations_ns: shape (n,), any order, >= 0.
        bucket: shape (n,), the stretch of time each duration began in, in [0, buckets).
        buckets: T, the number of equal stretches that tile the window; those without a launch count too.

    Raises:
        ValueError: if the shapes differ, a duration is negative, or a bucket is outside [0, buckets).
    """

    durations_ns: NDArray[np.int64]
    bucket: NDArray[np.int32]
    buckets: int

    def __post_init__(self) -> None:
        if self.durations_ns.ndim != 1 or self.durations_ns.shape != self.bucket.shape:
            raise ValueError("durations and buckets are vectors of one length")
        if self.buckets < 1:
            raise ValueError("a window has at least one bucket")
        if self.durations_ns.size == 0:
            return
        if int(self.durations_ns.min()) < 0:
            raise ValueError("a duration is not negative")
        if int(self.bucket.min()) < 0 or int(self.bucket.max()) >= self.buckets:
            raise ValueError(f"a bucket lies in [0, {self.buckets})")


@dataclass(frozen=True, eq=False)
class TailEstimate:
    """The q-quantile of one window and how well it is known.

    Attributes:
        ordered: shape (n,), the durations in ns, ascending.
        q: the probability of the quantile.
        value: the q-quantile in ns.
        n: number of durations.
        variance: V, the long-run variance of the number of exceedances; at least n q (1-q).
        nu: degrees of freedom of V.
        filled: buckets that hold a launch.
        even: (sum n_t)^2 / sum n_t^2, the buckets' number if the launches were spread evenly over them.
        quantum: tick of the timer in ns, from the data; 1 if none shows.
    """

    ordered: NDArray[np.int64] = field(repr=False)
    q: float
    value: int
    n: int
    variance: float
    nu: int
    filled: int
    even: float
    quantum: int

    @property
    def se(self) -> float:
        """Standard error of the empirical distribution function at the quantile (probability scale)."""
        return math.sqrt(self.variance) / self.n

    @property
    def n_eff(self) -> float:
        """Independent launches that would know the quantile as well: n * binomial variance / V."""
        return self.n * (self.n * self.q * (1.0 - self.q)) / self.variance

    def limits(self, alpha: float) -> tuple[float, float]:
        """One-sided lower and upper limits of the quantile, in ns, each wrong with probability alpha
        (Woodruff 1952).

        A limit is infinite where the sample does not bound the quantile on that side.

        Raises:
            ValueError: if alpha is not in (0, 0.5].
        """
        if not 0.0 < alpha <= 0.5:
            raise ValueError(f"the error rate of a limit lies in (0, 0.5], not {alpha}")
        spread = -float(stdtrit(self.nu, alpha)) * self.se
        low, high = self.q - spread, self.q + spread
        lower = float(quantiles.quantile(self.ordered, low)) if low > 0.0 else -math.inf
        upper = float(quantiles.quantile(self.ordered, high)) if high < 1.0 - 1.0 / self.n else math.inf
        return lower, upper


class RatioLimits(NamedTuple):
    """log(after/before) of a quantile with one-sided limits, each wrong with probability alpha."""

    log_ratio: float
    low: float
    high: float


def degrees_of_freedom(filled: int) -> int:
    """Number of cosines: max(4, floor(0.4 T^(2/3))) for T filled buckets (Lazarus et al. 2018)."""
    return max(4, math.floor(0.4 * math.pow(filled, 2.0 / 3.0)))


def tail_estimate(sample: Sample, q: float) -> TailEstimate:
    """Estimate the q-quantile of a window.

    V is the equal-weighted cosine estimate (Mueller 2007; Lazarus et al. 2018) of the variance of the
    exceedance count, floored at its binomial value. Ties: as if the values were spread inside their tick at
    random, the share w of the launches equal to the quantile counts as exceeding, which makes the residuals
    sum to zero; V gets w(1-w) for each of them, the variance that the spreading would have added. Flooring
    a spread value gives back the tick, and quantiles commute with flooring, so limits valid for the spread
    values are valid here, without any random number.

    Raises:
        ValueError: if the sample is empty or q is not in (0, 1).
    """
    n = int(sample.durations_ns.size)
    if not 0.0 < q < 1.0:
        raise ValueError(f"the quantile lies in (0, 1), not {q}")
    if n == 0:
        raise ValueError("a quantile needs at least one value")
    durations = sample.durations_ns
    ordered = np.sort(durations)
    value = quantiles.quantile(ordered, q)
    per_bucket = np.bincount(sample.bucket, minlength=sample.buckets).astype(np.float64)
    above = np.bincount(sample.bucket[durations > value], minlength=sample.buckets)
    equal = np.bincount(sample.bucket[durations == value], minlength=sample.buckets)
    ties = float(equal.sum())
    # rank = ceil(q n) puts #{x > value} <= (1-q) n <= #{x >= value}, up to rounding.
    share = min(1.0, max(0.0, ((1.0 - q) * n - float(above.sum())) / ties))
    residual = above + share * equal - (1.0 - q) * per_bucket
    # Empty buckets carry no information: production gaps must not add degrees of freedom.
    busy = per_bucket > 0
    filled = int(busy.sum())
    nu = degrees_of_freedom(filled)
    serial = _cosine_variance(residual[busy], nu)
    variance = max(serial + share * (1.0 - share) * ties, n * q * (1.0 - q))
    return TailEstimate(
        ordered=ordered,
        q=q,
        value=value,
        n=n,
        variance=variance,
        nu=nu,
        filled=filled,
        even=n * n / float(per_bucket @ per_bucket),
        quantum=quantiles.timer_quantum(ordered),
    )


def joint_quantum(before: TailEstimate, after: TailEstimate) -> int:
    """The timer's tick in ns that both windows agree on: the smaller of the two estimates."""
    return min(before.quantum, after.quantum)


def ratio_interval(before: TailEstimate, after: TailEstimate, alpha: float) -> RatioLimits:
    """Limits of log(after/before) by MOVER (Zou & Donner 2008; Donner & Zou 2012), each wrong with
    probability alpha.

    A duration below one tick is read as one tick, so that a quantile of zero has a logarithm. A limit is
    infinite where one of the windows does not bound its quantile on the side that matters.
    """
    tick = joint_quantum(before, after)
    value_b, lower_b, upper_b = _logs(before, alpha, tick)
    value_a, lower_a, upper_a = _logs(after, alpha, tick)
    theta = value_a - value_b
    low = theta - math.hypot(value_a - lower_a, upper_b - value_b)
    high = theta + math.hypot(upper_a - value_a, value_b - lower_b)
    return RatioLimits(theta, low, high)


def _logs(estimate: TailEstimate, alpha: float, tick: int) -> tuple[float, float, float]:
    lower, upper = estimate.limits(alpha)
    log_lower = math.log(max(lower, tick)) if lower > -math.inf else -math.inf
    return math.log(max(estimate.value, tick)), log_lower, math.log(max(upper, tick))


def _cosine_variance(residual: NDArray[np.float64], nu: int) -> float:
    """(T/nu) sum L_j^2, L_j = sqrt(2/T) sum_t cos(pi j (t + 1/2) / T) r_t, j = 1..nu; r has shape (T,)."""
    size = residual.size
    frequency = np.arange(1, nu + 1, dtype=np.float64)[:, None]
    cosines = np.cos(np.pi * frequency * (np.arange(size) + 0.5) / size) @ residual
    return float(2.0 / nu * (cosines @ cosines))
