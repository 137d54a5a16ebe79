"""`doctor`: one running process, or a command before it starts."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Final

from kdiff.agent import procfs
from kdiff.agent.doctor_check import Answer, Check, fail, ok, warn
from kdiff.agent.doctor_cuda import driver_library
from kdiff.agent.doctor_device import (
    GIVEN_CUPTI,
    KNOWN_RELEASES,
    OTHER_INJECTION,
    cupti,
    cupti_copies,
    cupti_release,
    injected,
    is_device_library,
    python_packages,
)
from kdiff.agent.elf import Elf, may_hold_cuda
from kdiff.agent.errors import ElfError
from kdiff.agent.libraries import command_files
from kdiff.agent.targets import returns_may_kill
from kdiff.probes.device_library import INJECTION, SETTING
from kdiff.probes.points import RUNTIME_SYMBOLS

_READ: Final = (INJECTION, OTHER_INJECTION, SETTING, GIVEN_CUPTI)
_PROFILERS: Final = re.compile(r"lib(ToolsInjection|cuda-injection|nvperf_host|accinj|cuinj|cudadebugger)[^/]*\.so")
_DRIVER: Final = re.compile(r"libcuda\.so(\.|$)")
_DEVICE_LIBRARY: Final = re.compile(r"kdiff[^/]*\.so")


class Kind(Enum):
    """What a mapped file is to kdiff."""

    DRIVER = auto()
    RUNTIME = auto()  # with functions to probe; inside a program too
    DEVICE_CODE = auto()  # with kernels, but no function to probe
    CUPTI = auto()
    PROTON = auto()  # Triton's profiler, which brings a CUPTI of its own
    DEVICE_LIBRARY = auto()
    PROFILER = auto()


@dataclass(frozen=True)
class Process:
    """What /proc tells of a process that matters here."""

    pid: int
    comm: str
    container: str = ""
    filtered: bool = False  # by seccomp
    tracer: str = ""  # comm of the debugger
    environment: Mapping[str, str] = field(default_factory=dict)
    root: str = ""  # where its files are, as this process sees them
    files: Mapping[Kind, Sequence[str]] = field(default_factory=dict)  # paths as the process has them
    readable: bool = True  # its mappings are

    def mapped(self, kind: Kind) -> Sequence[str]:
        """The files of a kind, as paths inside the process."""
        return self.files.get(kind, ())


def look_at(pid: int) -> Process | None:
    """None when there is no such process."""
    found = procfs.stat(pid)
    if found is None or found.ended:
        return None
    mappings = procfs.file_mappings(pid)
    kinds: dict[Kind, dict[str, None]] = {kind: {} for kind in Kind}
    for mapping in {mapping.key: mapping for mapping in mappings if mapping.executable}.values():
        kind = _kind(pid, mapping)
        if kind is not None:
            kinds[kind][mapping.path] = None
    return Process(
        pid=pid,
        comm=found.comm,
        container=procfs.container_id(pid),
        filtered=procfs.filters_system_calls(pid),
        tracer=_tracer(pid),
        environment=_environment(pid),
        root=f"/proc/{pid}/root",
        files={kind: list(paths) for kind, paths in kinds.items() if paths},
        readable=bool(mappings),
    )


def _kind(pid: int, mapping: procfs.Mapping) -> Kind | None:
    name = os.path.basename(mapping.path)
    if _DRIVER.match(name):
        return Kind.DRIVER
    if name.startswith("libcupti.so"):
        return Kind.CUPTI
    if name.startswith("libproton.so"):
        return Kind.PROTON
    if _PROFILERS.match(name):
        return Kind.PROFILER
    if _DEVICE_LIBRARY.search(name) and is_device_library(f"/proc/{pid}/root{mapping.path}"):
        return Kind.DEVICE_LIBRARY
    fd = procfs.open_mapping(pid, mapping)
    if fd is None:
        return None
    try:
        holds_code = name.startswith("libcudart.so") or may_hold_cuda(fd)
        if not holds_code and os.path.realpath(f"/proc/{pid}/exe") != mapping.path:
            return None
        with Elf(fd, mapping.path) as elf:
            if elf.sites(RUNTIME_SYMBOLS):
                return Kind.RUNTIME
    except (ElfError, OSError):
        return None
    finally:
        os.close(fd)
    return Kind.DEVICE_CODE if holds_code else None


def process(pid: int, found: Process | None, state: Path | None, may_kill: bool | None = None) -> list[Check]:
    """Whether recording a running process works."""
    group = f"Process {pid}"
    if found is None:
        return [fail(group, "process", "there is none of this number", "take the pid as the host's `ps` shows it")]
    place = f" in container {found.container[:12]}" if found.container else ""
    checks = [ok(group, "process", f"{found.comm}{place}")]
    if not found.readable:
        mend = "run doctor as root on the host: what it maps is hidden, or it is a kernel thread"
        return [*checks, warn(group, "mappings", "cannot be read", mend, Answer.UNSURE)]
    may_kill = returns_may_kill() if may_kill is None else may_kill
    if found.filtered and may_kill:
        mend = "record it with --no-return: this kernel may kill such a process at a return probe"
        checks.append(fail(group, "seccomp", "it runs under a filter", mend))
    elif found.filtered:
        checks.append(ok(group, "seccomp", "a filter, harmless to probes on this kernel"))
    if found.tracer:
        mend = "end the debugger: probes and CUPTI may disturb it"
        checks.append(warn(group, "debugger", f"traced by {found.tracer}", mend, Answer.UNSURE))
    if found.mapped(Kind.DRIVER):
        paths = [found.root + path for path in found.mapped(Kind.DRIVER)]
        checks += driver_library(paths, state, group, found.root)
    else:
        mend = "start its GPU work, or take the pid of the child that does it: recording begins when it maps one"
        checks.append(warn(group, "libcuda", "none is mapped", mend, Answer.UNSURE))
    checks.append(_runtimes(found, group))
    return checks + _device_time(found, group)


def _runtimes(found: Process, group: str) -> Check:
    runtimes = found.mapped(Kind.RUNTIME)
    if runtimes:
        shown = [path if "libcudart.so" in path else f"{path} (static)" for path in runtimes]
        return ok(group, "CUDA runtime", ", ".join(shown))
    if found.mapped(Kind.DEVICE_CODE):
        return ok(group, "CUDA runtime", "static and stripped: calls are seen in the driver (not by --layer runtime)")
    return ok(group, "CUDA runtime", "none is mapped: calls are seen in the driver (not by --layer runtime)")


def _device_time(found: Process, group: str) -> list[Check]:
    checks = injected(found.environment, group, found.root)
    path = found.environment.get(INJECTION, "")
    ours = found.mapped(Kind.DEVICE_LIBRARY)
    if ours:
        checks.append(ok(group, "device library", f"mapped: {ours[0]}"))
    elif not path:
        mend = f"start it by `record --device-time on -- COMMAND`, or with {INJECTION} naming the library"
        checks.append(warn(group, "device library", "not asked for", mend, Answer.FAILS))
    elif is_device_library(found.root + path) and found.mapped(Kind.DRIVER):
        mend = "restart it: the driver loads the library at its first call only, and says on stderr why it could not"
        checks.append(warn(group, "device library", "named, but not mapped", mend, Answer.FAILS))
    given = found.environment.get(GIVEN_CUPTI, "")
    if given:
        checks.append(_cupti(given, f"{GIVEN_CUPTI}=", found.root, group))
    elif found.mapped(Kind.PROTON):
        mend = f"start it with {GIVEN_CUPTI} naming the copy to use: no window opens where there are two"
        checks.append(warn(group, "CUPTI", f"Proton brings one: {found.mapped(Kind.PROTON)[0]}", mend, Answer.FAILS))
    elif found.mapped(Kind.CUPTI):
        checks.append(_cupti(found.mapped(Kind.CUPTI)[0], "mapped: ", found.root, group))
    profilers = found.mapped(Kind.PROFILER)
    if profilers:
        mend = "windows are skipped while another tool has CUPTI: start it without nsys, ncu or cuda-gdb"
        checks.append(warn(group, "profiler", f"mapped: {', '.join(profilers)}", mend, Answer.UNSURE))
    return checks


def _cupti(path: str, how: str, root: str, group: str) -> Check:
    if not os.path.exists(root + path):
        return warn(group, "CUPTI", f"{how}{path} is not there", "start it with the path of a libcupti", Answer.FAILS)
    release = cupti_release(root + path)
    if release not in KNOWN_RELEASES:
        mend = "use CUDA 12 or 13: the records of other releases are not known to kdiff"
        return warn(group, "CUPTI", f"{how}{path} (CUDA {release or 'unknown'})", mend, Answer.FAILS)
    return ok(group, "CUPTI", f"of CUDA {release}, {how}{path}")


def _environment(pid: int) -> dict[str, str]:
    """The variables that matter, as the process was started; no others are kept."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in text.split(b"\0"))
    return {name: value for name, _, value in pairs if name in _READ}


