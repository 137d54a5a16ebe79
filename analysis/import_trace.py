"""What a trace holds that a capture needs, whatever wrote it: kernels and the calls that launched them.

Kernels go to a file at once; launches stay in memory, 30 bytes each and as much again while they are sorted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from kdiff.queries.kernel_names import demangle

KERNEL: Final = np.dtype(
    [
        ("start_ns", "i8"),
        ("duration_ns", "i8"),
        ("name", "u4"),  # place in Labels.kernels
        ("gpu", "u4"),  # place in Labels.gpus
        ("pid", "u4"),
        ("correlation", "u4"),
        ("context", "u4"),
        ("stream", "u4"),
        *[(f"grid_{axis}", "u4") for axis in "xyz"],
        *[(f"block_{axis}", "u4") for axis in "xyz"],
        ("registers", "u2"),
        ("static_shared", "u4"),
        ("dynamic_shared", "u4"),
        ("local_bytes", "u4"),
        ("graph_id", "u4"),
        ("graph_node_id", "u8"),
    ]
)
"""Times in ns since the trace's zero; memory in bytes."""
LAUNCH: Final = np.dtype(
    [
        ("pid", "u4"),
        ("correlation", "u4"),
        ("start_ns", "i8"),
        ("duration_ns", "i8"),
        ("tid", "u4"),
        ("api", "u2"),  # place in Labels.apis
    ]
)

U16: Final = 2**16 - 1
U32: Final = 2**32 - 1
U64: Final = 2**64 - 1
BATCH: Final = 65_536
"""Rows that a reader hands over at once."""
NO_NAME: Final = "unresolved:unknown"
UNIX_NS: Final = 10**17
"""From here on (March 1973) a time is since 1970, not since the trace's zero."""
_LONGEST_NS: Final = 2**61


@dataclass
class Labels:
    """The texts of an import, each once, in order of appearance."""

    kernels: dict[tuple[str, str], int] = field(default_factory=dict)
    """(mangled, name)."""
    gpus: dict[str, int] = field(default_factory=dict)
    apis: dict[str, int] = field(default_factory=dict)

    def kernel(self, mangled: str) -> int:
        """The place of a kernel, whose name a trace may have demangled already."""
        mangled = storable(mangled) or NO_NAME
        return self.kernels.setdefault((mangled, demangle(mangled)), len(self.kernels))

    def gpu(self, name: str) -> int:
        """The place of a GPU."""
        return self.gpus.setdefault(storable(name), len(self.gpus))

    def api(self, name: str) -> int:
        """The place of a function of CUDA; beyond 65,536 of them they are one."""
        return min(self.apis.setdefault(storable(name)[:200], len(self.apis)), U16)


@dataclass
class Extent:
    """What one process did in one trace, in the trace's time."""

    first_ns: int
    last_ns: int
    executions: int = 0
    uncollected: int = 0
    """Kernels without times, or with such as make no sense."""


@dataclass
class Trace:
    """One file that was read.

    Attributes:
        rows: the file with its KERNEL rows; `count` of them.
        launches: LAUNCH rows, ascending by pid and correlation, each pair once.
        unix: whether times are since 1970.
        host: '' where the file does not say.
        extents: by pid.
        duration_ns: of all kernels together.
        notes: what the user must know of it, one sentence each.
        pid: of all rows, whatever they say; None where they do say.
        shift_ns: to be added to the times of `rows`; `launches` and `extents` have it.
    """

    path: Path
    rows: Path
    count: int = 0
    launches: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, LAUNCH))
    unix: bool = False
    host: str = ""
    extents: dict[int, Extent] = field(default_factory=dict)
    duration_ns: int = 0
    notes: list[str] = field(default_factory=list)
    pid: int | None = None
    shift_ns: int = 0

    @property
    def first_ns(self) -> int:
        """When its first kernel started."""
        return min(extent.first_ns for extent in self.extents.values() if extent.executions)

    @property
    def last_ns(self) -> int:
        """When its last kernel ended."""
        return max(extent.last_ns for extent in self.extents.values() if extent.executions)

    @property
    def uncollected(self) -> int:
        """Kernels that were dropped."""
        return sum(extent.uncollected for extent in self.extents.values())


