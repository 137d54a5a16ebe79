"""Exact order statistics of integer durations, right on ties.

The p-quantile of n values is the ceil(p*n)-th smallest: the smallest x with #{v <= x} >= p*n. It is always
a value that was measured, needs no interpolation rule, and commutes with every non-decreasing map.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

P999_MIN_LAUNCHES = 1000
"""Below this count p99.9 is the maximum: the sample says nothing about it."""

DEVICE_TICK_NS = 32
"""Tick of the device timer on current NVIDIA GPUs (H100, H200)."""

MIN_LEVELS = 8
TICK_SHARE = 0.99


@dataclass(frozen=True)
class Quantiles:
    """The quantiles shown to people, in ns. `p999` is None below `P999_MIN_LAUNCHES` launches."""

    p50: int
    p90: int
    p99: int
    p999: int | None


def rank(n: int, p: float) -> int:
    """ceil(p*n), the 1-based rank of the p-quantile of n values, in [1, n].

    `p` is read as the decimal it prints as, so that rank(100, 0.07) is 7 although 0.07 * 100 > 7 in binary.

    Raises:
        ValueError: if n < 1 or p is not in [0, 1].
    """
    if n < 1:
        raise ValueError("a quantile needs at least one value")
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"a probability lies in [0, 1], not {p}")
    near = p * n
    if abs(near - round(near)) > 1e-9 * (n + 1.0):  # far from where rounding would matter
        return max(1, math.ceil(near))
    return max(1, math.ceil(Fraction(repr(float(p))) * n))


@dataclass(frozen=True, eq=False)
class Ordered:
    """Values in order, each distinct one once.

    Attributes:
        values: shape (m,), ascending and distinct, ns.
        counts: shape (m,), how often each occurs, >= 1.
    """

    values: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, values: NDArray[np.int64], counts: NDArray[np.int64] | None = None) -> Ordered:
        """From values in any order, each as often as `counts` says (None: once); shapes (n,)."""
        if counts is None:
            found, often = _distinct(np.sort(values))
            return cls(found, often)
        order = np.argsort(values, kind="stable")
        ascending = values[order]
        first = np.flatnonzero(np.diff(ascending, prepend=ascending[:1] - 1) != 0)
        if not first.size:
            return cls(ascending, counts[order].astype(np.int64))
        return cls(ascending[first], np.add.reduceat(counts[order], first).astype(np.int64))

    @property
    def size(self) -> int:
        """How many values there are, n."""
        return int(self._until[-1]) if self._until.size else 0

    @cached_property
    def _until(self) -> NDArray[np.int64]:
        return np.cumsum(self.counts)

    def at(self, place: int) -> int:
        """The `place`-th smallest, counted from 1 to n."""
        return int(self.values[self._until.searchsorted(place)])


@dataclass(frozen=True, eq=False)
class Weighted:
    """Values in order, each with the weight of those up to it.

    Attributes:
        values: shape (m,), ascending, ns.
        until: shape (m,), sums of weights, ascending; the last one is the weight of all.
    """

    values: NDArray[np.int64]
    until: NDArray[np.float64]

    @classmethod
    def of(cls, values: NDArray[np.int64], weights: NDArray[np.float64]) -> Weighted:
        """From values in any order, shapes (n,)."""
        order = np.lexsort((weights, values))  # sums must not depend on the order of rows
        return cls(values[order], np.cumsum(weights[order]))

    def quantile(self, p: float) -> int:
        """The smallest value up to which at least the share p of the weight lies; near a tie as `rank`."""
        total = float(self.until[-1])
        needed = p * total - 1e-9 * (total + total / self.until.size)
        return int(self.values[min(int(self.until.searchsorted(needed)), self.values.size - 1)])


def quantile(ordered: Ordered, p: float) -> int:
    """The p-quantile in ns. Raises ValueError as `rank` does."""
    return ordered.at(rank(ordered.size, p))


def summary(ordered: Ordered) -> Quantiles | None:
    """The shown quantiles in ns. None where there are no values."""
    n = ordered.size
    if n == 0:
        return None
    p999 = quantile(ordered, 0.999) if n >= P999_MIN_LAUNCHES else None
    return Quantiles(quantile(ordered, 0.5), quantile(ordered, 0.9), quantile(ordered, 0.99), p999)


def timer_quantum(ordered: Ordered) -> int:
    """The tick of the clock that made the values, in ns; 1 if none shows.

    A tick g is accepted if 99% of the values lie within 1 ns of a multiple of g: CUPTI rounds each end of
    an execution, so an H200 shows 31, 32 and 33 ns. Too large a tick would hide a regression behind the
    margin, so with fewer than 8 separate levels, where the modes of a deterministic kernel look like a
    tick, none above `DEVICE_TICK_NS` is believed.
    """
    values, counts = ordered.values, ordered.counts
    positive = values > 0
    values, counts = values[positive], counts[positive]
    if values.size == 0:
        return 1
    exact = int(np.gcd.reduce(values))
    # Levels less than 3 ns apart are one level and its rounding.
    starts = np.flatnonzero(np.diff(values, prepend=values[:1] - 3) > 2)
    levels = values[starts]
    few = levels.size < MIN_LEVELS
    candidates = [exact, DEVICE_TICK_NS]
    if levels.size > 1:
        gaps, gap_counts = _distinct(np.sort(np.diff(levels)))
        usual = int(gaps[int(np.argmax(gap_counts))])
        candidates += [usual - 1, usual, usual + 1]
    if few:
        candidates = [min(c, DEVICE_TICK_NS) for c in candidates]
    total = int(counts.sum())
    best = 1
    for tick in candidates:
        # Below 8 ns "within 1 ns of a multiple" holds by chance.
        if tick < 8:
            continue
        residue = values % tick
        near = counts[(residue <= 1) | (residue >= tick - 1)].sum()
        if near >= TICK_SHARE * total:
            best = max(best, tick)
    return best if best > 1 else (exact if not few else 1)


def _distinct(ordered: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    first = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1) != 0)
    return ordered[first], np.diff(first, append=ordered.size).astype(np.int64)
