"""The comparison: choose what to judge each kernel by, judge all of them together, and decide the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from kdiff.analysis import bystanders, context, recorded
from kdiff.analysis.at_once import Ask, Side, ahead, of_both
from kdiff.analysis.calibration import read_excess
from kdiff.analysis.cleaning import WARM_UP_NS, clean
from kdiff.analysis.cleaning_held import with_traffic
from kdiff.analysis.configuration import explain_launches
from kdiff.analysis.counts import Counts, Recording, is_graph
from kdiff.analysis.evidence import Evidence, holdings
from kdiff.analysis.groups import as_group, plan_groups, read_groups
from kdiff.analysis.judging import judge_all
from kdiff.analysis.kernel_rows import calibrated, kernel_row
from kdiff.analysis.load import with_loads
from kdiff.analysis.measure import MetricChoice, Plan, Samples, by_its_kernels, choose, gather, unlike
from kdiff.analysis.mixing import read_mixes
from kdiff.analysis.pairing import pair_kernels
from kdiff.analysis.queueing import activity, add_queue
from kdiff.analysis.rare import Exposure, find_rare
from kdiff.analysis.renames import Entry
from kdiff.analysis.report import (
    EXIT_OK,
    EXIT_REGRESSED,
    EXIT_UNDECIDED,
    KernelReport,
    RareKernel,
    Report,
)
from kdiff.analysis.scheduling import explain_waits
from kdiff.analysis.side_by_side import other_measures, others
from kdiff.analysis.suspects import suspect, unchosen, unpaired_cause
from kdiff.analysis.tolerances import Tolerance, unused
from kdiff.analysis.tolerances import margins as margins_of
from kdiff.analysis.totals import Totals
from kdiff.analysis.verdict import NOT_COMPARED, UNDECIDED, Judgement, Policy, Verdict, overall, values_needed
from kdiff.analysis.widening import seek, widen
from kdiff.queries.errors import KdiffError

_ORDER: Final = {
    verdict: place
    for place, verdict in enumerate(
        (
            Verdict.REGRESSED,
            *UNDECIDED,
            Verdict.RENAME_SUSPECTED,
            Verdict.NEW,
            Verdict.GONE,
            Verdict.IMPROVED,
            Verdict.PASS,
        )
    )
}
Judgements = dict[int, Judgement]

_FINE: Final = NOT_COMPARED | {Verdict.PASS, Verdict.IMPROVED}
_MEANING: Final[dict[str, str]] = {
    "completion": "Judged by completion, launch to the sync that proves it finished: launches that share a sync share "
    "its end, so a change may be another kernel's.",
    "launch": "Judged by time in the host call: this says nothing of the kernel's time on the device.",
    "graph": "Judged by graph launches, launch to the sync that proves it finished: the graphs, not their kernels.",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What to compare and what to make of it. Shares are fractions.

    Attributes:
        max_loss: above this loss a window gets no verdict.
        max_unjudged: share of launches and of time that kernels with too few launches may hold together (see rare).
        patterns: judge only kernels that match one of these.
        renames: what --map says: "old=new", patterns and groups, see renames.
        mapped: the entries of map files.
        by_canonical: whether kernels that were compiled anew are paired by their canonical names.
        on_undecided: what exit code an undecided run gets; None is 3.
        unpaired: whether a kernel gone and another new leave the run undecided.
        all_metrics: read the measures beside the judged one of every kernel, not only of those that do not pass.
        one_gpu_model: whether calibrations of hosts other than those judged may decide.
        history: whether intervals are widened by what `kdiff calibrate` measured, see widening.
        swapped: kernels that match one of these were swapped, all others are controls; none: it is not known.
        tolerances: those of single kernels, the first that matches goes before the policy's.
        cleaning: whether what is no ordinary traffic is left out first, see cleaning.
        warm_up_ns: how long a process warms up, from its first launch; 0: not at all.
        strata: whether a kernel is judged at one mix of its shapes and by shape, see mix; else all launches together.
    """

    metric: MetricChoice = "auto"
    policy: Policy = field(default_factory=Policy)
    max_loss: float = 0.01
    max_unjudged: float = 0.05
    patterns: Sequence[str] = ()
    renames: Sequence[str] = ()
    mapped: Sequence[Entry] = ()
    by_canonical: bool = True
    on_undecided: Literal["pass", "fail"] | None = None
    unpaired: Literal["undecided", "ignore"] = "undecided"
    all_metrics: bool = False
    one_gpu_model: bool = False
    history: bool = True
    swapped: Sequence[str] = ()
    tolerances: Sequence[Tolerance] = ()
    cleaning: bool = True
    warm_up_ns: int = WARM_UP_NS
    strata: bool = True


