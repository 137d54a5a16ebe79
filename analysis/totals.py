"""The device time of several kernels together, for each launch of one of them: a ratio of sums over the stretches.

What a fusion or a split is judged by. The quantile of a sum is not the sum of quantiles, and which execution of one
kernel belongs to which of another is not recorded: the mean is what both windows have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis.decision import Decidable
from kdiff.analysis.interval import RatioLimits, cosines, degrees_of_freedom, long_run, mover, student_quantile
from kdiff.analysis.quantiles import Ordered, timer_quantum
from kdiff.analysis.sample import Sample

MIN_LAUNCHES: Final = 300
"""Launches that a mean needs in each window."""


@dataclass(frozen=True, eq=False)
class Total:
    """One window of a group of kernels.

    Attributes:
        spent: shape (stretches,), the device time of all executions that began in each, ns.
        launches: shape (stretches,), executions of the group's first kernel.
        tick: the timer's tick, summed over the kernels of the group, ns.
        clustered: the stretches are hosts, as in sample.Sample.
    """

    spent: NDArray[np.float64]
    launches: NDArray[np.float64]
    tick: int
    clustered: bool = False

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Total:
        """Of the device times of each kernel, the first one's first; all cut into the same stretches, row by row."""
        stretches = samples[0].buckets
        spent = np.zeros(stretches)
        for sample in samples:
            spent += np.bincount(sample.bucket, sample.durations_ns, stretches)
        launches = np.bincount(samples[0].bucket, minlength=stretches).astype(np.float64)
        tick = sum(sample.tick or timer_quantum(Ordered.of(sample.durations_ns)) for sample in samples)
        return cls(spent, launches, tick, samples[0].clustered)

    @property
    def n(self) -> int:
        """Launches of the first kernel."""
        return int(self.launches.sum())

    @property
    def mean(self) -> float:
        """Device time a launch of the first kernel, ns."""
        return float(self.spent.sum() / self.launches.sum())

    @property
    def filled(self) -> int:
        """Stretches in which any of them ran."""
        return int(np.count_nonzero(self._held))

    @property
    def even(self) -> float:
        """(sum n_t)^2 / sum n_t^2 over the stretches."""
        return self.n**2 / float(self.launches @ self.launches)

    @property
    def _held(self) -> NDArray[np.bool_]:
        return np.asarray((self.spent > 0) | (self.launches > 0))

    @cached_property
    def error(self) -> tuple[float, int]:
        """Standard error of log(mean) and its degrees of freedom.

        Of the residuals spent_t - mean launches_t: their long-run variance by the cosines of interval.py, and at least
        that of independent stretches, over the sum of `spent` (the delta method). Of H hosts H / (H - 1) times that of
        independent stretches, with H - 1 degrees of freedom.
        """
        held = self._held
        residuals = self.spent[held] - self.mean * self.launches[held]
        if self.clustered:
            nu = max(1, self.filled - 1)
            return math.sqrt(self.filled / nu * float(residuals @ residuals)) / float(self.spent.sum()), nu
        nu = degrees_of_freedom(self.filled)
        variance = max(float(long_run(cosines(self.filled, nu) @ residuals)), float(residuals @ residuals))
        return math.sqrt(variance) / float(self.spent.sum()), nu

    def limits(self, level: float) -> tuple[float, float, float]:
        """log(mean) and its one-sided limits, each wrong with probability `level`."""
        error, nu = self.error
        reach = max(0.0, -student_quantile(nu, level)) * error
        value = math.log(self.mean)
        return value, value - reach, value + reach


@dataclass(frozen=True, eq=False)
class Totals(Decidable):
    """Both windows of a group of kernels. Means are of time: both windows have spent some."""

    before: Total
    after: Total
    margin: float
    lack: tuple[str, ...]

    def limits(self, level: float) -> RatioLimits:
        """Of the ratio of the means, by MOVER."""
        return mover(self.before.limits(level), self.after.limits(level))

    @property
    def tick(self) -> int:
        """What the timer may be off by in one launch of the group, ns."""
        return max(self.before.tick, self.after.tick)
