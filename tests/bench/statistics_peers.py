"""The rules that others judge by, on the same samples as kdiff's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from statistics_loads import MINUTES

from kdiff.analysis import quantiles
from kdiff.analysis.interval import RatioLimits, mover
from kdiff.analysis.sample import Sample


class Said(NamedTuple):
    """What each rule says of a pair of windows.

    Attributes:
        above: of independent values, L(5%) of the ratio > 1.
        slower: the same as kdiff would use it, L(1%) > 1 + margin.
        passes: and U(5%) < 1 + margin.
        ranks: Mann-Whitney on the p99 of minutes, one-sided, 5%.
        ratio: p99 after / p99 before > 1 + margin.
    """

    above: bool
    slower: bool
    passes: bool
    ranks: bool
    ratio: bool


@dataclass(frozen=True)
class Peers:
    """The rules, for one quantile and one margin."""

    q: float = 0.99
    margin: float = 0.05

    def say(self, before: Sample, after: Sample) -> Said:
        """Of one pair."""
        values = [quantiles.quantile(sample.ordered, self.q) for sample in (before, after)]
        strict, usual = (independent(before, after, self.q, alpha) for alpha in (0.01, 0.05))
        bar = math.log1p(self.margin)
        return Said(
            above=usual.low > 0.0,
            slower=strict.low > bar,
            passes=usual.high < bar,
            ranks=bool(mann_whitney(by_minute(before, self.q), by_minute(after, self.q)) < 0.05),
            ratio=values[1] > (1.0 + self.margin) * values[0],
        )


def independent(before: Sample, after: Sample, q: float, alpha: float) -> RatioLimits:
    """Limits of log(after/before) of the quantile as if all launches were independent.

    Woodruff's (1952) limits of each window, from the binomial standard error of its distribution function, joined by
    MOVER: what is left of kdiff's interval without the stretches.
    """
    logs = []
    for sample in (before, after):
        reach = float(stats.norm.isf(alpha)) * math.sqrt(q * (1.0 - q) / sample.size)
        at = [min(1.0, max(0.0, p)) for p in (q, q - reach, q + reach)]
        value, low, high = (math.log(max(1, quantiles.quantile(sample.ordered, p))) for p in at)
        logs.append((value, low, math.inf if q + reach >= 1.0 else high))
    return mover(*logs)


def by_minute(sample: Sample, q: float) -> NDArray[np.int64]:
    """The quantile of each minute that has launches, ns; shape (minutes,)."""
    minute = (sample.bucket.astype(np.int64) * MINUTES // sample.buckets).astype(np.int16)
    order = np.argsort(minute, kind="stable")
    _, first = np.unique(minute[order], return_index=True)
    parts = np.split(sample.durations_ns[order], first[1:])
    return np.array([np.partition(part, at)[at] for part in parts for at in [quantiles.rank(part.size, q) - 1]])


def mann_whitney(before: NDArray[np.int64], after: NDArray[np.int64]) -> float:
    """The one-sided p-value of "minutes after are not slower"."""
    return float(stats.mannwhitneyu(before, after, alternative="less", method="asymptotic").pvalue)


def at_most(events: int, runs: int, level: float = 0.05) -> float:
    """The one-sided upper confidence limit of a rate (Clopper & Pearson 1934)."""
    return 1.0 if events >= runs else float(stats.beta.ppf(1.0 - level, events + 1, runs - events))
