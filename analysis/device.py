"""What of a window was timed on the device: each process in device windows of its own, some of the time.

A count of executions is then no count of launches. What is compared between windows is a rate a covered second, and
what stands for the whole window is scaled by the share of the process's time that was timed. A capture without device
windows was timed all the time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kdiff.analysis.columns import as_column, column
from kdiff.analysis.scope import NOTHING_CUT, Cutting, inside, without
from kdiff.analysis.window import Window

Process = tuple[str, int]
"""(host, pid)."""

Stretches = NDArray[np.int64]
"""Shape (k, 2): from and to in Unix ns, ascending and disjoint, inside the window."""

UNHEARD_SHARE: Final = 0.01
"""Below this share of a window's launches, processes that were not timed on the device are not worth a warning."""


@dataclass(frozen=True, eq=False)
class DeviceRecording:
    """How well the device timed a window.

    Attributes:
        windows: device windows that overlap the window; 0 where it was timed all the time, or not at all.
        executions, uncollected, dropped, lost: by the account of those windows, which count whole.
        clock_error_ns: the largest distance of their times from the host's clock.
        stretches: when each process was timed; empty where only `sums_ns` tell for how long.
        alive_ns: how long each process lived in the window, as far as is known; not less than its stretches.
        unheard: launches of processes that were not timed while others were, by host.
        launches: of all processes.
        sums_ns: for how long each process was timed, where that is all that is known.
    """

    windows: int = 0
    executions: int = 0
    uncollected: int = 0
    dropped: int = 0
    lost: int = 0
    clock_error_ns: int = 0
    stretches: Mapping[Process, Stretches] = field(default_factory=dict)
    alive_ns: Mapping[Process, int] = field(default_factory=dict)
    unheard: Mapping[str, int] = field(default_factory=dict)
    launches: int = 0
    sums_ns: Mapping[Process, int] = field(default_factory=dict)

    @cached_property
    def timed_ns(self) -> Mapping[Process, int]:
        """For how long each process was timed."""
        return self.sums_ns or {process: _length(stretches) for process, stretches in self.stretches.items()}

    @property
    def missing(self) -> int:
        """Executions that ran in a device window and have no row."""
        return self.uncollected + self.dropped + self.lost

    @property
    def loss(self) -> float:
        """The share of executions that have no row."""
        return self.missing / (self.executions + self.missing) if self.missing else 0.0

    @property
    def covered_ns(self) -> int:
        """Time that was timed on the device, summed over processes."""
        return sum(self.timed_ns.values())

    @property
    def coverage(self) -> float:
        """The share of its processes' time that was timed on the device, in [0, 1]."""
        alive = sum(self.alive_ns.values())
        return self.covered_ns / alive if alive else 0.0

    def scale(self, process: Process) -> float:
        """How many executions one that was timed stands for; 1 where nothing is known."""
        covered = self.timed_ns.get(process, 0)
        return max(1.0, self.alive_ns[process] / covered) if covered else 1.0

    def warnings(self, side: str) -> list[str]:
        """What was not timed while other processes were, one sentence a host."""
        return [
            f"{launches:,} launches on the host '{host}' in the {side} window are of processes without device windows: "
            "device times are of the other processes only"
            for host, launches in self.unheard.items()
            if launches > UNHEARD_SHARE * self.launches
        ]


def read_device(
    window: Window,
    windows: pa.Table,
    processes: Sequence[Mapping[str, Any]],
    timed: Sequence[Process],
    cutting: Cutting = NOTHING_CUT,
) -> DeviceRecording:
    """Put together what queries/sql/device_windows.sql and processes.sql say of `window`.

    `timed` are the processes with executions in it. What `cutting` cuts of a process was not timed, and it did not live
    then; device windows that lie in a cut of theirs are left out.
    """
    launched = {(row["host"], row["pid"]): row for row in processes}
    launches = sum(row["launches"] for row in processes)
    whole = np.array([[window.from_ns, window.to_ns]], np.int64)
    if not windows.num_rows:
        every = {process: without(whole, cutting.of(*process)) for process in timed}
        alive = {process: _length(stretches) for process, stretches in every.items()}
        return DeviceRecording(
            stretches=every, alive_ns=alive, unheard=_unheard(launched, every) if every else {}, launches=launches
        )
    windows = _uncut(windows, cutting)
    stretches = _stretches(window, windows, cutting)
    bounds = {process: (int(its[0, 0]), int(its[-1, 1])) for process, its in stretches.items() if len(its)}
    # Python's integers: a sum that wraps around would hide a loss.
    totals = {name: sum(column(windows, name, np.uint64).tolist()) for name in _COUNTS}
    return DeviceRecording(
        windows=windows.num_rows,
        clock_error_ns=int(column(windows, "clock_error_ns", np.int64).max(initial=0)),
        stretches=stretches,
        alive_ns=_alive(launched, stretches, bounds, cutting),
        unheard=_unheard(launched, stretches),
        launches=launches,
        **totals,
    )


