"""How well the two windows of a comparison were recorded: what bars a verdict, what is warned of, what is reported."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import Final

from kdiff.analysis.counts import Counts, Recording
from kdiff.analysis.device import UNHEARD_SHARE, DeviceRecording
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.measure import Plan, unlike
from kdiff.analysis.pairing import show
from kdiff.analysis.report import DeviceReport, WindowReport
from kdiff.analysis.sample import Sample
from kdiff.analysis.surroundings import GpuReport

MIN_COVERAGE: Final = 0.9
"""Below this share of a window recorded, the reader is warned."""


def lossy(losses: Mapping[str, float | None], limit: float) -> list[str]:
    """One sentence for each window that lost too much to be judged."""
    return [
        f"The {side} window lost {100 * loss:.3g}% of its events (limit {100 * limit:g}%): no verdict; "
        "raise the agent's buffer, or choose a window without the loss."
        for side, loss in losses.items()
        if loss is not None and loss > limit
    ]


def only_rolled_up(rows: int) -> str:
    """What to do where a window that needs rows has lost them to age."""
    return (
        f"{rows:,} launches and executions are kept in roll-ups only: choose a window of two hours or more, without "
        "--exact, or a later one"
    )


def only_rows(rows: int, hourly: bool) -> str:
    """What to do where a window is to be judged by roll-ups that it has not."""
    if hourly:
        return (
            f"{rows:,} launches and executions, or more, have no roll-ups by the hour: add --exact, or choose a window "
            "of under five days"
        )
    return f"{rows:,} launches and executions have no roll-ups: add --exact, or choose a window of under two hours"


def without_bins(
    plan: Plan, samples: tuple[Sample | None, Sample | None], sides: Mapping[str, Evidence], limit: float
) -> list[str]:
    """One sentence for each window whose histograms of a kernel hold fewer values than were counted."""
    if plan.metric is None or (plan.metric != "device" and unlike(*sides.values())):
        return []
    found = []
    for (side, evidence), sample in zip(sides.items(), samples, strict=True):
        counted = getattr(plan.pair, side).available(plan.metric, plan.isolated)
        held = sample.size if sample else 0
        if evidence.rolled and evidence.store.expires and counted - held > limit * counted:
            found.append(
                f"The histograms of the {side} window hold {held:,} of its {counted:,} values: no verdict; "
                "judge its rows with --exact."
            )
    return found


def calls_gone(sides: Mapping[str, Evidence]) -> list[str]:
    """One sentence for each window whose calls inside device windows cannot be told from the others any more."""
    found = []
    for side, evidence in sides.items():
        why = "it is judged by hours, which do not tell; choose a window of under five days, or add --exact"
        if not evidence.hourly:
            why = "its rows are gone, and roll-ups do not tell; choose a later window"
        if evidence.hourly or evidence.missing_rows:
            found.append(
                f"One window has more calls in device windows, which take longer, and in the {side} window they cannot "
                f"be left out: {why}."
            )
    return found


def lossy_device(sides: Mapping[str, Evidence], limit: float) -> list[str]:
    """One sentence for each window whose device windows lost too many executions for a verdict on device time."""
    found = []
    for side, evidence in sides.items():
        device = evidence.device
        if device.loss > limit:
            found.append(
                f"The device windows of the {side} window lack {device.missing:,} of "
                f"{device.executions + device.missing:,} executions, {100 * device.loss:.3g}% (limit {100 * limit:g}%; "
                f"not collected {device.uncollected:,}, no room in CUPTI {device.dropped:,}, agent's ring full "
                f"{device.lost:,}): no verdict on device time; choose a window without the loss."
            )
    return found


def other_processes(sides: Mapping[str, Evidence]) -> list[str]:
    """One sentence for each window whose device times are of processes that ran in the other, but were not timed there.

    Their GPUs and their work may be others than those of the processes that were timed instead. A process that did not
    run in the other window is no such: it came, or went.
    """
    found = []
    for (side, evidence), (other, there) in permutations(sides.items(), 2):
        timed_hosts = {host for host, _ in there.device.timed_ns}
        missing = {(row["host"], row["pid"]) for row in there.processes} - there.device.timed_ns.keys()
        # A process that was started anew has another pid.
        hosts = {host for host, _ in missing} - timed_hosts
        held = sum(n for process, n in evidence.timed_by.items() if process in missing or process[0] in hosts)
        if there.timed and held > UNHEARD_SHARE * evidence.timed:
            found.append(
                f"{held / evidence.timed:.0%} of the executions that were timed in the {side} window are of processes "
                f"that ran in the {other} window without device windows: no verdict on device time; "
                "choose windows in which the same processes were timed."
            )
    return found


def sparse_device(sides: Mapping[str, Evidence]) -> list[str]:
    """What else than a longer window would give more executions, where device time is known some of the time."""
    covered = {side: e.device.coverage for side, e in sides.items() if e.device.windows and e.device.coverage < 0.5}
    if not covered:
        return []
    known = " and ".join(f"{share:.1%} of the {side} window" for side, share in covered.items())
    return [f"Device time is known for {known}: denser device windows hold more executions in the same time."]


def window_report(
    evidence: Evidence,
    census: Mapping[str, Counts],
    recording: Recording,
    loss: float | None,
    busy: float | None = None,
    gpus: tuple[GpuReport, ...] = (),
) -> WindowReport:
    """One window as the output formats tell it."""
    count, width = evidence.window.buckets()
    return WindowReport(
        window=evidence.window,
        store=evidence.store.name,
        launches=sum(counts.launches for counts in census.values()),
        executions=sum(counts.executions for counts in census.values()),
        failed=sum(counts.failed for counts in census.values()),
        captured=sum(counts.captured for counts in census.values()),
        unresolved=sum(counts.unresolved for counts in census.values()),
        lost=recording.lost,
        loss=loss,
        coverage=recording.coverage,
        buckets=count,
        bucket_ns=width,
        device=device_report(evidence.device, busy),
        gpus=gpus,
    )


def device_report(device: DeviceRecording, busy: float | None) -> DeviceReport | None:
    """How well the device timed a window; None where it did not."""
    if not device.timed_ns:
        return None
    return DeviceReport(
        windows=device.windows,
        covered_ns=device.covered_ns,
        coverage=device.coverage,
        executions=device.executions,
        uncollected=device.uncollected,
        dropped=device.dropped,
        lost=device.lost,
        loss=device.loss,
        clock_error_ns=device.clock_error_ns,
        busy=busy,
    )


def warnings(sides: Mapping[str, Evidence], recordings: Mapping[str, Recording]) -> list[str]:
    """What may be wrong with the data, one sentence each."""
    found = []
    for side, recording in recordings.items():
        found += _coverage_warnings(side, sides[side], recording)
        found += sides[side].device.warnings(side)
    stores = {id(evidence.store): evidence.store for evidence in sides.values()}
    return [*found, *(warning for store in stores.values() for warning in store.warnings)]


def _coverage_warnings(side: str, evidence: Evidence, recording: Recording) -> list[str]:
    window = evidence.window.brief()
    if not recording.hosts:
        return [f"no agent's account covers the {side} window {window}: what was lost is not known"]
    if recording.coverage < MIN_COVERAGE:
        return [f"only {recording.coverage:.0%} of the {side} window {window} was recorded"]
    return [
        f"the host {show(host)} recorded only {coverage:.0%} of the {side} window"
        for host, coverage in recording.hosts.items()
        if coverage < MIN_COVERAGE
    ]
