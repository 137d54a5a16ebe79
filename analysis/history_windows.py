"""Reading a history window by window: each once, and its estimates for the pairs with the windows on both sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kdiff.analysis.cleaning import WARM_UP_NS, clean
from kdiff.analysis.evidence import Evidence, holdings, whole_window
from kdiff.analysis.history_calibration import MIN_PAIRS, History, Kernel
from kdiff.analysis.interval import TailEstimate, tail_estimate
from kdiff.analysis.measure import ALIKE, MetricChoice, choose, read_samples
from kdiff.analysis.pairing import PairingError, pair_kernels
from kdiff.analysis.recorded import MIN_COVERAGE
from kdiff.analysis.verdict import Policy, values_needed
from kdiff.analysis.window import BUCKETS, HOUR_NS, MINUTE_NS, NS, Window, length_text
from kdiff.queries.errors import KdiffError
from kdiff.queries.store import Store

LONGEST_NS: Final = 7 * 24 * HOUR_NS
"""How much of the recorded stretch is taken unless more is asked for."""
MOST_WINDOWS: Final = 2_000
"""Of a longer history the newest so many windows: more would make no factor noticeably better."""

NOT_RECORDED: Final = "not recorded"
LOSSY: Final = "lossy"
ROWS_GONE: Final = "without rows or roll-ups"
IDLE: Final = "idle"
EXCLUDED: Final = "excluded"


@dataclass(frozen=True, slots=True)
class Options:
    """What is judged, as in compare.Options."""

    metric: MetricChoice = "auto"
    policy: Policy = field(default_factory=Policy)
    patterns: Sequence[str] = ()
    max_loss: float = 0.01


@dataclass(slots=True)
class Seen:
    """What was read: the pairs, how many windows were used, and why how many were not."""

    history: History
    used: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Estimated:
    """A window: its estimates, and the share of the time that was timed on the device."""

    kernels: dict[Kernel, TailEstimate]
    covered: float


def span(store: Store, service: str, now_ns: int) -> Window:
    """The recorded stretch, its last seven days at most, up to now. Raises KdiffError where there is none."""
    whole = whole_window(store, service)
    end = min(whole.to_ns, now_ns)
    if whole.from_ns >= end:
        raise KdiffError(f"the recorded stretch begins in the future: {holdings(store, service)}, set the clocks right")
    return Window(max(whole.from_ns, end - LONGEST_NS), end)


def cut(history: Window, length_ns: int, recorded: Window | None = None) -> list[Window]:
    """The adjacent windows of one length that lie in `history`, in order of time, the newest MOST_WINDOWS.

    They begin where roll-ups do, so that none is narrowed. Those that do not touch `recorded` are not read, as long as
    there are enough others. Raises KdiffError where they are too few for a calibration.
    """
    unit = HOUR_NS if length_ns >= BUCKETS * HOUR_NS else MINUTE_NS if length_ns >= BUCKETS * MINUTE_NS else 1
    end = history.to_ns // unit * unit
    step = -(-length_ns // unit) * unit
    count = (end - history.from_ns) // step
    if count <= MIN_PAIRS:
        needed = (MIN_PAIRS + 1) * step
        raise KdiffError(
            f"the history {history.brief()} is {length_text(history.length_ns)} long and holds {max(count, 0)} windows "
            f"of {length_text(step)}; a calibration needs {MIN_PAIRS + 1}, {length_text(needed)}: "
            f"{_more(needed - history.length_ns)}"
        )
    newest, oldest = 0, count
    if recorded is not None:
        newest = min(max(0, (end - recorded.to_ns) // step), count - MIN_PAIRS - 1)
        oldest = max(min(count, -((recorded.from_ns - end) // step)), newest + MIN_PAIRS + 1)
    oldest = min(oldest, newest + MOST_WINDOWS)
    return [Window(end - (place + 1) * step, end - place * step) for place in reversed(range(newest, oldest))]


def read(
    store: Store,
    windows: Sequence[Window],
    excluded: Sequence[Window],
    service: str,
    exact: bool,
    options: Options,
    advance: Callable[[int], None],
) -> Seen:
    """Judge each pair of adjacent `windows`, in memory for two of them. Raises KdiffError where pairs are too few."""
    seen = Seen(History(options.policy))
    before: _Estimated | None = None
    # Traces of other tools have no account of what was recorded; where agents give one a window without was not.
    samples = (windows[0], windows[len(windows) // 2], windows[-1])
    accounted = any(Evidence(store, window, service, exact).recording().hosts for window in samples)
    for place, window in enumerate(windows):
        after: _Estimated | None = None
        why = EXCLUDED if any(window.overlap_ns(one) for one in excluded) else ""
        if not why:
            evidence = Evidence(store, window, service, exact, options.policy.quantile)
            why = _unfit(evidence, options.max_loss, accounted)
            after = None if why else _estimate(_cleaned(evidence, options), options)
        if after is None:
            seen.left_out[why] += 1
        else:
            seen.used += 1
            if before is not None:
                _pair(seen.history, place - 1, before, after)
        before = after
        advance(1)
    if not seen.used:
        every = Window(windows[0].from_ns, windows[-1].to_ns)
        raise KdiffError(
            f"no window of {every.brief()} can be used ({reasons(seen.left_out)}): {holdings(store, service)}"
        )
    if seen.history.pairs < MIN_PAIRS:
        raise KdiffError(_too_few(seen, windows, options.policy))
    return seen


def reasons(left_out: Counter[str]) -> str:
    """How many windows were left out, and why."""
    return ", ".join(f"{count} {why}" for why, count in left_out.most_common())


def _unfit(evidence: Evidence, max_loss: float, accounted: bool) -> str:
    """Why a window cannot be used, '' where it can. `accounted`: agents tell what they recorded."""
    recording = evidence.recording()
    if accounted and recording.coverage < MIN_COVERAGE:
        return NOT_RECORDED
    loss = recording.loss(with_syncs=True)
    if loss is not None and loss > max_loss:
        return LOSSY
    if not evidence.census():
        return IDLE if recording.hosts else NOT_RECORDED
    if (0 if evidence.rolled else evidence.missing_rows) or evidence.missing_rollups:
        return ROWS_GONE
    return ""


def _cleaned(evidence: Evidence, options: Options) -> Evidence:
    """Without what a comparison would leave out."""
    return clean(evidence, evidence, WARM_UP_NS, options.max_loss, True, options.metric).before


def _estimate(evidence: Evidence, options: Options) -> _Estimated:
    census = evidence.census()
    try:
        # Paired with itself: what it is judged by is what it has, and adjacent windows have the same.
        pairs = pair_kernels(census, census, patterns=options.patterns).pairs
    except PairingError:  # no kernel of this window matches; another's may
        pairs = ()
    plans = choose(pairs, options.metric)
    needed = values_needed(options.policy.quantile)
    found: dict[Kernel, TailEstimate] = {}
    for index, sample in read_samples(evidence, "before", plans, False).items():
        plan = plans[index]
        lossy = plan.metric == "device" and evidence.device.loss > options.max_loss
        if plan.metric is None or sample is None or sample.size < needed or lossy:
            continue
        found[plan.pair.kernel, plan.metric] = tail_estimate(sample, options.policy.quantile)
    return _Estimated(found, evidence.device.coverage)


def _pair(history: History, place: int, before: _Estimated, after: _Estimated) -> None:
    less, more = sorted((before.covered, after.covered))
    for kernel, estimate in after.kernels.items():
        # Calls in device windows take longer: where one window has more of these a comparison would leave them out.
        if kernel in before.kernels and (kernel[1] == "device" or less >= ALIKE * more):
            history.add(place, kernel, before.kernels[kernel], estimate)


def _too_few(seen: Seen, windows: Sequence[Window], policy: Policy) -> str:
    step = windows[0].length_ns
    pairs = seen.history.pairs
    why = f"; left out: {reasons(seen.left_out)}" if seen.left_out else ""
    history = Window(windows[0].from_ns, windows[-1].to_ns)
    start = (
        f"of {len(windows)} windows of {length_text(step)} in {history.brief()} {pairs} adjacent pairs can be judged"
    )
    if not pairs:
        return (
            f"{start}{why}: a kernel needs {values_needed(policy.quantile):,} launches in each window, so choose a "
            "longer --window, or a stretch with more"
        )
    return f"{start}, {MIN_PAIRS} are needed{why}: {_more((MIN_PAIRS - pairs) * step)}"


def _more(missing_ns: int) -> str:
    missing = length_text(max(NS, -(-missing_ns // NS) * NS))
    return f"give {missing} more of history, or a shorter --window"
