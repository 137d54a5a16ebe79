"""Which launch an execution is of: the executions of a window, in the order of their launches, against the launches.

Both sides say which kernel with which grid and block. An execution begins after its launch was entered, and ends
before a sync has proven that launch finished. Every way to give each execution a launch, in order, lies between the
one that takes launches as early as it can and the one that takes them as late as it can: where these two agree the
launch is certain. Where no execution is missing they are of launches in a row, and one shift of one sequence against
the other is enough. Nothing else is claimed.

It rests on every launch being among those given, which is not so where the host has lost events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

NEVER: Final = np.int64(2**63 - 1)
_MOST_BREAKS: Final = 10_000  # in a row of launches; more take too long
_MOST_SHIFTS: Final = 2048
_MOST_KEYS: Final = 1000
_NEAR_NS: Final = 100_000  # calls of two threads whose returns are unknown may overlap
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Executions:
    """In the order of their launches. Times on the host's monotonic clock, right to within `error_ns`.

    `whole`: none is missing from the first to the last.
    """

    key: NDArray[np.uint64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    error_ns: int
    whole: bool


@dataclass(frozen=True)
class Launches:
    """In the order of their entry, monotonic. `proven_ns`: by when they had finished, NEVER if unknown."""

    key: NDArray[np.uint64]
    entered_ns: NDArray[np.int64]
    left_ns: NDArray[np.int64]  # as entered_ns where returns are not probed
    proven_ns: NDArray[np.int64]
    tid: NDArray[np.uint32]


@dataclass(frozen=True)
class Extent:
    """Launches that left before `after_ns` or were entered after `before_ns` are surely not collected."""

    after_ns: int
    before_ns: int


def keys(kernel: NDArray[np.uint64], grid: NDArray[np.uint32], block: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """A hash of what both sides know of a launch."""
    mixed = kernel.copy()
    for dimensions in (grid, block):
        for axis in range(3):
            mixed ^= dimensions[:, axis]
            mixed *= _MIX
            mixed ^= mixed >> np.uint64(29)
    return mixed


def match(executions: Executions, launches: Launches, extent: Extent) -> NDArray[np.int64]:
    """For each execution the position of its launch, or -1 where that is not certain."""
    found = np.full(len(executions.key), -1, np.int64)
    # A kernel that is never launched here is launched in a way that nobody probes.
    known = np.flatnonzero(np.isin(executions.key, launches.key))
    possible = np.flatnonzero((launches.left_ns >= extent.after_ns) & (launches.entered_ns <= extent.before_ns))
    if not len(known) or not len(possible):
        return found
    overlap, unordered = _concurrent(launches, possible)
    if not overlap:
        found[known] = _certain(executions, launches, known, possible)
        return found
    # Threads that launch at the same time: only launches of the same kernel have an order that both sides know.
    distinct = np.unique(executions.key[known])
    for key in distinct if len(distinct) <= _MOST_KEYS else ():
        own = known[executions.key[known] == key]
        found[own] = _certain(executions, launches, own, possible[launches.key[possible] == key], alone=False)
    found[(found >= 0) & unordered[found]] = -1
    return found


def _concurrent(launches: Launches, possible: NDArray[np.int64]) -> tuple[bool, NDArray[np.bool_]]:
    """Whether any two calls overlap, and which ones do so with one of their own kind: those have no known order."""
    unordered = np.zeros(len(launches.key), bool)
    if (launches.tid[possible] == launches.tid[possible[0]]).all():
        return False, unordered
    unknown = launches.left_ns == launches.entered_ns
    left = np.where(unknown, launches.left_ns + _NEAR_NS, launches.left_ns)
    for key in np.unique(launches.key[possible])[:_MOST_KEYS]:
        own = np.flatnonzero(launches.key == key)
        near = launches.entered_ns[own[1:]] < np.maximum.accumulate(left[own])[:-1]
        unordered[own[1:]] |= near
        unordered[own[:-1]] |= near
    return bool((launches.entered_ns[1:] < np.maximum.accumulate(left)[:-1]).any()), unordered


def _certain(
    executions: Executions,
    launches: Launches,
    chosen: NDArray[np.int64],
    possible: NDArray[np.int64],
    *,
    alone: bool = True,
) -> NDArray[np.int64]:
    """As `match`, for the chosen executions among the possible launches. `alone`: these are all of the window's."""
    fit = _Fit(
        executions.key[chosen],
        executions.start_ns[chosen] + executions.error_ns,
        executions.end_ns[chosen] - executions.error_ns,
        launches.key[possible],
        launches.entered_ns[possible],
        launches.proven_ns[possible],
    )
    none = np.full(len(chosen), -1, np.int64)
    early = fit.earliest()
    late = fit.mirrored().earliest() if early is not None else None
    if early is None or late is None:
        return none
    late = len(possible) - 1 - late[::-1]
    result = np.where(early == late, early, -1)
    if executions.whole and alone and (result < 0).any():
        order = np.arange(len(chosen))
        shifts = range(int((early - order).max()), int((late - order).min()) + 1)
        fitting = [shift for shift in shifts[:_MOST_SHIFTS] if fit.run(0, shift) == len(chosen)]
        if len(fitting) == 1 and len(shifts) <= _MOST_SHIFTS:
            result = order + fitting[0]
    return np.where(result >= 0, possible[result], -1)


@dataclass(frozen=True)
class _Fit:
    """Executions, by the latest start and the earliest end that they may have, and launches."""

    key: NDArray[np.uint64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    launch_key: NDArray[np.uint64]
    entered: NDArray[np.int64]
    proven: NDArray[np.int64]

    def mirrored(self) -> _Fit:
        """The same from the other end."""
        return _Fit(
            self.key[::-1],
            self.start[::-1],
            self.end[::-1],
            self.launch_key[::-1],
            self.entered[::-1],
            self.proven[::-1],
        )

    def earliest(self) -> NDArray[np.int64] | None:
        """The first launch that each may have, after that of the one before; None when one is left without."""
        count = len(self.key)
        taken = np.empty(count, np.int64)
        at, launch = 0, 0
        for _ in range(_MOST_BREAKS):
            length = self.run(at, launch)
            taken[at : at + length] = np.arange(launch, launch + length)
            at, launch = at + length, launch + length
            if at == count:
                return taken
            following = self._next(at, launch)
            if following is None:
                return None
            launch = following
        return None

    def run(self, at: int, launch: int) -> int:
        """How many from here on may have the launches in a row from that one on."""
        length = min(len(self.key) - at, len(self.launch_key) - launch)
        done, step = 0, 16
        while done < length:
            end = min(done + step, length)
            own, other = slice(at + done, at + end), slice(launch + done, launch + end)
            fits = (
                (self.key[own] == self.launch_key[other])
                & (self.entered[other] <= self.start[own])
                & (self.proven[other] >= self.end[own])
            )
            if not fits.all():
                return done + int(np.argmin(fits))
            done, step = end, step * 8
        return length

    def _next(self, at: int, launch: int) -> int | None:
        """The first launch from that one on that this execution may have."""
        step = 16
        while launch < len(self.launch_key):
            other = slice(launch, launch + step)
            fits = (
                (self.launch_key[other] == self.key[at])
                & (self.entered[other] <= self.start[at])
                & (self.proven[other] >= self.end[at])
            )
            if fits.any():
                return launch + int(np.argmax(fits))
            launch, step = launch + step, step * 8
        return None
