"""Whether windows of device time slow a process down: its rate of launches inside them, against right around them.

Each window is compared with the stretches of its own length before and after it, whose mean a steady drift leaves
alone. An alarm needs five windows, and a mean below the tolerance by more than chance does once in 10,000 looks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

_TOLERANCE: Final = 0.02
_FEWEST_WINDOWS: Final = 5
_MOST_WINDOWS: Final = 30
_FEWEST_LAUNCHES: Final = 1000  # inside
_CHANCE: Final = 1e-4
_LEAST_NOISE: Final = 0.002
_BIN_NS: Final = 1_000_000
_BINS: Final = 1 << 16  # 65 s
_LONGEST_NS: Final = 20_000_000_000  # beyond it the stretch before is forgotten
_LATE_NS: Final = 1_500_000_000  # by when every launch has been read


@dataclass
class _Rates:
    """Launches of one process by millisecond; a window's stretches are all younger than the oldest."""

    bins: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(_BINS, np.uint32))
    newest: int = 0  # bin
    since: int = 0  # bin of the first launch fed
    windows: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=64))  # all, to see that none is near
    due: list[tuple[int, int]] = field(default_factory=list)
    ratios: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_WINDOWS))

    def add(self, entered_ns: NDArray[np.int64]) -> None:
        at = entered_ns // _BIN_NS
        newest = int(at.max())
        if not self.newest:
            self.newest = self.since = int(at.min())
        if newest > self.newest:
            self.bins[np.arange(max(self.newest + 1, newest - _BINS + 1), newest + 1) % _BINS] = 0
            self.newest = newest
        at = at[at > self.newest - _BINS]
        self.bins += np.bincount(at % _BINS, minlength=_BINS).astype(np.uint32)

    def count(self, from_ns: int, to_ns: int) -> int:
        first, last = from_ns // _BIN_NS, min(to_ns // _BIN_NS, self.newest + 1)
        if last <= first:
            return 0
        return int(self.bins[np.arange(first, last) % _BINS].sum())


class Guard:
    """Watches the processes that are listened to."""

    def __init__(self) -> None:
        self._processes: dict[int, _Rates] = {}

    def feed(self, pid: int, entered_ns: NDArray[np.int64]) -> None:
        """Takes launches, graphs among them, by when they were entered (monotonic)."""
        if len(entered_ns):
            self._processes.setdefault(pid, _Rates()).add(entered_ns)

    def window(self, pid: int, from_ns: int, to_ns: int) -> None:
        """A window was open then (monotonic)."""
        rates = self._processes.get(pid)
        if rates is not None and to_ns > from_ns:
            rates.windows.append((from_ns, to_ns))
            if to_ns - from_ns <= _LONGEST_NS:
                rates.due.append((from_ns, to_ns))

    def slowed(self, now_ns: int) -> dict[int, float]:
        """The processes that windows slow down, each said once, and by which share (`now_ns`: monotonic)."""
        found = {}
        for pid, rates in self._processes.items():
            due, rates.due = rates.due, []
            fresh: list[tuple[int, int]] = []
            for window in due:
                over = window[1] + (window[1] - window[0]) + _LATE_NS <= now_ns
                (fresh if over else rates.due).append(window)
            for window in fresh:
                ratio = _ratio(rates, *window)
                if ratio is not None:
                    rates.ratios.append(ratio)
            slowdown = slower(list(rates.ratios)) if fresh else None
            if slowdown is not None:
                found[pid] = slowdown
                rates.ratios.clear()
        return found

    def forget(self, pid: int) -> None:
        """The process has ended."""
        self._processes.pop(pid, None)


def _ratio(rates: _Rates, from_ns: int, to_ns: int) -> float | None:
    """The rate inside over the rate around; None when it cannot be told."""
    length = to_ns - from_ns
    begin, end = from_ns - length, to_ns + length
    near = [w for w in rates.windows if w != (from_ns, to_ns) and w[0] < end and w[1] > begin]
    if near or begin // _BIN_NS < max(rates.since, rates.newest - _BINS + 1):
        return None
    before, inside, after = rates.count(begin, from_ns), rates.count(from_ns, to_ns), rates.count(to_ns, end)
    if inside < _FEWEST_LAUNCHES or not before or not after:
        return None
    return 2 * inside / (before + after)


def slower(ratios: list[float]) -> float | None:
    """By which share windows of these ratios are slower, if that is beyond the tolerance and beyond chance."""
    if len(ratios) < _FEWEST_WINDOWS:
        return None
    logs = np.log(ratios)
    mean, limit = float(logs.mean()), float(np.log1p(-_TOLERANCE))
    if mean >= limit or float(np.median(logs)) >= limit:
        return None
    from scipy.special import stdtrit

    noise = max(float(logs.std(ddof=1)), _LEAST_NOISE)
    if mean + float(stdtrit(len(logs) - 1, 1 - _CHANCE)) * noise / len(logs) ** 0.5 >= limit:
        return None
    return 1 - float(np.exp(mean))
