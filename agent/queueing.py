"""Which launch an execution is of: the executions of a window, in the order of their launches, against the launches.

Both sides say which kernel with which grid and block, so the match is an alignment of two sequences. They repeat, and
what repeats can be laid over itself shifted. A match counts only if no other fits: a shift to later launches must have
one start before it was launched, a shift to earlier ones must have one end after a sync has proven it finished, or
lead outside of the window. Otherwise nothing is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

NEVER: Final = np.int64(2**63 - 1)
_RUN: Final = 16  # that many in a row must agree for a place to count as found
_MOST_STARTS: Final = 64
_MOST_SKIPPED: Final = 64  # on one side, at one place
_MOST_EDITS: Final = 1000
_SHIFTS: Final = 2048  # how far another fit is looked for
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Executions:
    """In the order of their launches. Times on the host's monotonic clock, right to within `error_ns`."""

    key: NDArray[np.uint64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    error_ns: int


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
    none = np.full(len(executions.key), -1, np.int64)
    low = int(np.argmax(launches.left_ns >= extent.after_ns)) if len(launches.key) else 0
    high = int(np.searchsorted(launches.entered_ns, extent.before_ns, side="right"))
    if not len(executions.key) or high <= low or launches.left_ns[low] < extent.after_ns:
        return none
    fit = _Fit(executions, launches, low, high)
    for start in fit.starts():
        found = fit.align(start)
        if found is not None:
            return fit.certain(found)
    return none


@dataclass(frozen=True)
class _Segment:
    """Executions first..last (exclusive) are the launches `shift` further on."""

    first: int
    last: int
    shift: int


class _Fit:
    def __init__(self, executions: Executions, launches: Launches, low: int, high: int) -> None:
        self._a = executions
        self._b = launches
        self._low = low
        self._high = high
        self._latest_start = executions.start_ns + executions.error_ns
        self._earliest_end = executions.end_ns - executions.error_ns

    def starts(self) -> list[int]:
        """Launches that the first execution may be of, the latest first."""
        run = min(_RUN, len(self._a.key))
        last = min(self._high - run, self._low + 65536)
        possible = np.arange(self._low, last + 1)
        for i in range(run):
            possible = possible[self._b.key[possible + i] == self._a.key[i]]
        possible = possible[self._b.entered_ns[possible] <= self._latest_start[0]]
        return [int(start) for start in possible[::-1][:_MOST_STARTS]]

    def align(self, start: int) -> list[_Segment] | None:
        """Segments that agree with the clock too; None when there are none, or the two sides differ too much."""
        segments = []
        i, j = 0, start
        while i < len(self._a.key) and j < self._high:
            length = self._same(i, j)
            if length:
                segments.append(_Segment(i, i + length, j - i))
            i, j = i + length, j + length
            if i >= len(self._a.key) or j >= self._high:
                break
            skip = self._resume(i, j)
            if skip is None or len(segments) > _MOST_EDITS:
                return None
            i, j = i + skip[0], j + skip[1]
        return segments if all(self._possible(s) for s in segments) else None

    def _same(self, i: int, j: int) -> int:
        """How many agree from here on."""
        length = min(len(self._a.key) - i, self._high - j)
        done, step = 0, 64
        while done < length:
            end = min(done + step, length)
            differ = self._a.key[i + done : i + end] != self._b.key[j + done : j + end]
            if differ.any():
                return done + int(np.argmax(differ))
            done, step = end, step * 8
        return length

    def _resume(self, i: int, j: int) -> tuple[int, int] | None:
        """How many to skip on each side until they agree again: the fewest; None when they do not soon."""
        few = [(s, t) for s in range(5) for t in range(5) if s + t]
        many = [(0, t) for t in range(5, _MOST_SKIPPED)] + [(s, 0) for s in range(5, _MOST_SKIPPED)]
        for s, t in sorted(few, key=sum) + sorted(many, key=sum):
            run = min(_RUN, len(self._a.key) - i - s, self._high - j - t)
            if run > 0 and (self._a.key[i + s : i + s + run] == self._b.key[j + t : j + t + run]).all():
                return s, t
        return None

    def _possible(self, segment: _Segment) -> bool:
        return not self._too_late(segment) and not self._too_early(segment)

    def _too_late(self, segment: _Segment) -> bool:
        """Whether an execution starts before its launch is entered."""
        entered = self._b.entered_ns[segment.first + segment.shift : segment.last + segment.shift]
        return bool((self._latest_start[segment.first : segment.last] < entered).any())

    def _too_early(self, segment: _Segment) -> bool:
        """Whether an execution ends after its launch is proven finished."""
        proven = self._b.proven_ns[segment.first + segment.shift : segment.last + segment.shift]
        return bool((self._earliest_end[segment.first : segment.last] > proven).any())

    def certain(self, segments: list[_Segment]) -> NDArray[np.int64]:
        """The launches of those executions that can be of no other."""
        found = np.full(len(self._a.key), -1, np.int64)
        taken = self._low  # launches before it belong to others
        for number, segment in enumerate(segments):
            first, last = segment.first, segment.last
            # What was skipped at either end may have been any of those alike.
            if number:
                first += self._alike(segments[number - 1], segment, forward=True)
            if number + 1 < len(segments):
                last -= self._alike(segment, segments[number + 1], forward=False)
            inner = _Segment(first, last, segment.shift)
            if first < last and self._only(inner, taken):
                found[first:last] = np.arange(first, last) + segment.shift
                taken = last + segment.shift
        return self._without_concurrent(found)

    def _alike(self, before: _Segment, after: _Segment, *, forward: bool) -> int:
        """How many of a segment, from the place where it meets another, fit with the other's shift as well."""
        if forward:
            length = min(after.last - after.first, self._high - after.first - before.shift)
            if after.first + before.shift < 0 or length <= 0:
                return 0
            other = self._b.key[after.first + before.shift :][:length]
            differ = self._a.key[after.first : after.first + length] != other
        else:
            length = min(before.last - before.first, before.last + after.shift)
            if length <= 0 or before.last + after.shift > len(self._b.key):
                return 0
            other = self._b.key[before.last + after.shift - length : before.last + after.shift][::-1]
            differ = self._a.key[before.last - length : before.last][::-1] != other
        return int(np.argmax(differ)) if differ.any() else length

    def _only(self, segment: _Segment, taken: int) -> bool:
        """Whether no other shift fits: what the next one contradicts, those beyond it contradict as well."""
        later = self._other(segment, self._high - segment.last - segment.shift, +1)
        if later is not None and not self._too_late(later):
            return False
        earlier = self._other(segment, segment.first + segment.shift - taken, -1)
        return earlier is None or self._too_early(earlier)

    def _other(self, segment: _Segment, room: int, step: int) -> _Segment | None:
        """The nearest other shift at which the kernels agree, among the `room` next ones."""
        a = self._a.key[segment.first : segment.last]
        shifts = segment.shift + step * np.arange(1, min(room, _SHIFTS) + 1)
        for at in np.unique(np.linspace(0, len(a) - 1, 24).astype(int)):
            shifts = shifts[self._b.key[segment.first + at + shifts] == a[at]]
        for shift in shifts:
            if (self._b.key[segment.first + shift : segment.last + shift] == a).all():
                return _Segment(segment.first, segment.last, int(shift))
        return None

    def _without_concurrent(self, found: NDArray[np.int64]) -> NDArray[np.int64]:
        """Calls that overlap may have reached the driver in either order: alike, they cannot be told apart."""
        b = self._b
        near = (b.tid[1:] != b.tid[:-1]) & (b.key[1:] == b.key[:-1])
        unknown = b.left_ns[:-1] == b.entered_ns[:-1]
        near &= (b.left_ns[:-1] > b.entered_ns[1:]) | (unknown & (b.entered_ns[1:] - b.entered_ns[:-1] < 100_000))
        unsure = np.zeros(len(b.key), bool)
        unsure[1:] |= near
        unsure[:-1] |= near
        found[(found >= 0) & unsure[found]] = -1
        return found