def compare(before: Evidence, after: Evidence, options: Options) -> Report:
    """Compare two windows. Raises KdiffError where there is nothing to compare or a name names nothing."""
    before, after = before.at(options.policy.quantile), after.at(options.policy.quantile)
    cleaned = clean(before, after, options.warm_up_ns, options.max_loss, options.cleaning, options.metric)
    before, after = cleaned.before, cleaned.after
    sides = {"before": before, "after": after}
    sought = seek(before, after, options.metric, options.history)
    counted = dict(zip(sides, of_both(before, after, _count_all), strict=True))
    census = {side: found[0] for side, found in counted.items()}
    recordings = {side: found[1] for side, found in counted.items()}
    for side, evidence in sides.items():
        gone, lacking = counted[side][2:]
        if gone:
            raise KdiffError(f"of the {side} window {evidence.window.brief()} {recorded.only_rolled_up(gone)}")
        if lacking:
            raise KdiffError(
                f"of the {side} window {evidence.window.brief()} {recorded.only_rows(lacking, evidence.hourly)}"
            )
        if not census[side] and not recordings[side].coverage:
            held = holdings(evidence.store, evidence.service)
            raise KdiffError(f"nothing was recorded in the {side} window {evidence.window.brief()}: {held}")
    asked = (options.renames, options.patterns, options.mapped, options.by_canonical)
    pairing = pair_kernels(census["before"], census["after"], *asked)
    rolled = before.rolled or after.rolled
    every = choose(pairing.pairs, options.metric)
    needed = values_needed(options.policy.quantile)
    exposure = Exposure(
        (_recorded_ns(before, recordings["before"]), _recorded_ns(after, recordings["after"])),
        (before.device.covered_ns, after.device.covered_ns),
    )
    every += plan_groups(pairing.groups, pairing.beside, options.metric, rolled, exposure.seconds)
    rare = find_rare(every, pairing.named, options.metric, needed, options.max_unjudged, exposure)
    plans = [plan for index, plan in enumerate(every) if index not in rare.plans]
    outside = unlike(before, after)
    beside = other_measures(plans, range(len(plans)) if options.all_metrics else (), outside)
    questions: list[Ask[Any]] = [lambda evidence, side: activity(evidence, side, plans), context.read_gpus]
    playing, sampled, *other_samples = ahead(before, after, [*questions, *(measure.ask for measure in beside)])
    samples = gather(before, after, plans)
    hosts = {row["host"] for evidence in sides.values() for row in evidence.processes}
    excesses = read_excess((before, after), plans, options.policy.quantile, hosts)
    deciding = {i: excess for i, excess in excesses.items() if options.one_gpu_model or not excess.foreign}
    groups = {i: group for i, plan in enumerate(plans) for group in pairing.groups if plan.pair is group.pair}
    judged = {i: group for i, group in groups.items() if not plans[i].why}
    roles = bystanders.roles(plans, options.swapped, deciding, pairing.beside)
    margins = margins_of(plans, options.tolerances)
    totals = read_groups(before, after, judged, options.policy, margins)
    widening = widen(sought(), plans, options.policy.tolerance)

    def judge(before: Evidence, after: Evidence, samples: Samples, totals: Mapping[int, Totals]) -> Judgements:
        asked = before, after, plans, samples, groups, unlike(before, after), options.policy, margins
        return judge_all(
            samples,
            options.policy,
            deciding,
            totals,
            inflation=widening.inflation,
            margins=margins,
            roles=roles,
            hosts=(before.scope.hosts, after.scope.hosts),
            mixes=read_mixes(*asked) if options.strata else {},
        )

    def judge_anew(before: Evidence, after: Evidence) -> Judgements:
        grouped = read_groups(before, after, judged, options.policy, margins)
        return judge(before, after, gather(before, after, plans), grouped)

    judgements = judge(before, after, samples, totals)
    with_syncs = any(plan.metric in ("completion", "graph") for plan in plans)
    recordings = cleaned.losses(recordings)
    losses = {side: recording.loss(with_syncs) for side, recording in recordings.items()}
    lossy = recorded.lossy(losses, options.max_loss)
    device_lossy = []
    if groups or any(plan.metric == "device" for plan in plans):
        device_lossy = recorded.lossy_device(sides, options.max_loss) + recorded.other_processes(sides)
    of_calls = recorded.calls_gone(sides) if outside else []
    rows = []
    for index, plan in enumerate(plans):
        factor = widening.inflation.get(index, 1.0)
        row = replace(kernel_row(plan, judgements[index], options.max_loss), widened=factor)
        if index in excesses:
            row = calibrated(row, samples[index], excesses[index], index in deciding, options.policy, factor)
        if index in groups:
            row = as_group(row, groups[index], totals.get(index))
        if row.verdict is Verdict.NOT_ENOUGH_DATA and plan.metric == "device":
            row = replace(row, reasons=(*row.reasons, *recorded.sparse_device(sides)))
        why = list(lossy)
        if plan.in_both and not why:
            why = device_lossy if plan.metric == "device" or index in groups else of_calls
            why = why or recorded.without_bins(plan, samples[index], sides, options.max_loss)
        if why:
            row = replace(row, verdict=Verdict.INCONCLUSIVE, reasons=(*why, *row.reasons))
        rows.append(row)
    del samples
    if not options.all_metrics:
        beside = other_measures(plans, [i for i, row in enumerate(rows) if row.verdict not in _FINE], outside)
        other_samples = ahead(before, after, [measure.ask for measure in beside])
    played = add_queue(playing(), rows)
    rows = explain_launches(before, after, plans, played.rows)
    rows = explain_waits(before, after, plans, rows, options.policy.quantile)
    for index, measures in others(beside, other_samples, options.policy).items():
        rows[index] = replace(rows[index], others=measures)
    lengths = _recorded_ns(before, Recording()), _recorded_ns(after, Recording())
    both = census["before"], census["after"]
    rows = with_loads(rows, plans, both, exposure.recorded, lengths, options.policy.tolerance)
    rows = with_traffic(cleaned, rows, judge_anew)
    rows = suspect(before, after, plans, rows, pairing.beside, exposure.recorded)
    controls, gpus = bystanders.reports(judgements), sampled()
    surroundings = context.differences(*gpus)
    rows = context.explained(rows, surroundings)
    other_gpus, incomparable = context.other_models(*gpus)
    if incomparable:
        rows = context.on_other_gpus(rows, other_gpus)
    unexplained = context.beyond_clocks(*gpus, controls)
    rows = context.beside_confounded(rows, unexplained)
    rows.sort(key=lambda row: (_ORDER[row.verdict], -(row.ratio or 0.0), row.kernel))
    swapped = unpaired_cause(rows, unchosen(pairing.pairs, pairing.beside, exposure.recorded))
    verdict, cause = _decide(rows, lossy, device_lossy, swapped, options)
    metrics = {row.metric for row in rows} - {"none"}
    windows = [
        recorded.window_report(evidence, census[side], recordings[side], losses[side], played.busy[i], gpus[i])
        for i, (side, evidence) in enumerate(sides.items())
    ]
    return Report(
        verdict=verdict,
        exit_code=_exit_code(verdict, options),
        cause=cause,
        tolerance=options.policy.tolerance,
        quantile=options.policy.quantile,
        metric="mixed" if len(metrics) > 1 else next(iter(metrics), "none"),
        before=replace(windows[0], cleaning=cleaned.steps[0]),
        after=replace(windows[1], cleaning=cleaned.steps[1]),
        kernels=tuple(rows),
        rare=tuple(
            RareKernel(every[i].pair.kernel, every[i].size(every[i].pair.before), every[i].size(every[i].pair.after))
            for i in rare.plans
        ),
        rare_launches=rare.launches,
        rare_time=rare.time,
        notes=(
            *(*lossy, *device_lossy, *played.notes),
            *_notes(plans, census, options),
            *_unlike(before, after, plans),
            *widening.notes,
            *bystanders.notes(controls, roles),
            *(() if roles.known else bystanders.unseen(rows, options.patterns, controls)),
            *(surroundings if any(row.verdict not in _FINE for row in rows) else ()),
            *([unexplained] if unexplained and any(row.verdict is Verdict.CONFOUNDED for row in rows) else ()),
        ),
        warnings=(
            *(*pairing.warnings, *unused(pairing.beside, options.tolerances)),
            *recorded.warnings(sides, recordings),
            *widening.warnings,
            *([other_gpus] if other_gpus else []),
        ),
        controls=controls,
        own_tolerances=len(margins),
        history=widening.report,
    )


