"""The service of each process of a recording, over time: exec makes another program of a process."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from kdiff.agent import procfs
from kdiff.agent.services import ENVIRONMENT, UNKNOWN, Facts, Program, service_of

MOST: Final = 200
"""Names at a time. A store, a chart and a scrape are not to grow without bound by what processes call themselves."""
OTHER: Final = "other"
"""What is called by none of its own, because there are MOST."""
_UNUSED_S: Final = 86_400.0  # after which a name makes room for another
_MOST_ANCESTORS: Final = 16

Period = tuple[int, str]  # since when, monotonic ns, and the name


def facts_of(pid: int) -> Facts:
    """What /proc tells of a process now; what cannot be read is left out."""
    own = procfs.speaker(pid)
    cgroups = procfs.cgroups(own)
    family = [own, *_ancestors(pid, cgroups)]
    read = (procfs.environment(member, ENVIRONMENT) for member in family)
    return Facts(
        cgroups,
        next((found for found in read if found is not None), {}),
        [Program(os.path.basename(procfs.executable(member)), procfs.arguments(member)) for member in family],
        _names_of_host(),
        procfs.own_hostname(own),
    )


def _ancestors(pid: int, cgroups: list[str]) -> Iterator[int]:
    """Those in the same control group, its parent first: what is outside is another service, or a manager of them."""
    for ancestor in [*zip(range(_MOST_ANCESTORS + 1), procfs.ancestors(pid), strict=False)][1:]:
        if procfs.cgroups(ancestor[1]) != cgroups:
            return
        yield ancestor[1]


def _names_of_host() -> frozenset[str]:
    names = {socket.gethostname()}
    with contextlib.suppress(OSError, ValueError):  # an agent in a container may have another name for it
        names.add(Path("/proc/1/root/etc/hostname").read_text().strip())
    return frozenset({*names, *(name.partition(".")[0] for name in names)} - {""})


class Services:
    """One name for all, or each process's own."""

    def __init__(
        self,
        fixed: str = "",
        note: Callable[[str], None] = lambda _: None,
        facts: Callable[[int], Facts] = facts_of,
        most: int = MOST,
    ) -> None:
        """`fixed`: the one name; '': each its own. `note` takes warnings."""
        self.fixed = fixed
        self._note = note
        self._facts = facts
        self._most = most
        self._periods: dict[int, list[Period]] = {}
        self._used: dict[str, float] = {}  # of each name when it was last decided on or in use, monotonic seconds
        self._renamed: set[int] = set()

    def decide(self, pid: int, since_ns: int) -> None:
        """Looks at a process that was not seen before, or that is another program since then (monotonic ns)."""
        if self.fixed:
            return
        name = self._admitted(service_of(self._facts(pid)), time.monotonic())
        periods = self._periods.setdefault(pid, [])
        if periods and periods[-1][1] == name:
            return
        if periods:
            self._renamed.add(pid)
            since_ns = max(since_ns, periods[-1][0])  # one that is told by an older call is not therefore an older name
        periods.append((since_ns, name))

    def periods(self, pid: int) -> list[Period]:
        """The names of a process, ascending, the first of which it had from its start; one at least."""
        return self._periods.get(pid) or [(0, self.fixed or service_of(Facts()))]

    def at(self, pid: int, monotonic_ns: int) -> str:
        """The name of a process at a time."""
        periods = self.periods(pid)
        return next((name for since, name in reversed(periods) if since <= monotonic_ns), periods[0][1])

    def of_losses(self, pid: int) -> str:
        """Who lost what a process has lost since `losses_read`; '' where that is not known."""
        if self.fixed:
            return self.fixed
        return "" if pid in self._renamed or pid not in self._periods else self._periods[pid][-1][1]

    def losses_read(self) -> None:
        """All that was lost so far has been asked about."""
        self._renamed.clear()

    def forget(self, pid: int) -> None:
        """The process ended some time ago: its rows are written."""
        for _, name in self._periods.pop(pid, ()):
            self._used[name] = time.monotonic()

    def _admitted(self, name: str, now: float) -> str:
        """The name, or OTHER where there is no room for one more."""
        if name not in self._used and len(self._used) >= self._most:
            for living in self._living() & self._used.keys():
                self._used[living] = now
            for unused in [known for known, at in self._used.items() if now - at > _UNUSED_S]:
                del self._used[unused]
            if len(self._used) >= self._most:
                self._note(
                    f"there are {self._most} services on this host: further ones are called {OTHER}; "
                    "name them all with --service, or choose processes with --include and --exclude"
                )
                return OTHER
        self._used[name] = now
        return name

    def _living(self) -> set[str]:
        return {name for periods in self._periods.values() for _, name in periods}

    @property
    def names(self) -> set[str]:
        """Those that have room, and what the rest is called."""
        return {self.fixed} if self.fixed else {*self._used, OTHER, UNKNOWN}
