"""Holm's step-down control of the family-wise error (Holm 1979)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

K = TypeVar("K")


def holm(p_values: Mapping[K, float], rejects: Callable[[K, float], bool], alpha: float) -> set[K]:
    """The hypotheses rejected with a family-wise error of at most `alpha`.

    `p_values` sets the order, `rejects(key, level)` decides: the two agree except for the rounding of a
    p-value, and the decision must be the one that the interval at that level shows.
    """
    rejected: set[K] = set()
    remaining = len(p_values)
    for key in sorted(p_values, key=lambda k: p_values[k]):
        if not rejects(key, alpha / remaining):
            break
        rejected.add(key)
        remaining -= 1
    return rejected
