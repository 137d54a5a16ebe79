"""From the kernel's clock (CLOCK_MONOTONIC, which probes stamp events with) to Unix time, and back.

Rows carry Unix times and the offset that made them: `timestamp_ns - clock_offset_ns` is the kernel's own time, exactly.
Within one boot, `boot_id`, those are in the order in which things happened, whatever was done to the host's clock.
CLOCK_MONOTONIC stands still while a host sleeps, and so does what it measures: no duration holds the sleep.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

_S: Final = 1_000_000_000
_KEEP_S: Final = 900
_STEP_NS: Final = 50_000_000
_STEERED: Final = 1e-3  # twice as fast as Linux steers a clock


@dataclass(frozen=True, slots=True)
class Steps:
    """What moved Unix time against the kernel's clock by more than steering does, ns, forward positive."""

    set_ns: int = 0  # by hand, or by NTP
    slept_ns: int = 0  # the host was suspended

    def __add__(self, other: Steps) -> Steps:
        return Steps(self.set_ns + other.set_ns, self.slept_ns + other.slept_ns)

    @property
    def sentence(self) -> str:
        """What is to be said of it; '' of nothing."""
        what = []
        if self.set_ns:
            way = "forward" if self.set_ns > 0 else "back"
            what.append(f"this host's clock was set {way} by {abs(self.set_ns) / _S:.1f} s")
        if self.slept_ns:
            what.append(f"this host slept for {self.slept_ns / _S:.1f} s")
        if not what:
            return ""
        return (
            f"{' and '.join(what)}: durations are right, but windows that touch that moment are not as long as they say"
        )


class UnixClock:
    """Monotonic times as Unix times: one offset for each monotonic second, kept, so that a time gives one answer.

    Unix time is steered and may step: an offset is read as its second begins, if `refresh` is called all the time,
    else when it is first asked about.
    """

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}
        self._last: tuple[int, int, int] | None = None  # second, its offset, and how long the host had slept by then
        self._steps = Steps()

    def refresh(self) -> None:
        """Reads the offset of this second, unless that was done: what comes later must not decide about it."""
        now = time.monotonic_ns() // _S
        self._offset(now, now)

    def offsets(self, monotonic: NDArray[np.int64]) -> NDArray[np.int64]:
        """What is to be added to each of the monotonic ns to have Unix ns; shape as given.

        Times before the last quarter of an hour share one offset, as do those to come.
        """
        if not len(monotonic):
            return np.zeros(0, np.int64)
        now = time.monotonic_ns() // _S
        earliest, latest = (
            min(max(int(time_ns) // _S, now - _KEEP_S), now + 1) for time_ns in (monotonic.min(), monotonic.max())
        )
        offsets = np.array([self._offset(second, now) for second in range(earliest, latest + 1)], np.int64)
        if len(offsets) == 1:
            return np.full(len(monotonic), offsets[0], np.int64)
        each: NDArray[np.int64] = offsets[np.clip(monotonic // _S, earliest, latest) - earliest]
        return each

    def unix(self, monotonic: NDArray[np.int64]) -> NDArray[np.int64]:
        """Unix ns of monotonic ns."""
        return monotonic + self.offsets(monotonic)

    def offset(self, monotonic_ns: int) -> int:
        """As `offsets`, of one time."""
        return int(self.offsets(np.array([monotonic_ns], np.int64))[0])

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Unix ns of two monotonic times in ns; where it was set in between, as far from each other as they are."""
        first, last = (int(offset) for offset in self.offsets(np.array([start, end], np.int64)))
        return start + first, end + (last if abs(last - first) <= _allowed(end - start) else first)

    def hull(self, start: int, end: int) -> tuple[int, int]:
        """The least and the greatest Unix ns that a time in [start, end], monotonic ns, may have got.

        Where nothing was set that is from `start` to `end`, and hulls of adjacent stretches meet.
        """
        marks = np.unique(np.array([start, *range((start // _S + 1) * _S, end, _S), end], np.int64))
        begins, ends = self.unix(marks), marks[1:] + self.offsets(marks[:-1])
        return int(begins.min()), int(max(begins[-1], *ends)) if len(ends) else int(begins[-1])

    def take_steps(self) -> Steps:
        """What was done to Unix time since the last call.

        What lies around such a moment has times by the clock as it was then: their order and gaps are not real.
        """
        taken, self._steps = self._steps, Steps()
        return taken

    def _offset(self, second: int, now: int) -> int:
        known = self._offsets.get(second)
        if known is None:
            known = self._offsets[second] = unix_offset_ns()
            self._note_step(now, known)
            for old in [s for s in self._offsets if s < now - _KEEP_S]:
                del self._offsets[old]
        return known

    def _note_step(self, second: int, offset: int) -> None:
        slept = sleep_ns()
        if self._last is not None:
            allowed = _allowed((second - self._last[0]) * _S)
            slept_ns = slept - self._last[2]
            set_ns = offset - self._last[1] - slept_ns
            self._steps += Steps(
                set_ns if abs(set_ns) > allowed else 0,
                slept_ns if slept_ns > _STEP_NS else 0,
            )
        self._last = second, offset, slept


def _allowed(passed_ns: int) -> float:
    """By how much Unix time moves against the kernel's clock, ns, at most, unless it is set."""
    return _STEP_NS + _STEERED * passed_ns


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


def sleep_ns() -> int:
    """For how long this host has been suspended since it was booted, ns, to about 100 ns."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()


def boot_id() -> str:
    """This boot of this host: monotonic times of different boots are not comparable."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
