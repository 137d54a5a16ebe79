"""Windows of device time: executions gathered by window, and their times moved to the host's clock.

A window is finished a second after its closing record came (executions come before it, launches are read meanwhile),
or some seconds after the process or the listening has ended without one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdiff.agent.device_batches import Batch, Name
from kdiff.agent.ring import joined
from kdiff.probes.device_wire import EXECUTION, Block, Ended, State

_SETTLE_S: Final = 1.0
_LEFT_S: Final = 3.0
_MOST_OPEN: Final = 16  # windows of a process without a closing record: one is usual, more are forged
_MOST_WINDOWS: Final = 4096  # of a process, held until they settle: at a window every 10 ms some hundreds are
_MOST_NAMES: Final = 65536
_MOST_NAME_BYTES: Final = 16 << 20
_MOST_DEVICES: Final = 256
MOST_EXECUTIONS: Final = 2_000_000  # of one process, held until their windows end: 176 MB
_TOLERANCE_NS: Final = 10_000_000_000  # how far before its window an execution may have started, at the very most
_AHEAD_NS: Final = 1_000_000_000  # how far after its handover it may seem to have ended
_DRIFT: Final = 1e-3  # by which the two clocks may differ in speed


@dataclass
class Window:
    """One window of a process."""

    pid: int
    number: int
    first_ns: int  # monotonic, of its first batch
    last_ns: int  # of its last one
    opened: np.void | None = None
    closed: np.void | None = None
    settled_at: float | None = None  # monotonic seconds; when it may be given out
    batches: list[NDArray[np.void]] = field(default_factory=list)
    received: int = 0
    refused: int = 0  # received, but there was no room for them

    @property
    def record(self) -> np.void | None:
        """Its WINDOW record, the closing one if there is one."""
        return self.closed if self.closed is not None else self.opened

    @property
    def from_ns(self) -> int:
        """Monotonic."""
        return int(self.record["opened_ns"]) if self.record is not None else self.first_ns

    @property
    def to_ns(self) -> int:
        """Monotonic; without a closing record when it was last heard of."""
        return int(self.closed["closed_ns"]) if self.closed is not None else self.last_ns


@dataclass
class DeviceProcess:
    """What one process has handed over so far."""

    pid: int
    names: dict[int, Name] = field(default_factory=dict)
    name_bytes: int = 0
    devices: dict[int, bytes] = field(default_factory=dict)  # uuids
    windows: dict[int, Window] = field(default_factory=dict)
    given: int = 0  # the highest number of a window given out
    held: int = 0  # executions
    foreign: int = 0  # batches
    states: set[State] = field(default_factory=set)  # that were said
    skipped: int = 0  # windows, since the last one
    turned_ns: int = 0  # monotonic; when the last window given out ended
    sequence: int = 0  # of the last batch

    def begins_anew(self, batch: Batch) -> bool:
        """Whether the batch is of another program: exec keeps the pid, and its library counts from 1 again."""
        anew = batch.sequence < self.sequence
        self.sequence = batch.sequence
        return anew

    def begin_anew(self) -> None:
        """Forgets what only the program before knew; its windows have been given out."""
        self.names, self.name_bytes, self.devices, self.given = {}, 0, {}, 0

    def feed(self, batch: Batch, now: float) -> str | None:
        """Takes a batch (`now`: monotonic seconds) and returns what to tell people of the library, if anything."""
        if batch.block is Block.NAMES:
            self._name(batch.names)
        elif batch.block is Block.DEVICES:
            for record in batch.records[:_MOST_DEVICES]:
                if len(self.devices) < _MOST_DEVICES:
                    self.devices[int(record["number"])] = record["uuid"].tobytes()
        elif batch.block is Block.STATE:
            return self._state(batch.records)
        else:
            window = self._window(batch)
            if window is None:
                self.foreign += 1
            elif batch.block is Block.EXECUTIONS:
                self._gather(window, batch)
            elif not self._open_or_close(window, batch, now):
                self.foreign += 1
        return None

    def _name(self, names: tuple[Name, ...]) -> None:
        for name in names:
            known = self.names.get(name.number)
            fresh = len(name.mangled) - (len(known.mangled) if known else 0)
            if (known or len(self.names) < _MOST_NAMES) and self.name_bytes + fresh <= _MOST_NAME_BYTES:
                self.names[name.number] = name
                self.name_bytes += fresh

    def _state(self, records: NDArray[np.void]) -> str | None:
        said = None
        for record in records[-1:]:
            state = State(int(record["state"]))
            self.skipped = int(record["skipped"]) if state is State.BUSY else self.skipped
            if state in (State.BUSY, State.OFF, State.NO_CUPTI) and state not in self.states:
                self.states.add(state)
                text = bytes(record["text"]).decode("ascii", "replace")
                said = "".join(c if c.isprintable() else "?" for c in text)
        return said

    def _window(self, batch: Batch) -> Window | None:
        window = self.windows.get(batch.window)
        if window is None:
            unclosed = sum(known.closed is None for known in self.windows.values())
            if batch.window <= self.given or unclosed >= _MOST_OPEN or len(self.windows) >= _MOST_WINDOWS:
                return None
            window = self.windows[batch.window] = Window(self.pid, batch.window, batch.handed_ns, batch.handed_ns)
        window.last_ns = batch.handed_ns
        return window

    def _gather(self, window: Window, batch: Batch) -> None:
        count = len(batch.records)
        window.received += count
        if self.held + count > MOST_EXECUTIONS:
            window.refused += count
            return
        window.batches.append(batch.records.copy())
        self.held += count

    def _open_or_close(self, window: Window, batch: Batch, now: float) -> bool:
        for record in batch.records:
            opened, closed = int(record["opened_ns"]), int(record["closed_ns"])
            if not 0 < opened <= batch.handed_ns or closed > batch.handed_ns or 0 < closed < opened:
                return False
            if closed:
                window.closed = record.copy()
                window.settled_at = now + _SETTLE_S
                self.skipped = 0
            else:
                window.opened = record.copy()
        return True

    def finished(self, now: float, *, ended: bool, last: bool = False) -> list[Window]:
        """Windows that nothing more comes of, in order. `ended`: the process has; `last`: so has the recording."""
        done = []
        newest = max(self.windows, default=0)
        for number, window in sorted(self.windows.items()):
            if window.settled_at is None and (ended or number < newest):
                window.settled_at = now + _LEFT_S
            if last or (window.settled_at is not None and window.settled_at <= now):
                done.append(window)
                del self.windows[number]
                self.given = max(self.given, number)
                self.held -= window.received - window.refused
        return done


@dataclass(frozen=True)
class Timed:
    """A window's executions in the order of their launches, with their times on the host's monotonic clock.

    `senseless`: how many had no times, reversed ones, or such as cannot be of this window.
    """

    executions: NDArray[np.void]
    start_ns: NDArray[np.int64]
    senseless: int


def timed(window: Window) -> Timed:
    """The executions of a window that make sense. Without a WINDOW record nothing maps the clock: then none does."""
    executions = joined(window.batches, EXECUTION)
    record = window.record
    if record is None or not len(executions):
        return Timed(executions[:0], np.zeros(0, np.int64), len(executions))
    start, end = executions["start"], executions["end"]
    relative = (start - record["device_open_ns"]).view(np.int64)  # modulo 2**64, so also what started before it opened
    longest = 2**40  # 18 minutes: beyond it no execution is of this window, and the arithmetic is exact
    sense = (start > 0) & (end > start) & (np.abs(relative // 2) < longest) & (end - start < np.uint64(longest))
    host_open = int(record["host_open_ns"])
    if not 0 < host_open <= window.last_ns:
        sense[:] = False
        host_open = window.from_ns
    scaled = np.where(sense, relative, 0) * _speed(record)
    began = host_open + np.rint(scaled).astype(np.int64)
    lasted = np.where(sense, (end - start).view(np.int64), 0)
    sense &= (began >= window.from_ns - _TOLERANCE_NS) & (began + lasted <= window.last_ns + _AHEAD_NS)
    order = np.flatnonzero(sense)
    order = order[np.argsort(executions["correlation"][order], kind="stable")]
    return Timed(executions[order], began[order], len(executions) - len(order))


def _speed(record: np.void) -> float:
    """Host ns in a ns of the device's clock; 1 where the window has no sound second reading of the two."""
    host = int(record["host_close_ns"]) - int(record["host_open_ns"])
    device = int(record["device_close_ns"]) - int(record["device_open_ns"])
    if host <= 0 or device <= 0 or abs(host / device - 1) > _DRIFT:
        return 1.0
    return host / device


def ended_as(window: Window) -> str:
    """Why it ended, as `device_windows.ended` says it; '' when that is unknown."""
    if window.closed is None:
        return ""
    reason = int(window.closed["ended"])
    return Ended(reason).name.lower() if reason in set(Ended) and reason != Ended.OPEN else ""
