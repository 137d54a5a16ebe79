"""Deciding a ratio against a margin by its one-sided limits, whatever the ratio is of."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from kdiff.analysis.interval import RatioLimits

# Logarithms of integers: a deterministic kernel that is slower by exactly the margin must not depend on rounding.
ROUNDING: Final = 1e-9


class Decidable(ABC):
    """Two windows of what is judged, and the slowdown that is accepted.

    Attributes:
        margin: the ratio less 1 that is accepted.
        lack: why the windows cannot be judged, one sentence each.
    """

    margin: float
    lack: tuple[str, ...]

    @abstractmethod
    def limits(self, level: float) -> RatioLimits:
        """One-sided limits of the ratio, each wrong with probability `level`; limits of a smaller level are wider."""

    @property
    def independent(self) -> float:
        """The share of the ratio's variance that as many independent values would have; 1 where it is not told."""
        return 1.0

    @property
    def bar(self) -> float:
        """The margin as a logarithm."""
        return math.log1p(self.margin)

    def regressed_at(self, level: float) -> bool:
        """Whether the ratio is above the margin beyond doubt."""
        return self.limits(level).low > self.bar + ROUNDING

    def passes_at(self, level: float) -> bool:
        """Whether the ratio is at most the margin beyond doubt."""
        return self.limits(level).high <= self.bar + ROUNDING

    def p_regressed(self) -> float:
        """The smallest level whose interval excludes "at most the margin"; above 1/2 by the upper limit."""
        if self.regressed_at(0.5):
            return smallest_level(self.regressed_at)
        return 1.0 - smallest_level(self.passes_at)


def smallest_level(excludes: Callable[[float], bool]) -> float:
    """The smallest level in [1e-12, 1/2] at which `excludes` holds, as it does above it: limits nest."""
    low, high = math.log(1e-12), math.log(0.5)
    if excludes(1e-12):
        return 1e-12
    for _ in range(40):
        middle = 0.5 * (low + high)
        if excludes(math.exp(middle)):
            high = middle
        else:
            low = middle
    return math.exp(high)
