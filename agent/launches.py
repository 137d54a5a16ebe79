"""The last launches of the processes that have device time, for the executions that are still to come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdiff.agent.names import Kernel
from kdiff.agent.queueing import NEVER, Launches, keys
from kdiff.agent.rows import encode
from kdiff.probes.wire import Kind

_KEEP_NS: Final = 20_000_000_000
_MOST: Final = 1_000_000  # 64 MB
_FIELDS: Final = ("timestamp_ns", "duration_ns", "handle", "tid", "generation", "grid", "block")
LAUNCH: Final = np.dtype(
    [
        ("timestamp_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("handle", "<u8"),
        ("completion_ns", "<i8"),
        ("tid", "<u4"),
        ("generation", "<u4"),
        ("grid", "<u4", 3),
        ("block", "<u4", 3),
    ]
)


class RecentLaunches:
    """Keeps launches that executed, by process, for 20 s and a million of them at most."""

    def __init__(self) -> None:
        self._chunks: dict[int, list[NDArray[np.void]]] = {}
        self._count = 0

    def feed(self, pid: int, paired: NDArray[np.void]) -> None:
        """Takes PAIRED records of a process, their times monotonic."""
        chunk = _launches(paired)
        if len(chunk):
            self._chunks.setdefault(pid, []).append(chunk)
            self._count += len(chunk)

    def forget(self, now_ns: int) -> None:
        """Drops what is older than 20 s (`now_ns`: monotonic), and what there is no room for."""
        for pid, chunks in list(self._chunks.items()):
            while chunks and (int(chunks[0]["timestamp_ns"][-1]) < now_ns - _KEEP_NS or self._count > _MOST):
                self._count -= len(chunks.pop(0))
            if not chunks:
                del self._chunks[pid]

    def of(
        self,
        pid: int,
        extent_ns: tuple[int, int],
        waiting: NDArray[np.void],
        kernel: Callable[[int, int, int], Kernel],
    ) -> tuple[Launches, bool]:
        """The launches entered in the extent, those (PAIRED) too that still wait for a sync.

        `kernel(pid, generation, handle)` names them. The second value says whether every name is known; if not the
        keys are of the shapes alone.
        """
        parts = [*self._chunks.get(pid, []), _launches(waiting[waiting["event"]["pid"] == pid])]
        inside = [p[(p["timestamp_ns"] >= extent_ns[0]) & (p["timestamp_ns"] <= extent_ns[1])] for p in parts]
        found = np.concatenate(inside)
        found = found[np.argsort(found["timestamp_ns"], kind="stable")]
        ids, resolved = _kernel_ids(pid, found, kernel)
        entered = found["timestamp_ns"].copy()
        proven = np.where(found["completion_ns"] > 0, entered + found["completion_ns"], NEVER)
        return Launches(
            keys(ids, found["grid"], found["block"]),
            entered,
            entered + found["duration_ns"],
            proven,
            found["tid"].copy(),
        ), resolved


def _launches(paired: NDArray[np.void]) -> NDArray[np.void]:
    event = paired["event"]
    launched = (event["kind"] == Kind.LAUNCH) & (event["status"] == 0) & ~paired["captured"]
    chunk = np.zeros(int(launched.sum()), LAUNCH)
    for field in _FIELDS:
        chunk[field] = event[field][launched]
    chunk["completion_ns"] = paired["completion_ns"][launched]
    return chunk


def _kernel_ids(
    pid: int, launches: NDArray[np.void], kernel: Callable[[int, int, int], Kernel]
) -> tuple[NDArray[np.uint64], bool]:
    """The kernel of each launch, or 0 for all when one of them has no name."""
    ids = np.zeros(len(launches), np.uint64)
    generations, of_generation = encode(launches["generation"].astype(np.uint64))
    for index, generation in enumerate(generations):
        rows = np.flatnonzero(of_generation == index)
        handles, which = encode(launches["handle"][rows])
        kernels = [kernel(pid, int(generation), int(handle)) for handle in handles]
        if not all(one.resolved for one in kernels):
            return np.zeros(len(launches), np.uint64), False
        ids[rows] = np.array([one.id for one in kernels], np.uint64)[which]
    return ids, True
