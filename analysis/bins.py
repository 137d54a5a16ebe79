"""The bins of the roll-ups' histograms: what durations they stand for. queries/sql/rollup_events.sql puts them in.

A duration up to 200 ns is a bin of its own. Above, bin b holds those from 200.5 * 1.005^(b-201) ns to
200.5 * 1.005^(b-200) ns and stands for the middle of it on a logarithmic scale, which is within 0.25% and half a
nanosecond of each.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis.quantiles import DEVICE_TICK_NS, MIN_LEVELS, TICK_SHARE

EXACT_NS: Final = 200
WIDTH: Final = 1.005
_MOST: Final = 7_600  # what lies above is longer than 64 bits can say, and no bin of an int64
LAST_BIN: Final = EXACT_NS + 1 + _MOST
"""From this one on all bins stand for the same."""
BOUND: Final = WIDTH**0.5 - 1
"""How far, as a share, a duration may lie from what its bin stands for; half a nanosecond of rounding comes to it."""
_TICKS: Final = (DEVICE_TICK_NS, 64, 128, 256, 500, 512, 1000, 1024)


def durations_ns(bins: NDArray[np.int64]) -> NDArray[np.int64]:
    """What each bin stands for, in whole ns; shape (n,) to (n,)."""
    above = np.maximum(bins - EXACT_NS - 0.5, 0.0)
    found = np.where(bins <= EXACT_NS, bins, np.rint((EXACT_NS + 0.5) * WIDTH ** np.minimum(above, _MOST)))
    return np.asarray(found, dtype=np.int64)


def rounding(low_ns: float, high_ns: float) -> float:
    """By how much log(duration) may differ from that of what its bin stands for, where this is in [low_ns, high_ns]."""
    if high_ns <= EXACT_NS:
        return 0.0
    return math.log1p(BOUND) + 0.5 / max(low_ns, EXACT_NS)


def device_tick(values: NDArray[np.int64], counts: NDArray[np.int64]) -> int:
    """The tick in ns of the timer that made device times, as far as their bins show it; 1 where it is no known one.

    `values`: what bins stand for, shape (n,), each met `counts` times. As quantiles.timer_quantum a tick is accepted
    if 99% of the durations may lie within 1 ns of a multiple; what wide bins leave open is taken for DEVICE_TICK_NS,
    which is then far below the tolerance.
    """
    positive = values > 0
    values, counts = values[positive], counts[positive]
    place = np.floor(np.log(np.maximum(values, EXACT_NS + 1) / (EXACT_NS + 0.5)) / math.log(WIDTH))
    first = np.where(values <= EXACT_NS, values, np.ceil((EXACT_NS + 0.5) * WIDTH**place))
    last = np.where(values <= EXACT_NS, values, np.floor((EXACT_NS + 0.5) * WIDTH ** (place + 1)))
    total, best = int(counts.sum()), 1
    if not total:
        return 1
    for tick in _TICKS:
        near = np.floor((last + 1) / tick) * tick >= first - 1
        if counts[near].sum() < TICK_SHARE * total:
            continue
        chance = float((np.minimum(1.0, (last - first + 3) / tick) * counts).sum()) / total
        levels = np.unique(np.rint(values[near] / tick)).size
        if tick == DEVICE_TICK_NS or (chance <= 0.5 and levels >= MIN_LEVELS):
            best = tick
    return best
