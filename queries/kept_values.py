"""Values that kdiff keeps in files beside a capture: written whole, and not believed when they are read."""

from __future__ import annotations

import os
import sys
from typing import Any


def write_all(fd: int, data: bytes) -> None:
    """All of it, however little the system takes at a time. Raises OSError."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def value_of(kind: str, value: Any) -> Any:
    """`value` of JSON as a field of type `kind`, which is not negative where it is a number. Raises TypeError."""
    if value is None and kind.endswith("| None"):
        return None
    if kind.startswith("tuple"):
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise TypeError(kind)
        return tuple(value)
    if kind == "str":
        if not isinstance(value, str):
            raise TypeError(kind)
        return value
    # JSON's integers have no bound: one may be no time, nor fit into a float.
    most = 2**63 - 1 if kind.startswith("int") else sys.float_info.max
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise TypeError(kind)
    return int(value) if kind.startswith("int") else float(value)
