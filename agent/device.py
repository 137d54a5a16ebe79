"""Device time in a recording: from the device library's ring to rows, process by process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kdiff.agent import procfs
from kdiff.agent.clock import UnixClock
from kdiff.agent.device_batches import decode
from kdiff.agent.device_rows import Place, execution_rows, kernels_of, window_row
from kdiff.agent.device_windows import DeviceProcess, Window, timed
from kdiff.agent.names import Kernel

_MOST_SKIPPED: Final = 10**6  # what a library may claim at once


@dataclass
class DeviceSummary:
    """What was recorded of device time."""

    executions: int = 0
    windows: int = 0
    skipped: int = 0  # windows that another user of CUPTI forbade
    lost: int = 0  # executions handed over that have no row
    foreign: int = 0  # batches that are not as they should be
    heard: bool = False  # any library said anything


@dataclass
class DeviceRows:
    """Rows to write: kernels first."""

    kernels: set[Kernel] = field(default_factory=set)
    executions: list[pa.Table] = field(default_factory=list)
    windows: list[pa.Table] = field(default_factory=list)
    count: int = 0  # of executions


class DeviceTime:
    """What the traced processes hand over, until its rows are taken."""

    def __init__(self, clock: UnixClock, place: Callable[[int], Place], note: Callable[[str], None]) -> None:
        """`place(pid)`: whose rows a process's are. `note` takes warnings."""
        self._clock = clock
        self._place = place
        self._note = note
        self._processes: dict[int, DeviceProcess] = {}
        self._rows = DeviceRows()
        self._ring_lost = 0  # executions that were lost in the ring and are in no window's row yet
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

    def lost(self, executions: int) -> None:
        """The ring had no room for so many more."""
        self._ring_lost += executions
        self.summary.lost += executions

    def finish(self, now: float, *, last: bool = False) -> None:
        """Makes rows of the windows that are complete (`now`: monotonic seconds). `last`: of all."""
        for process in self._processes.values():
            ended = procfs.stat(process.pid) is None
            for window in process.finished(now, ended=ended, last=last):
                self._make(process, window, "exit" if ended else "unheard" if last else "")
        since = sum(min(process.skipped, _MOST_SKIPPED) for process in self._processes.values())
        self.summary.skipped = self._skipped + since

    def _make(self, process: DeviceProcess, window: Window, ended: str) -> None:
        if window.record is None:  # nothing maps its clock, and when it was is unknown
            self.summary.lost += window.received
            return
        place = self._place(process.pid)
        of_window = timed(window)
        kernels = kernels_of(process, of_window.executions)
        unix_ns = self._clock.unix(of_window.start_ns)
        queue_ns = of_window.start_ns * 0
        self._rows.kernels.update(kernels[0])
        if len(of_window.executions):
            self._rows.executions.append(execution_rows(process, place, of_window, unix_ns, queue_ns, kernels))
        extent = self._clock.span(window.from_ns, window.to_ns)
        self._rows.windows.append(window_row(window, place, of_window, extent, self._lost_of(window), ended))
        self._rows.count += len(of_window.executions)
        self.summary.executions += len(of_window.executions)
        self.summary.windows += 1
        self._skipped += min(int(window.record["skipped"]), _MOST_SKIPPED)

    def _lost_of(self, window: Window) -> int:
        """Executions that the ring had no room for: as many as are missing, never more than BPF has counted."""
        missing = self._ring_lost
        if window.closed is not None:
            missing = min(max(0, int(window.closed["executions"]) - window.received), missing)
        self._ring_lost -= missing
        self.summary.lost += window.refused
        return missing + window.refused

    def take(self) -> DeviceRows:
        """The rows made since the last time."""
        rows, self._rows = self._rows, DeviceRows()
        return rows

    def ended(self, pid: int) -> None:
        """Forgets a process that ended some time ago."""
        process = self._processes.pop(pid, None)
        if process is not None:
            for window in process.finished(time.monotonic(), ended=True, last=True):
                self._make(process, window, "exit")
