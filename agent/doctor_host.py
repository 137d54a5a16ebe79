"""`doctor`: what the host allows, read from /proc and /sys."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from kdiff.agent.bpf import check_permission
from kdiff.agent.clock import boot_id, unix_offset_ns
from kdiff.agent.doctor_check import Check, fail, ok, warn
from kdiff.agent.errors import AgentError
from kdiff.agent.procfs import linux_release
from kdiff.agent.targets import returns_may_kill
from kdiff.probes.program import machine
from kdiff.queries.segments_write import sync_directory

GROUP: Final = "Host"
_ELSEWHERE: Final = "name another capture directory with -o"
_OLDEST: Final = (5, 15)
_MACHINES: Final = ("x86_64", "aarch64")
_CAP_SYS_PTRACE: Final = 19
_SLOW_CLOCKS: Final = ("hpet", "acpi_pm", "jiffies")
_GIB: Final = 1 << 30
_ROOM_WANTED: Final = _GIB  # three hours of 10,000 launches a second


def permission(check: Callable[[], None] = check_permission) -> Check:
    """CAP_SYS_ADMIN and lockdown."""
    try:
        check()
    except AgentError as error:
        fact, _, mend = str(error).partition(": ")
        return fail(GROUP, "permission", fact, mend or "boot with lockdown=integrity")
    except OSError as error:
        return fail(GROUP, "permission", f"/proc cannot be read ({error.strerror})", "mount /proc")
    who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    return ok(GROUP, "permission", f"{who} with CAP_SYS_ADMIN, kernel not locked down")


def kernel(release: str | None = None, architecture: str | None = None, may_kill: bool | None = None) -> Check:
    """Its release and instruction set. Whether probes work is tried elsewhere: distributions backport."""
    release = release or os.uname().release
    architecture = architecture or machine()
    fact = f"Linux {release} on {architecture}"
    if architecture not in _MACHINES:
        return fail(GROUP, "kernel", fact, "kdiff-agent knows x86-64 and arm64 only")
    numbers = linux_release(release)
    if numbers is not None and numbers < _OLDEST:
        return warn(GROUP, "kernel", fact, "kdiff is made for Linux 5.15 or newer")
    if returns_may_kill() if may_kill is None else may_kill:
        return warn(
            GROUP,
            "kernel",
            f"{fact}, which may kill a process under a seccomp filter at a return probe",
            "record such processes with --no-return, or take Linux 6.14 or newer",
        )
    return ok(GROUP, "kernel", fact)


def clock(sources: Path = Path("/sys/devices/system/clocksource/clocksource0")) -> Check:
    """What stamps events, and the way to Unix time."""
    try:
        boot = boot_id()
        source = (sources / "current_clocksource").read_text().strip()
    except OSError as error:
        return warn(GROUP, "clock", f"{error.filename} cannot be read ({error.strerror})", "mount /proc and /sys")
    if source in _SLOW_CLOCKS:
        return warn(
            GROUP,
            "clock",
            f"{source}, which takes about 1 us to read",
            "boot with tsc=reliable if the CPU's counter can be trusted: each probe reads the clock twice",
        )
    return ok(GROUP, "clock", f"{source}, boot {boot[:8]}, {unix_offset_ns() / 1e9:.6f} s from monotonic to Unix time")


def memory(limit: int | None = None) -> Check:
    """The limit on locked memory: since Linux 5.11 BPF maps count to the cgroup's memory instead."""
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    shown = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit >> 10:,} KiB"
    return ok(GROUP, "locked memory", f"limit {shown}; BPF maps do not count to it since Linux 5.11")