def _count_all(evidence: Evidence, _side: Side) -> tuple[dict[str, Counts], Recording, int, int]:
    """Counts and recording of one window, and how many launches and executions lack the rows or roll-ups to judge."""
    found = evidence.census(), evidence.recording()
    gone = 0 if evidence.rolled else evidence.missing_rows
    return *found, gone, 0 if gone else evidence.missing_rollups


def _decide(
    rows: Sequence[KernelReport], lossy: Sequence[str], device_lossy: Sequence[str], swapped: str, options: Options
) -> tuple[Verdict, str]:
    """The run's verdict, and why it is undecided where the kernels' verdicts do not say it."""
    if lossy:
        return Verdict.INCONCLUSIVE, lossy[0].rstrip(".")
    verdict = overall(row.verdict for row in rows)
    compared = [row for row in rows if row.verdict not in NOT_COMPARED]
    new = any(row.verdict is Verdict.NEW for row in rows)
    if not rows:
        return Verdict.INCONCLUSIVE, "no kernel ran that could be compared"
    if not compared:
        return Verdict.INCONCLUSIVE, swapped or f"nothing ran in the {'before' if new else 'after'} window"
    if verdict is Verdict.PASS and swapped and options.unpaired == "undecided":
        return Verdict.INCONCLUSIVE, swapped
    if verdict is Verdict.INCONCLUSIVE and device_lossy:
        return verdict, device_lossy[0].rstrip(".")
    return verdict, ""


