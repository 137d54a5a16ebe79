"""One recording: from attaching to the last segment."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

import numpy as np
import pyarrow as pa

from kdiff.agent import procfs
from kdiff.agent.announced import Announced
from kdiff.agent.bpf import Program
from kdiff.agent.clock import UnixClock, boot_id
from kdiff.agent.command import Command
from kdiff.agent.device import DeviceTime
from kdiff.agent.device_targets import Listener
from kdiff.agent.discovery import Discovery
from kdiff.agent.drivers import Drivers
from kdiff.agent.errors import AgentError
from kdiff.agent.gpu_samples import GpuSampler
from kdiff.agent.gpus import Gpus
from kdiff.agent.health import NOBODY, LossCounters, Losses, Moment, ServiceCounts, Stretch
from kdiff.agent.libraries import command_files
from kdiff.agent.names import Names
from kdiff.agent.owners import Owners, processes_of
from kdiff.agent.pairing import PAIRED, Pairing
from kdiff.agent.probe_cost import measure
from kdiff.agent.recording import Options, Summary, last_words
from kdiff.agent.ring import Gathered, chosen, rings_of
from kdiff.agent.rows import RowMaker
from kdiff.agent.scheduling import Waits
from kdiff.agent.segments import SegmentWriter, Spool
from kdiff.agent.service_names import Services
from kdiff.agent.services import LONGEST
from kdiff.agent.signals import ENDING
from kdiff.agent.targets import Targets, check_return_probes
from kdiff.probes.program import Layers
from kdiff.probes.wire import EVENT, Kind

# The ring holds 190,000 events, which the fastest launching core fills in half a second: 20 ms leave room for a stall.
_READ_EVERY_S: Final = 0.02
_PAIR_EVERY_S: Final = 0.5
_PAIR_AT_EVENTS: Final = 100_000
_FLUSH_EVERY_S: Final = 10.0  # what a SIGKILL of the agent can cost; shorter makes more and larger files
_FLUSH_AT_ROWS: Final = 150_000  # writing more at once takes longer than the ring has room for
_GRACE_S: Final = 10.0
_GPUS_WITHIN_S: Final = 2.0  # a short recording waits for them at its end, when nothing is lost by it


class Recorder:
    """Records until the command ends, the time is up, or a signal comes."""

    def __init__(self, options: Options, progress: Callable[[Summary], None], announce: Callable[[str], None]) -> None:
        """`progress` is called about once a second; `announce` takes one line when something happens."""
        self._options = options
        self._progress = progress
        self._announce = announce
        self.summary = Summary()
        self._host = socket.gethostname()
        self._boot_id = boot_id()
        self._stop: int | None = None
        self._raw = Gathered(EVENT)
        self._ready = Gathered(PAIRED)
        self._rows_made = 0
        self._announced = Announced(self._host)

    def run(self) -> Summary:
        """Raises AgentError when recording cannot start, or when rows could not be written at the end."""
        options = self._options
        for pid in options.pids:
            if procfs.stat(pid) is None:
                raise AgentError(f"there is no process {pid}")
        if options.service_name != options.service and options.service:
            self._note(
                f"the service is called {options.service_name}: names are of 1 to {LONGEST} printable characters"
            )
        check_return_probes(set(options.pids), options.tracing)
        writer = SegmentWriter(options.directory, self._host, self._boot_id, time.time_ns())
        writer.hold()
        self._gpus = Gpus()
        self._sampler = GpuSampler(self._gpus, self.summary.gpus)
        try:
            self._trace(Spool(writer, names=self._announced.again))
        finally:
            self._sampler.close()
            writer.let_go()
        return self.summary

    def _trace(self, spool: Spool) -> None:
        options = self._options
        program = Program(options.tracing)
        try:
            self._spool = spool
            self._program = program
            # A command's orphans become this process's children: its descendants are ours.
            roots = set(options.pids) or ({os.getpid()} if options.command else None)
            self._listener = Listener(program, self._note)
            look = self._listener.look if options.device_time.listen else None
            self._services = Services(options.service_name, self._note)
            self._targets = Targets(
                program, options.tracing, roots, self._note, look, options.selection, self._services
            )
            self._owners = Owners(self._targets, self._gpus, self._services, self._host, self._boot_id)
            self._losses = LossCounters(program)
            self._names = Names(Drivers(options.state), self._targets, self._targets.name_offset)
            self._discovery = Discovery()
            self._waits = Waits() if options.tracing.scheduling else None
            self._pairing = Pairing()
            self._clock = UnixClock()
            self._device = DeviceTime(
                self._clock, self._owners.place, self._names.kernel, self._listener.silence, self._note
            )
            self.summary.device = self._device.summary
            if options.tracing.scheduling:
                program.attach_scheduling()
            self.summary.cost = measure(program, options.tracing) if options.measure_cost else None
            self._rings = rings_of(program, options.tracing)
            self.summary.ring_fill = {name: ring.fill for name, ring in self._rings.items()}
            self._record()
        finally:
            program.close()

    # Until the end

    def _record(self) -> None:
        options = self._options
        previous = {number: signal.signal(number, self._on_signal) for number in ENDING}
        self._stretch = Stretch(time.monotonic_ns(), self._services.fixed)
        self._began = self._last_read = time.monotonic()
        self._cpu_began = time.process_time()
        command: Command | None = None
        try:
            for path in command_files(options.command, os.environ):
                self._targets.probe_path(path)
            if options.command:
                environment = options.device_time.environment(os.environ, self._note)
                command = Command(options.command, environment)
            self._rows = RowMaker(
                self._services.periods,
                self._host,
                self._names.kernel,
                self._owners.of,
                # The runtime's layer alone does not see all that is captured.
                (lambda _: None)
                if options.tracing.layers is Layers.RUNTIME
                else lambda number: self._pairing.graphs.of(number, self._names.kernel),
                self._boot_id,
            )
            if options.gpu_samples:
                self._sampler.begin(self._services.fixed, self._host)
            for pid in sorted(options.pids):
                self._targets.meet(pid)
            self._discover(self._began)
            if command is None:
                self._announce(f"recording, {self._program.attached} probes attached")
            self._loop(command)
            self._program.detach()
            self._read()
            self._pair(last=True)
            self._finish()
            if command is not None:
                self.summary.status = self._end_of(command)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _loop(self, command: Command | None) -> None:
        pair_at = flush_at = show_at = self._began
        end_at = None if self._options.duration_s is None else self._began + self._options.duration_s
        forced_at: float | None = None
        while True:
            now = time.monotonic()
            self._read()
            if command is not None:
                if command.status() is not None:
                    return
                command.reap_orphans()
                self._watch(command.pid, now)
                if self._stop is not None and forced_at is None:
                    # The command ends first, so that its last events are seen; a terminal's Ctrl-C has reached it.
                    if not (self._stop == signal.SIGINT and command.reads_terminal_signals()):
                        command.send(self._stop)
                    forced_at = now + _GRACE_S
                if forced_at is not None and now >= forced_at:
                    return
            elif self._stop is not None or (self._options.pids and not self._any_root_alive()):
                return
            if end_at is not None and now >= end_at:
                return
            # Not both before the next read: the ring fills meanwhile.
            if now >= flush_at + _FLUSH_EVERY_S or self._rows_waiting() >= _FLUSH_AT_ROWS:
                self._flush()
                flush_at = now
            elif now >= pair_at or len(self._raw) >= _PAIR_AT_EVENTS:
                self._pair()
                self._targets.scan_due(now)
                self._discover(now)
                self._sampler.watch(now, self._note)
                pair_at = now + _PAIR_EVERY_S
            if now >= show_at:
                self._show()
                show_at = now + 1.0
            time.sleep(max(0.0, _READ_EVERY_S - (time.monotonic() - now)))

    def _discover(self, now: float) -> None:
        """Of the whole host, the processes that use CUDA by now."""
        if not self._options.pids and not self._options.command:
            for pid in self._discovery.found(now):
                self._targets.meet(pid)

    def _rows_waiting(self) -> int:
        return len(self._ready) + self._device.rows_ready

    def _watch(self, pid: int, now: float) -> None:
        """Until a driver is found in the command, its mappings are looked at often: its first call may come soon."""
        if self._targets.process(pid) is None:
            self._targets.meet(pid)
        elif now - self._began < _GRACE_S and not self._targets.has_driver(pid):
            self._targets.scan_due(now)

    def _any_root_alive(self) -> bool:
        return any((found := procfs.stat(pid)) is not None and not found.ended for pid in self._options.pids)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._stop = number

    def _end_of(self, command: Command) -> int:
        status = command.status()
        if status is None:
            self._announce("recording has ended; waiting for the command, which runs on untraced")
            while (status := command.status()) is None:
                if self._stop is not None:
                    command.send(self._stop)
                    self._stop = None
                time.sleep(0.05)
        return status

    # The stages: ring -> raw records -> paired records -> tables -> segments

    def _read(self) -> None:
        """Empties both rings. Names after events: the name of every event read is in its ring by then."""
        self._clock.refresh()
        now = time.monotonic()
        self._stretch.drain_lag_ns = max(self._stretch.drain_lag_ns, int((now - self._last_read) * 1e9))
        self._last_read = now
        events = self._rings["events"].read()
        names = self._rings["names"].read()
        if self._waits:
            self._waits.feed(self._rings["waits"].read())
        for pid in processes_of(events):
            if self._targets.process(pid) is None:
                self._targets.meet(pid)
        began = events[events["kind"] == Kind.INIT]
        for pid, at_ns in zip(began["pid"], began["timestamp_ns"], strict=True):
            if self._targets.meet(int(pid), int(at_ns)).traced and self._targets.began_here(int(pid)):
                self._pairing.process_began(int(pid))
        if len(names):
            self._names.feed(names[[self._targets.traced(int(pid)) for pid in names["pid"]]])
        self._raw.add(events)
        handed = self._rings["device"].read()
        if len(handed):
            self._device.feed(handed[[self._targets.traced(int(pid)) for pid in handed["pid"]]], now)

    def _pair(self, *, last: bool = False) -> None:
        self._count_losses(last)
        events = self._raw.take()
        pids = processes_of(events)
        unwanted = [pid for pid in pids if not self._targets.traced(pid)]
        if unwanted:
            undecided = [pid for pid in unwanted if (known := self._targets.process(pid)) and known.undecided]
            if undecided:
                self._stretch.of(self._services.fixed).orphaned += int(np.isin(events["pid"], undecided).sum())
                self._note(
                    "processes that ended within milliseconds called CUDA: whether they are the target's is unknown"
                )
            events = chosen(events, ~np.isin(events["pid"], unwanted))
        for pid in pids:
            if len(self._gpus.of(pid)) > 1:
                self._pairing.many_devices(pid)
        self._device.entered(events)
        paired = self._pairing.feed(events, time.monotonic_ns(), last=last)
        self._device.launched(paired)
        self._device.finish(time.monotonic(), self._pairing.waiting, last=last)
        if self._waits:  # records of what is nobody's are forgotten by this, too
            self._waits.match(paired["event"], time.monotonic_ns())
        if not len(paired):
            return
        entered = paired["event"]["timestamp_ns"]
        offsets = paired["clock_offset_ns"]
        offsets[:] = self._clock.offsets(entered.view(np.int64))
        entered[:] = entered.view(np.int64) + offsets
        self._owners.remember(paired["event"])
        self._ready.add(paired)

    def _count_losses(self, last: bool) -> None:
        """Charges what the rings had no room for to the services that lost it; what is nobody's for certain to all."""
        charged: dict[int, Losses] = {}
        for pid, lost in self._losses.read(last=last).items():
            known = self._targets.process(pid) or (None if pid == NOBODY else self._targets.meet(pid))
            if known is not None and not known.traced and not known.undecided:
                continue  # its events are not wanted either
            charged[pid] = lost
            self._stretch.of(self._services.of_losses(pid)).lost += lost
            self._device.lost(lost.executions, pid)
            if lost.other:  # what a handle holds may be among them
                self._pairing.graphs.forget(pid)
            self.summary.lost += lost
        self._services.losses_read()
        if incomplete := [pid for pid, lost in charged.items() if lost.total]:
            self._pairing.events_lost(incomplete)
            self._device.launches_lost(incomplete)

    def _flush(self) -> None:
        """Writes what is ready: kernels first, the account of the time last, so that it never claims unwritten rows."""
        paired = self._ready.take()
        events, kernels = self._rows.make(paired, self._waits.take() if self._waits else None)
        device = self._device.take()
        fresh = self._announced.fresh([*device.kernels, *kernels], time.time_ns())
        for service, (rows, unresolved) in self._rows.by_service(events).items():
            self._stretch.of(service).events += rows
            self._stretch.of(service).unresolved_launches += unresolved
            self.summary.unresolved_launches += unresolved
        self._rows_made += len(events)
        self.summary.launched(paired["event"]["api"][paired["event"]["kind"] < Kind.SYNC])
        if fresh is not None:
            self.summary.kernels = self._announced.kernels
            self._spool.put("kernels", fresh)
        if len(events):
            self._spool.put("cuda_events", events)
        for table, parts in (("kernel_executions", device.executions), ("device_windows", device.windows)):
            if parts:
                self._spool.put(table, pa.concat_tables(parts, promote_options="none").combine_chunks())
        if (samples := self._sampler.take()) is not None:
            self._spool.put("gpu_samples", samples)
        self._spool.put("agent_health", self._account())
        refused, dropped = self._spool.write()
        if refused is not None:
            self._note(f"{self._options.directory} cannot be written ({refused.strerror}): keeping rows in memory")
        if self._spool.renewed:
            self._note(f"{self._options.directory} was removed: it was made anew, and what it held is gone")
        for service, given_up in self._spool.take_dropped().items():
            self._stretch.of(service).dropped += given_up
        self.summary.dropped += dropped
        self.summary.device.lost += self._spool.dropped_executions
        self._spool.dropped_executions = 0
        for pid in self._targets.reap(time.monotonic()):
            self._pairing.process_ended(pid)
            self._names.forget(pid)
            self._device.ended(pid)
            self._listener.ended(pid)
            self._discovery.forget(pid)
            self._losses.forget(pid)
            self._services.forget(pid)
            self._owners.forget(pid)

    def _account(self) -> pa.Table:
        now = time.monotonic_ns()
        steps = self._clock.take_steps()
        if steps.sentence:
            self._note(steps.sentence)
        at = Moment(self._clock.hull(self._stretch.from_ns, now), self._boot_id, self._clock.offset(now), steps)
        rows = self._stretch.rows(at, self._host, self._options.tracing.layers.value, self._program.attached)
        told = self.summary.services
        for service, counts in self._stretch.services.items():
            told[service] = told.get(service, ServiceCounts()) + counts
        for forgotten in told.keys() - self._services.names - {""}:
            del told[forgotten]
        self._stretch = Stretch(now, self._services.fixed)
        return rows

    def _finish(self) -> None:
        self._gpus.wait(_GPUS_WITHIN_S)
        self._sampler.close()
        self._sampler.watch(time.monotonic(), self._note)
        self._flush()
        self._show()
        for said in last_words(self._names.unconfirmed(), self._targets.slow_sites):
            self._note(said)
        if self._spool.waiting:
            raise AgentError(
                f"{self._spool.events} events could not be written to {self._options.directory}: "
                "free space there and record again"
            )

    def _show(self) -> None:
        self.summary.events = self._rows_made + len(self._ready) + len(self._raw)
        self.summary.drain_lag_ns = self._stretch.drain_lag_ns
        self.summary.attached_probes = self._program.attached
        self.summary.elapsed_s = time.monotonic() - self._began
        self.summary.cpu_s = time.process_time() - self._cpu_began
        self.summary.bytes_written = self._spool.writer.bytes_written
        self.summary.segments = self._spool.writer.segments_written
        self._progress(self.summary)

    def _note(self, warning: str) -> None:
        if warning not in self.summary.warnings:
            self.summary.warnings.append(warning)
            self._announce(warning)