def _tracer(pid: int) -> str:
    try:
        found = re.search(rb"^TracerPid:\s*([1-9]\d*)", Path(f"/proc/{pid}/status").read_bytes(), re.MULTILINE)
    except OSError:
        return ""
    if found is None:
        return ""
    tracer = procfs.stat(int(found[1]))
    return tracer.comm if tracer else found[1].decode()


# ---- a command ----


def command(words: Sequence[str], environment: Mapping[str, str], state: Path | None) -> list[Check]:
    """What a command will load, found without running it."""
    group = "Command"
    program = shutil.which(words[0], path=environment.get("PATH"))
    if program is None:
        return [fail(group, "program", f"{words[0]} is not found", "give its path, and leave to execute it")]
    files = command_files(words, environment)
    drivers = [path for path in files if _DRIVER.match(os.path.basename(path))]
    runtimes = [path for path in files if os.path.basename(path).startswith("libcudart.so")]
    checks = [ok(group, "program", program), *(driver_library(drivers, state, group) if drivers else [])]
    if drivers or runtimes:
        shown = ", ".join({os.path.realpath(path): path for path in drivers + runtimes}.values())
        checks.append(ok(group, "libraries", f"probed before it starts: {shown}"))
    else:
        mend = "its first calls may be missed: set LD_LIBRARY_PATH to where its CUDA libraries are"
        checks.append(warn(group, "libraries", "no CUDA library is known before it maps one", mend))
    packages = [place for executable in _executables(program, files) for place in python_packages(executable)]
    return [*checks, *injected(environment, group), cupti(cupti_copies(environment, packages), group)]


def _executables(program: str, files: Sequence[str]) -> list[str]:
    return [program, *(path for path in files if ".so" not in os.path.basename(path))]
