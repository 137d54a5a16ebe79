"""What of a store is compared: some hosts, and not what processes did in stretches that are cut out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis.window import MINUTE_NS, Window
from kdiff.queries.narrowing import Narrowing, Strata

Cuts = NDArray[np.int64]
"""Shape (k, 2): from and to in Unix ns, ascending and disjoint."""

_NONE: Final[Cuts] = np.empty((0, 2), np.int64)
_LAST_PID: Final = 2**32 - 1
_LAST_NS: Final = 2**62


@dataclass(frozen=True, slots=True)
class Cut:
    """Launches, executions and their times that begin in [from_ns, to_ns) do not count.

    Attributes:
        host: '' is every host.
        pid: 0 is every process of the host; the accounts of what was recorded are then cut too.
        from_ns, to_ns: Unix ns.
        why: what is wrong with them, for people.

    Raises:
        ValueError: if it ends before it begins, or lies out of 64 bits.
    """

    host: str
    pid: int
    from_ns: int
    to_ns: int
    why: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.from_ns < self.to_ns <= _LAST_NS:
            raise ValueError("a cut lies between 1970 and 2116, and ends after it begins")
        if not 0 <= self.pid <= _LAST_PID:
            raise ValueError("a process has a number of 32 bits")


@dataclass(frozen=True, slots=True)
class Scope:
    """What counts of a window.

    Attributes:
        hosts: only these; none: all.
        cuts: what does not count.
        by_host: the stretches of samples are the hosts, in the order of `hosts`, and no stretches of time.

    Raises:
        ValueError: if a host is named twice, or `by_host` without hosts.
    """

    hosts: tuple[str, ...] = ()
    cuts: tuple[Cut, ...] = ()
    by_host: bool = False

    def __post_init__(self) -> None:
        if len(set(self.hosts)) < len(self.hosts):
            raise ValueError("a host counts once")
        if self.by_host and not self.hosts:
            raise ValueError("samples by host need the hosts")

    def __bool__(self) -> bool:
        """Whether it leaves anything out, or asks for samples of another kind."""
        return bool(self.hosts or self.cuts)

    @property
    def of_processes(self) -> bool:
        """Whether it cuts some processes of a host and not others."""
        return any(cut.pid for cut in self.cuts)

    def of_hosts(self) -> Scope:
        """The same without the cuts of single processes."""
        return Scope(self.hosts, tuple(cut for cut in self.cuts if not cut.pid), self.by_host)


class Cutting:
    """The cuts of a scope as a window is read with: of whole minutes where that is read from roll-ups."""

    def __init__(self, scope: Scope, whole_minutes: bool) -> None:
        """Nothing is read."""
        unit = MINUTE_NS if whole_minutes else 1
        self._cuts = [
            (cut.host, cut.pid, cut.from_ns // unit * unit, -(-cut.to_ns // unit) * unit) for cut in scope.cuts
        ]
        self._hosts = scope.hosts
        self._by_host = scope.by_host

    def __bool__(self) -> bool:
        return bool(self._cuts)

    def narrowing(self, window: Window, strata: Strata | None = None, inverse: bool = False) -> Narrowing:
        """For the queries of `window`."""
        around = window.from_ns, window.to_ns
        return Narrowing(self._hosts, tuple(self._cuts), around, self._by_host, strata, inverse)

    @cached_property
    def _by_process(self) -> Mapping[tuple[str, int], Cuts]:
        found: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for host, pid, start, end in self._cuts:
            found.setdefault((host, pid), []).append((start, end))
        return {process: joined(np.array(its, np.int64)) for process, its in found.items()}

    def of(self, host: str, pid: int = 0) -> Cuts:
        """What is cut of a process; pid 0: of all processes of the host."""
        names = {("", 0), (host, 0), ("", pid), (host, pid)}
        found = [self._by_process[name] for name in names if name in self._by_process]
        return joined(np.concatenate(found)) if found else _NONE


NOTHING_CUT: Final = Cutting(Scope(), whole_minutes=False)


def joined(stretches: Cuts) -> Cuts:
    """The union of stretches, shape (n, 2) to (k, 2): ascending, disjoint, none touching another."""
    if len(stretches) < 2:
        return stretches
    stretches = stretches[np.lexsort((stretches[:, 1], stretches[:, 0]))]
    reached = np.maximum.accumulate(stretches[:, 1])
    first = np.flatnonzero(np.concatenate([[True], stretches[1:, 0] > reached[:-1]]))
    last = np.append(first[1:], len(stretches)) - 1
    return np.stack([stretches[first, 0], reached[last]], axis=1)


def without(stretches: Cuts, cuts: Cuts) -> Cuts:
    """What of stretches, shape (n, 2), in any order, lies outside of `cuts`, shape (k, 2), as `joined` has them.

    The pieces of a stretch stay together; empty ones are left out.
    """
    if not len(cuts) or not len(stretches):
        return stretches
    # The gaps between cuts: gap i ends where cut i begins.
    opens = np.append(np.iinfo(np.int64).min, cuts[:, 1])
    closes = np.append(cuts[:, 0], np.iinfo(np.int64).max)
    first = np.searchsorted(closes, stretches[:, 0], side="right")
    last = np.searchsorted(opens, stretches[:, 1], side="left")
    count = np.maximum(last - first, 0)
    row = np.repeat(np.arange(len(stretches)), count)
    gap = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + first[row]
    pieces = np.stack([np.maximum(stretches[row, 0], opens[gap]), np.minimum(stretches[row, 1], closes[gap])], axis=1)
    return pieces[pieces[:, 1] > pieces[:, 0]]


def inside(start: NDArray[np.int64], end: NDArray[np.int64], cuts: Cuts) -> NDArray[np.bool_]:
    """Which of the stretches [start, end), shapes (n,), lie wholly in one of `cuts`, as `joined` has them."""
    if not len(cuts):
        return np.zeros(start.shape, np.bool_)
    place = np.searchsorted(cuts[:, 0], start, side="right") - 1
    found: NDArray[np.bool_] = (place >= 0) & (np.maximum(start, end) <= cuts[np.maximum(place, 0), 1])
    return found
