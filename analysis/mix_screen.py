"""Which kernels of several strata must be judged by them: asked of whole windows, before each stretch is read.

Histograms of each stratum in each stretch are many times those of the kernel. Where the strata, at the mix of the
before window and one by one, point nowhere else than all launches together, they would decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from kdiff.analysis.mix import LEAST_SHARE, spent_ns
from kdiff.analysis.quantiles import Ordered, Weighted, quantile
from kdiff.analysis.strata import Stratum, Support
from kdiff.analysis.verdict import values_needed

_SLACK: Final = 0.005
"""What bins may move a ratio by."""
_MANY: Final = 4
"""Times the launches that a quantile needs: of fewer all strata are read, which are few bins."""

Whole = Mapping[Stratum, Ordered]


def may_tell(support: Support, before: Whole, after: Whole, q: float, margin: float) -> bool:
    """Whether the strata of a kernel may say something else of its q-quantile than all its launches together.

    `before` and `after` are of the whole windows, by strata as they were read.
    """
    if support.apart or not support.comparable or min(support.totals) < _MANY * values_needed(q):
        return True
    sides = [{s: _joined(window, support, s) for s in support.common} for window in (before, after)]
    if not all(ordered.size for side in sides for ordered in side.values()):
        return True  # what was counted has gone meanwhile
    old, new = sides
    raw = [quantile(_all(side.values()), q) for side in sides]
    if min(raw) <= 0:
        return True
    if abs(math.log(_at_mix_of(old, new).quantile(q) / raw[1])) > _SLACK:
        return True
    ratio = raw[1] / raw[0]
    # Beyond the margin as a whole it is found without them, unless one is worse by as much again.
    bar = (1.0 + margin) * (ratio if ratio > 1.0 + margin else min(1.0, ratio)) * (1.0 - _SLACK)
    held = [_held(side) for side in sides]
    for stratum in support.common:
        one, other = old[stratum], new[stratum]
        large = max(*support.share(stratum), held[0][stratum], held[1][stratum]) >= LEAST_SHARE
        if large and min(one.size, other.size) >= values_needed(q) and quantile(other, q) > bar * quantile(one, q):
            return True
    return False


def _joined(window: Whole, support: Support, stratum: Stratum) -> Ordered:
    """Those strata that were read of which one of `support.common` consists."""
    of = set(support.rest) if stratum not in support.sizes else {stratum}
    return _all(ordered for name, ordered in window.items() if support.of.get(name) in of)


def _all(parts: Iterable[Ordered]) -> Ordered:
    each = list(parts)
    if not each:
        return Ordered(np.empty(0, np.int64), np.empty(0, np.int64))
    return Ordered.of(np.concatenate([one.values for one in each]), np.concatenate([one.counts for one in each]))


def _at_mix_of(before: Whole, after: Whole) -> Weighted:
    total = sum(ordered.size for ordered in before.values())
    weights = [ordered.counts * (before[s].size / total / ordered.size) for s, ordered in after.items()]
    return Weighted.of(np.concatenate([ordered.values for ordered in after.values()]), np.concatenate(weights))


def _held(side: Whole) -> dict[Stratum, float]:
    """The share of the time of each stratum."""
    spent = {stratum: spent_ns(ordered) for stratum, ordered in side.items()}
    total = sum(spent.values()) or 1.0
    return {s: time / total for s, time in spent.items()}
