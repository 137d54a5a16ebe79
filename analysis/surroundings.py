"""What is reported of what surrounded the kernels: the GPUs, and the kernels that were not swapped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuReport:
    """What one GPU, or instance of one, did in a window, by its samples; None: no sample has the reading.

    Attributes:
        samples: once a second.
        busy: the share of them in which it was not idle.
        sm_clock_mhz, sm_clock_p5_mhz: mean and 0.05-quantile of those.
        throttled: the share of those in which clocks were held down, by the reasons of context.REASONS.
        utilization, memory_utilization: mean share of the time in which a kernel ran, memory was read or written.
        neighbours: processes that computed on it and are none of those that are compared.
    """

    host: str
    gpu_uuid: str
    parent_uuid: str
    model: str
    samples: int
    busy: float
    sm_clock_mhz: float | None
    sm_clock_p5_mhz: float | None
    throttled: Mapping[str, float]
    power_w: float | None
    temperature_c: float | None
    temperature_max_c: float | None
    utilization: float | None
    memory_utilization: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    neighbours: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ControlsReport:
    """What the control kernels of one measure did together, see controls.

    Attributes:
        n: how many there are.
        common_ratio, ci: after / before of their median, with a 90% interval.
        apart: how many of them moved apart from it.
        adjusted: whether verdicts are adjusted for it.
    """

    metric: str
    n: int
    common_ratio: float
    ci: tuple[float, float]
    apart: int
    adjusted: bool
