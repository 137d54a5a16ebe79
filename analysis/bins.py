"""The bins of the roll-ups' histograms: what durations they stand for. queries/sql/rollup_events.sql puts them in.

A duration up to 200 ns is a bin of its own. Above, bin b holds those from 200.5 * 1.005^(b-201) ns to
200.5 * 1.005^(b-200) ns and stands for the middle of it on a logarithmic scale, which is within 0.25% of each.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

EXACT_NS: Final = 200
WIDTH: Final = 1.005
_MOST: Final = 7_600  # what lies above is longer than 64 bits can say, and no bin of an int64
BOUND: Final = WIDTH**0.5 - 1
"""How far, as a share, a duration may lie from what its bin stands for; half a nanosecond of rounding comes to it."""


def durations_ns(bins: NDArray[np.int64]) -> NDArray[np.int64]:
    """What each bin stands for, in whole ns; shape (n,) to (n,)."""
    above = np.maximum(bins - EXACT_NS - 0.5, 0.0)
    found = np.where(bins <= EXACT_NS, bins, np.rint((EXACT_NS + 0.5) * WIDTH ** np.minimum(above, _MOST)))
    return np.asarray(found, dtype=np.int64)