def _exit_code(verdict: Verdict, options: Options) -> int:
    if verdict is Verdict.REGRESSED:
        return EXIT_REGRESSED
    if verdict is Verdict.PASS:
        return EXIT_OK
    return {"pass": EXIT_OK, "fail": EXIT_REGRESSED, None: EXIT_UNDECIDED}[options.on_undecided]


def _notes(plans: Sequence[Plan], census: Mapping[str, Mapping[str, Counts]], options: Options) -> list[str]:
    notes = []
    isolated = any(plan.isolated and plan.metric == "completion" for plan in plans)
    if isolated:
        notes.append(
            "Where device time is not recorded in both windows, a kernel is judged by the completion of its isolated "
            "launches, alone between two syncs, which bounds it."
        )
    if options.metric in _MEANING:
        notes.append(_MEANING[options.metric])
    if options.metric != "graph":
        notes += _graphs(census, options)
    return notes


def _graphs(census: Mapping[str, Mapping[str, Counts]], options: Options) -> list[str]:
    """What becomes of the kernels inside graphs, which the host does not see launched."""
    launches = {True: 0, False: 0}
    for name in {name for counts in census.values() for name in counts if is_graph(name)}:
        sides = [counts.get(name, Counts()) for counts in census.values()]
        launches[by_its_kernels(*sides)] += sum(counts.launches for counts in sides)
    judged = options.metric in ("auto", "device")
    told = {True: "are judged by device time, under their own names" if judged else "are not judged"}
    told[False] = "cannot be seen: device time was not recorded in both windows"
    if all(any(c.executions for c in counts.values()) for counts in census.values()):
        told[False] = "cannot be seen: graphs of their processes were not timed in both windows"
    return [f"The kernels inside {count:,} graph launches {told[seen]}." for seen, count in launches.items() if count]


def _unlike(before: Evidence, after: Evidence, plans: Sequence[Plan]) -> list[str]:
    if not unlike(before, after) or all(plan.metric in ("device", None) for plan in plans):
        return []
    return [
        "Calls in device windows take longer, and one window has more of these than the other: "
        "those in them are left out."
    ]


def _recorded_ns(evidence: Evidence, recording: Recording) -> float:
    """For how long calls were recorded; all of it where no agent says. Of arms, which differ in hosts, of each host."""
    hosts = len(evidence.scope.hosts) if evidence.scope.by_host else 1
    return hosts * evidence.window.length_ns * (recording.coverage if recording.hosts else 1.0)
