"""What a recording is asked for, and what it was."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from kdiff.agent.device import DeviceSummary
from kdiff.agent.device_option import DeviceOption
from kdiff.agent.errors import AgentError
from kdiff.agent.gpu_samples import GpuSummary
from kdiff.agent.health import Losses, ServiceCounts
from kdiff.agent.probe_cost import ProbeCost
from kdiff.agent.ring import Highest
from kdiff.agent.selection import Selection
from kdiff.agent.services import ENVIRONMENT, Facts, Program, clean, service_of
from kdiff.probes.program import Tracing


@dataclass(frozen=True)
class Options:
    """What to record, and where to."""

    directory: Path
    command: Sequence[str] = ()
    pids: frozenset[int] = frozenset()
    duration_s: float | None = None
    service: str = ""
    tracing: Tracing = field(default_factory=Tracing)
    state: Path | None = None
    device_time: DeviceOption = field(default_factory=DeviceOption)
    selection: Selection = field(default_factory=Selection)  # where every process of the host is recorded
    gpu_samples: bool = True
    measure_cost: bool = False  # what probes add to a launch, before it begins

    @property
    def service_name(self) -> str:
        """What to call all of it in the store, as derived names are written; '' where each process has its own service.

        Raises AgentError for a name of which nothing is left.
        """
        if self.service:
            if name := clean(self.service):
                return name
            raise AgentError("--service is blank: name the service, or leave the option out")
        if not self.command:
            return ""
        environment = {name: os.environ[name] for name in ENVIRONMENT & os.environ.keys()}
        return service_of(Facts((), environment, [Program(Path(self.command[0]).name, self.command)]))


def last_words(unconfirmed: Iterable[str], slow_sites: Collection[str]) -> Iterator[str]:
    """What is to be said of builds of CUDA drivers whose names are not read, and of functions slow to probe."""
    for build in sorted(unconfirmed):
        yield (
            f"names are not read on this CUDA driver (build {build or 'unknown'}): nothing has confirmed where it"
            " keeps them; record a program from its start once, and this host knows"
        )
    if slow_sites:
        yield f"single-stepped, about 20 us a call in a virtual machine: {', '.join(sorted(slow_sites))}"


@dataclass
class Summary:
    """What was recorded. `status`: the command's, 0 without one."""

    events: int = 0
    launches: int = 0
    kernels: int = 0
    unresolved_launches: int = 0
    lost: Losses = field(default_factory=Losses)
    dropped: int = 0
    device: DeviceSummary = field(default_factory=DeviceSummary)
    gpus: GpuSummary = field(default_factory=GpuSummary)
    drain_lag_ns: int = 0  # the longest time between two reads of the ring since the last flush
    attached_probes: int = 0
    ring_fill: Mapping[str, Highest] = field(default_factory=dict)  # by ring, a share of its size
    cost: ProbeCost | None = None  # None: not measured
    added_ns: float = 0.0  # CPU time that probes have added to launches, where that was measured
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    bytes_written: int = 0
    segments: int = 0
    status: int = 0
    warnings: list[str] = field(default_factory=list)
    services: dict[str, ServiceCounts] = field(default_factory=dict)
    """What was written of each service, of '' what was lost without its being known of which."""

    def launched(self, apis: NDArray[Any]) -> None:
        """Counts launches, by the functions that made them, as `cuda_events` numbers those."""
        self.launches += len(apis)
        if self.cost is not None:
            self.added_ns += self.cost.added_ns(apis)
