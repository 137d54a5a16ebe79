"""Like with like: a kernel's launches by shape, and two windows compared as if both had had the same mix of shapes.

Direct standardisation: F_w(x) = sum_s pi_s F_{w,s}(x) over the strata that both windows have, with the shares pi_s of
the before window. A launch of stratum s in window w counts pi_s n_w / n_{w,s} times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis.sample import Sample
from kdiff.analysis.weighted import one_by_one

MIN_LAUNCHES: Final = 300
"""Launches of a stratum that both windows must have to be compared."""
MIN_REST: Final = 30
"""The same of all smaller strata together, whose shares did not move."""
MIN_SUPPORT: Final = 0.9
"""The share of each window's launches that must be of strata that both have."""
_MOVED: Final = 0.01
"""The chance that a stratum whose share did not move is taken for one that did, over all small strata together."""
_KNOWN: Final = 0.9
"""Below this share of launches of which a property is told, the property makes no strata."""


class Stratum(NamedTuple):
    """The launches of a kernel that are alike in what they were asked to do.

    Attributes:
        grid: ceil(log2) of the number of blocks; -1 where it is not known.
        block: ceil(log2) of the threads of a block; -1 where it is not known.
        gpu_model: the product name of the GPU; '' where it is not known.
        in_graph: whether a graph launched it.
    """

    grid: int
    block: int
    gpu_model: str
    in_graph: bool


REST: Final = Stratum(-2, -2, "", False)
"""All strata together of which there are few launches, and as large a share of them in both windows."""

Sizes = Mapping[Stratum, int]


class Likeness(Enum):
    """How the strata of two windows lie."""

    ONE = "one"  # one and the same in both
    RESHAPED = "reshaped"  # one in each window, and these differ in nothing but the launch's shape
    SEVERAL = "several"


@dataclass(frozen=True)
class Support:
    """Which strata of a kernel both windows have.

    Attributes:
        sizes: launches before and after of every stratum, as far as what is told of them distinguishes these.
        common: strata that both windows have enough launches of, largest first; REST is last.
        rest: those that REST stands for.
        of: what each stratum as it was read is called in `sizes`.
    """

    sizes: Mapping[Stratum, tuple[int, int]]
    common: tuple[Stratum, ...]
    rest: tuple[Stratum, ...]
    of: Mapping[Stratum, Stratum]

    @property
    def totals(self) -> tuple[int, int]:
        """Launches before and after."""
        before, after = (sum(sizes) for sizes in zip(*self.sizes.values(), strict=True))
        return before, after

    def size(self, stratum: Stratum) -> tuple[int, int]:
        """Launches before and after of one of `common`."""
        if stratum != REST:
            return self.sizes[stratum]
        before, after = (sum(sizes) for sizes in zip(*(self.sizes[one] for one in self.rest), strict=True))
        return before, after

    def share(self, stratum: Stratum) -> tuple[float, float]:
        """Its share of the launches before and after."""
        sizes, totals = self.size(stratum), self.totals
        return sizes[0] / max(1, totals[0]), sizes[1] / max(1, totals[1])

    @property
    def shares(self) -> tuple[float, float]:
        """The share of the launches before and after that the common strata hold."""
        each = [self.share(stratum) for stratum in self.common]
        return sum(share[0] for share in each), sum(share[1] for share in each)

    @property
    def comparable(self) -> bool:
        """Whether they hold enough of both windows."""
        return min(self.shares) >= MIN_SUPPORT

    @property
    def apart(self) -> tuple[Stratum, ...]:
        """Strata that are not compared, those first that hold most of a window."""
        held = {*self.common, *self.rest}
        return tuple(sorted((s for s in self.sizes if s not in held), key=lambda s: (-max(self.share(s)), s)))

    @property
    def likeness(self) -> Likeness:
        """How they lie."""
        if len(self.sizes) == 1:
            return Likeness.ONE
        sides = [[s for s, sizes in self.sizes.items() if sizes[side]] for side in (0, 1)]
        if all(len(side) == 1 for side in sides) and sides[0][0][2:] == sides[1][0][2:]:
            return Likeness.RESHAPED
        return Likeness.SEVERAL


