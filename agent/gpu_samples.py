"""One row of `gpu_samples` for each GPU and second, from a thread of its own: the recorder never waits for NVML.

The thread also learns which process uses which GPU (`Gpus`). What fails is left out, counted, said once, and tried
again with NVML opened anew. A call that does not come back keeps only the thread: after a minute another takes its
place, which leaves out the GPU that was asked, and only so often, for each may stay where the last one is.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kdiff.agent.gpus import Gpus
from kdiff.queries.tables import GPU_SAMPLES

if TYPE_CHECKING:
    from kdiff.agent.nvml import Device, Nvml

_NVML: Final = -1  # in the place of a GPU's index: NVML itself
_MOST_STUCK: Final = 3  # threads that wait, beside the one in their place


@dataclass(frozen=True)
class Pace:
    """How often things are done, seconds."""

    sample: float = 1.0
    listing: float = 60.0  # MIG instances come and go
    again: float = 30.0  # NVML is opened anew while something fails
    hung: float = 5.0  # in one GPU
    replaced: float = 60.0
    left_out: float = 600.0  # a GPU that kept a thread


@dataclass
class GpuSummary:
    """What was sampled. `failed`: samples that a GPU there did not give. `hung`: times NVML stopped answering."""

    rows: int = 0
    failed: int = 0
    hung: int = 0
    cpu_ns: int = 0  # of the thread that samples


class GpuSampler:
    """Learns who uses which GPU from now on, and makes rows from `begin` on, until closed."""

    def __init__(self, gpus: Gpus, summary: GpuSummary, pace: Pace | None = None) -> None:
        """Without NVML nothing is sampled and nothing is said."""
        self.gpus = gpus
        self.pace = pace or Pace()
        self.summary = summary
        self.ending = threading.Event()
        self.place: dict[str, str] | None = None
        self._lock = threading.Lock()
        self._rows: list[dict[str, Any]] = []
        self._notes: list[str] = []
        self._stuck = 0
        self._told_of: _Worker | None = None  # as hanging
        self._start({})

    def _start(self, left_out: dict[int, float]) -> None:
        self._worker = _Worker(self, left_out)
        try:
            self._worker.start()
        except RuntimeError as error:  # no more threads for this user
            self.say(f"GPUs are not sampled ({error})")

    def begin(self, service: str, host: str) -> None:
        """Makes rows from now on."""
        self.place = {"service": service, "host": host}

    def take(self) -> pa.Table | None:
        """The rows since it was last asked; None if there are none. Never waits for NVML."""
        with self._lock:
            rows, self._rows = self._rows, []
        return pa.Table.from_pylist(rows, schema=GPU_SAMPLES) if rows else None

    def watch(self, now: float, note: Callable[[str], None]) -> None:
        """Notes what there is to say, a line each, and sees to a thread that hangs. `now`: monotonic; called often."""
        busy = self._worker.busy
        if busy is not None and now - busy[0] >= self.pace.hung:
            if self._told_of is not self._worker:
                self._told_of = self._worker
                self.summary.hung += 1
                about = "" if busy[1] == _NVML else f" about GPU {busy[1]}"
                self.say(f"NVML does not answer{about}: no GPU is sampled until it does; `dmesg | grep Xid` says more")
            if now - busy[0] >= self.pace.replaced and self._stuck < _MOST_STUCK:
                with self._lock:
                    self._stuck += 1
                left_out = self._worker.left_out | ({} if busy[1] == _NVML else {busy[1]: now + self.pace.left_out})
                self._start(left_out)
        elif self._told_of is self._worker:
            self._told_of = None
        with self._lock:
            notes, self._notes = self._notes, []
        for line in notes:
            note(line)

    def close(self) -> None:
        """Ends the thread, if it does not hang. Safe to repeat."""
        if not self.ending.is_set():
            self.ending.set()
            if self._worker.is_alive():
                self._worker.join(1.0)

    # For the thread

    def is_current(self, worker: threading.Thread) -> bool:
        """Whether no other has taken its place."""
        return self._worker is worker

    def came_back(self) -> None:
        """A thread that was replaced does not hang any more."""
        with self._lock:
            self._stuck -= 1

    def say(self, line: str) -> None:
        """For the recorder to announce."""
        with self._lock:
            self._notes.append(line)

    def put(self, worker: threading.Thread, rows: list[dict[str, Any]], failed: int, cpu_ns: int) -> None:
        """What one second gave."""
        with self._lock:
            if self.is_current(worker):
                self._rows += rows
                self.summary.rows += len(rows)
                self.summary.failed += failed
                self.summary.cpu_ns += cpu_ns


class _Worker(threading.Thread):
    """The thread: the only one that calls NVML, unless it hangs there."""

    def __init__(self, sampler: GpuSampler, left_out: dict[int, float]) -> None:
        """`left_out`: until when which GPUs are not asked, monotonic."""
        super().__init__(name="gpu-samples", daemon=True)
        self.busy: tuple[float, int] | None = None  # since when it is in NVML, and about which GPU
        self.left_out = left_out
        self._sampler = sampler
        self._nvml: Nvml | None = None
        self._count = 0
        self._devices: list[Device] = []
        self._names: dict[int, str] = {}
        self._pids: dict[str, set[int]] = {}
        self._failing: set[int] = set()
        self._again_at = self._list_at = 0.0
        self._opened = False

    def run(self) -> None:
        sampler = self._sampler
        # What is meant for the recorder does not interrupt the driver.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        at = time.monotonic()
        while sampler.is_current(self):
            cpu = time.thread_time_ns()
            try:
                self._refresh(time.monotonic())
                rows, failed = self._sample()
            except Exception as error:  # whatever a driver answers, the recording goes on
                rows, failed = [], self._count
                self._fail(_NVML, error)
            self.busy = None
            if not sampler.is_current(self):
                sampler.came_back()
                return
            sampler.put(self, rows, failed, time.thread_time_ns() - cpu)
            uuids = {device.uuid for device in self._devices if not device.parent_uuid}
            sampler.gpus.tell(self._count, uuids, self._pids)
            period = sampler.pace.sample
            at += period * max(1, -(-(time.monotonic() - at) // period))  # seconds that it was late for are left out
            if sampler.ending.wait(at - time.monotonic()):
                break
        if self._nvml is not None and sampler.is_current(self):
            self._nvml.close()

    def _refresh(self, now: float) -> None:
        """Opens NVML, anew while something fails, and lists what there is."""
        pace = self._sampler.pace
        if (self._nvml is None or self._failing) and now >= self._again_at:
            self._again_at = now + pace.again
            self._open(now)
        elif self._nvml is not None and now >= self._list_at:
            self._list(now)

    def _open(self, now: float) -> None:
        try:
            from kdiff.agent.nvml import Nvml, NvmlError
        except ImportError:
            self._again_at = float("inf")
            return
        self.busy = (now, _NVML)
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None
        try:
            self._nvml = Nvml()
        except NvmlError as error:
            if error.upgraded:
                mend = "the driver was upgraded: reboot or reload the nvidia module, and start the agent again"
                self._sampler.say(f"GPUs are not sampled ({error}): {mend}")
            elif self._opened or not error.absent:
                self._sampler.say(f"GPUs are not sampled ({error}): `kdiff-agent doctor` says more; it is tried again")
            return
        self._opened = True
        self._failing.clear()
        self._list(now)

    def _list(self, now: float) -> None:
        from kdiff.agent.nvml import NvmlError

        assert self._nvml is not None
        self._list_at = now + self._sampler.pace.listing
        self.busy = (now, _NVML)
        try:
            self._count = max(self._count, self._nvml.count())
        except NvmlError as error:
            self._fail(_NVML, error)
            return
        devices: list[Device] = []
        for index in range(self._count):
            if not self._sampler.is_current(self):
                return
            self.busy = (time.monotonic(), index)
            if now < self.left_out.get(index, 0.0):
                continue
            try:
                devices += list(self._nvml.devices(index))
                self._failing.discard(index)
            except NvmlError as error:
                self._fail(index, error)
        self._devices = devices
        self._names |= {device.index: f" ({device.name})" for device in devices if not device.parent_uuid}

    def _fail(self, index: int, error: Exception) -> None:
        self._failing.add(index)
        what = "no GPU is sampled" if index == _NVML else f"GPU {index}{self._names.get(index, '')} is not sampled"
        self._sampler.say(f"{what}: NVML says {error}; it is tried again, and `dmesg | grep Xid` says more")

    def _sample(self) -> tuple[list[dict[str, Any]], int]:
        """Rows of this second, and how many GPUs gave none."""
        if self._nvml is None:
            return [], self._count if self._sampler.place else 0
        from kdiff.agent.nvml import NvmlError

        place = self._sampler.place
        if place is None and self._count < 2:
            return [], 0
        rows: list[dict[str, Any]] = []
        pids: dict[str, set[int]] = {}
        sampled: set[int] = set()
        for device in self._devices:
            if not self._sampler.is_current(self):
                break
            if device.index in self._failing or _NVML in self._failing:
                continue
            self.busy = (time.monotonic(), device.index)
            now = time.time_ns()
            try:
                columns = None if place is None else self._nvml.read(device)
                processes = self._nvml.processes(device)
            except NvmlError as error:
                if not device.parent_uuid:  # an instance may be gone for good
                    self._fail(device.index, error)
                continue
            if processes is not None:
                pids.setdefault(device.parent_uuid or device.uuid, set()).update(processes)
            if place is not None and columns is not None:
                sampled.add(device.index)
                rows.append(
                    place
                    | {"timestamp_ns": now, "gpu_uuid": device.uuid, "parent_uuid": device.parent_uuid}
                    | {"gpu_name": device.name, "processes": None if processes is None else len(processes)}
                    | {"pids": list(processes or {}), "pid_memory_bytes": list((processes or {}).values())}
                    | columns
                )
        self._pids |= pids
        return rows, 0 if place is None else self._count - len(sampled)
