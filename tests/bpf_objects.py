"""What of BPF the kernel holds, whoever holds it: what an agent leaves behind would be there."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import time
from collections import Counter
from typing import Final

_BPF: Final = {"x86_64": 321, "aarch64": 280}
_PROGRAM_NEXT, _MAP_NEXT, _LINK_NEXT = 11, 12, 31
_PROGRAM_BY_ID, _MAP_BY_ID, _INFO = 13, 14, 15
_NAME_AT: Final = {_PROGRAM_BY_ID: 64, _MAP_BY_ID: 24}  # in struct bpf_prog_info and bpf_map_info
_libc = ctypes.CDLL(None, use_errno=True)


def held() -> Counter[str]:
    """How many there are of each: 'program NAME', 'map NAME', 'link'."""
    found = Counter(f"program {_name(_PROGRAM_BY_ID, one)}" for one in _ids(_PROGRAM_NEXT))
    found += Counter(f"map {_name(_MAP_BY_ID, one)}" for one in _ids(_MAP_NEXT))
    return found + Counter("link" for _ in _ids(_LINK_NEXT))


def left_over(before: Counter[str], within_s: float = 15.0) -> Counter[str]:
    """What there is more than `before`, once nothing is or the time is up: the kernel frees with a delay."""
    deadline = time.monotonic() + within_s
    while (more := held() - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    return more


def _ids(command: int) -> list[int]:
    ids = []
    attr = bytearray(struct.pack("=III", 0, 0, 0))
    while _bpf(command, attr) >= 0:
        ids.append(struct.unpack_from("=I", attr, 4)[0])
        struct.pack_into("=I", attr, 0, ids[-1])
    return ids


def _name(command: int, number: int) -> str:
    fd = _bpf(command, bytearray(struct.pack("=III", number, 0, 0)))
    if fd < 0:
        return "gone"
    info = ctypes.create_string_buffer(256)
    try:
        _bpf(_INFO, bytearray(struct.pack("=IIQ", fd, len(info), ctypes.addressof(info))))
    finally:
        os.close(fd)
    at = _NAME_AT[command]
    return info.raw[at : at + 16].rstrip(b"\0").decode()


def _bpf(command: int, attr: bytearray) -> int:
    there = (ctypes.c_char * len(attr)).from_buffer(attr)
    return int(_libc.syscall(ctypes.c_long(_BPF[platform.machine()]), ctypes.c_long(command), there, len(attr)))
