"""What /proc tells of a process. Everything here may vanish between two reads: absence is an answer, not an error."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MAPPING: Final = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ..([x-]). ([0-9a-f]+) ([0-9a-f]+:[0-9a-f]+) ([0-9]+) +(/.*)$", re.MULTILINE
)
_CONTAINER: Final = re.compile(rb"([0-9a-f]{64})")


@dataclass(frozen=True)
class Mapping:
    """A mapping of a file."""

    start: int
    end: int
    executable: bool
    offset: int
    device: bytes
    inode: int
    path: str

    @property
    def key(self) -> tuple[bytes, int]:
        """The file's identity: the same path may be two files, and two paths the same one."""
        return self.device, self.inode


def maps(pid: int) -> bytes:
    """/proc/PID/maps; b'' when the process is gone or hidden, or has no memory, as a kernel thread."""
    for thread in (pid, *_other_threads(pid)):
        try:
            text = Path(f"/proc/{thread}/maps").read_bytes()
        except OSError:
            return b""
        if text:
            return text
    return b""


def _other_threads(pid: int) -> Iterator[int]:
    """The others, where the first has ended: it tells nothing of memory any more, and the process runs on."""
    found = stat(pid)
    if found is None or found.state not in "ZX" or found.ended:
        return
    try:
        yield from (int(entry) for entry in os.listdir(f"/proc/{pid}/task") if int(entry) != pid)
    except OSError:
        return


def speaker(pid: int) -> int:
    """The thread whose files tell of the program: the first, or, where that has ended before others, one of those."""
    return next(_other_threads(pid), pid)


def file_mappings(pid: int) -> list[Mapping]:
    """What a process maps of files; [] when it is gone or hidden."""
    text = maps(pid)
    return [
        Mapping(
            start=int(m[1], 16),
            end=int(m[2], 16),
            executable=m[3] == b"x",
            offset=int(m[4], 16),
            device=m[5],
            inode=int(m[6]),
            path=os.fsdecode(m[7]).removesuffix(" (deleted)"),
        )
        for m in _MAPPING.finditer(text)
    ]


def open_mapping(pid: int, mapping: Mapping) -> int | None:
    """A descriptor of the very file that is mapped, whatever its path now is; None when it cannot be had."""
    extent = f"{mapping.start:x}-{mapping.end:x}"
    for path in (
        f"/proc/{pid}/map_files/{extent}",
        f"/proc/{pid}/root{mapping.path}",
        *(f"/proc/{thread}/map_files/{extent}" for thread in _other_threads(pid)),
        mapping.path,  # the process has ended: the same file, if it is here under the same name
    ):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        if os.fstat(fd).st_ino == mapping.inode:
            return fd
        os.close(fd)
    return None


@dataclass(frozen=True)
class Stat:
    """Fields of /proc/PID/stat. A pid is one process only together with its start time."""

    comm: str
    state: str
    parent: int
    start_ticks: int
    threads: int = 1
    image: tuple[int, int] = (0, 0)
    """Where its code and its stack begin: another program, or the same anew, has others. Zeros where that is hidden."""

    @property
    def ended(self) -> bool:
        """Whether only its parent's wait is missing. Where its first thread has ended before others it runs on."""
        return self.state in "ZX" and self.threads <= 1


def stat(pid: int) -> Stat | None:
    """None when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    head, _, tail = text.rpartition(b")")
    fields = tail.split()
    comm = head.partition(b"(")[2].decode(errors="replace")
    image = int(fields[23]), int(fields[25])
    return Stat(comm, fields[0].decode(), int(fields[1]), int(fields[19]), int(fields[17]), image)


def thread_name(pid: int, tid: int) -> str:
    """The thread's comm; '' when it is gone."""
    try:
        return Path(f"/proc/{pid}/task/{tid}/comm").read_bytes().rstrip(b"\n").decode(errors="replace")
    except OSError:
        return ""


def cgroups(pid: int) -> list[str]:
    """Its paths in the hierarchies of control groups, once each, those that service managers use first."""
    try:
        lines = os.fsdecode(Path(f"/proc/{pid}/cgroup").read_bytes()).split("\n")
    except OSError:
        return []
    fields = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    order = {"name=systemd": 0, "": 1}  # the latter: of version 2
    return list(dict.fromkeys(path for _, _, path in sorted(fields, key=lambda field: order.get(field[1], 2))))


def executable(pid: int) -> str:
    """The path of its program; '' when that is hidden, or it is a thread of the kernel."""
    try:
        return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except OSError:
        return ""


def arguments(pid: int, most_bytes: int = 4096) -> list[str]:
    """What it was called with, by its own word; [] when that is hidden."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            text = file.read(most_bytes)
    except OSError:
        return []
    return [os.fsdecode(word) for word in text.rstrip(b"\0").split(b"\0")] if text else []


def environment(pid: int, names: Iterable[str]) -> dict[str, str] | None:
    """Of `names` those that it was started with, in the first MiB.

    None when that is hidden, or the process wrote its title over it.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read(1 << 20)
    except OSError:
        return None
    pairs = [pair.partition(b"=") for pair in text.split(b"\0")]
    if text and not any(name and equals for name, equals, _ in pairs):
        return None
    wanted = {os.fsencode(name): name for name in names}
    return {wanted[name]: os.fsdecode(value) for name, _, value in pairs if name in wanted}


def own_hostname(pid: int) -> bool:
    """Whether it may have another name for this host than the host's first process; True when that is hidden."""
    try:
        return os.readlink(f"/proc/{pid}/ns/uts") != os.readlink("/proc/1/ns/uts")
    except OSError:
        return True


def container_id(pid: int) -> str:
    """The 64 hex digits of the container in the cgroup path; '' outside containers."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_bytes()  # who may make a control group names it as he likes
    except OSError:
        return ""
    found = _CONTAINER.search(text)
    return found[1].decode() if found else ""


def filters_system_calls(pid: int) -> bool:
    """Whether the process runs under a seccomp filter."""
    try:
        return b"\nSeccomp:\t2" in Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return False


def ancestors(pid: int) -> Iterator[int]:
    """The process itself, its parent, and so on up to init."""
    for _ in range(1000):
        yield pid
        found = stat(pid)
        if found is None or found.parent == 0:
            return
        pid = found.parent


def pids() -> list[int]:
    """Every process of the host."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def read_memory(pid: int, address: int, size: int) -> bytes:
    """Up to `size` bytes of the process's memory; b'' when it cannot be read."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(size)
    except (OSError, ValueError, OverflowError):
        return b""


def linux_release(text: str | None = None) -> tuple[int, int] | None:
    """Major and minor number of the running kernel, or of the release `text`; None when it does not begin with two."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release if text is None else text)
    return None if found is None else (int(found[1]), int(found[2]))