class Collector:
    """Takes what a reader finds in one file."""

    def __init__(self, trace: Trace, labels: Labels, file: IO[bytes]) -> None:
        self.trace = trace
        self.labels = labels
        self._file = file
        self._launches: list[NDArray[np.void]] = []

    def kernels(self, rows: list[tuple[int, ...]]) -> None:
        """Takes KERNEL rows, each within its types. Raises OSError."""
        if rows:
            self._add(np.array(rows, KERNEL))

    def launches(self, rows: list[tuple[int, ...]]) -> None:
        """Takes LAUNCH rows, each within its types."""
        if rows:
            self._launches.append(np.array(rows, LAUNCH))

    def finish(self) -> None:
        """Brings the launches in order. Of calls of one number the first to begin is kept: the outermost."""
        if not self._launches:
            return
        launches = np.concatenate(self._launches)
        self._launches.clear()
        launches = launches[np.lexsort((launches["start_ns"], launches["correlation"], launches["pid"]))]
        key = keys(launches)
        self.trace.launches = launches[np.concatenate([[True], key[1:] != key[:-1]])]

    def settle(self, pid: int, shift_ns: int) -> None:
        """All rows are of one process, and their times `shift_ns` later: known only at the end. After `finish`."""
        trace = self.trace
        trace.pid, trace.shift_ns = pid, shift_ns
        trace.launches["pid"] = pid
        trace.launches["start_ns"] += shift_ns
        for extent in trace.extents.values():
            extent.first_ns += shift_ns
            extent.last_ns += shift_ns
        trace.extents = dict(zip([pid], trace.extents.values(), strict=False))

    def _add(self, rows: NDArray[np.void]) -> None:
        start, duration = rows["start_ns"], rows["duration_ns"]
        sense = (duration > 0) & (duration < _LONGEST_NS) & (np.abs(start // 2) < _LONGEST_NS // 2)
        for pid in np.unique(rows["pid"]).tolist():
            mine = rows["pid"] == pid
            kept = rows[mine & sense]
            extent = self.trace.extents.setdefault(pid, Extent(_LONGEST_NS, -_LONGEST_NS))
            extent.uncollected += int(mine.sum()) - len(kept)
            extent.executions += len(kept)
            if len(kept):
                extent.first_ns = min(extent.first_ns, int(kept["start_ns"].min()))
                extent.last_ns = max(extent.last_ns, int((kept["start_ns"] + kept["duration_ns"]).max()))
        kept = rows[sense]
        self._file.write(kept.tobytes())
        self.trace.count += len(kept)
        self.trace.duration_ns += int(kept["duration_ns"].sum())


def keys(rows: NDArray[np.void]) -> NDArray[np.uint64]:
    """What joins kernels and launches: correlations are numbered by process."""
    joined: NDArray[np.uint64] = rows["pid"].astype(np.uint64) << np.uint64(32) | rows["correlation"]
    return joined


def unsigned(value: Any, most: int = U32) -> int:
    """A number of a trace within [0, most]; what is no number, or negative, is 0."""
    if type(value) is int:
        return value if 0 <= value <= most else (most if value > 0 else 0)
    try:
        return min(max(int(float(value)), 0), most)
    except (TypeError, ValueError, OverflowError):
        return 0


def signed(value: int | None) -> int:
    """A time within 63 bits; 2**61 and more, which no trace has, is dropped as senseless; so is None."""
    return _LONGEST_NS if value is None else min(max(value, -_LONGEST_NS), _LONGEST_NS)


def storable(text: str) -> str:
    """`text` as UTF-8 can hold it: halves of surrogate pairs, which JSON can name, are escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