def disk(directory: Path, max_bytes: int | None = None, free: Callable[[Path], int] | None = None) -> Check:
    """Room and permission where captures would be written, and a file system that keeps what they rest on.

    `max_bytes`: how large a spool in it may grow. A file is tried and removed; the directory is not made.
    """
    place = directory.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return fail(GROUP, "disk", f"{place} is no directory", _ELSEWHERE)
    try:
        room = (free or _free)(place)
        read_only = bool(os.statvfs(place).f_flag & os.ST_RDONLY)
    except OSError as error:
        return fail(GROUP, "disk", f"{place}: {error.strerror}", _ELSEWHERE)
    if read_only or not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
        return fail(GROUP, "disk", f"{place} cannot be written", _ELSEWHERE)
    fact = f"{room / _GIB:,.1f} GiB free at {place}"
    try:
        locks = _tried(place)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return fail(GROUP, "disk", f"{place} is full", "free space there, or name another directory with -o")
        return fail(GROUP, "disk", f"{place}: {error.strerror} at fsync or rename", _ELSEWHERE)
    if max_bytes is not None and (held := _spool_bytes(directory)) + room < max_bytes:
        mend = f"give --max-bytes less than {_size(held + room)}, or name a larger disk with -o"
        return warn(GROUP, "disk", f"{fact}, the spool may grow to {_size(max_bytes)}: the disk is full first", mend)
    if room < _ROOM_WANTED:
        return warn(GROUP, "disk", fact, "free space: 10,000 launches a second fill about 0.3 GiB an hour")
    if not locks:
        mend = "keep it to one recording: two in one directory, which is refused elsewhere, count launches twice"
        return warn(GROUP, "disk", f"{fact}, on a file system without locks", mend)
    return ok(GROUP, "disk", fact)


def _tried(place: Path) -> bool:
    """Writes, syncs and renames a file as a segment is, and removes it; whether it could be locked. Raises OSError."""
    fd, name = tempfile.mkstemp(prefix=".kdiff-doctor-", dir=place)
    moved = f"{name}.moved"
    try:
        os.write(fd, bytes(4096))
        os.fsync(fd)
        os.rename(name, moved)
        sync_directory(place)
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False
    finally:
        os.close(fd)
        for left in (name, moved):
            with suppress(OSError):
                os.unlink(left)


def _spool_bytes(directory: Path) -> int:
    """Of the segments that are there: the bound is on them together with what comes."""
    with suppress(OSError):
        return sum(path.stat().st_size for path in directory.glob("*/*.parquet"))
    return 0


def _size(count: int) -> str:
    return f"{count / _GIB:,.1f} GiB" if count >= _GIB else f"{count / (1 << 20):,.0f} MiB"


def other_memory(proc: Path = Path("/proc"), capabilities: int | None = None) -> Check:
    """Whether memory of other processes can be read: for names of what was loaded before recording began."""
    try:
        if capabilities is None:
            capabilities = _effective((proc / "self/status").read_text())
        mounts = (proc / "self/mountinfo").read_text()
    except OSError as error:
        return warn(GROUP, "other processes", f"{error.filename}: {error.strerror}", "mount /proc")
    try:
        scope = int((proc / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = 0
    missing = "kernels that were loaded before recording began may stay without names"
    if scope == 3:
        mend = f"set kernel.yama.ptrace_scope=2 or lower and reboot: {missing}"
        return warn(GROUP, "other processes", "ptrace_scope 3: no memory of others can be read", mend)
    if not capabilities >> _CAP_SYS_PTRACE & 1:
        mend = f"add CAP_SYS_PTRACE, as root has: {missing}"
        return warn(GROUP, "other processes", "without CAP_SYS_PTRACE their memory cannot be read", mend)
    if re.search(r"^\S+ \S+ \S+ \S+ /proc .*\bhidepid=(?!0|off)", mounts, re.MULTILINE) and os.geteuid() != 0:
        mend = "run as root, or mount /proc with gid= of the agent's group"
        return warn(GROUP, "other processes", "/proc is mounted with hidepid: others are not seen", mend)
    return ok(GROUP, "other processes", f"their memory can be read (ptrace_scope {scope})")


def _effective(status: str) -> int:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return int(found[1], 16) if found else 0


def _free(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize
