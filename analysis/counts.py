"""What is counted of a kernel in a window, and how well the window was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Literal

Metric = Literal["device", "completion", "launch", "graph"]

_GRAPH: Final = "(graph "
GRAPHS: Final = "(graph launches)"
"""The name under which launches of graphs are listed whose capture was not recorded: they cannot be told apart."""

UNNAMED: Final = "(no name)"


def is_graph(name: str) -> bool:
    """Whether it names launches of graphs: GRAPHS, or what the agent calls a graph that it saw captured."""
    return name.startswith(_GRAPH)


@dataclass(frozen=True, slots=True)
class Counts:
    """What one kernel did in one window, in launches; `*_ns` are sums of time.

    `keys` stand for its names in the store: more than one after a rename. `executions` were timed on the device,
    `in_graphs` of them inside graphs; `device_runs` and `device_ns` are scaled to all of the time, each process's by
    the share of it that was timed. `graphs_timed`: of launches of a graph, those by processes (in windows of hours,
    services) whose graphs' kernels were timed.
    """

    keys: tuple[int, ...] = ()
    launches: int = 0
    failed: int = 0
    captured: int = 0
    unresolved: int = 0
    completions: int = 0
    isolated: int = 0
    timed: int = 0
    isolated_ns: float = 0.0
    launch_ns: float = 0.0
    executions: int = 0
    in_graphs: int = 0
    device_runs: float = 0.0
    device_ns: float = 0.0
    graphs_timed: int = 0

    @property
    def seen(self) -> int:
        """How often it was launched, whatever came of it, or was timed on the device."""
        return max(self.launches, self.executions)

    @property
    def runs(self) -> float:
        """How often it was launched or ran in the whole window; an estimate where only a part of it was timed."""
        return max(float(self.launches), self.device_runs)

    @property
    def ran(self) -> int:
        """How often it ran, as far as is known: by the device, or as launched by the host."""
        return max(self.launches - self.failed - self.captured, self.executions)

    def __add__(self, other: Counts) -> Counts:
        sums = {name: getattr(self, name) + getattr(other, name) for name in _FIELDS}
        return Counts(tuple(dict.fromkeys(self.keys + other.keys)), **sums)

    def available(self, metric: Metric, isolated: bool) -> int:
        """How many values of `metric` there are; `isolated` counts only launches alone between two syncs."""
        if metric == "device":
            return self.executions
        if metric == "launch":
            return self.timed
        return self.isolated if isolated else self.completions


@dataclass(frozen=True, slots=True)
class Recording:
    """How well a window was recorded. Shares in [0, 1]; coverage is that of all hosts together, and of each."""

    lost: int = 0
    lost_launches: float = 0.0
    lost_syncs: float = 0.0
    coverage: float = 0.0
    hosts: Mapping[str, float] = field(default_factory=dict)

    def loss(self, with_syncs: bool) -> float | None:
        """The share lost; where times end at syncs, lost syncs count as much. None where no agent recorded."""
        if not self.hosts:
            return None
        return max(self.lost_launches, self.lost_syncs) if with_syncs else self.lost_launches


_FIELDS: Final = tuple(f.name for f in fields(Counts) if f.name != "keys")
OF_DEVICE: Final = ("executions", "in_graphs", "device_runs", "device_ns")
"""The fields of Counts that executions fill."""
OF_HOST: Final = tuple(name for name in _FIELDS if name not in (*OF_DEVICE, "graphs_timed"))
"""The fields of Counts that launches fill."""
