"""The durations that are judged: those of one kernel, in one window, of one measure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis import quantiles


@dataclass(frozen=True, eq=False)
class Sample:
    """The durations of one kernel in one window.

    Attributes:
        durations_ns: shape (m,), any order, >= 0.
        bucket: shape (m,), the stretch of time each duration began in, in [0, buckets).
        buckets: T, the number of equal stretches that tile the window; those without a launch count too.
        counts: shape (m,), how many launches each entry stands for, >= 1; None: each is one.
        tick: the timer's tick in ns where the durations no longer show it; 0: they do.
        binned: each duration stands for those of a bin (see bins).
        below: further durations, all below those in `durations_ns`, of which is not told when each began; None: none.
            Quantiles that lie among them cannot be judged.
        per_bucket: shape (T,), with `below`: how many of all durations began in each stretch.
        weights: shape (m,), how much each launch of an entry counts, > 0; None: all alike. Only ratios of them matter.
        strata: shape (m,), with `weights`: the stratum of each entry, >= 0; None: all are of one.
        told_from: with `weights`: of durations up to this the stretches are not told; quantiles there cannot be judged.
        clustered: the stretches are hosts, independent of each other and in no order.

    Raises:
        ValueError: if the shapes or the types are others, a duration is negative, or a bucket is outside [0, buckets).
    """

    durations_ns: NDArray[np.int64]
    bucket: NDArray[np.int32]
    buckets: int
    counts: NDArray[np.int64] | None = None
    tick: int = 0
    binned: bool = False
    below: quantiles.Ordered | None = None
    per_bucket: NDArray[np.float64] | None = None
    weights: NDArray[np.float64] | None = None
    strata: NDArray[np.int32] | None = None
    told_from: int = -1
    clustered: bool = False

    @property
    def size(self) -> int:
        """n, the number of launches."""
        above = self.durations_ns.size if self.counts is None else int(self.counts.sum())
        return above + (self.below.size if self.below else 0)

    @cached_property
    def ordered(self) -> quantiles.Ordered:
        """All durations, in order."""
        above = quantiles.Ordered.of(self.durations_ns, self.counts)
        if self.below is None:
            return above
        both = ((self.below.values, above.values), (self.below.counts, above.counts))
        return quantiles.Ordered(*map(np.concatenate, both))

    def __post_init__(self) -> None:
        if self.durations_ns.ndim != 1 or self.durations_ns.shape != self.bucket.shape:
            raise ValueError("durations and buckets are vectors of one length")
        if self.durations_ns.dtype != np.int64 or self.bucket.dtype.kind not in "iu":
            raise ValueError("durations are int64 and buckets are integers")
        if self.counts is not None and (
            self.counts.shape != self.bucket.shape or self.counts.dtype.kind not in "iu" or (self.counts < 1).any()
        ):
            raise ValueError("counts are a vector of positive integers as long as the durations")
        if self.buckets < 1:
            raise ValueError("a window has at least one bucket")
        if (self.below is None) != (self.per_bucket is None):
            raise ValueError("durations that are told as a whole come with how many began in each bucket")
        if self.weights is not None:
            if self.weights.shape != self.bucket.shape or not (np.isfinite(self.weights) & (self.weights > 0)).all():
                raise ValueError("weights are a vector of positive numbers as long as the durations")
            if self.below is not None:
                raise ValueError("weighted durations are told one by one")
        if self.strata is not None and (self.weights is None or self.strata.shape != self.bucket.shape):
            raise ValueError("strata come with weights, one for each duration")
        if self.durations_ns.size == 0:
            return
        least = int(self.durations_ns.min())
        if least < 0:
            raise ValueError("a duration is not negative")
        if self.below is not None and self.below.size and self.below.values[-1] >= least:
            raise ValueError("durations that are told as a whole are below the others")
        if int(self.bucket.min()) < 0 or int(self.bucket.max()) >= self.buckets:
            raise ValueError(f"a bucket lies in [0, {self.buckets})")
