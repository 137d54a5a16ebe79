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

from kdiff.analysis.columns import codes, column
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.sample import Sample
from kdiff.analysis.share import Share
from kdiff.analysis.values import by_index
from kdiff.queries.store import Params

MAX_EXECUTIONS: Final = 250_000
"""With more in a window, slices of its stretches are left out evenly."""
MOST_EXECUTIONS: Final = 1_000_000
"""The same where they lie in few slices: LEAST_SLICES of those that were timed are read, or this many executions."""
LEAST_SLICES: Final = 60
SLICE_NS: Final = 1_000_000_000
"""The least length of a slice; long beside executions, which are not cut where it begins or ends."""
MOST_SLICES: Final = 1 << 22
MOST_READ: Final = 20_000
"""Slices of a window, and of those how many are read: in a long window, or one of few executions, they are longer."""
_SPREAD: Final = 2_654_435_769  # 2^32 over the golden ratio: multiples of it fill 2^32 evenly, in step with no period


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
    order = _order(times, both, groups)
    sorted_times = times[order]
    running = np.cumsum(np.where(order < start.size, 1, -1))
    # Between groups nothing runs, so that the step from one to the next counts nowhere.
    gap = np.diff(sorted_times, append=sorted_times[-1:])
    until = [np.cumsum(step) - step for step in (np.where(running >= 2, gap, 0), np.where(running >= 1, gap, 0))]
    at = np.empty_like(times)
    at[order] = until[0]
    first = np.searchsorted(both[order], np.arange(groups + 1)).astype(np.int64)
    return Sweep(at[start.size :] - at[: start.size], sorted_times, until[1], first)


def _order(times: NDArray[np.int64], group: NDArray[np.int64], groups: int) -> NDArray[np.int64]:
    """The places of `times` by group and time; equal ones in any order: no time lies between them to be summed."""
    least = int(times.min())
    span = int(times.max()) - least + 1
    if groups * span >= 2**63:
        return np.lexsort((times, group))
    # As one number they are sorted in a fifth of the time.
    return np.argsort(group * span + (times - least))


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

    None if nothing was timed, or if the rows are gone or too many to look for: roll-ups do not tell. Raises StoreError.
    """
    timed = evidence.timed
    if not timed or evidence.hourly or evidence.missing_executions:
        return None
    buckets, width = evidence.window.buckets()
    slices = _Slices.of(evidence, timed)
    table = evidence.query("executions", slices.params)
    if not table.num_rows:
        return None
    start = column(table, "start_ns", np.int64)
    duration = column(table, "duration_ns", np.int64)
    bucket = column(table, "bucket", np.int32)
    devices, device = codes(table, "device", np.uint64)
    lanes, lane = codes(table, "lane", np.uint64)
    process = np.empty(len(devices), np.uint64)
    process[device] = column(table, "process", np.uint64)
    covered = _covered(evidence, process, slices)
    of_devices = sweep(device, start, start + duration, len(devices))
    busy = Share(_busy(of_devices, buckets, width), covered.sum(axis=0))

    device_of_lane = np.zeros(len(lanes), np.int64)
    device_of_lane[lane] = device
    lane_time = covered.sum(axis=1)[device_of_lane]
    of_lanes = sweep(lane, start, start + duration, len(lanes)).union()
    lane_busy = np.minimum(1.0, of_lanes / np.maximum(lane_time, 1.0))

    queue = column(table, "queue_ns", np.int64)
    known, place = codes(table, "kernel_key", np.uint64)
    del table
    index = np.array([keys.get(int(key), -1) for key in known], np.int64)[place]
    wanted = np.flatnonzero(index >= 0)
    kernels = {}
    for one, places in by_index(index[wanted]):
        rows = wanted[places]
        shared, ran = (np.bincount(bucket[rows], v[rows], buckets) for v in (of_devices.shared, duration))
        waited = rows[queue[rows] > 0]
        kernels[one] = KernelActivity(
            Sample(queue[waited], bucket[waited], buckets) if waited.size else None,
            Share(shared.astype(np.float64), ran.astype(np.float64)),
            float(np.bincount(lane[rows], minlength=len(lanes)) @ lane_busy) / rows.size,  # in any order of rows
        )
    return Activity(kernels, busy)


@dataclass(frozen=True, slots=True)
class _Slices:
    """What of a window is read.

    Attributes:
        buckets, width_ns: its stretches.
        each: slices in a stretch.
        chosen: of 2^32 the part that is read.
    """

    buckets: int
    width_ns: int
    each: int
    chosen: int

    @classmethod
    def of(cls, evidence: Evidence, timed: int) -> _Slices:
        """Of a window with `timed` executions."""
        buckets, width = evidence.window.buckets()
        each = max(1, width // SLICE_NS)
        device = evidence.device
        held = device.covered_ns / max(1, len(device.timed_ns)) / (width / each)
        share = max(MAX_EXECUTIONS / timed, min(MOST_EXECUTIONS / timed, LEAST_SLICES / max(held, 1.0)))
        share = min(1.0, share)
        # No fewer device windows are read for it: a longer slice holds more of them.
        each = max(1, min(each, int(min(MOST_SLICES, MOST_READ / share)) // buckets))
        return cls(buckets, width, each, int(2**32 * share))

    @property
    def slice_ns(self) -> int:
        """Length of a slice; the last one of a stretch may be shorter."""
        return -(-self.width_ns // self.each)

    @property
    def params(self) -> Params:
        """For queries/sql/executions.sql."""
        sizes = {"bucket_ns": self.width_ns, "slices": self.each, "slice_ns": self.slice_ns, "chosen": self.chosen}
        return dict(sizes)

    def bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Of each slice that is read its stretch, its start and its end, ns since the window began; shapes (n,)."""
        number = np.arange(self.buckets * self.each)
        number = number[(number * _SPREAD & 0xFFFF_FFFF) < self.chosen]
        bucket = number // self.each
        start = bucket * self.width_ns + number % self.each * self.slice_ns
        return bucket, start, np.minimum(start + self.slice_ns, (bucket + 1) * self.width_ns)


def _covered(evidence: Evidence, processes: NDArray[np.uint64], slices: _Slices) -> NDArray[np.float64]:
    """How long each device, of the process given, was timed in each stretch, as far as it was read, in ns.

    Shapes (devices,) to (devices, buckets).
    """
    covered = np.zeros((len(processes), slices.buckets))
    bucket, start, end = slices.bounds()
    known = evidence.timed_processes
    for place, process in enumerate(processes):
        stretches = evidence.device.stretches.get(known.get(int(process), ("", 0)))
        if stretches is None or not len(stretches):
            continue
        ends = (stretches - evidence.window.from_ns).ravel().astype(np.float64)
        timed = np.concatenate([[0.0], np.cumsum(np.diff(ends) * (np.arange(ends.size - 1) % 2 == 0))])
        read = np.interp(end, ends, timed) - np.interp(start, ends, timed)
        covered[place] += np.bincount(bucket, read, slices.buckets)
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
