"""What a recording counts about itself, for each service."""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kdiff.agent.clock import Steps
from kdiff.probes.wire import Kind
from kdiff.queries.tables import AGENT_HEALTH

if TYPE_CHECKING:
    from kdiff.agent.bpf import Program

NOBODY: Final = 0
"""The pid of losses that BPF had no room to count for a process of their own."""


@dataclass
class Losses:
    """Records that BPF could not hand over because a ring was full, by kind.

    `executions`: on the device, whose loss `device_windows` accounts for.
    """

    launches: int = 0
    syncs: int = 0
    other: int = 0
    executions: int = 0

    @property
    def total(self) -> int:
        """Of every kind that `agent_health` accounts for."""
        return self.launches + self.syncs + self.other

    @classmethod
    def of(cls, kind: int, count: int) -> Losses:
        """`count` of one kind."""
        if kind in (Kind.LAUNCH, Kind.GRAPH_LAUNCH):
            return cls(launches=count)
        if kind == Kind.SYNC:
            return cls(syncs=count)
        return cls(executions=count) if kind == Kind.EXECUTION else cls(other=count)

    def __add__(self, other: Losses) -> Losses:
        return Losses(
            self.launches + other.launches,
            self.syncs + other.syncs,
            self.other + other.other,
            self.executions + other.executions,
        )


class LossCounters:
    """What BPF has counted: each loss once, for its process or, where there was no room for that, for NOBODY."""

    def __init__(self, program: Program, take: Callable[[Any, Any], int] | None = None) -> None:
        """`take(table, key)`: deletes an entry of a hash and returns what it was, in one step."""
        self._take = take or _take
        self._late: Counter[tuple[int, int]] = Counter()  # what was counted between the last read and `forget`
        self._total = program.map("lost")
        self._by_process = program.map("lost_by")
        self._of_nobody = program.map("lost_of_nobody")
        self._read: dict[tuple[int, int], int] = {}  # pid and kind
        self._changes = 0

    def read(self, *, last: bool = False) -> dict[int, Losses]:
        """What was lost since the last time, by pid. `last`: no probe is left, nothing may be passed over."""
        # It is counted after the others: where it stands still nothing new is in them that will not move it yet.
        changes = sum(_on_all_cpus(self._total))
        if changes == self._changes and not last and not self._late:
            return {}
        self._changes = changes
        found: dict[int, Losses] = {}
        for (pid, kind), more in self._late.items():
            found[pid] = found.get(pid, Losses()) + Losses.of(kind, more)
        self._late.clear()
        for pid, kind, count in self._counted():
            more = count - self._read.get((pid, kind), 0)
            if more:
                self._read[pid, kind] = count
                found[pid] = found.get(pid, Losses()) + Losses.of(kind, more)
        return found

    def _counted(self) -> Iterator[tuple[int, int, int]]:
        for key, count in self._by_process.items():
            yield int(key.pid), int(key.kind), int(count.value)
        for kind, count in enumerate(_on_all_cpus(self._of_nobody)):
            yield NOBODY, kind, count

    def forget(self, pid: int) -> None:
        """Makes room for others: the process has ended. What was counted and not read yet stays, to be read."""
        for key in [key for key in self._read if key[0] == pid]:
            entry = self._by_process.Key(*key)
            if entry in self._by_process and int(self._by_process[entry].value) == self._read[key]:
                # Its pid may be another's by now, which loses something at this moment.
                more = self._take(self._by_process, entry) - self._read.pop(key)
                if more > 0:
                    self._late[key] += more


def _take(table: Any, key: Any) -> int:
    from bcc import lib

    value = table.Leaf()
    # ENOENT: it is gone, and was read to the end.
    return (
        int(value.value) if lib.bpf_lookup_and_delete(table.map_fd, ctypes.byref(key), ctypes.byref(value)) == 0 else 0
    )


def _on_all_cpus(table: Any) -> list[int]:
    """Per-CPU counters by kind."""
    return [int(table.sum(ctypes.c_int(kind)).value) for kind in range(len(Kind))]


@dataclass
class ServiceCounts:
    """What was counted of one service. `dropped`: rows given up because the disk stayed full."""

    events: int = 0
    unresolved_launches: int = 0
    dropped: Losses = field(default_factory=Losses)
    orphaned: int = 0  # events of processes that ended before it was known whose they were
    lost: Losses = field(default_factory=Losses)

    def __add__(self, other: ServiceCounts) -> ServiceCounts:
        return ServiceCounts(
            self.events + other.events,
            self.unresolved_launches + other.unresolved_launches,
            self.dropped + other.dropped,
            self.orphaned + other.orphaned,
            self.lost + other.lost,
        )


@dataclass(frozen=True, slots=True)
class Moment:
    """When a stretch was, by which clock. `extent_ns`: the Unix times that rows of it may have, from and to."""

    extent_ns: tuple[int, int]
    boot_id: str = ""
    clock_offset_ns: int = 0  # at its end
    steps: Steps = field(default_factory=Steps)


@dataclass
class Stretch:
    """The account of one stretch of time, which rows of `agent_health` keep. `from_ns`: monotonic.

    `whole`: the service of the row that is always there, which has what is of the host, and what may be of any service:
    '' where there are several, whose losses kdiff counts for each of those on the host.
    """

    from_ns: int
    whole: str = ""
    cpu_from_ns: int = field(default_factory=time.process_time_ns)
    services: dict[str, ServiceCounts] = field(default_factory=dict)
    drain_lag_ns: int = 0

    def of(self, service: str) -> ServiceCounts:
        """What is counted of a service, to add to."""
        return self.services.setdefault(service, ServiceCounts())

    def rows(self, when: Moment, host: str, layer: str, attached: int) -> pa.Table:
        """Rows of `agent_health`: of the whole, then of each service that has counts."""
        self.of(self.whole)
        ordered = sorted(self.services, key=lambda service: (service != self.whole, service))
        rows = [self._row(when, service, host, layer) for service in ordered]
        rows[0] |= {
            "agent_cpu_ns": time.process_time_ns() - self.cpu_from_ns,
            "drain_lag_ns": self.drain_lag_ns,
            "attached_probes": attached,
        }
        return pa.Table.from_pylist(rows, schema=AGENT_HEALTH)

    def _row(self, when: Moment, service: str, host: str, layer: str) -> dict[str, Any]:
        counts = self.services[service]
        return {
            "from_ns": when.extent_ns[0],
            "to_ns": when.extent_ns[1],
            "service": service,
            "host": host,
            "layer": layer,
            "events": counts.events,
            "lost_launches": counts.lost.launches + counts.dropped.launches,
            "lost_syncs": counts.lost.syncs + counts.dropped.syncs,
            "lost_other": counts.lost.other + counts.orphaned,
            "agent_cpu_ns": 0,
            "drain_lag_ns": 0,
            "attached_probes": 0,
            "unresolved_launches": counts.unresolved_launches,
            "boot_id": when.boot_id,
            "clock_offset_ns": when.clock_offset_ns,
            "clock_set_ns": when.steps.set_ns,
            "slept_ns": when.steps.slept_ns,
        }
