"""Kernels with too few launches to be judged, and how many of them may go unjudged before the run is undecided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis.measure import MetricChoice, Plan


@dataclass(frozen=True, slots=True)
class Rare:
    """Indices of the plans that are not judged, largest first, and the shares that they hold together.

    Each share is that of the window in which it is larger.
    """

    plans: tuple[int, ...] = ()
    launches: float = 0.0
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Exposure:
    """For how long, before and after, calls were recorded and executions were timed; in ns."""

    recorded: tuple[float, float]
    timed: tuple[float, float]

    @property
    def seconds(self) -> tuple[float, float]:
        """Before and after, of what was timed, or, where that is not known of both, recorded; never 0."""
        times = self.timed if min(self.timed) > 0.0 else self.recorded
        return max(times[0], 1.0) / 1e9, max(times[1], 1.0) / 1e9


def find_rare(
    plans: Sequence[Plan],
    named: frozenset[str],
    metric: MetricChoice,
    needed: int,
    budget: float,
    exposure: Exposure,
) -> Rare:
    """Choose the kernels that are not judged: the smallest first, while all together fit the budget.

    A kernel may be rare if a window where it ran has fewer than `needed` values of it and no window twice as many in
    the same time: one that is frequent in one window and not in the other was swapped in or out. All together hold at
    most the share `budget` of the launches and of the time, in each window. Kernels in `named` are never rare.
    """
    few = [i for i, plan in enumerate(plans) if plan.pair.kernel not in named and _has_few(plan, needed, exposure)]
    if not few:
        return Rare()
    shares = _shares(plans, metric)
    few.sort(key=lambda i: (shares[i].max(), plans[i].pair.kernel))
    together = np.cumsum(shares[few], axis=0)
    fitting = int((together.max(axis=1) <= budget).sum())
    if not fitting:
        return Rare()
    launches, time = together[fitting - 1].reshape(2, 2).max(axis=1)
    return Rare(tuple(reversed(few[:fitting])), float(launches), float(time))


def _has_few(plan: Plan, needed: int, exposure: Exposure) -> bool:
    times = exposure.timed if plan.metric == "device" else exposure.recorded
    sides = ((plan.pair.before, plan.pair.in_before), (plan.pair.after, plan.pair.in_after))
    sizes = [plan.size(counts) if present else 0 for counts, present in sides]
    ran = [size for size, (_, present) in zip(sizes, sides, strict=True) if present]
    if len(ran) == 1:
        return ran[0] < needed
    if min(times) <= 0.0:
        times = (1.0, 1.0)
    # As many as each would hold of the shorter time: device windows may cover all of one window and a tenth of another.
    frequent = max(size * min(times) / time for size, time in zip(sizes, times, strict=True))
    return min(ran) < needed and frequent < 2 * needed


def _shares(plans: Sequence[Plan], metric: MetricChoice) -> NDArray[np.float64]:
    """For each plan its share of the launches before and after, and of the time before and after.

    Time is device time in a window that has it, else the measure that is judged. Of completions only isolated ones
    count: what launches that share a sync waited for, a compiler included, is no kernel's own time.
    """
    windows = [[plan.pair.before for plan in plans], [plan.pair.after for plan in plans]]
    columns = [[counts.runs for counts in window] for window in windows]
    for window in windows:
        if any(counts.executions for counts in window):
            columns.append([counts.device_ns for counts in window])
        else:
            columns.append([c.launch_ns if metric == "launch" else c.isolated_ns for c in window])
    sizes = np.array(columns, np.float64).T
    shares: NDArray[np.float64] = sizes / np.maximum(sizes.sum(axis=0), 1.0)
    return shares
