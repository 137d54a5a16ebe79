"""A small program to put probes on: doctor must not need a compiler, nor touch anybody's library.

It waits for a byte on its standard input, or the end of it; calls one function, which returns RESULT; calls another as
the device library hands over, with HANDED; and exits with the value of a counter, where the kernel counts the probes on
the second function.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

RESULT: Final = 7
HANDED: Final = b"kdiff ok"
START: Final = 0x100  # bytes into the file
COUNTER: Final = 0x10000  # on a page of its own, whatever the page size
BASE: Final = 0x400000  # where the file is mapped
_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
_CODE: Final = {
    "x86_64": (
        "31ff 488d3507ff0000 ba01000000 31c0 0f05"  # read(0, COUNTER + 16, 1)
        "e824000000"  # call function
        "488d3deafe0000 be08000000 ba03000000 e816000000"  # handover(COUNTER + 8, 8, 3)
        "0fb73dccfe0000 b83c000000 0f05"  # exit(*(uint16_t *)COUNTER)
        "55 b807000000 5d c3"  # function: push %rbp, mov $RESULT, %eax, pop %rbp, ret
        "55 b807000000 5d c3"  # handover: the same
    ),
    "aarch64": (
        "000080d2 61f80710 220080d2 e80780d2 010000d4"  # read(0, COUNTER + 16, 1)
        "09000094"  # bl function
        "80f70710 010180d2 620080d2 08000094"  # handover(COUNTER + 8, 8, 3)
        "c1f60710 20004079 a80b80d2 010000d4"  # exit(*(uint16_t *)COUNTER)
        "1f2003d5 e0008052 c0035fd6"  # function: nop, mov w0, #RESULT, ret
        "1f2003d5 e0008052 c0035fd6"  # handover: the same
    ),
}
_FUNCTIONS: Final = {"x86_64": (0x3B, 0x43), "aarch64": (0x38, 0x44)}


def functions(machine: str) -> tuple[int, int]:
    """Where its two functions begin, bytes into the file."""
    function, handover = _FUNCTIONS[machine]
    return START + function, START + handover


def image(machine: str, code: bytes = b"") -> bytes:
    """The program as a static ELF file, for x86_64 or aarch64. `code`: of another one, with the same data."""
    code = code or bytes.fromhex(_CODE[machine])
    data = bytes(8) + HANDED + bytes(8)
    segments = [
        struct.pack("<IIQQQQQQ", 1, 5, 0, BASE, BASE, START + len(code), START + len(code), 0x10000),
        struct.pack("<IIQQQQQQ", 1, 6, COUNTER, BASE + COUNTER, BASE + COUNTER, len(data), len(data), 0x10000),
        struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16),  # PT_GNU_STACK, not executable
    ]
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01", 2, _MACHINES[machine], 1, BASE + START, 64, 0, 0, 64, 56, len(segments), 64, 0, 0,
    )  # fmt: skip
    return ((header + b"".join(segments)).ljust(START, b"\0") + code).ljust(COUNTER, b"\0") + data


@contextmanager
def installed(machine: str, code: bytes = b"") -> Iterator[str]:
    """A path under which this process and its children find the program; no name of it stays even if both are killed.

    Raises OSError.
    """
    descriptor, path = tempfile.mkstemp(prefix="kdiff-doctor-", dir=_executable_directory())
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(image(machine, code))
        os.chmod(path, 0o500)
        reading = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.unlink(path)
    try:
        yield f"/proc/{os.getpid()}/fd/{reading}"
    finally:
        os.close(reading)


def _executable_directory() -> str:
    for directory in (tempfile.gettempdir(), "/run", "/dev/shm", "/var/tmp"):
        try:
            allowed = not os.statvfs(directory).f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
        except OSError:
            continue
        if allowed and os.access(Path(directory), os.W_OK):
            return directory
    return tempfile.gettempdir()