def find_support(before: Sizes, after: Sizes) -> Support:
    """Which strata are in both windows, from how many launches each has there.

    Small strata whose shares moved by no more than chance are one stratum together: that its own mix did not move is
    what makes it like. Raises ValueError where a window has no launches.
    """
    if not sum(before.values()) or not sum(after.values()):
        raise ValueError("a window without launches has no mix")
    told = _told((before, after))
    of = {stratum: told(stratum) for stratum in {**before, **after}}
    sizes: dict[Stratum, tuple[int, int]] = {}
    for side, window in enumerate((before, after)):
        for stratum, size in window.items():
            if size:
                old = sizes.get(of[stratum], (0, 0))
                sizes[of[stratum]] = (old[0] + size, old[1]) if side == 0 else (old[0], old[1] + size)
    common = [s for s, (b, a) in sizes.items() if min(b, a) >= MIN_LAUNCHES]
    small = [s for s, (b, a) in sizes.items() if min(b, a) < MIN_LAUNCHES]
    totals = (sum(b for b, _ in sizes.values()), sum(a for _, a in sizes.values()))
    rest = sorted(s for s in small if not _moved(sizes[s], totals, len(small)))
    together = [sum(sizes[s][side] for s in rest) for side in (0, 1)]
    common.sort(key=lambda s: (-sizes[s][0], s))
    if len(rest) == 1 and min(together) >= MIN_REST:
        common.append(rest.pop())
    elif min(together) >= MIN_REST:
        common.append(REST)
    else:
        rest = []
    return Support(sizes, tuple(common), tuple(rest), of)


def standardise(
    before: Mapping[Stratum, Sample], after: Mapping[Stratum, Sample], common: Iterable[Stratum]
) -> tuple[Sample, Sample]:
    """Both windows with the mix of the before window over the strata in `common`, which both have.

    Raises ValueError where a stratum has no launches in a window.
    """
    chosen = [stratum for stratum in common if stratum in before or stratum in after]
    sizes = [[window[stratum].size for stratum in chosen] for window in (before, after)]
    if not chosen or not all(map(all, sizes)):
        raise ValueError("standardised strata have launches in both windows")
    shares = np.array(sizes[0], np.float64) / sum(sizes[0])
    joined = []
    for window, numbers in zip((before, after), sizes, strict=True):
        weights = shares * sum(numbers) / np.array(numbers, np.float64)
        joined.append(_joined([window[stratum] for stratum in chosen], weights))
    return joined[0], joined[1]


def together(samples: Sequence[Sample]) -> Sample:
    """The launches of several strata as those of one."""
    if len(samples) == 1:
        return samples[0]
    return _concatenated([one_by_one(sample) for sample in samples])


def _joined(samples: Sequence[Sample], weights: NDArray[np.float64]) -> Sample:
    parts = [one_by_one(sample) for sample in samples]
    sizes = [part.bucket.size for part in parts]
    strata = np.repeat(np.arange(len(parts), dtype=np.int32), sizes)
    return _concatenated(parts, weights=weights[strata], strata=strata)


def _concatenated(parts: Sequence[Sample], **weighted: Any) -> Sample:
    counted = any(part.counts is not None for part in parts)
    counts = [np.ones(p.bucket.size, np.int64) if p.counts is None else p.counts for p in parts] if counted else []
    return Sample(
        durations_ns=np.concatenate([part.durations_ns for part in parts]),
        bucket=np.concatenate([part.bucket for part in parts]),
        buckets=parts[0].buckets,
        counts=np.concatenate(counts).astype(np.int64) if counted else None,
        tick=max(part.tick for part in parts),
        binned=any(part.binned for part in parts),
        told_from=max(part.told_from for part in parts),
        clustered=any(part.clustered for part in parts),
        **weighted,
    )


def _told(windows: Sequence[Sizes]) -> Callable[[Stratum], Stratum]:
    """What of a stratum tells it apart: only what is known of nearly all launches of both windows."""
    shape = all(_known(window, lambda stratum: min(stratum.grid, stratum.block) >= 0) for window in windows)
    model = all(_known(window, lambda stratum: stratum.gpu_model != "") for window in windows)

    def told(stratum: Stratum) -> Stratum:
        grid, block = (stratum.grid, stratum.block) if shape else (-1, -1)
        return Stratum(grid, block, stratum.gpu_model if model else "", stratum.in_graph)

    return told


def _known(window: Sizes, told: Callable[[Stratum], bool]) -> bool:
    return sum(size for stratum, size in window.items() if told(stratum)) >= _KNOWN * sum(window.values())


def _moved(sizes: tuple[int, int], totals: tuple[int, int], among: int) -> bool:
    """Whether a share differs between the windows beyond chance, were the launches independent (two proportions)."""
    pooled = sum(sizes) / sum(totals)
    error = math.sqrt(pooled * (1.0 - pooled) * (1.0 / totals[0] + 1.0 / totals[1]))
    if error == 0.0:
        return False
    distance = abs(sizes[0] / totals[0] - sizes[1] / totals[1]) / error
    return math.erfc(distance / math.sqrt(2.0)) < _MOVED / among
