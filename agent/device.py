"""Device time in a recording: from the device library's ring to rows, process by process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kdiff.agent import procfs
from kdiff.agent.clock import UnixClock
from kdiff.agent.device_batches import decode
from kdiff.agent.device_rows import Place, execution_rows, kernels_of, window_row
from kdiff.agent.device_windows import DeviceProcess, Timed, Window, timed
from kdiff.agent.guard import Guard
from kdiff.agent.launches import RecentLaunches
from kdiff.agent.names import Kernel
from kdiff.agent.pairing import PAIRED
from kdiff.agent.queueing import Executions, Extent, keys, match
from kdiff.agent.ring import chosen
from kdiff.probes.wire import Kind

_MOST_INSIDE_NS: Final = 1_000_000_000
_LEFT_OVER_NS: Final = 10_000_000_000
_CLOCK_NS: Final = 1000  # what the reading of the clocks does not tell of the mapping's error
_SILENCE_S: Final = 600.0
_MOST_SKIPPED: Final = 10**6  # what a library may claim at once


@dataclass
class DeviceSummary:
    """What was recorded of device time."""

    executions: int = 0
    windows: int = 0
    skipped: int = 0  # windows that another user of CUPTI forbade
    lost: int = 0  # executions handed over that have no row
    foreign: int = 0  # batches that are not as they should be
    slowed: int = 0  # times that windows slowed a process down and it was left alone
    heard: bool = False  # any library said anything


@dataclass
class DeviceRows:
    """Rows to write: kernels first."""

    kernels: set[tuple[Kernel, str]] = field(default_factory=set)  # with the service that they ran for
    executions: list[pa.Table] = field(default_factory=list)
    windows: list[pa.Table] = field(default_factory=list)
    count: int = 0  # of executions


class DeviceTime:
    """What the traced processes hand over, until its rows are taken."""

    def __init__(
        self,
        clock: UnixClock,
        place: Callable[[int, int], Place],
        kernel: Callable[[int, int, int], Kernel],
        silence: Callable[[int, float], None],
        note: Callable[[str], None],
    ) -> None:
        """`place(pid, monotonic_ns)`: whose rows a process's are. `kernel(pid, generation, handle)`: which it launches.

        `silence(pid, until)`: stops listening to it until then (monotonic seconds). `note` takes warnings.
        """
        self._silence = silence
        self._guard = Guard()
        self._clock = clock
        self._place = place
        self._kernel = kernel
        self._launches = RecentLaunches()
        self._note = note
        self._processes: dict[int, DeviceProcess] = {}
        self._waiting = np.zeros(0, PAIRED)
        self._rows = DeviceRows()
        self._ring_lost: dict[int, int] = {}  # executions lost in the ring that no window's row has yet; 0: of anybody
        self._launch_lost_ns: dict[int, int] = {}  # monotonic, the last time; 0: of anybody
        self._skipped = 0  # windows, before the last one of each process
        self.summary = DeviceSummary()

    @property
    def rows_ready(self) -> int:
        """Executions whose rows wait to be taken."""
        return self._rows.count

    def feed(self, handed: NDArray[np.void], now: float) -> None:
        """Takes HANDED records of traced processes (`now`: monotonic seconds)."""
        for batch in decode(handed):
            pid = batch if isinstance(batch, int) else batch.pid
            process = self._processes.get(pid)
            if process is None:
                process = self._processes[pid] = DeviceProcess(pid)
            self.summary.heard = True
            foreign = process.foreign
            if isinstance(batch, int):
                process.foreign += 1
            else:
                if process.begins_anew(batch):
                    for window in process.finished(now, ended=True, last=True):
                        self._make(process, window, "exit")
                    process.begin_anew()
                said = process.feed(batch, now)
                if said is not None:
                    self._note(f"device time of process {pid}: {said}")
            if process.foreign > foreign:
                self.summary.foreign += 1
                if foreign == 0:
                    self._note(
                        f"process {pid} hands over device times that kdiff does not know: is its device library of "
                        "another version?"
                    )

    def entered(self, events: NDArray[np.void]) -> None:
        """Takes EVENT records as they come: what the guard counts."""
        if self._processes and len(events):
            launches = (events["kind"] == Kind.LAUNCH) | (events["kind"] == Kind.GRAPH_LAUNCH)
            pids, times = events["pid"][launches], events["timestamp_ns"][launches].view(np.int64)
            for pid in self._processes:
                self._guard.feed(pid, times[pids == pid])

    def launched(self, paired: NDArray[np.void]) -> None:
        """Takes PAIRED records, their times monotonic: the launches that executions are looked for in."""
        pids = paired["event"]["pid"]
        for pid in self._processes if len(paired) else ():
            own = pids == pid
            if own.any():
                self._launches.feed(pid, chosen(paired, own))
        self._launches.forget(time.monotonic_ns())

    def launches_lost(self, pids: Iterable[int] = (0,)) -> None:
        """Some of these processes are missing among those fed so far, 0: of any.

        Which launch an execution is of is not certain then.
        """
        self._launch_lost_ns.update(dict.fromkeys(pids, time.monotonic_ns()))

    def lost(self, executions: int, pid: int = 0) -> None:
        """The ring had no room for so many more, of this process; 0: of which is not known."""
        self._ring_lost[pid] = self._ring_lost.get(pid, 0) + executions
        self.summary.lost += executions

    def finish(self, now: float, waiting: NDArray[np.void], *, last: bool = False) -> None:
        """Makes rows of the windows that are complete (`now`: monotonic seconds). `last`: of all.

        `waiting`: launches (PAIRED, monotonic) whose sync has not been seen yet.
        """
        self._waiting = waiting
        for process in self._processes.values():
            found = procfs.stat(process.pid)
            ended = found is None or found.ended
            for window in process.finished(now, ended=ended, last=last):
                self._make(process, window, "exit" if ended else "unheard" if last else "")
        for pid, share in self._guard.slowed(time.monotonic_ns()).items():
            self._silence(pid, now + _SILENCE_S)
            self.summary.slowed += 1
            self._note(
                f"windows of device time slow process {pid} down ({share:.1%}): it is not listened to for 10 minutes"
            )
        since = sum(min(process.skipped, _MOST_SKIPPED) for process in self._processes.values())
        self.summary.skipped = self._skipped + since

    def _make(self, process: DeviceProcess, window: Window, ended: str) -> None:
        if window.record is None:  # nothing maps its clock, and when it was is unknown
            self.summary.lost += window.received
            return
        place = self._place(process.pid, window.from_ns)
        of_window = timed(window)
        kernels = kernels_of(process, of_window.executions)
        offsets = self._clock.offsets(of_window.start_ns)
        queue_ns = self._queue_ns(process, window, of_window, kernels, offsets)
        self._rows.kernels.update((kernel, place.service) for kernel in kernels[0])
        if len(of_window.executions):
            self._rows.executions.append(execution_rows(process, place, of_window, offsets, queue_ns, kernels))
        extent = self._clock.span(window.from_ns, window.to_ns)
        self._rows.windows.append(window_row(window, place, of_window, extent, self._lost_of(window), ended))
        process.turned_ns = window.to_ns
        self._guard.window(process.pid, window.from_ns, window.to_ns)
        self._rows.count += len(of_window.executions)
        self.summary.executions += len(of_window.executions)
        self.summary.windows += 1
        self._skipped += min(int(window.record["skipped"]), _MOST_SKIPPED)

    def _queue_ns(
        self,
        process: DeviceProcess,
        window: Window,
        of_window: Timed,
        kernels: tuple[list[Kernel], NDArray[np.int32]],
        offsets: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """From launch to start; 0 where it is not certain which launch it was, else its row's offset is the launch's:
        the start less the wait is the launch's time then, by either clock.
        """
        queue_ns = np.zeros(len(offsets), np.int64)
        alone = np.flatnonzero(of_window.executions["graph_id"] == 0)
        lost_ns = max(self._launch_lost_ns.get(of, 0) for of in (0, process.pid))
        if not len(alone) or window.record is None or (lost_ns and window.first_ns - _LEFT_OVER_NS < lost_ns):
            return queue_ns
        inside = min(int(window.record["inside_ns"]), _MOST_INSIDE_NS)
        # Of a window that began as another ended launches may be left over.
        before = _LEFT_OVER_NS if window.from_ns == process.turned_ns else inside
        extent = Extent(window.from_ns - before, window.to_ns + inside)
        launches, named = self._launches.of(
            process.pid, (extent.after_ns - _MOST_INSIDE_NS, extent.before_ns), self._waiting, self._kernel
        )
        ran, start = of_window.executions[alone], of_window.start_ns[alone]
        ids = np.array([kernel.id if named else 0 for kernel in kernels[0]], np.uint64)[kernels[1][alone]]
        executions = Executions(
            keys(ids, ran["grid"], ran["block"]),
            start,
            start + (ran["end"] - ran["start"]).view(np.int64),
            min(int(window.record["error_ns"]), _MOST_INSIDE_NS) + _CLOCK_NS,
            whole=of_window.senseless == 0 and _whole(window),
        )
        found = match(executions, launches, extent)
        known = np.flatnonzero(found >= 0)
        entered = launches.entered_ns[found[known]]
        waited = start[known] - entered
        known, entered = known[waited > 0], entered[waited > 0]
        queue_ns[alone[known]] = waited[waited > 0]
        offsets[alone[known]] = self._clock.offsets(entered)
        return queue_ns

    def _lost_of(self, window: Window) -> int:
        """Executions that the ring had no room for: as many as are missing, never more than BPF has counted."""
        wanted = None if window.closed is None else max(0, int(window.closed["executions"]) - window.received)
        missing = 0
        for pid in (window.pid, 0):
            counted = self._ring_lost.pop(pid, 0)
            taken = counted if wanted is None else min(wanted - missing, counted)
            if counted > taken:
                self._ring_lost[pid] = counted - taken
            missing += taken
        self.summary.lost += window.refused
        return missing + window.refused

    def take(self) -> DeviceRows:
        """The rows made since the last time."""
        rows, self._rows = self._rows, DeviceRows()
        return rows

    def ended(self, pid: int) -> None:
        """Forgets a process that ended some time ago."""
        self._guard.forget(pid)
        process = self._processes.pop(pid, None)
        if process is not None:
            for window in process.finished(time.monotonic(), ended=True, last=True):
                self._make(process, window, "exit")
        self._launch_lost_ns.pop(pid, None)
        if left := self._ring_lost.pop(pid, 0):  # no window of its own has them: they are not to be forgotten
            self._ring_lost[0] = self._ring_lost.get(0, 0) + left


def _whole(window: Window) -> bool:
    """Whether every kernel that was launched in the window is among what was received."""
    closed = window.closed
    if closed is None or window.refused:
        return False
    return not closed["uncollected"] and not closed["dropped"] and int(closed["executions"]) == window.received
