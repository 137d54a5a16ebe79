"""BCC: finding it, compiling the program without kernel headers, and attaching without tracefs.

Probes belong to file descriptors, never to tracefs: the kernel removes them whatever way the agent ends, SIGKILL
included.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
import struct
import sys
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from kdiff.agent.errors import AgentError
from kdiff.agent.procfs import linux_release
from kdiff.probes.program import ONE_PROCESS, PROGRAMS, TRACEPOINTS, Tracing, include_dir, machine, source

_CAP_SYS_ADMIN: Final = 21
_DISTRIBUTION_PACKAGES: Final = Path("/usr/lib/python3/dist-packages")
_BPF_RAW_TRACEPOINT_OPEN: Final = 17
_BPF_LINK_CREATE: Final = 28
_BPF_PERF_EVENT: Final = 41
_BPF_TRACE_UPROBE_MULTI: Final = 48
_LINK_ATTR_BYTES: Final = 64  # of union bpf_attr, through link_create.uprobe_multi
_PERF_ATTR_BYTES: Final = 112  # PERF_ATTR_SIZE_VER5
_PERF_FLAG_FD_CLOEXEC: Final = 8
_PERF_COUNTER_SHIFT: Final = 32  # where a uprobe's `config` holds its counter's place: 32 bits
_MOST_CLOSERS: Final = 64
_REFUSED: Final = (
    "the kernel or BCC refused the BPF program ({}): kdiff needs Linux 5.15 with CONFIG_BPF_SYSCALL and "
    "CONFIG_UPROBE_EVENTS, and BCC 0.18 or newer"
)


class _Calls(NamedTuple):
    """Numbers of system calls."""

    bpf: int
    perf_event_open: int


_SYSCALLS: Final = {"x86_64": _Calls(321, 298), "aarch64": _Calls(280, 241)}


def _import_bcc() -> ModuleType:
    """The distribution's BCC, in a virtual environment too; PyPI's `bcc` is another project and is passed over."""
    spec = importlib.util.find_spec("bcc")
    places = [p.parent for p in (Path(spec.origin),) if p.name == "__init__.py"] if spec and spec.origin else []
    for package in [*places, _DISTRIBUTION_PACKAGES / "bcc"]:
        if not (package / "libbcc.py").exists():
            continue
        wanted = importlib.util.spec_from_file_location(
            "bcc", package / "__init__.py", submodule_search_locations=[str(package)]
        )
        if wanted is None or wanted.loader is None:
            continue
        module = importlib.util.module_from_spec(wanted)
        sys.modules["bcc"] = module
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)  # BCC 0.26 under Python 3.12
                wanted.loader.exec_module(module)
        except OSError as error:  # the Python half is there, libbcc.so.0 is not
            del sys.modules["bcc"]
            raise AgentError(
                f"BCC's library cannot be loaded ({error}): apt-get install --reinstall libbpfcc python3-bpfcc"
            ) from error
        return module
    raise AgentError("BCC is not installed: apt-get install python3-bpfcc (pip's `bcc` is another project)")


def check_permission() -> None:
    """Raises AgentError unless this process may attach uprobes."""
    status = Path("/proc/self/status").read_text()
    effective = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)
    if not effective >> _CAP_SYS_ADMIN & 1:
        raise AgentError("attaching probes needs CAP_SYS_ADMIN: run kdiff-agent as root (sudo)")
    lockdown = Path("/sys/kernel/security/lockdown")
    if lockdown.exists() and "[confidentiality]" in lockdown.read_text():
        raise AgentError("this kernel is locked down to confidentiality, which forbids reading user memory from BPF")


@dataclass(frozen=True)
class Probe:
    """One place to probe: bytes into the file, and what the program is told there.

    `counter_offset`: bytes into the file to a uint16_t of its data, in which the kernel counts the probes on this
    place, in each process that they are in; 0: none. For `attach_to`.
    """

    offset: int
    cookie: int = 0
    counter_offset: int = 0


@dataclass(eq=False)
class Link:
    """A probe in one process."""

    descriptors: Sequence[int]


class Program:
    """The compiled BPF program: its maps, and probes that live as long as this object.

    Linux 6.6 attaches a program to many places with one link (uprobe_multi), which also goes away at once; an older
    kernel takes a perf event for each place, whose removal waits for a grace period each.
    """

    def __init__(self, tracing: Tracing, *, multi: bool | None = None) -> None:
        """Compiles and loads. `multi`: whether to use uprobe_multi, None: if the kernel has it. Raises AgentError."""
        if machine() not in _SYSCALLS:
            raise AgentError(f"kdiff-agent knows x86-64 and arm64, not {machine()}")
        check_permission()
        self._calls = _SYSCALLS[machine()]
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._links: list[int] = []
        self._tracepoints: list[int] = []
        self._in_processes: set[Link] = set()
        self._fds: dict[str, int] = {}
        self.attached = 0
        bcc = _import_bcc()
        previous = os.environ.get("BCC_KERNEL_SOURCE")
        os.environ["BCC_KERNEL_SOURCE"] = str(include_dir())
        try:
            self._bpf: Any = bcc.BPF(text=source(tracing))
            self._multi = multi is not False and self._load(bcc, _BPF_TRACE_UPROBE_MULTI)
            loaded = self._multi or (not multi and self._load(bcc, -1))
            if tracing.scheduling:
                self._fds |= {name: self._bpf.load_func(name, bcc.BPF.RAW_TRACEPOINT).fd for name in TRACEPOINTS}
        except Exception as error:  # BCC raises nothing narrower
            raise AgentError(_REFUSED.format(str(error).splitlines()[0])) from error
        finally:  # the traced command inherits the environment, and may use BCC itself
            del os.environ["BCC_KERNEL_SOURCE"]
            if previous is not None:
                os.environ["BCC_KERNEL_SOURCE"] = previous
        if not loaded:
            raise AgentError(_REFUSED.format("it does not load"))

    def _load(self, bcc: Any, attach_type: int) -> bool:
        """Loads every program, and for uprobe_multi asks the kernel whether it knows it. False when it does not."""
        self._bpf.funcs.clear()
        try:
            for name in PROGRAMS:
                how = -1 if name in ONE_PROCESS and not _multi_knows_processes() else attach_type
                self._fds[name] = self._bpf.load_func(name, bcc.BPF.KPROBE, None, how).fd
        except Exception:  # as above; the caller tries the older way, whose error is the one to show
            return False
        if attach_type != _BPF_TRACE_UPROBE_MULTI:
            return True
        try:
            self._link_multi("/", [Probe(0)], self._fds["call_entry"], returns=False)
        except OSError as error:
            return error.errno == errno.EBADF  # "/" is no regular file: the kernel got as far as looking at it
        return True

    def attach(self, path: str, probes: Sequence[Probe], program: str, *, returns: bool = False) -> None:
        """Attaches to places in a file, for every process that maps it, now or later. Raises OSError."""
        if not probes:
            return
        if self._multi:
            self._links.append(self._link_multi(path, probes, self._fds[program], returns))
        else:
            for probe in probes:
                self._links += self._link_perf(path, probe, self._fds[program], returns)
        self.attached += len(probes)

    def attach_scheduling(self) -> None:
        """Attaches to the host's scheduler, where the program is for it; before any thread calls. Raises AgentError.

        These are raw tracepoints: no tracefs is needed, and the kernel removes them with their descriptors.
        """
        for program, tracepoint in TRACEPOINTS.items():
            name = ctypes.create_string_buffer(tracepoint.encode())
            attr = struct.pack("=QII", ctypes.addressof(name), self._fds[program], 0)
            try:
                link = self._call(tracepoint, self._calls.bpf, _BPF_RAW_TRACEPOINT_OPEN, attr, len(attr))
            except OSError as error:
                raise AgentError(
                    f"the kernel's tracepoint {tracepoint} cannot be used ({explain_attach(error)}): "
                    "record with --scheduling off"
                ) from error
            self._tracepoints.append(link)
            self.attached += 1

    def detach_scheduling(self) -> None:
        """Leaves the scheduler. Threads that end from then on are not noticed."""
        self.attached -= len(self._tracepoints)
        while self._tracepoints:
            os.close(self._tracepoints.pop())

    def attach_to(self, pid: int, path: str, probe: Probe, program: str) -> Link:
        """Attaches to a place in a file in one process only, all of its threads. Raises OSError.

        By perf event the counter rises some ms before the program runs.
        """
        assert program in ONE_PROCESS
        if self._multi and _multi_knows_processes():
            link = Link([self._link_multi(path, [probe], self._fds[program], returns=False, pid=pid)])
        else:
            link = Link(self._link_perf(path, probe, self._fds[program], returns=False, pid=pid))
        self._in_processes.add(link)
        self.attached += 1
        return link

    def detach_from(self, link: Link) -> None:
        """Removes what `attach_to` attached, soon: the kernel takes 0.1 s, for which nothing here waits.

        What `detach` has removed already stays so: its descriptors may be another's by now.
        """
        if link not in self._in_processes:
            return
        self._in_processes.remove(link)
        self.attached -= 1
        threading.Thread(target=_close, args=(link.descriptors,)).start()

    def _link_multi(self, path: str, probes: Sequence[Probe], program: int, returns: bool, pid: int = 0) -> int:
        name = ctypes.create_string_buffer(os.fsencode(path))
        offsets = (ctypes.c_uint64 * len(probes))(*(probe.offset for probe in probes))
        cookies = (ctypes.c_uint64 * len(probes))(*(probe.cookie for probe in probes))
        counters = (ctypes.c_uint64 * len(probes))(*(probe.counter_offset for probe in probes))
        pointers = [ctypes.addressof(thing) for thing in (name, offsets, counters, cookies)]
        attr = struct.pack("=IIII", program, 0, _BPF_TRACE_UPROBE_MULTI, 0) + struct.pack(
            "=QQQQIII", *pointers, len(probes), int(returns), pid
        )
        attr = attr.ljust(_LINK_ATTR_BYTES, b"\0")
        return self._call(path, self._calls.bpf, _BPF_LINK_CREATE, attr, len(attr))

    def _link_perf(self, path: str, probe: Probe, program: int, returns: bool, pid: int = 0) -> list[int]:
        name = ctypes.create_string_buffer(os.fsencode(path))
        config = int(returns) | probe.counter_offset << _PERF_COUNTER_SHIFT
        attr = struct.pack("=IIQ", _uprobe_type(), _PERF_ATTR_BYTES, config).ljust(40, b"\0")
        # Of one process the event stays disabled: its program runs all the same, and nothing is switched with a thread.
        attr += struct.pack("=QQQQ", int(bool(pid)), 0, ctypes.addressof(name), probe.offset)
        target = (pid, -1) if pid else (-1, 0)  # process and processor
        event = self._call(
            path,
            self._calls.perf_event_open,
            attr.ljust(_PERF_ATTR_BYTES, b"\0"),
            *target,
            -1,
            _PERF_FLAG_FD_CLOEXEC,
        )
        attr = struct.pack("=IIIIQ", program, event, _BPF_PERF_EVENT, 0, probe.cookie)
        try:
            return [event, self._call(path, self._calls.bpf, _BPF_LINK_CREATE, attr, len(attr))]
        except OSError:
            os.close(event)
            raise

    def _call(self, path: str, number: int, *arguments: int | bytes) -> int:
        passed = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]
        result = int(self._libc.syscall(ctypes.c_long(number), *passed))
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
        return result

    def detach(self) -> None:
        """Removes every uprobe, the last attached first; those in single processes, each a wait of its own, at once.

        The scheduler stays watched: it tells which threads have ended.
        """
        if self._in_processes:
            with ThreadPoolExecutor(_MOST_CLOSERS) as pool:
                list(pool.map(_close, [link.descriptors for link in self._in_processes]))
            self._in_processes.clear()
        while self._links:
            os.close(self._links.pop())
        self.attached = len(self._tracepoints)

    def close(self) -> None:
        """Removes every probe and frees the maps."""
        self.detach()
        self.detach_scheduling()
        self._bpf.cleanup()

    def map(self, name: str) -> Any:
        """One of the program's maps, as BCC's table object."""
        return self._bpf[name]


def _multi_knows_processes() -> bool:
    """Whether uprobe_multi compares processes: before Linux 6.10 it compares threads."""
    release = linux_release()
    return release is not None and release >= (6, 10)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in reversed(descriptors):
        os.close(descriptor)


def _uprobe_type() -> int:
    try:
        return int(Path("/sys/bus/event_source/devices/uprobe/type").read_text())
    except OSError as error:
        raise AgentError("this kernel has no uprobes: it needs CONFIG_UPROBE_EVENTS, and /sys mounted") from error


def explain_attach(error: OSError) -> str:
    """What to say about a probe that could not be attached."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return "the kernel refused (capabilities, or a security module forbids it)"
    return error.strerror or str(error)
