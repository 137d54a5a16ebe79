"""C++ names for people: libstdc++'s demangler, the one behind c++filt."""

from __future__ import annotations

import ctypes
import ctypes.util
from functools import lru_cache
from typing import Final

_MAX_MANGLED: Final = 65536


@lru_cache(maxsize=1)
def _library() -> tuple[ctypes.CDLL, ctypes.CDLL] | None:
    try:
        cxx = ctypes.CDLL(ctypes.util.find_library("stdc++") or "libstdc++.so.6")
    except OSError:
        return None
    cxx.__cxa_demangle.restype = ctypes.c_void_p
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    return cxx, libc


@lru_cache(maxsize=65536)
def demangle(name: str) -> str:
    """The C++ name; `name` itself when it is not mangled, broken, or libstdc++ is not there.

    libstdc++ gives up on names of more than 1,024 characters: they stay as they are.
    """
    libraries = _library()
    if not name.startswith("_Z") or len(name) > _MAX_MANGLED or libraries is None:
        return name
    cxx, libc = libraries
    status = ctypes.c_int()
    found = cxx.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not found:
        return name
    try:
        return ctypes.string_at(found).decode(errors="replace") if status.value == 0 else name
    finally:
        libc.free(found)
