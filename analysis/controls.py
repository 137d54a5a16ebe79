"""Kernels that were not swapped as negative controls: what moved all of them (clocks, heat, neighbours) moved no code.

The common shift of a measure is the median of the controls' log ratios, without the kernel that is judged: it holds
while fewer than half of them changed. Verdicts are adjusted for it only where it is a shift beyond doubt, so that a run
without one is judged as if there were no controls.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis.decision import ROUNDING, Decidable
from kdiff.analysis.interval import RatioLimits, mover, student_quantile
from kdiff.analysis.output_text import change, interval
from kdiff.analysis.verdict import Policy

K = TypeVar("K", bound=Hashable)

MIN_CONTROLS: Final = 10
"""Kernels that were not swapped, or may not have been, that a common shift is told from."""
MOST_APART: Final = 1.0 / 3.0
"""Beyond this share of controls that moved apart from the median it stands for nothing common."""
LEAST_SHIFT: Final = 0.005
"""A common shift below it is within the bins of roll-ups, and not adjusted for."""
LEAST_OWN: Final = 0.5
"""No more than half of a kernel's standard error is taken for common."""
_SIGMA: Final = 0.1587  # of a normal distribution lies above its standard deviation
_QN: Final = 2.2219  # makes Qn the standard deviation of a normal distribution
_MOST_VALUES: Final = 1_000
_EFFICIENCY: Final = 0.82  # of Qn, which this share of n - 1 degrees of freedom goes with


@dataclass(frozen=True)
class Shift:
    """A common shift, log(after / before), as it is held against one kernel.

    Attributes:
        center: the median of the controls.
        error: its standard error.
        spread: by how much controls answer to it differently, beyond their own noise (standard deviation).
        freedom: degrees of freedom of both.
        shared: the variance of a kernel's log ratio that all have in common, which is no noise of what is beyond it.
    """

    center: float
    error: float
    spread: float
    freedom: int
    shared: float = 0.0

    def limits(self, level: float) -> tuple[float, float, float]:
        """The shift and its one-sided limits, each wrong with probability `level`."""
        return self._around(self.error, level)

    def of_one(self, level: float) -> tuple[float, float, float]:
        """The same of what it did to one kernel."""
        return self._around(math.hypot(self.error, self.spread), level)

    def _around(self, error: float, level: float) -> tuple[float, float, float]:
        reach = max(0.0, -student_quantile(self.freedom, level)) * error
        return self.center, self.center - reach, self.center + reach


@dataclass(frozen=True)
class Common:
    """What the controls of one measure did together.

    Attributes:
        measure: what they are measured by.
        n: how many there are.
        shift: of all of them.
        level: the error rate of a limit of `ci`.
        apart: how many moved apart from the median, by more than their margin.
        adjusted: whether verdicts are adjusted for it.
    """

    measure: str
    n: int
    shift: Shift
    level: float
    apart: int
    adjusted: bool

    @property
    def ratio(self) -> float:
        """after / before."""
        return math.exp(self.shift.center)

    @property
    def ci(self) -> tuple[float, float]:
        """Limits of `ratio`, each wrong with probability `level`."""
        _, low, high = self.shift.limits(self.level)
        return math.exp(low), math.exp(high)


class Beyond(Decidable):
    """What of a kernel's ratio is beyond the common shift."""

    def __init__(self, raw: Decidable, shift: Shift, n: int) -> None:
        """`n`: the controls that the shift is told from."""
        self.raw = raw
        self.shift = shift
        self.n = n
        self.margin = raw.margin
        self.lack = raw.lack

    def limits(self, level: float) -> RatioLimits:
        """By MOVER, of the kernel's own noise and of what the shift did to it."""
        found, own = self.raw.limits(level), self._own
        low, high = (found.log_ratio + own * (limit - found.log_ratio) for limit in (found.low, found.high))
        return mover(self.shift.of_one(level), (found.log_ratio, low, high))

    @cached_property
    def _own(self) -> float:
        """The share of its standard error that is a kernel's own: at least what independent launches would have."""
        variance = own_variance(self.raw)
        if not 0.0 < variance < math.inf:
            return 1.0
        return max(LEAST_OWN, math.sqrt(max(1.0 - self.shift.shared / variance, self.raw.independent)))


