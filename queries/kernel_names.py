"""How kernels are called in every table: demangled by libstdc++, the one behind c++filt, and numbered by a hash."""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import re
import subprocess
import sys
from functools import lru_cache
from typing import Final

_MAX_MANGLED: Final = 65536
_MAX_DEMANGLED: Final = 65536
# A reference may stand for text with two references in it, and so on: each three of them make it three times as long.
_REFERENCE: Final = re.compile(r"S[0-9A-Z]*_|T[0-9A-Z]*_")
_MOST_REFERENCES: Final = 24
_PACK: Final = re.compile("Dp|sZ|sP")
_MOST_PACKS: Final = 1
_ENDED_AFTER_S: Final = 2.0
_MOST_ENDED: Final = 3
_PROGRAM: Final = """
import ctypes, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))
resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
cxx = ctypes.CDLL(sys.argv[1])
cxx.__cxa_demangle.restype = ctypes.c_void_p
found = cxx.__cxa_demangle(sys.argv[2].encode(), None, None, None)
sys.stdout.buffer.write(ctypes.string_at(found)[:int(sys.argv[3]) + 1] if found else b"")
"""
_ended = 0


@lru_cache(maxsize=1)
def _file() -> str:
    return ctypes.util.find_library("stdc++") or "libstdc++.so.6"


@lru_cache(maxsize=1)
def _library() -> tuple[ctypes.CDLL, ctypes.CDLL] | None:
    try:
        cxx = ctypes.CDLL(_file())
    except OSError:
        return None
    cxx.__cxa_demangle.restype = ctypes.c_void_p
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    return cxx, libc


@lru_cache(maxsize=65536)
def demangle(name: str) -> str:
    """The C++ name; `name` itself when it is not mangled, broken, or libstdc++ is not there.

    libstdc++ gives up on names of more than 1,024 characters: they stay as they are. So do those that are demangled to
    more than 65,536: of 150 characters it would make gigabytes. Names that could be such are demangled by a process
    that may use a second and 256 MB, and none any more once three were ended by that.
    """
    libraries = _library()
    if not name.startswith("_Z") or len(name) > _MAX_MANGLED or libraries is None or not name.isprintable():
        return name
    if len(_REFERENCE.findall(name)) > _MOST_REFERENCES or len(_PACK.findall(name)) > _MOST_PACKS:
        return _apart(name)
    cxx, libc = libraries
    status = ctypes.c_int()
    found = cxx.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not found:
        return name
    try:
        return _short(ctypes.string_at(found), name) if status.value == 0 else name
    finally:
        libc.free(found)


def _apart(name: str) -> str:
    global _ended
    if _ended >= _MOST_ENDED or not sys.executable:
        return name
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, _file(), name, str(_MAX_DEMANGLED)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ENDED_AFTER_S, check=False
        )
    except subprocess.TimeoutExpired:
        _ended += 1
        return name
    except OSError:
        return name
    _ended += done.returncode != 0
    return _short(done.stdout, name) if done.returncode == 0 else name


def _short(found: bytes, name: str) -> str:
    return found.decode(errors="replace") if 0 < len(found) <= _MAX_DEMANGLED else name


def kernel_id(mangled: str) -> int:
    """64-bit hash of the mangled name: the same on every host and in every run."""
    return int.from_bytes(hashlib.blake2b(mangled.encode(), digest_size=8).digest(), "little")
