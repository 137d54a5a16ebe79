"""The watch: stretch after stretch of a rollout against a baseline, until a kernel surely got slower or time is up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from kdiff.analysis.counts import Counts, Metric, Recording
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.interval import tail_estimate
from kdiff.analysis.measure import ALIKE, MetricChoice, Plan, choose
from kdiff.analysis.pairing import pair_kernels
from kdiff.analysis.sample import Sample
from kdiff.analysis.sequential import EProcess
from kdiff.analysis.tolerances import Tolerance, tolerance_of
from kdiff.analysis.verdict import QUANTA, Policy, values_needed
from kdiff.analysis.window import NS, Window
from kdiff.queries.errors import KdiffError, StoreError

_WHOLE: Final = 0.999  # of a stretch, whose ends the agents' accounts need not meet to the nanosecond
_POLL_NS: Final = 5 * NS
_T = TypeVar("_T")

Opener = Callable[[Window], AbstractContextManager[Evidence]]
"""Opens the store as it is now and gives a window of it."""


@dataclass(slots=True)
class Watched:
    """A kernel that is watched.

    Attributes:
        kernel: its name.
        metric: what its launches are measured by, those alone between two syncs only where `isolated`.
        threshold_ns: at most 1 - q of its launches take longer, unless it got slower by more than the tolerance: the
            upper limit of the baseline's quantile, plus the tolerance.
        evidence: that it got slower.
    """

    kernel: str
    metric: Metric
    isolated: bool
    threshold_ns: float
    evidence: EProcess


@dataclass(frozen=True, slots=True)
class Options:
    """What is watched, and how. Times in ns.

    Attributes:
        metric: what to judge by; auto is the best that the baseline has.
        policy: the quantile, the tolerance, and the chance that a watch stops where no kernel got slower than that.
        patterns: only kernels that match one of these.
        max_loss: a stretch that lost more is left out.
        stretch_ns: the length of a stretch.
        patience_ns: how long after its end a stretch is waited for where an agent has not accounted for all of it.
        tolerances: those of single kernels.
    """

    metric: MetricChoice = "auto"
    policy: Policy = field(default_factory=Policy)
    patterns: Sequence[str] = ()
    max_loss: float = 0.01
    stretch_ns: int = 60 * NS
    patience_ns: int = 120 * NS
    tolerances: Sequence[Tolerance] = ()


@dataclass(frozen=True, slots=True)
class Baseline:
    """What is watched.

    Attributes:
        kernels: those with enough launches.
        too_rare: how many others there are.
        hosts: those that recorded.
        outside: whether calls in device windows, which take longer, are left out.
        covered: the share of the time that the device was timed.
    """

    kernels: list[Watched]
    too_rare: int
    hosts: frozenset[str]
    outside: bool
    covered: float


@dataclass(frozen=True, slots=True)
class Look:
    """What one stretch added. `left_out` says why it was left out, '' if it was not."""

    window: Window
    left_out: str = ""


@dataclass
class Watch:
    """A watch under way."""

    baseline: Baseline
    options: Options
    looks: list[Look] = field(default_factory=list)

    @property
    def needed(self) -> float:
        """The e-value at which a kernel is said to have got slower: by Bonferroni over the kernels."""
        return len(self.baseline.kernels) / self.options.policy.alpha_regressed

    @property
    def ranked(self) -> list[Watched]:
        """The kernels, those with most evidence first."""
        return sorted(self.baseline.kernels, key=lambda watched: -watched.evidence.value)

    @property
    def slower(self) -> list[Watched]:
        """The kernels that got slower beyond doubt, those with most evidence first."""
        return [watched for watched in self.ranked if watched.evidence.value >= self.needed]


def read_baseline(evidence: Evidence, options: Options) -> Baseline:
    """What to watch, by what ran in the baseline. Raises KdiffError where nothing can be."""
    quantile = options.policy.quantile
    evidence = evidence.at(quantile)
    census = evidence.census()
    # Paired with itself: what to measure by is what the baseline has.
    pairing = pair_kernels(census, census, patterns=options.patterns)
    plans = choose(pairing.pairs, options.metric)
    needed = values_needed(quantile)
    outside = not evidence.rolled
    judged = [(plan.pair.kernel, plan.metric, plan.isolated) for plan in plans if plan.metric]
    samples = _samples(evidence, [(census[name], metric, isolated) for name, metric, isolated in judged], outside)
    kernels = []
    for place, (name, metric, isolated) in enumerate(judged):
        sample = samples.get(place)
        if sample is None or sample.size < needed:
            continue
        estimate = tail_estimate(sample, quantile)
        upper = estimate.limits(options.policy.alpha_regressed)[1]
        if math.isfinite(upper):
            own = tolerance_of((name,), options.tolerances)
            tolerance = options.policy.tolerance if own is None else own
            margin = max(tolerance, QUANTA * estimate.quantum / max(estimate.value, estimate.quantum))
            threshold = upper * (1.0 + margin) * math.exp(estimate.rounding(options.policy.alpha_regressed))
            kernels.append(Watched(name, metric, isolated, threshold, EProcess(quantile)))
    too_rare = len(judged) - len(kernels)
    if not kernels:
        raise KdiffError(_nothing(plans, too_rare, needed, evidence.window))
    return Baseline(kernels, too_rare, frozenset(evidence.recording().hosts), outside, evidence.device.coverage)


def watch(
    state: Watch, window: Window, opened: Opener, now_ns: Callable[[], int], sleep: Callable[[float], object]
) -> Iterator[Look]:
    """Watch a window, from stretch to stretch: each look, which is in `state` by then.

    Stops after the first at which a kernel got slower. A stretch of the past is read at once; one of the present when
    all hosts of the one before have accounted for it, or the patience is over. Raises KdiffError: the store cannot be
    read, for as long as the patience.
    """
    hosts = state.baseline.hosts
    stretch_ns = state.options.stretch_ns
    for start in range(window.from_ns, window.to_ns, stretch_ns):
        stretch = Window(start, min(start + stretch_ns, window.to_ns))
        look, seen = _look(state, stretch, hosts, opened, now_ns, sleep)
        state.looks.append(look)
        hosts = seen or hosts
        yield look
        if state.slower:
            return


def patiently(
    ask: Callable[[], _T], patience_ns: int, now_ns: Callable[[], int], sleep: Callable[[float], object]
) -> _T:
    """What `ask` gives; a store that cannot be read is asked again, for as long as the patience. Raises KdiffError."""
    until = now_ns() + patience_ns
    while True:
        try:
            return ask()
        except StoreError:
            if now_ns() >= until:
                raise
        sleep(_POLL_NS / NS)


def _look(
    state: Watch,
    stretch: Window,
    hosts: frozenset[str],
    opened: Opener,
    now_ns: Callable[[], int],
    sleep: Callable[[float], object],
) -> tuple[Look, frozenset[str]]:
    """Waits for a stretch and sees it. Returns the hosts that recorded it too."""
    until = stretch.to_ns + state.options.patience_ns
    while (wait_ns := stretch.to_ns - now_ns()) > 0:
        sleep(wait_ns / NS)
    while True:
        late = now_ns() >= until
        try:
            with opened(stretch) as evidence:
                recording = evidence.recording()
                covered = recording.hosts
                if late or (hosts and all(covered.get(host, 0.0) > _WHOLE for host in hosts)):
                    return Look(stretch, _see(state, evidence, recording)), frozenset(covered)
        except KdiffError:
            # A server that is restarted, or a segment that was removed just now, is there again soon.
            if late:
                raise
        sleep(_POLL_NS / NS)


def _see(state: Watch, evidence: Evidence, recording: Recording) -> str:
    """Adds a stretch to the evidence; why it was left out, '' if it was not."""
    with_syncs = any(watched.metric in ("completion", "graph") for watched in state.baseline.kernels)
    loss = recording.loss(with_syncs)
    if loss is None:
        return "no agent accounted for it"
    if loss > state.options.max_loss:
        return f"it lost {100 * loss:.3g}% of its events"
    census = evidence.census()
    watched = [one for one in state.baseline.kernels if one.kernel in census and _fit(one, state, evidence)]
    plans = [(census[one.kernel], one.metric, one.isolated) for one in watched]
    for place, sample in _samples(evidence, plans, state.baseline.outside).items():
        if sample is not None:
            above = int((sample.durations_ns > watched[place].threshold_ns).sum())
            watched[place].evidence.see(above, sample.size)
    return ""


def _fit(watched: Watched, state: Watch, evidence: Evidence) -> bool:
    """Whether what a stretch has of a kernel can be held against the baseline."""
    if watched.metric == "device":
        return evidence.device.loss <= state.options.max_loss
    less, more = sorted((state.baseline.covered, evidence.device.coverage))
    return state.baseline.outside or less >= ALIKE * more


def _samples(
    evidence: Evidence, plans: Sequence[tuple[Counts, Metric, bool]], outside: bool
) -> dict[int, Sample | None]:
    """The durations of each plan that has any, by its place: one read for each metric. Raises StoreError."""
    found: dict[int, Sample | None] = {}
    for metric in sorted({metric for _, metric, _ in plans}):
        keys = {key: place for place, (counts, its, _) in enumerate(plans) if its == metric for key in counts.keys}
        for place, values in evidence.values(metric, keys, outside).items():
            found[place] = values.choose(plans[place][2])
    return found


def _nothing(plans: Sequence[Plan], too_rare: int, needed: int, window: Window) -> str:
    if too_rare:
        return (
            f"no kernel of the baseline {window.brief()} can be watched: each needs {needed:,} launches, evenly enough "
            "over time: choose a longer one"
        )
    why = next((plan.why for plan in plans if plan.why), "No launch of a kernel is in it.")
    return f"no kernel of the baseline {window.brief()} can be watched: {why[0].lower()}{why[1:].rstrip('.')}"