class Adjusted(Beyond):
    """A kernel that is judged by both ratios, the raw one and the one beyond the common shift."""

    def regressed_at(self, level: float) -> bool:
        """Whether the ratio beyond the common shift is above the margin beyond doubt, and the raw one is above it."""
        return super().regressed_at(level) and self._slow(self.raw.limits(level))

    def passes_at(self, level: float) -> bool:
        """Whether the ratio beyond the common shift is at most the margin beyond doubt, and either the raw one is, too,
        or the common shift lies within the margin and the raw ratio is not above it."""
        if not super().passes_at(level):
            return False
        if self.raw.passes_at(level):
            return True
        _, low, high = self.shift.limits(level)
        return -self.bar <= low and high <= self.bar and not self._slow(self.raw.limits(level))

    def p_regressed(self) -> float:
        """That of the ratio beyond the common shift, unless the raw one is not above the margin."""
        beyond = Beyond(self.raw, self.shift, self.n).p_regressed()
        return beyond if self._slow(self.raw.limits(0.5)) else max(beyond, self.raw.p_regressed())

    def confounded(self, level: float) -> str:
        """How the common shift makes doubtful what the raw ratio says of the margin; '' where it does not."""
        raw, beyond = self._slow(self.raw.limits(level)), self._slow(self.limits(level))
        if raw and not beyond:
            return "what is above the margin is common to all"
        if beyond and self.raw.passes_at(level):
            return "it is slower than the others by more than the margin, which what is common to all hides"
        if not raw and super().passes_at(level) and not self.raw.passes_at(level):
            return "what is common to all is too large to be judged beside"
        return ""

    def _slow(self, limits: RatioLimits) -> bool:
        """Whether the estimate itself is above the margin."""
        return limits.log_ratio > self.bar + ROUNDING


@dataclass(frozen=True)
class Roles(Generic[K]):
    """Which kernels may be controls.

    Attributes:
        measures: of the kernels that move with what is common, by what they are measured: only those are controls and
            adjusted, each by those of its measure.
        swapped: those that are no controls.
        known: whether these are all that were swapped; else any kernel may be one.
    """

    measures: Mapping[K, str] = field(default_factory=dict)
    swapped: Collection[K] = frozenset()
    known: bool = False


class Controls(Generic[K]):
    """The common shift of each measure, and what it makes of each kernel."""

    def __init__(self, kernels: Mapping[K, Decidable], roles: Roles[K], policy: Policy) -> None:
        """`policy`: its error rates."""
        self._policy = policy
        self._kernels = kernels
        self._logs: dict[str, dict[K, float]] = {}
        self._measures = roles.measures
        for key, measure in roles.measures.items():
            if key in kernels and not kernels[key].lack and key not in roles.swapped:
                log_ratio = kernels[key].limits(policy.alpha_pass).log_ratio
                if math.isfinite(log_ratio):
                    self._logs.setdefault(measure, {})[key] = log_ratio
        # Where it is not known which was swapped, the one that is judged is no control of itself.
        least = MIN_CONTROLS if roles.known else MIN_CONTROLS + 1
        self._commons = {
            measure: self._common(measure, logs) for measure, logs in self._logs.items() if len(logs) >= least
        }

    def common(self, key: K) -> Common | None:
        """What the controls of its measure did; None where there are too few."""
        return self._commons.get(self._measures.get(key, ""))

    def of(self, key: K) -> Adjusted | None:
        """The kernel adjusted; None where it is judged as it is."""
        common = self.common(key)
        kernel = self._kernels.get(key)
        if common is None or not common.adjusted or kernel is None or kernel.lack:
            return None
        others = [value for other, value in self._logs[common.measure].items() if other != key]
        shift = common.shift
        return Adjusted(kernel, replace(shift, center=float(np.median(others))), len(others))

    def _common(self, measure: str, logs: Mapping[K, float]) -> Common:
        level = self._policy.alpha_pass
        values = np.fromiter(logs.values(), float, len(logs))
        center, scale, freedom = float(np.median(values)), deviation(values), int(_EFFICIENCY * (len(logs) - 1))
        variances = np.array([own_variance(self._kernels[key]) for key in logs])
        shared = _shared(values - center, variances)
        spread = math.sqrt(max(0.0, scale * scale - max(0.0, float(np.median(variances)) - shared)))
        # The variance of a median of normal values is pi / 2 times that of a mean.
        shift = Shift(center, math.sqrt(0.5 * math.pi / len(logs)) * scale, spread, freedom, shared)
        apart = sum(self._apart(key, center) for key in logs)
        _, low, high = shift.limits(level)
        moved = low > LEAST_SHIFT or high < -LEAST_SHIFT
        return Common(measure, len(logs), shift, level, apart, moved and apart <= MOST_APART * len(logs))

    def _apart(self, key: K, center: float) -> bool:
        kernel = self._kernels[key]
        found = kernel.limits(self._policy.alpha_regressed)
        return found.low - center > kernel.bar + ROUNDING or found.high - center < -kernel.bar - ROUNDING


