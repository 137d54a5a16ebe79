"""A share of time, measured stretch by stretch, and whether two of them differ beyond their noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis.interval import cosines, degrees_of_freedom, long_run, student_quantile

ALPHA = 0.001
"""Chance, on each side, that a share that did not move is said to have moved."""
MIN_STRETCHES = 10
"""Stretches with any time that a share needs before a change of it is told."""


@dataclass(frozen=True, eq=False, slots=True)
class Share:
    """The sum of `part` over the sum of `whole`; both of shape (stretches,), in ns."""

    part: NDArray[np.float64]
    whole: NDArray[np.float64]

    @property
    def value(self) -> float:
        """The share in [0, 1]; 0 where there is no time at all."""
        whole = float(self.whole.sum())
        return min(1.0, float(self.part.sum()) / whole) if whole else 0.0

    def error(self) -> tuple[float, int]:
        """Standard error and its degrees of freedom; infinite with too few stretches.

        Of the residuals part - share * whole of the stretches that have any time: their long-run variance as in
        interval.py, and at least that of independent stretches.
        """
        held = self.whole > 0
        filled = int(held.sum())
        if filled < MIN_STRETCHES:
            return math.inf, 1
        nu = degrees_of_freedom(filled)
        share = float(self.part.sum()) / float(self.whole.sum())
        residuals = self.part[held] - share * self.whole[held]
        variance = max(float(long_run(cosines(filled, nu) @ residuals)), float(residuals @ residuals))
        return math.sqrt(variance) / float(self.whole.sum()), nu


def moved(before: Share, after: Share, least: float) -> bool:
    """Whether the share moved by `least` or more, beyond its noise."""
    (error_b, nu_b), (error_a, nu_a) = before.error(), after.error()
    difference = abs(after.value - before.value)
    critical = -student_quantile(min(nu_b, nu_a), ALPHA)
    return difference >= least and difference > critical * float(np.hypot(error_b, error_a))
