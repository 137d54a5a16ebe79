"""What a comparison found, as plain data: the output formats read this and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from kdiff.analysis.quantiles import Quantiles
from kdiff.analysis.verdict import Verdict
from kdiff.analysis.window import Window

EXIT_OK = 0
EXIT_REGRESSED = 1
EXIT_ERROR = 2
EXIT_UNDECIDED = 3

GROUP_METRIC = "device_total"
"""What a group of kernels is judged by: its mean device time a launch, see totals; no quantile."""


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """How well the device timed a window.

    Attributes:
        windows: device windows that overlap it; 0 where it was timed all the time.
        covered_ns, coverage: the time that was timed, summed over processes, and as a share of their time.
        executions, uncollected, dropped, lost: by the device windows' own account, see queries/tables.py.
        loss: the share of executions that is held against --max-loss.
        clock_error_ns: how far device times may lie from the host's clock.
        busy: the share of the timed time in which any kernel ran, per process and GPU; None where nothing ran.
    """

    windows: int
    covered_ns: int
    coverage: float
    executions: int
    uncollected: int
    dropped: int
    lost: int
    loss: float
    clock_error_ns: int
    busy: float | None = None


@dataclass(frozen=True, slots=True)
class WindowReport:
    """One window and how well it was recorded.

    Attributes:
        store: the capture it was read from, fit to print.
        launches: launches of kernels and graphs by the host, all of them.
        executions: kernel runs that the device timed.
        failed, captured, unresolved: launches left out, or judged with a reason; see docs/guide-kdiff.md.
        lost: launches, syncs and other events that agents counted as lost in stretches that overlap the window.
        loss: the share that is held against --max-loss; None where no agent recorded.
        coverage: the share of the window in which an agent recorded.
        buckets, bucket_ns: the equal stretches it is cut into.
        device: how well the device timed it; None where it did not.
    """

    window: Window
    store: str
    launches: int
    executions: int
    failed: int
    captured: int
    unresolved: int
    lost: int
    loss: float | None
    coverage: float
    buckets: int
    bucket_ns: int
    device: DeviceReport | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """One measure of one kernel in both windows: the judged quantile in ns, and its ratio with a 90% interval.

    `isolated`: of launches alone between two syncs.
    """

    metric: str
    isolated: bool
    n_before: int
    n_after: int
    value_before: int | None
    value_after: int | None
    ratio: float | None
    ci: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """How far a bound lies above the device time it bounds, and what it says of the device then. Times in ns.

    Attributes:
        n: launches that have both times.
        excess_low, excess_p50, excess_high: (1 - q)-, 0.5- and q-quantile of bound minus device time, q the judged one.
        hosts: where it was measured.
        decides: whether the verdict is about `ratio`; not where the hosts judged are others.
        value_before, value_after: the judged quantile of the bound less excess_p50.
        ratio, ci: of the device time, estimated; None where the bound may be all excess.
    """

    n: int
    excess_low: int
    excess_p50: int
    excess_high: int
    hosts: tuple[str, ...]
    decides: bool
    value_before: int
    value_after: int
    ratio: float | None
    ci: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Queue:
    """How one kernel ran among the others in one window.

    Attributes:
        n: executions whose launch is known.
        p50, p99: of the time from the launch call to the start on the device, ns; None where n is 0.
        overlap: the share of its time in which another kernel ran on the same GPU.
        stream_busy: the share of the timed time in which its streams were busy.
    """

    n: int
    p50: int | None
    p99: int | None
    overlap: float
    stream_busy: float


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How long the threads of one kernel's calls were ready to run and had no processor, in one window.

    Attributes:
        n, known: values that were judged, and those of them of which it is known.
        waited_ns: all of it together.
        value, value_without: the judged quantile of the known values, and of what is left of them without it, ns; None
            where none is known.
    """

    n: int
    known: int
    waited_ns: int
    value: int | None
    value_without: int | None


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One kernel. Times in nanoseconds; value_* is the judged quantile.

    n_* count the values judged, or the launches where there is nothing to judge by. `others` are the measures that
    both windows have beside the judged one, for information; empty where they were not asked for. `before_names` are
    the kernel's names in the before window where they are others, and `paired_by` says who paired them: name, map,
    canonical or group. Of a group `value_*` are means.
    """

    kernel: str
    verdict: Verdict
    metric: str
    n_before: int
    n_after: int
    quantiles_before: Quantiles | None
    quantiles_after: Quantiles | None
    value_before: int | None
    value_after: int | None
    ratio: float | None
    ci: tuple[float, float] | None
    p_regressed: float | None
    margin: float
    reasons: tuple[str, ...]
    isolated: bool = False
    others: tuple[Measured, ...] = ()
    before_names: tuple[str, ...] = ()
    paired_by: str = "name"
    calibration: Calibration | None = None
    queue_before: Queue | None = None
    queue_after: Queue | None = None
    scheduling_before: Scheduling | None = None
    scheduling_after: Scheduling | None = None

    @property
    def judged(self) -> Measured:
        """The measure that the verdict is about."""
        values = (self.n_before, self.n_after, self.value_before, self.value_after)
        return Measured(self.metric, self.isolated, *values, self.ratio, self.ci)


@dataclass(frozen=True, slots=True)
class RareKernel:
    """A kernel with too few launches to be judged and too few to matter; n_* count them."""

    kernel: str
    n_before: int
    n_after: int


@dataclass(frozen=True, slots=True)
class Report:
    """A comparison.

    Attributes:
        cause: why the run as a whole is undecided, where no kernel's verdict says it; '' otherwise.
        metric: what was judged; "mixed" where not all kernels have the same, "none" where nothing was judged.
        rare_launches, rare_time: the share of launches and of time that rare kernels hold together, in the window
            where it is larger.
        notes: what the reader must know to read the verdict, one sentence each.
        warnings: what may be wrong with the data, one sentence each.
    """

    verdict: Verdict
    exit_code: int
    cause: str
    tolerance: float
    quantile: float
    metric: str
    before: WindowReport
    after: WindowReport
    kernels: tuple[KernelReport, ...]
    rare: tuple[RareKernel, ...] = ()
    rare_launches: float = 0.0
    rare_time: float = 0.0
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """REGRESSED, PASS or UNDECIDED: what a gate is told."""
        if self.verdict in (Verdict.REGRESSED, Verdict.PASS):
            return self.verdict.value
        return "UNDECIDED"

    def summary(self) -> dict[str, int]:
        """Kernels by verdict, every verdict named."""
        return {verdict.value: sum(k.verdict is verdict for k in self.kernels) for verdict in Verdict}


def statistic(metric: str, quantile: float) -> str:
    """What is judged of a metric: p99, or of a group its mean."""
    return "mean" if metric == GROUP_METRIC else quantile_name(quantile)


def quantile_name(quantile: float) -> str:
    """p50, p99, p99.9."""
    return f"p{100 * quantile:g}"