def own_variance(kernel: Decidable) -> float:
    """Of a kernel's log ratio, by its limits at one sigma."""
    found = kernel.limits(_SIGMA)
    reach = 0.5 * (found.high - found.low)
    return reach * reach if math.isfinite(reach) else math.inf


@lru_cache(256)
def chi_square_quantile(freedom: int, p: float) -> float:
    """The p-quantile of the chi-square distribution."""
    from scipy.special import chdtri

    return float(chdtri(freedom, 1.0 - p))


def _shared(apart: NDArray[np.float64], variances: NDArray[np.float64]) -> float:
    """The variance that controls have in common: by how much less they scatter about their median than their own
    variances would have them. `apart`: shape (n,), their log ratios less the median.

    The scatter's upper 95% limit counts, and the variance of those that have little: what is taken from a kernel's
    noise must be there.
    """
    known = np.isfinite(variances) & (variances > 0.0)
    if np.count_nonzero(known) < MIN_CONTROLS:
        return 0.0
    freedom = int(_EFFICIENCY * (np.count_nonzero(known) - 1))
    scatter = deviation(apart[known] / np.sqrt(variances[known])) ** 2 * freedom / chi_square_quantile(freedom, 0.05)
    return max(0.0, 1.0 - scatter) * float(np.quantile(variances[known], 0.25))


def adjusted_reason(kernel: Adjusted, level: float) -> str:
    """What is common, what is not, and what that means for the verdict; limits are each wrong with `level`."""
    beyond, (center, low, high) = kernel.limits(level), kernel.shift.limits(level)
    common = f"{change(math.exp(center))} {interval((math.exp(low), math.exp(high)))}"
    text = (
        f"{kernel.n} control kernels moved together by {common}; beyond that this one moved by {change(beyond.ratio)} "
        f"{interval(beyond.ci)}"
    )
    why = kernel.confounded(level)
    return f"{text}: {why}." if why else f"{text}."


def deviation(values: NDArray[np.float64]) -> float:
    """Qn of shape (n,), n >= 2: the standard deviation of all but outliers, up to half of them.

    The k-th smallest distance of two values, k that of h = n // 2 + 1 values among themselves, with the authors' factor
    for small n (Rousseeuw & Croux, JASA 88 (1993) 1273).
    """
    if values.size > _MOST_VALUES:  # of so many, as many in equal places of their order say the same
        values = np.sort(values)[np.linspace(0, values.size - 1, _MOST_VALUES).astype(np.int64)]
    n = values.size
    h = n // 2 + 1
    left, right = np.triu_indices(n, 1)
    distances = np.partition(np.abs(values[left] - values[right]), h * (h - 1) // 2 - 1)
    small = n / (n + (1.4 if n % 2 else 3.8))
    return _QN * small * float(distances[h * (h - 1) // 2 - 1])
