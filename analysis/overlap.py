"""What kernels did beside each other on the device: time in the queue, busy streams and devices, overlap.

A kernel overlaps while another execution runs on the same GPU, of the same process: processes are timed at different
moments, so that what two of them did at once is not known. The sums are exact, from one sweep over the sorted starts
and ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis.columns import column
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.interval import Sample
from kdiff.analysis.share import Share

MAX_EXECUTIONS: Final = 1_000_000
"""With more in a window, whole stretches of time are left out evenly."""


class Sweep(NamedTuple):
    """What a sweep over executions finds, in ns.

    Attributes:
        shared: shape (n,), how long of each execution another one of its group ran.
        times, busy: shape (2 n,), the starts and ends by group and time, and the time until each of them in which any
            execution ran, since the start of the first group.
        first: shape (groups + 1,), where in `times` each group begins.
    """

    shared: NDArray[np.int64]
    times: NDArray[np.int64]
    busy: NDArray[np.int64]
    first: NDArray[np.int64]

    def union(self) -> NDArray[np.int64]:
        """How long any execution of each group ran, shape (groups,), ns."""
        return self.busy[self.first[1:] - 1] - self.busy[self.first[:-1]]


def sweep(group: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64], groups: int) -> Sweep:
    """Sweep over n executions [start, end), each in one of `groups` groups, none empty; arrays of shape (n,)."""
    times = np.concatenate([start, end])
    both = np.concatenate([group, group])
    order = np.argsort(times, kind="stable") if groups == 1 else np.lexsort((times, both))
    sorted_times = times[order]
    running = np.cumsum(np.where(order < start.size, 1, -1))
    # Between groups nothing runs, so that the step from one to the next counts nowhere.
    gap = np.diff(sorted_times, append=sorted_times[-1:])
    until = [np.cumsum(step) - step for step in (np.where(running >= 2, gap, 0), np.where(running >= 1, gap, 0))]
    at = np.empty_like(times)
    at[order] = until[0]
    first = np.searchsorted(both[order], np.arange(groups + 1)).astype(np.int64)
    return Sweep(at[start.size :] - at[: start.size], sorted_times, until[1], first)


@dataclass(frozen=True, eq=False, slots=True)
class KernelActivity:
    """One kernel in one window.

    Attributes:
        queue: launch call to device start, ns, of the executions whose launch is known; None without any.
        overlap: the share of its time in which another execution ran.
        stream_busy: the share of the timed time in which its streams were busy, averaged over its executions.
    """

    queue: Sample | None
    overlap: Share
    stream_busy: float


@dataclass(frozen=True, eq=False, slots=True)
class Activity:
    """One window: its kernels by index, and the share of the timed time in which its GPUs ran anything."""

    kernels: Mapping[int, KernelActivity]
    busy: Share


def read_activity(evidence: Evidence, keys: Mapping[int, int]) -> Activity | None:
    """What ran beside what; of the kernels in `keys` (kernel_key -> index) one by one.

    None if nothing was timed, or if the rows are gone: roll-ups do not tell. Raises StoreError.
    """
    timed = evidence.timed
    if not timed or evidence.missing_rows:
        return None
    buckets, width = evidence.window.buckets()
    every = max(1, -(-timed // MAX_EXECUTIONS))
    table = evidence.query("executions", {"bucket_ns": width, "every": every})
    if not table.num_rows:
        return None
    start = column(table, "start_ns", np.int64)
    duration = column(table, "duration_ns", np.int64)
    bucket = column(table, "bucket", np.int32)
    devices, device = np.unique(column(table, "device", np.uint64), return_inverse=True)
    lanes, lane = np.unique(column(table, "lane", np.uint64), return_inverse=True)
    covered = _covered(evidence, devices, buckets, width, every)
    of_devices = sweep(device, start, start + duration, len(devices))
    busy = Share(_busy(of_devices, buckets, width), covered.sum(axis=0))

    device_of_lane = np.zeros(len(lanes), np.int64)
    device_of_lane[lane] = device
    lane_time = covered.sum(axis=1)[device_of_lane]
    of_lanes = sweep(lane, start, start + duration, len(lanes)).union()
    lane_busy = np.minimum(1.0, of_lanes / np.maximum(lane_time, 1.0))

    queue = column(table, "queue_ns", np.int64)
    kernel = column(table, "kernel_key", np.uint64)
    del table
    known, place = np.unique(kernel, return_inverse=True)
    index = np.array([keys.get(int(key), -1) for key in known], np.int64)[place]
    wanted = np.flatnonzero(index >= 0)
    order = wanted[np.argsort(index[wanted], kind="stable")]
    present, starts = np.unique(index[order], return_index=True)
    kernels = {}
    for one, rows in zip(present, np.split(order, starts)[1:], strict=True):
        shared, ran = (np.bincount(bucket[rows], v[rows], buckets) for v in (of_devices.shared, duration))
        waited = rows[queue[rows] > 0]
        kernels[int(one)] = KernelActivity(
            Sample(queue[waited], bucket[waited], buckets) if waited.size else None,
            Share(shared.astype(np.float64), ran.astype(np.float64)),
            float(lane_busy[lane[rows]].mean()),
        )
    return Activity(kernels, busy)


def _covered(
    evidence: Evidence, devices: NDArray[np.uint64], buckets: int, width: int, every: int
) -> NDArray[np.float64]:
    """How long each device was timed in each stretch that was read, shape (devices, buckets), ns."""
    covered = np.zeros((len(devices), buckets))
    edges = np.arange(buckets + 1) * float(width)
    for row in evidence.query("devices").to_pylist():
        stretches = evidence.device.stretches.get((row["host"], row["pid"]))
        place = int(np.searchsorted(devices, np.uint64(row["device"])))
        if stretches is None or place == len(devices) or devices[place] != row["device"] or not len(stretches):
            continue
        ends = (stretches - evidence.window.from_ns).ravel().astype(np.float64)
        timed = np.concatenate([[0.0], np.cumsum(np.diff(ends) * (np.arange(ends.size - 1) % 2 == 0))])
        covered[place] += np.diff(np.interp(edges, ends, timed))
    covered[:, np.arange(buckets) % every != 0] = 0.0
    return covered


def _busy(found: Sweep, buckets: int, width: int) -> NDArray[np.float64]:
    """How long the devices were busy in each stretch, summed over devices, shape (buckets,), ns."""
    edges = np.arange(buckets + 1) * float(width)
    total = np.zeros(buckets)
    for a, b in zip(found.first[:-1], found.first[1:], strict=True):
        # What ends behind the window counts in its last stretch: what was still running at its start is not known.
        times, busy = found.times[a:b].astype(np.float64), found.busy[a:b].astype(np.float64)
        until = np.interp(edges, times, busy)
        until[-1] = busy[-1]
        total += np.diff(until)
    return total
