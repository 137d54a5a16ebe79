"""New processes that use CUDA, found by what they map.

A process that maps a driver which is probed already is seen at its first call. This finds the others: one with a driver
of its own, as a container may have it, or with a driver that was installed since.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from kdiff.agent import procfs

LOOK_EVERY_S: Final = 0.5
_SHARE_OF_AGE: Final = 0.25
_LONGEST_S: Final = 30.0
_AT_ONCE_S: Final = 0.02  # of a look: the recording reads no events meanwhile
_CUDA: Final = b"/libcuda"  # libcudart too
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_NEVER: Final = float("inf")


class Discovery:
    """Which processes of the host to look at: the young ones often, since a program maps its libraries early."""

    def __init__(self) -> None:
        self._look_at: dict[int, float] = {}  # of each pid, monotonic seconds
        self._due: deque[int] = deque()
        self._next = 0.0

    def found(self, now: float) -> Iterator[int]:
        """Processes that use CUDA and were not told yet (`now`: monotonic seconds). Cheap between two looks.

        However many there are, it takes some hundredths of a second: the others follow in the next calls.
        """
        if now >= self._next:
            self._next = now + LOOK_EVERY_S
            present = procfs.pids()
            for pid in self._look_at.keys() - set(present):
                del self._look_at[pid]
            # New ones first, then what has waited longest: nobody waits for ever.
            due = sorted((self._look_at.get(pid, 0.0), pid) for pid in present)
            self._due = deque(pid for at, pid in due if now >= at)
        until = time.monotonic() + _AT_ONCE_S
        while self._due and time.monotonic() < until:
            pid = self._due.popleft()
            found, self._look_at[pid] = _look(pid, now)
            if found:
                yield pid

    def forget(self, pid: int) -> None:
        """The process has ended, and another one may have its pid."""
        self._look_at.pop(pid, None)


def _look(pid: int, now: float) -> tuple[bool, float]:
    """Whether the process maps a CUDA library, and when to look again."""
    maps = procfs.maps(pid)
    if _CUDA in maps:
        return True, _NEVER
    if not maps and not os.path.lexists(f"/proc/{pid}/exe"):
        return False, _NEVER if os.path.exists(f"/proc/{pid}") else 0.0  # a kernel thread; or it has ended
    stat = procfs.stat(pid)
    born = stat.start_ticks / _TICKS_PER_SECOND if stat else 0.0
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - born
    return False, now + min(max(LOOK_EVERY_S, _SHARE_OF_AGE * age), _LONGEST_S)
