"""From the kernel's clock (CLOCK_MONOTONIC, which probes stamp events with) to Unix time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

_KEEP_S: Final = 900
_STEP_NS: Final = 50_000_000
_STEERED: Final = 1e-3  # twice as fast as Linux steers a clock


class UnixClock:
    """Monotonic times as Unix times: one offset for each monotonic second, kept, so that a time gives one answer.

    Unix time is steered and may step, so an offset is read anew as each second is first asked about.
    """

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}
        self._last: tuple[int, int] | None = None  # second and offset
        self._stepped_ns = 0

    def unix(self, monotonic: NDArray[np.int64]) -> NDArray[np.int64]:
        """Unix ns of monotonic ns. Times before the last quarter of an hour share one offset, as do those to come."""
        if not len(monotonic):
            return monotonic
        now = time.monotonic_ns() // 1_000_000_000
        earliest, latest = (
            min(max(int(time_ns) // 1_000_000_000, now - _KEEP_S), now + 1)
            for time_ns in (monotonic.min(), monotonic.max())
        )
        offsets = np.array([self._offset(second, now) for second in range(earliest, latest + 1)], np.int64)
        if len(offsets) > 1:  # else one for all
            offsets = offsets[np.clip(monotonic // 1_000_000_000, earliest, latest) - earliest]
        result: NDArray[np.int64] = monotonic + offsets
        return result

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Unix ns of two monotonic times in ns."""
        both = self.unix(np.array([start, end], np.int64))
        return int(both[0]), int(both[1])

    def take_step(self) -> str:
        """Whether Unix time was set since the last call, by hand or by a host's sleep, in a sentence; '' if not.

        What lies around such a moment has times by the clock as it was then: its order and its gaps are not real.
        """
        stepped, self._stepped_ns = self._stepped_ns, 0
        if not stepped:
            return ""
        way = "forward" if stepped > 0 else "back"
        return (
            f"this host's clock was set {way} by {abs(stepped) / 1e9:.1f} s, or the host slept: durations are right, "
            "but windows that touch that moment are not as long as they say"
        )

    def _offset(self, second: int, now: int) -> int:
        known = self._offsets.get(second)
        if known is None:
            known = self._offsets[second] = unix_offset_ns()
            self._note_step(now, known)
            for old in [s for s in self._offsets if s < now - _KEEP_S]:
                del self._offsets[old]
        return known

    def _note_step(self, second: int, offset: int) -> None:
        if self._last is not None:
            passed_ns = (second - self._last[0]) * 1_000_000_000
            change = offset - self._last[1]
            if abs(change) > _STEP_NS + _STEERED * passed_ns:
                self._stepped_ns += change
        self._last = second, offset


def unix_offset_ns() -> int:
    """Unix time minus monotonic time now, ns: the tightest of a few bracketed readings (about 100 ns)."""
    best = None
    for _ in range(5):
        before = time.monotonic_ns()
        unix = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, unix - (before + after) // 2)
    assert best is not None
    return best[1]


def boot_id() -> str:
    """This boot of this host: monotonic times of different boots are not comparable."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
