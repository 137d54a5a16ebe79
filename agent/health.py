"""What a recording counts about itself."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from kdiff.probes.wire import Kind
from kdiff.queries.tables import AGENT_HEALTH


@dataclass
class Losses:
    """Records that BPF could not hand over because a ring was full, by kind, since the program was loaded.

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
    def read(cls, table: Any) -> Losses:
        """From BPF's per-CPU counters."""
        counts = [int(table.sum(ctypes.c_int(kind)).value) for kind in range(len(Kind))]
        launches = counts[Kind.LAUNCH] + counts[Kind.GRAPH_LAUNCH]
        syncs, executions = counts[Kind.SYNC], counts[Kind.EXECUTION]
        return cls(launches, syncs, sum(counts) - launches - syncs - executions, executions)

    def __sub__(self, earlier: Losses) -> Losses:
        return Losses(
            self.launches - earlier.launches,
            self.syncs - earlier.syncs,
            self.other - earlier.other,
            self.executions - earlier.executions,
        )


@dataclass
class Stretch:
    """The account of one stretch of time, which a row of `agent_health` keeps."""

    from_ns: int
    cpu_from_ns: int = field(default_factory=time.process_time_ns)
    events: int = 0
    dropped: int = 0  # rows given up because the disk stayed full
    orphaned: int = 0  # events of processes that ended before it was known whose they were
    unresolved_launches: int = 0
    drain_lag_ns: int = 0

    def row(self, to_ns: int, service: str, host: str, layer: str, lost: Losses, attached: int) -> pa.Table:
        """One row of `agent_health`, for the stretch that ends at `to_ns`."""
        return pa.Table.from_pylist(
            [
                {
                    "from_ns": self.from_ns,
                    "to_ns": to_ns,
                    "service": service,
                    "host": host,
                    "layer": layer,
                    "events": self.events,
                    "lost_launches": lost.launches + self.dropped,
                    "lost_syncs": lost.syncs,
                    "lost_other": lost.other + self.orphaned,
                    "agent_cpu_ns": time.process_time_ns() - self.cpu_from_ns,
                    "drain_lag_ns": self.drain_lag_ns,
                    "attached_probes": attached,
                    "unresolved_launches": self.unresolved_launches,
                }
            ],
            schema=AGENT_HEALTH,
        )
