"""Which processes are traced, and which files are probed for them.

Probes are attached per file for the whole system, since a probe bound to a pid does not follow fork; which process
is recorded is decided here and filtered in BPF. A process not decided yet is recorded: nothing of it is missed
while its ancestry is looked up, and what turns out to be another's is dropped.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kdiff.agent import procfs
from kdiff.agent.bpf import Probe, Program, explain_attach
from kdiff.agent.elf import Elf, Site, may_hold_cuda
from kdiff.agent.errors import AgentError, ElfError
from kdiff.agent.names import Place
from kdiff.agent.selection import Selection
from kdiff.agent.service_names import Services
from kdiff.probes.points import DRIVER_SYMBOLS, LIFECYCLE, POINTS, RUNTIME_SYMBOLS, Layer, Step
from kdiff.probes.program import Tracing, cookie
from kdiff.probes.wire import Decision

Look = Callable[[int, int, list[procfs.Mapping], float], None]  # pid, when it began, its mappings, monotonic seconds
FileKey = tuple[int, int]  # device and inode, as fstat gives them

_WANTED: Final = RUNTIME_SYMBOLS | DRIVER_SYMBOLS
_CUDA_LIBRARY: Final = re.compile(r"lib(cuda|cudart)\.so(\.|$)")
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
# After its first CUDA call a process maps more libraries soon; later ones are rare and cost little to wait for.
_SCAN_AFTER_S: Final = (0.0, 0.05, 0.15, 0.4, 1.0)
_SCAN_EVERY_S: Final = 2.0
_KEEP_ENDED_S: Final = 30.0  # more than launches wait for a sync, and rows for a flush


@dataclass
class Process:
    """One process: a pid together with when it began."""

    pid: int
    start_ticks: int
    comm: str
    container_id: str
    traced: bool
    undecided: bool = False  # it had ended before its ancestry could be looked at
    driver_build: str = ""
    mappings: list[procfs.Mapping] = field(default_factory=list)
    image: tuple[int, int] = (0, 0)  # of procfs.Stat, when it was decided
    ended_at: float | None = None  # monotonic; when it was first found to have ended
    scans: list[float] = field(default_factory=list)  # monotonic times at which to look at its mappings again


class Targets:
    """The traced processes and the probed files of one recording."""

    def __init__(
        self,
        program: Program,
        tracing: Tracing,
        roots: set[int] | None,
        note: Callable[[str], None],
        look: Look | None = None,
        selection: Selection | None = None,
        services: Services | None = None,
    ) -> None:
        """`roots`: trace these and their descendants; None: all that `selection` wants. `note` takes warnings.

        `look` is called with what a traced process maps, whenever that has been read anew. `services` is told of each
        traced process, and of each that becomes another program.
        """
        self._look = look
        self._program = program
        self._tracing = tracing
        self._roots = roots
        self._selection = selection or Selection()
        self._services = services or Services("host")
        self._note = note
        self._processes: dict[int, Process] = {}
        self._probed: dict[FileKey, str] = {}  # build id, of every file looked at
        self._drivers: set[FileKey] = set()
        self._mapped: dict[tuple[bytes, int], FileKey] = {}
        self._boot_ticks_at_start = time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS_PER_SECOND
        self.slow_sites: set[str] = set()

    # Files

    def probe_path(self, path: str) -> None:
        """Probes a file by its path in this mount namespace; what cannot be probed is noted."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self._note(f"{path} cannot be read ({error.strerror}): it is not probed")
            return
        try:
            self._probe(fd, path, always=True)
        finally:
            os.close(fd)

    def _probe(self, fd: int, path: str, *, always: bool = False) -> FileKey:
        found = os.fstat(fd)
        key = (found.st_dev, found.st_ino)
        if key in self._probed:
            return key
        self._probed[key] = ""
        if not (always or _CUDA_LIBRARY.match(os.path.basename(path)) or may_hold_cuda(fd)):
            return key
        try:
            with Elf(fd, path) as elf:
                sites = elf.sites(_WANTED)
                if sites:
                    self._probed[key] = elf.build_id()
        except ElfError as error:
            self._note(str(error))
            return key
        if "cuLaunchKernel" in sites:
            self._drivers.add(key)
        if sites:
            self._attach(f"/proc/self/fd/{fd}", path, sites)
        return key

    def _attach(self, file: str, path: str, sites: dict[str, Site]) -> None:
        """Attaches in the order that never opens a call whose return, or whose driver call, is not probed yet."""
        tracing = self._tracing
        points = [p for p in POINTS if p.symbol in sites and tracing.probes(p)]
        steps = {symbol: step for symbol, step in LIFECYCLE.items() if symbol in sites}
        named = [symbol for symbol, step in steps.items() if step in (Step.NAMED, Step.ALIAS)]
        if not tracing.any_returns:
            steps = {symbol: step for symbol, step in steps.items() if symbol not in named}
            named = []
        plan: list[tuple[str, list[Probe], bool]] = [
            ("lifecycle_return", [Probe(sites[symbol].offset) for symbol in named], True),
            ("lifecycle_entry", [Probe(sites[symbol].offset, step) for symbol, step in steps.items()], False),
            ("call_return", [Probe(sites[p.symbol].offset) for p in points if tracing.returns(p)], True),
        ]
        for layer in (Layer.DRIVER, Layer.RUNTIME):
            entries = [Probe(sites[p.symbol].offset, cookie(tracing, p)) for p in points if p.layer is layer]
            plan.append(("call_entry", entries, False))
        try:
            for program, probes, returns in plan:
                self._program.attach(file, probes, program, returns=returns)
        except OSError as error:
            self._note(f"{path} cannot be probed: {explain_attach(error)}")
            return
        self.slow_sites.update(f"{p.symbol} of {path}" for p in points if sites[p.symbol].slow)

    # Processes

    def traced(self, pid: int) -> bool:
        """Whether rows of this process are wanted: decides at first sight, from its ancestry."""
        known = self._processes.get(pid)
        return known.traced if known is not None else self.meet(pid).traced

    def meet(self, pid: int, called_ns: int | None = None) -> Process:
        """Looks at a process that called CUDA: decides, tells BPF, and looks at what it maps now and soon again.

        `called_ns`: when it did, monotonic; where it is another program by now it was that by then.
        """
        found = procfs.stat(pid)
        known = self._processes.get(pid)
        if known is not None and (found is None or found.start_ticks == known.start_ticks):
            process = known
            self._decide_anew(process, called_ns)
        else:
            if found is None:
                every = self._roots is None and not self._selection
                process = Process(pid, 0, "", "", traced=every, undecided=not every)
            else:
                process = Process(
                    pid,
                    found.start_ticks,
                    found.comm,
                    procfs.container_id(pid),
                    traced=self._wanted(pid),
                    image=found.image,
                )
                if process.traced:
                    self._services.decide(pid, _began_ns(found))
            self._processes[pid] = process
            self._tell_bpf(process)
        if process.traced or self._selection:
            now = time.monotonic()
            process.scans = [now + after for after in _SCAN_AFTER_S]
            self.scan_due(now)
        return process

    def _decide_anew(self, process: Process, called_ns: int | None = None) -> None:
        """A process that has become another program is what that is: it may have been met between fork and exec."""
        found = procfs.stat(process.pid)
        if found is None or found.ended or found.start_ticks != process.start_ticks or found.image == process.image:
            return
        process.image, process.comm = found.image, found.comm
        process.mappings, process.driver_build = [], ""
        if self._selection:  # the descendants of roots stay that
            process.traced = self._wanted(process.pid)
            self._tell_bpf(process)
        if process.traced:
            self._services.decide(process.pid, time.monotonic_ns() if called_ns is None else called_ns)

    def _wanted(self, pid: int) -> bool:
        if self._roots is None:
            return self._selection.wants(pid)
        return any(ancestor in self._roots for ancestor in procfs.ancestors(pid))

    def began_here(self, pid: int) -> bool:
        """Whether the process began after this recording did."""
        process = self._processes.get(pid)
        return process is not None and process.start_ticks >= self._boot_ticks_at_start - 1

    def scan_due(self, now: float) -> None:
        """Looks at the mappings of the processes whose time has come (monotonic seconds)."""
        for process in list(self._processes.values()):
            if process.scans and process.scans[0] <= now:
                while process.scans and process.scans[0] <= now:
                    process.scans.pop(0)
                if not process.scans:
                    process.scans.append(now + _SCAN_EVERY_S)
                self._decide_anew(process)
                if process.traced:
                    self._scan(process)

    def _scan(self, process: Process) -> None:
        mappings = procfs.file_mappings(process.pid)
        if not mappings:
            return  # it is gone: what was known stays good for its last events
        process.mappings = mappings
        # The driver first: a runtime call whose driver call is not probed yet would lose its kernel's name.
        executable = [mapping for mapping in mappings if mapping.executable]
        for mapping in sorted(executable, key=lambda m: "libcuda" not in m.path):
            key = self._mapped.get(mapping.key)
            if key is None:
                fd = procfs.open_mapping(process.pid, mapping)
                if fd is None:
                    continue
                try:
                    key = self._mapped[mapping.key] = self._probe(fd, mapping.path, always=mapping is executable[0])
                finally:
                    os.close(fd)
            if key in self._drivers:
                process.driver_build = self._probed[key]
        if self._look is not None:
            self._look(process.pid, process.start_ticks, mappings, time.monotonic())

    def has_driver(self, pid: int) -> bool:
        """Whether a libcuda has been found in the process."""
        process = self._processes.get(pid)
        return process is not None and process.driver_build != ""

    def _tell_bpf(self, process: Process) -> None:
        table = self._program.map("processes")
        key = ctypes.c_uint32(process.pid)
        leaf = table.Leaf()
        if key in table:
            leaf = table[key]
        leaf.decision = int(Decision.TRACE if process.traced else Decision.IGNORE)
        table[key] = leaf

    def name_offset(self, pid: int, offset: int) -> None:
        """Tells BPF where names are in the handles of this process's driver."""
        table = self._program.map("processes")
        key = ctypes.c_uint32(pid)
        leaf = table[key] if key in table else table.Leaf()
        leaf.name_offset = offset
        table[key] = leaf

    def reap(self, now: float) -> list[int]:
        """Forgets processes that ended some time ago, and returns their pids (`now`: monotonic seconds).

        Not at once: their last events may still be in the ring, or wait for a sync that will not come.
        """
        gone = []
        for pid, process in list(self._processes.items()):
            found = procfs.stat(pid)
            if found is not None and not found.ended and found.start_ticks == process.start_ticks:
                continue
            if process.ended_at is None:
                process.ended_at = now
            # One that is ignored has nothing to wait for, and its pid may come back as one that is not.
            if not process.traced or now - process.ended_at > _KEEP_ENDED_S:
                gone.append(pid)
                del self._processes[pid]
                table = self._program.map("processes")
                key = ctypes.c_uint32(pid)
                if key in table:
                    del table[key]
        return gone

    def process(self, pid: int) -> Process | None:
        """What is known of a process."""
        return self._processes.get(pid)

    # What names need to know (kdiff.agent.names.Processes)

    def driver_build(self, pid: int) -> str:
        """The build id of the libcuda the process maps; '' when not known."""
        process = self._processes.get(pid)
        if process is not None and process.driver_build:
            return process.driver_build
        # It ended before it was looked at; but driver calls are seen only through a driver that is probed.
        return self._probed[next(iter(self._drivers))] if len(self._drivers) == 1 else ""

    def read(self, pid: int, address: int, size: int) -> bytes:
        """Memory of the process; b'' when it cannot be read."""
        return procfs.read_memory(pid, address, size)

    def locate(self, pid: int, address: int) -> Place | None:
        """The file at an address, and the function that begins there."""
        process = self._processes.get(pid)
        for mapping in process.mappings if process else ():
            if mapping.start <= address < mapping.end:
                offset = address - mapping.start + mapping.offset
                fd = procfs.open_mapping(pid, mapping)
                if fd is None:
                    return None
                try:
                    with Elf(fd, mapping.path) as elf:
                        return Place(elf.build_id(), offset, elf.function_at(offset))
                except ElfError:
                    return None
                finally:
                    os.close(fd)
        return None


def _began_ns(found: procfs.Stat) -> int:
    """When a process began, monotonic ns, to a tick of the kernel's; earlier where the host has slept since."""
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - found.start_ticks / _TICKS_PER_SECOND
    return time.monotonic_ns() - round(age_s * 1e9)


def returns_may_kill() -> bool:
    """Whether this kernel may kill a process under a seccomp filter at a return probe.

    Linux 6.11 to 6.13 return through a system call that seccomp filters do not know.
    """
    release = procfs.linux_release()
    return release is not None and (6, 11) <= release <= (6, 13)


def check_return_probes(pids: set[int], tracing: Tracing) -> None:
    """Raises AgentError where a return probe would kill one of the processes."""
    if not tracing.any_returns or not returns_may_kill():
        return
    for pid in pids:
        if procfs.filters_system_calls(pid):
            raise AgentError(
                f"process {pid} runs under a seccomp filter, and Linux {os.uname().release} may kill such a process "
                "at a return probe: record it with --no-return, which probes no return on this kernel"
            )
