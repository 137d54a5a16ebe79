"""What executions that were timed on the device stand for in all of the time, where hours are read.

A process's executions stand for as many more as its time is longer than what was timed of it. Hours tell processes from
each other and kernels from each other, but not which process ran which kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kdiff.analysis.columns import column
from kdiff.analysis.window import MINUTE_NS, NS, Window

ALIKE: Final = 0.02
"""How far processes may differ in the share of their time that was timed, for one scale to stand for all."""
MOST_ROWS: Final = 20_000_000
"""So many rows of roll-ups of minutes are read where they differ: some minutes of a large fleet, all of a small one."""
LEAST_MINUTES: Final = 24
_SPREAD: Final = (5**0.5 - 1) / 2  # multiples of the golden ratio fill a stretch evenly, in step with no period

Of = Mapping[str, Any]


class Scale(NamedTuple):
    """How many executions, and how much of their time, one that was timed stands for; 1 or more."""

    runs: float
    time: float

    def of(self, row: Of) -> dict[str, float]:
        """What a row with `executions` and `device_ns` stands for."""
        return {"device_runs": self.runs * row["executions"], "device_ns": self.time * row["device_ns"]}


def common_scale(timed: Sequence[Of], scales: Sequence[float]) -> tuple[Scale, bool]:
    """The scale of all processes together, and whether it may stand for each of them.

    Not where what processes hold too much or too little by it, summed over them, is more than ALIKE of all: what any
    group of kernels holds is then off by no more than half of that.

    Args:
        timed: rows of queries/sql/hours_timed.sql.
        scales: of the process of each row.
    """
    each = np.array(scales, np.float64)
    found, alike = [], True
    for what in ("executions", "device_ns"):
        held = np.array([row[what] for row in timed], np.float64)
        whole = float(each @ held)
        common = whole / float(held.sum()) if whole > 0 else 1.0
        alike &= float(np.abs(each - common) @ held) <= ALIKE * whole
        found.append(common)
    return Scale(*found), alike


def minutes_to_read(window: Window, processes: int, kernels: int) -> list[int] | None:
    """The minutes, Unix s, from which it is told which process ran which kernel; None: all of them."""
    whole = window.length_ns // MINUTE_NS
    wanted = max(LEAST_MINUTES, MOST_ROWS // max(1, processes * kernels))
    if wanted >= whole:
        return None
    chosen = np.unique((np.arange(wanted) * _SPREAD % 1.0 * whole).astype(np.int64))
    return [window.from_ns // NS + 60 * int(minute) for minute in chosen]


def by_kernel(sample: pa.Table, scales: Mapping[int, float]) -> dict[int, Scale]:
    """The scale of each kernel, by its key, from rows of queries/sql/minutes_sample_device.sql.

    `scales`: by what stands for the processes in them. Kernels without time are left out.
    """
    if not sample.num_rows:
        return {}
    keys, kernel = np.unique(column(sample, "kernel_key", np.uint64), return_inverse=True)
    processes, process = np.unique(column(sample, "process", np.uint64), return_inverse=True)
    each = np.array([scales.get(int(one), 1.0) for one in processes])[process]
    ratios: list[NDArray[np.float64]] = []
    for what in ("executions", "device_ns"):
        held = column(sample, what, np.int64).astype(np.float64)
        whole = np.bincount(kernel, held, len(keys))
        ratios.append(np.bincount(kernel, each * held, len(keys)) / np.where(whole > 0, whole, np.nan))
    return {
        int(key): Scale(float(runs), float(time))
        for key, runs, time in zip(keys, *ratios, strict=True)
        if runs > 0 and time > 0
    }
