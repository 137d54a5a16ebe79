"""Reasons from the queue: who waited longer, who no longer runs beside others, how busy the devices were.

Reasons explain, they give no verdict. Only what moved beyond its noise is told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kdiff.analysis.at_once import Side
from kdiff.analysis.counts import is_graph
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.interval import ratio_interval, tail_estimate
from kdiff.analysis.measure import Plan, keys_of
from kdiff.analysis.output_text import duration
from kdiff.analysis.overlap import Activity, KernelActivity, read_activity
from kdiff.analysis.pairing import show
from kdiff.analysis.quantiles import Ordered, quantile
from kdiff.analysis.report import KernelReport, Queue
from kdiff.analysis.sample import Sample
from kdiff.analysis.share import ALPHA, Share, moved
from kdiff.analysis.verdict import Verdict

LEAST_SHARE: Final = 0.1
"""A change of a share of the time that is worth a sentence."""
LEAST_FACTOR: Final = 1.5
LEAST_WAIT_NS: Final = 5_000
"""A change of the median wait that is worth a sentence: by this factor and by this time."""
MIN_WAITS: Final = 100
_ALONE: Final = 0.1
_WENT_WELL: Final = (Verdict.PASS, Verdict.IMPROVED)


@dataclass(frozen=True, slots=True)
class Played:
    """The rows with their queues and reasons, notes on the run, and how busy the devices were before and after."""

    rows: tuple[KernelReport, ...]
    notes: tuple[str, ...]
    busy: tuple[float | None, float | None]


def add_queue(activities: tuple[Activity | None, Activity | None], rows: Sequence[KernelReport]) -> Played:
    """Add to each row, that of the plan at its place, how it ran among the others in either window."""
    busy = tuple(None if window is None else window.busy.value for window in activities)
    one, other = activities
    if one is None or other is None:
        found = [_with_queues(row, _of(one, i), _of(other, i)) for i, row in enumerate(rows)]
        return Played(tuple(found), (), (busy[0], busy[1]))
    told, waited = [], []
    for index, row in enumerate(rows):
        kernels = _of(one, index), _of(other, index)
        row = _with_queues(row, *kernels)
        if kernels[0] is not None and kernels[1] is not None:
            reasons = [_overlap(kernels[0].overlap, kernels[1].overlap, row.verdict)]
            change = _wait(kernels[0].queue, kernels[1].queue)
            if change and row.verdict in _WENT_WELL:
                waited.append((change, row.kernel))
            elif change:
                reasons.append(f"It waited {_than(change)} in the queue: p50 {_arrow(change)}.")
            row = replace(row, reasons=(*row.reasons, *filter(None, reasons)))
        told.append(row)
    return Played(tuple(told), (*_busy(one.busy, other.busy), *_waits(waited)), (busy[0], busy[1]))


def activity(evidence: Evidence, side: Side, plans: Sequence[Plan]) -> Activity | None:
    """What ran beside what in one window, by the indices of `plans`. Raises StoreError."""
    kernels = {index: plan for index, plan in enumerate(plans) if not is_graph(plan.pair.kernel)}
    return read_activity(evidence, keys_of(kernels, side))


def _of(window: Activity | None, index: int) -> KernelActivity | None:
    return None if window is None else window.kernels.get(index)


def _with_queues(row: KernelReport, before: KernelActivity | None, after: KernelActivity | None) -> KernelReport:
    return replace(row, queue_before=_queue(before), queue_after=_queue(after))


def _queue(kernel: KernelActivity | None) -> Queue | None:
    if kernel is None:
        return None
    shares = (kernel.overlap.value, kernel.stream_busy)
    if kernel.queue is None:
        return Queue(0, None, None, *shares)
    ordered = Ordered.of(kernel.queue.durations_ns)
    return Queue(ordered.size, quantile(ordered, 0.5), quantile(ordered, 0.99), *shares)


def _overlap(before: Share, after: Share, verdict: Verdict) -> str:
    if not moved(before, after, LEAST_SHARE):
        return ""
    lost = after.value < before.value
    if verdict in _WENT_WELL and not lost:
        return ""
    how = "less" if lost else "more"
    start = "no longer runs" if lost and after.value < _ALONE else f"runs {how}"
    return (
        f"It {start} beside other kernels: {before.value:.0%} of its time overlapped others before, "
        f"{after.value:.0%} after."
    )


def _wait(before: Sample | None, after: Sample | None) -> tuple[int, int] | None:
    """The median waits before and after, where they differ beyond noise and by what is worth a sentence."""
    if before is None or after is None or min(before.size, after.size) < MIN_WAITS:
        return None
    medians = [quantile(Ordered.of(sample.durations_ns), 0.5) for sample in (before, after)]
    low, high = sorted(medians)
    if high - low < LEAST_WAIT_NS or high < LEAST_FACTOR * low:
        return None
    limits = ratio_interval(tail_estimate(before, 0.5), tail_estimate(after, 0.5), ALPHA)
    far = math.log(LEAST_FACTOR)
    return (medians[0], medians[1]) if limits.low > far or limits.high < -far else None


def _waits(waited: Sequence[tuple[tuple[int, int], str]]) -> list[str]:
    """One sentence for all kernels that passed and waited longer."""
    longer = [(change, kernel) for change, kernel in waited if change[1] > change[0]]
    if not longer:
        return []
    most, kernel = max(longer, key=lambda entry: entry[0][1] / max(entry[0][0], 1))
    more = f", and {len(longer) - 1} more that passed" if len(longer) > 1 else ""
    return [f"{show(kernel)} waited longer in the queue, p50 {_arrow(most)}{more}: see `queue` in the JSON."]


def _busy(before: Share, after: Share) -> list[str]:
    if not moved(before, after, LEAST_SHARE):
        return []
    return [f"The device was busy {after.value:.0%} of the timed windows ({before.value:.0%} before)."]


def _than(change: tuple[int, int]) -> str:
    return "longer" if change[1] > change[0] else "less"


def _arrow(change: tuple[int, int]) -> str:
    return f"{duration(change[0])} -> {duration(change[1])}"
