"""What else was different in the two windows: clocks and why they were not higher, heat, neighbours, GPUs, errors.

It changes no interval. It says in words why a kernel may be slower without being another, and bars what cannot be
compared: GPUs of another model, launches that fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kdiff.analysis.at_once import Side
from kdiff.analysis.counts import Counts
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.output_text import change, two_digits
from kdiff.analysis.pairing import show
from kdiff.analysis.report import KernelReport
from kdiff.analysis.surroundings import ControlsReport, GpuReport
from kdiff.analysis.verdict import NOT_COMPARED, Verdict

REASONS: Final = {
    "power_cap": "its power cap",
    "thermal": "heat",
    "power_brake": "the power brake",
    "hardware_slowdown": "a hardware slowdown",
    "sync_boost": "sync boost",
    "clock_setting": "a clock setting",
}
"""Why clocks are not higher, by the columns of queries/sql/gpu_context.sql, in words."""
CLOCK_MOVED: Final = 0.02
"""Mean clocks that differ by this share are told."""
THROTTLED_MOVED: Final = 0.1
"""The same of the share of the time in which a reason held clocks down,"""
UTILIZATION_MOVED: Final = 0.15
"""of that in which a kernel ran,"""
HEAT_MOVED_C: Final = 8.0
"""and of mean temperatures."""
LEAST_FAILING: Final = 0.001
"""Of a smaller share of failed launches nothing is said."""
ALPHA_FAILING: Final = 0.001
"""Chance of saying that launches of a kernel fail more often where they do not."""
_MOST_NAMED: Final = 3


def read_gpus(evidence: Evidence, _side: Side) -> tuple[GpuReport, ...]:
    """The GPUs of the hosts that launched in one window; none of a window judged by hours, whose samples are too many.

    Raises StoreError.
    """
    if evidence.hourly:
        return ()
    recorded = {(row["host"], row["pid"]) for row in evidence.processes}
    hosts = {host for host, _ in recorded}
    if evidence.store.expires and hosts and not evidence.scope.hosts:
        # A fleet has a sample a GPU and second: the others' are not read.
        evidence = evidence.scoped(replace(evidence.scope, hosts=tuple(sorted(hosts))))
    rows = evidence.query("gpu_context").to_pylist()
    return tuple(_gpu(row, recorded) for row in rows if row["host"] in hosts)


def differences(before: Sequence[GpuReport], after: Sequence[GpuReport]) -> list[str]:
    """What was different enough to matter, a sentence each."""
    pairs = _pairs(before, after)
    return [*_clocks(pairs), *_throttling(pairs), *_heat(pairs), *_neighbours(before, after), *_load(pairs)]


def other_models(before: Sequence[GpuReport], after: Sequence[GpuReport]) -> tuple[str, bool]:
    """What there is to say of GPUs whose model is not in both windows, '' if nothing; whether no model is in both."""
    models = [sorted({gpu.model for gpu in side if gpu.model}) for side in (before, after)]
    if not all(models) or models[0] == models[1]:
        return "", False
    names = [" and ".join(map(show, side)) for side in models]
    text = f"The GPUs of the before window are {names[0]}, those of the after window {names[1]}"
    return text, not set(models[0]) & set(models[1])


def on_other_gpus(rows: Sequence[KernelReport], text: str) -> list[KernelReport]:
    """The rows where no GPU of one model ran in both windows: kernels that were compared are not comparable."""
    reason = f"{text}: what is another GPU and what another kernel cannot be told apart."
    return [
        row
        if row.verdict in NOT_COMPARED or row.verdict is Verdict.MIX_NOT_COMPARABLE
        else replace(row, verdict=Verdict.MIX_NOT_COMPARABLE, reasons=(reason, *row.reasons))
        for row in rows
    ]


def explained(rows: Sequence[KernelReport], sentences: Sequence[str]) -> list[KernelReport]:
    """The rows, the sentences among the reasons of kernels that got slower, or perhaps so."""
    told = {Verdict.REGRESSED, Verdict.CONFOUNDED}
    return [
        replace(row, reasons=(*row.reasons, *sentences)) if sentences and row.verdict in told else row for row in rows
    ]


def beyond_clocks(before: Sequence[GpuReport], after: Sequence[GpuReport], controls: Sequence[ControlsReport]) -> str:
    """What clocks do not explain of what control kernels had in common; '' if they may, or if nothing was common.

    A kernel answers to a clock by the ratio of the clocks at most, and its tail may be the one GPU's that moved most.
    """
    ratios = [one.common_ratio for one in controls if one.adjusted]
    if not ratios:
        return ""
    pairs = _pairs(before, after)
    known = [(b, a) for b, a in pairs if b.sm_clock_mhz and a.sm_clock_mhz]
    if not known:
        return "The GPUs' clocks are not known of both windows: whether they moved all kernels cannot be told."
    ratio = max(ratios, key=lambda one: abs(math.log(one)))
    else_ = (
        "look at what else all kernels share, as a driver, a compiler, a framework, the memory's clock or neighbours."
    )
    if not _clocks(known):
        was, now = (_mean([_clock(pair[side]) for pair in known]) for side in (0, 1))
        return f"SM clocks did not change ({was:,.0f} -> {now:,.0f} MHz): {else_}"
    sign, common = math.copysign(1.0, ratio - 1.0), abs(math.log(ratio))
    explained = sign * max(0.0, *(sign * math.log(_clock(b) / _clock(a)) for b, a in known))
    if common - abs(explained) <= CLOCK_MOVED:
        return ""
    part = f"at most {change(math.exp(explained))}" if explained else "nothing"
    return f"SM clocks explain {part} of the {change(ratio)} that is common to all: {else_}"


def beside_confounded(rows: Sequence[KernelReport], sentence: str) -> list[KernelReport]:
    """The rows, the sentence among the reasons of those that are CONFOUNDED."""
    return [
        replace(row, reasons=(*row.reasons, sentence)) if sentence and row.verdict is Verdict.CONFOUNDED else row
        for row in rows
    ]


def failing_more(before: Counts, after: Counts) -> str:
    """That launches of a kernel fail more often, beyond chance; '' if not.

    By the exact test of two binomials given their sum (Przyborowski & Wilenski, Biometrika 31 (1940) 313).
    """
    if not (before.launches and after.launches and after.failed):
        return ""
    shares = before.failed / before.launches, after.failed / after.launches
    if shares[1] <= max(shares[0], LEAST_FAILING):
        return ""
    from scipy.special import bdtrc

    failed, launches = before.failed + after.failed, before.launches + after.launches
    if bdtrc(after.failed - 1, failed, after.launches / launches) > ALPHA_FAILING:
        return ""
    return (
        f"Its launches fail more often: {two_digits(shares[0])} before, {two_digits(shares[1])} after "
        f"({after.failed:,} of {after.launches:,})."
    )


def _gpu(row: Mapping[str, Any], recorded: Collection[tuple[str, int]]) -> GpuReport:
    def known(name: str, scale: float = 1.0) -> float | None:
        value = row[name]
        return None if value is None or not math.isfinite(value) else float(value) * scale

    return GpuReport(
        host=row["host"],
        gpu_uuid=row["gpu_uuid"],
        parent_uuid=row["parent_uuid"],
        model=row["gpu_name"],
        samples=row["samples"],
        busy=row["samples_busy"] / row["samples"],
        sm_clock_mhz=known("sm_clock_mhz"),
        sm_clock_p5_mhz=known("sm_clock_p5_mhz"),
        throttled={name: share for name in REASONS if (share := known(name)) is not None},
        power_w=known("power_mw", 0.001),
        temperature_c=known("temperature_c"),
        temperature_max_c=known("temperature_max_c"),
        utilization=known("gpu_utilization", 0.01),
        memory_utilization=known("memory_utilization", 0.01),
        memory_used_bytes=known("memory_used_bytes"),
        memory_total_bytes=known("memory_total_bytes"),
        neighbours=tuple(pid for pid in row["pids"] if (row["host"], pid) not in recorded),
    )


_Pairs = list[tuple[GpuReport, GpuReport]]


def _pairs(before: Sequence[GpuReport], after: Sequence[GpuReport]) -> _Pairs:
    """Each GPU of both windows with itself; where none is in both, as of a canary, each with one of the others."""
    places = {(gpu.host, gpu.gpu_uuid): gpu for gpu in before}
    same = [(places[gpu.host, gpu.gpu_uuid], gpu) for gpu in after if (gpu.host, gpu.gpu_uuid) in places]
    if same or not before or not after:
        return same
    most = max(len(before), len(after))
    return [(before[place % len(before)], after[place % len(after)]) for place in range(most)]


def _clocks(pairs: _Pairs) -> list[str]:
    known = [(b, a) for b, a in pairs if b.sm_clock_mhz and a.sm_clock_mhz]
    found = []
    for sign in (-1.0, 1.0):
        moved = [(b, a) for b, a in known if sign * (_clock(a) / _clock(b) - 1.0) >= CLOCK_MOVED]
        if not moved:
            continue
        was, now = (_mean([_clock(pair[side]) for pair in moved]) for side in (0, 1))
        found.append(
            f"SM clock {was:,.0f} -> {now:,.0f} MHz ({100 * (now / was - 1.0):+.0f}%){_where(moved, pairs)}"
            f"{_why(moved) if sign < 0 else ''}."
        )
    return found


def _clock(gpu: GpuReport) -> float:
    return gpu.sm_clock_mhz or 0.0


def _why(moved: _Pairs) -> str:
    """By what clocks were held down for longer in the after window, the reason of the longest time."""
    shares = {name: _throttled([gpu for _, gpu in moved], name) for name in REASONS}
    name = max(shares, key=lambda n: shares[n])
    if shares[name] < THROTTLED_MOVED:
        return ""
    known = [gpu for gpu, _ in moved if name in gpu.throttled]
    was = f" ({100 * _throttled(known, name):.0f}% before)" if known else ""
    return f", held down by {REASONS[name]} {100 * shares[name]:.0f}% of the time{was}"


def _throttling(pairs: _Pairs) -> list[str]:
    """Reasons that held clocks down for longer, where no clock tells it already."""
    if _clocks(pairs):
        return []
    found = []
    for name, words in REASONS.items():
        moved = [
            (b, a)
            for b, a in pairs
            if name in a.throttled and name in b.throttled and a.throttled[name] - b.throttled[name] >= THROTTLED_MOVED
        ]
        if moved:
            was, now = (_throttled([pair[side] for pair in moved], name) for side in (0, 1))
            found.append(
                f"Clocks were held down by {words} {100 * now:.0f}% of the time ({100 * was:.0f}% before)"
                f"{_where(moved, pairs)}."
            )
    return found


def _throttled(gpus: Sequence[GpuReport], name: str) -> float:
    return _mean([gpu.throttled.get(name, 0.0) for gpu in gpus])


def _heat(pairs: _Pairs) -> list[str]:
    return _moved(pairs, lambda gpu: gpu.temperature_c, HEAT_MOVED_C, "The GPUs' temperature", lambda v: f"{v:.0f} °C")


def _load(pairs: _Pairs) -> list[str]:
    return _moved(
        pairs, lambda gpu: gpu.utilization, UTILIZATION_MOVED, "The GPUs' utilization", lambda v: f"{100 * v:.0f}%"
    )


def _moved(
    pairs: _Pairs, value: Callable[[GpuReport], float | None], least: float, what: str, shown: Callable[[float], str]
) -> list[str]:
    known = [(b, a) for b, a in pairs if value(b) is not None and value(a) is not None]
    found = []
    for sign in (1.0, -1.0):  # GPUs that moved against each other would cancel out
        moved = [(b, a) for b, a in known if sign * ((value(a) or 0.0) - (value(b) or 0.0)) >= least]
        if moved:
            was, now = (_mean([value(pair[side]) or 0.0 for pair in moved]) for side in (0, 1))
            found.append(f"{what} {shown(was)} -> {shown(now)}{_where(moved, pairs)}.")
    return found


def _neighbours(before: Sequence[GpuReport], after: Sequence[GpuReport]) -> list[str]:
    """Processes on the GPUs that are none of those compared, where there are more of them in the after window."""
    were, are = ({(gpu.host, pid) for gpu in side for pid in gpu.neighbours} for side in (before, after))
    new = sorted(are - were)
    if not before or len(are) <= len(were):
        return []
    named = ", ".join(f"{pid} on {show(host)}" for host, pid in new[:_MOST_NAMED])
    more = f" and {len(new) - _MOST_NAMED} more" if len(new) > _MOST_NAMED else ""
    noun = "process" if len(are) == 1 else "processes"
    return [f"{len(are)} other {noun} used the GPUs in the after window, {len(were)} before: new are {named}{more}."]


def _where(moved: _Pairs, pairs: _Pairs) -> str:
    return "" if len(moved) == len(pairs) else f" on {len(moved)} of {len(pairs)} GPUs"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