def read_hours(
    window: Window, hours: pa.Table, processes: Sequence[Mapping[str, Any]], timed: Sequence[Process]
) -> DeviceRecording:
    """The same from queries/sql/hours_device.sql: for how long each process was timed, not when."""
    if not hours.num_rows:
        return read_device(window, hours, processes, timed)
    launched = {(row["host"], row["pid"]): row for row in processes}
    rows = {(row["host"], row["pid"]): row for row in hours.to_pylist()}
    bounds = {process: (row["first_ns"], row["last_ns"]) for process, row in rows.items() if row["covered_ns"]}
    # Windows that overlap are not told from others: their union is no longer than from the first to the last.
    sums = {
        process: min(row["covered_ns"], row["last_ns"] - row["first_ns"]) if process in bounds else 0
        for process, row in rows.items()
    }
    totals = {name: sum(row[name] for row in rows.values()) for name in ("windows", *_COUNTS)}
    return DeviceRecording(
        clock_error_ns=max(row["clock_error_ns"] for row in rows.values()),
        alive_ns=_alive(launched, sums, bounds),
        unheard=_unheard(launched, sums),
        launches=sum(row["launches"] for row in processes),
        sums_ns=sums,
        **totals,
    )


_COUNTS: Final = ("executions", "uncollected", "dropped", "lost")


def _uncut(windows: pa.Table, cutting: Cutting) -> pa.Table:
    """The device windows that do not lie wholly in a cut of their process."""
    if not cutting or not windows.num_rows:
        return windows
    start, end = (column(windows, name, np.int64) for name in ("from_ns", "to_ns"))
    kept = np.ones(start.shape, np.bool_)
    places: dict[Process, list[int]] = {}
    for place, process in enumerate(zip(windows["host"].to_pylist(), windows["pid"].to_pylist(), strict=True)):
        places.setdefault(process, []).append(place)
    for process, its in places.items():
        kept[its] = ~inside(start[its], end[its], cutting.of(*process))
    return windows.filter(as_column(kept.astype(np.uint8)).cast(pa.bool_()))


def _stretches(window: Window, windows: pa.Table, cutting: Cutting) -> dict[Process, Stretches]:
    """The device windows of each process, cut to `window`, joined where they overlap, without what is cut."""
    start = np.maximum(column(windows, "from_ns", np.int64), window.from_ns)
    end = np.minimum(column(windows, "to_ns", np.int64), window.to_ns)
    found: dict[Process, list[tuple[int, int]]] = {}
    hosts, pids = windows["host"].to_pylist(), windows["pid"].to_pylist()
    for host, pid, a, b in zip(hosts, pids, start.tolist(), end.tolist(), strict=True):
        its = found.setdefault((host, pid), [])
        if its and a <= its[-1][1]:
            its[-1] = (its[-1][0], max(its[-1][1], b))
        elif b > a:
            its.append((a, b))
    return {
        process: without(np.array(its, np.int64).reshape(-1, 2), cutting.of(*process)) for process, its in found.items()
    }


def _alive(
    launched: Mapping[Process, Mapping[str, Any]],
    timed: Collection[Process],
    bounds: Mapping[Process, tuple[int, int]],
    cutting: Cutting = NOTHING_CUT,
) -> dict[Process, int]:
    """From the first to the last that is known of each process: what it launched, and its `bounds`; what is cut of it
    does not count.
    """
    alive = {}
    for process in launched.keys() | set(timed):
        moments = list(bounds.get(process, ()))
        if process in launched:
            moments += [launched[process]["first_ns"], launched[process]["last_ns"]]
        life = np.array([[min(moments, default=0), max(moments, default=0)]], np.int64)
        alive[process] = _length(without(life, cutting.of(*process)))
    return alive


def _unheard(launched: Mapping[Process, Mapping[str, Any]], timed: Collection[Process]) -> dict[str, int]:
    found: dict[str, int] = {}
    for (host, pid), row in sorted(launched.items()):
        if (host, pid) not in timed:
            found[host] = found.get(host, 0) + row["launches"]
    return found


def _length(stretches: Stretches) -> int:
    return int((stretches[:, 1] - stretches[:, 0]).sum())
