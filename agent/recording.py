"""What a recording is asked for, and what it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kdiff.agent import procfs
from kdiff.agent.device import DeviceSummary
from kdiff.agent.device_option import DeviceOption
from kdiff.agent.gpu_samples import GpuSummary
from kdiff.agent.health import Losses
from kdiff.agent.selection import Selection
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

    @property
    def service_name(self) -> str:
        """What to call it in the store."""
        if self.service:
            return _printable(self.service)
        if self.command:
            return _printable(Path(self.command[0]).name)
        found = procfs.stat(min(self.pids)) if self.pids else None
        return _printable(found.comm) if found else "host"


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
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    bytes_written: int = 0
    segments: int = 0
    status: int = 0
    warnings: list[str] = field(default_factory=list)


def _printable(name: str) -> str:
    """Without the bytes that are no UTF-8, which a command's name may have and a column of text may not."""
    return name.encode(errors="replace").decode()
