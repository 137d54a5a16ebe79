"""What a comparison found, as plain data: the output formats read this and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from kdiff.analysis.quantiles import Quantiles
from kdiff.analysis.surroundings import ControlsReport, GpuReport
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
class CleaningStep:
    """What one step of cleaning leaves out of a window, or would.

    Attributes:
        step: copies, clock, lossy, twice, warm_up or autotune, see docs/guide-kdiff.md.
        found: how many segments, stretches, processes or bursts.
        launches, executions: that lie in them; of copies the rows of their tables.
        cut_ns: how long they are, summed over hosts or processes.
        why: why they are judged all the same; '' where they are left out.
    """

    step: str
    found: int
    launches: int
    executions: int
    cut_ns: int
    why: str = ""


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
        cleaning: what was left out of it before it was judged, and is in none of the counts above but `lost`.
        gpus: what the GPUs of its hosts did, where they were sampled.
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
    gpus: tuple[GpuReport, ...] = ()
    cleaning: tuple[CleaningStep, ...] = ()


@dataclass(frozen=True, slots=True)
class StratumReport:
    """The launches of one shape of a kernel, see strata; times in ns.

    Attributes:
        name: in words.
        grid, block: ceil(log2) of the blocks of a launch and of the threads of a block; None where it has none to tell.
        gpu_model, in_graph: of the launches; '' and False where that is not known.
        share_before, share_after: of the launches judged.
        compared: whether both windows have enough of it to be compared.
        tested: whether it was judged by itself.
        value_before, value_after: the judged quantile; None where it was not compared.
        ratio, ci: after / before, with a 90% interval.
    """

    name: str
    grid: int | None
    block: int | None
    gpu_model: str
    in_graph: bool
    n_before: int
    n_after: int
    share_before: float
    share_after: float
    compared: bool
    tested: bool
    value_before: int | None = None
    value_after: int | None = None
    ratio: float | None = None
    ci: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class MixReport:
    """What of a kernel's ratio is the mix of its shapes.

    Attributes:
        raw_ratio: after / before of all launches; kernel_effect * mix_effect.
        kernel_effect: the same at one mix, the ratio that is judged; None where the windows have no shape in common.
        mix_effect: what the mix makes of it; None where kernel_effect is.
        support_before, support_after: the share of the launches that are of shapes in common.
        strata: of each shape, the one with most launches first; those that only one window has are last.
        worst: the tested one that is slower most surely; None where none was tested.
        decides: whether the verdict rests on `worst`, not on the ratio at one mix.
    """

    raw_ratio: float
    kernel_effect: float | None
    mix_effect: float | None
    support_before: float
    support_after: float
    strata: tuple[StratumReport, ...]
    worst: StratumReport | None
    decides: bool


@dataclass(frozen=True, slots=True)
class Load:
    """How often a kernel ran in a window and for how long, in all of it; None: not known.

    Attributes:
        launches_per_s: of the host, or executions where these are more, a recorded second.
        device_ns_per_s: time on the device a second of the window, all of its processes together, ns.
        device_share: that as a share of the time of all kernels on the device.
    """

    launches_per_s: float | None
    device_ns_per_s: float | None
    device_share: float | None


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
class HistoryReport:
    """What `kdiff calibrate` measured on the service's own history, by which intervals were widened. Times in ns.

    Attributes:
        made_at_ns, from_ns, to_ns: when, and of which history, Unix ns.
        window_ns, pairs: the length of its windows, and how many pairs of adjacent ones were judged.
        tolerance: that of the verdicts on them.
        factor_low, factor_high: by how much the standard errors of this comparison's kernels were multiplied.
        unknown: kernels without pairs enough of their own, widened by the factor of all together.
        comparisons, regressed, regressed_limit: pairs of a kernel's windows, how many of them were REGRESSED with the
            factors, though nothing was swapped, and the 95% upper limit of that rate.
        runs, runs_regressed, runs_regressed_limit: the same of pairs of windows in which any kernel was.
    """

    made_at_ns: int
    from_ns: int
    to_ns: int
    window_ns: int
    pairs: int
    tolerance: float
    factor_low: float
    factor_high: float
    unknown: int
    comparisons: int
    regressed: int
    regressed_limit: float
    runs: int
    runs_regressed: int
    runs_regressed_limit: float


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
    canonical or group. Of a group `value_*` are means. `adjusted_*`: of the ratio beyond what the controls share; None
    where verdicts are not adjusted.
    `widened` is the factor of its standard errors that the history gave.
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
    mix: MixReport | None = None
    load_before: Load | None = None
    load_after: Load | None = None
    adjusted_ratio: float | None = None
    adjusted_ci: tuple[float, float] | None = None
    widened: float = 1.0

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
class Arm:
    """What one side of a comparison at the same time ran on: its hosts, and its service ('': all of theirs)."""

    hosts: tuple[str, ...]
    service: str


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
        history: what intervals were widened by; None where the store holds no calibration that fits.
        arms: control and canary where `before` and `after` are these, in one window; None where they are two windows.
        controls: what the control kernels of each measure did, where there are enough.
        own_tolerances: kernels whose tolerance is not `tolerance`.
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
    history: HistoryReport | None = None
    arms: tuple[Arm, Arm] | None = None
    controls: tuple[ControlsReport, ...] = ()
    own_tolerances: int = 0

    @property
    def sides(self) -> tuple[str, str]:
        """What people call the two sides."""
        return ("control", "canary") if self.arms else ("before", "after")

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
