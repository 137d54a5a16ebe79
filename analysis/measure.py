"""What each kernel is judged by: the best measure that both windows have, or the one that was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kdiff.analysis.at_once import Side, of_both
from kdiff.analysis.counts import Counts, Metric, is_graph
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.pairing import Pair
from kdiff.analysis.sample import Sample

MetricChoice = Literal["auto", "device", "completion", "launch", "graph"]

NO_DEVICE_TIME: Final = "Device time not recorded"
_NOT_MET: Final = "No run of it fell into a device window"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a kernel is judged by. `why` says why it cannot be, and then no verdict but INCONCLUSIVE is given."""

    pair: Pair
    metric: Metric | None
    isolated: bool = False
    why: str = ""

    @property
    def in_both(self) -> bool:
        """Whether the kernel ran in both windows."""
        return self.pair.in_before and self.pair.in_after

    def size(self, counts: Counts) -> int:
        """How often the kernel was seen, in one window, by what it is judged by."""
        return counts.executions if self.metric == "device" else counts.seen


ALIKE: Final = 0.75
"""Below this ratio of the shares of the time that were timed on the device, the calls of two windows are not alike."""

TIMED: Final = 0.95
"""Below this share of a graph's launches by processes whose graphs' kernels were timed, the graph itself is judged."""

Samples = dict[int, tuple[Sample | None, Sample | None]]


def choose(pairs: Sequence[Pair], metric: MetricChoice) -> list[Plan]:
    """One plan a pair, in order; pairs that `metric` does not concern are left out."""
    device_seen = all(any(getattr(p, side).executions for p in pairs) for side in ("before", "after"))
    no_device = _NOT_MET if device_seen else NO_DEVICE_TIME
    plans = []
    for pair in pairs:
        if is_graph(pair.kernel):
            if metric == "graph" or (metric == "auto" and not by_its_kernels(pair.before, pair.after)):
                plans.append(_plan(pair, "graph", metric == "auto", no_device))
        elif metric == "auto":
            plans.append(_best(pair, no_device))
        elif metric != "graph":
            plans.append(_plan(pair, metric, False, no_device))
    return plans


def by_its_kernels(*sides: Counts) -> bool:
    """Whether a graph, counted in each window, is judged by its kernels on the device, under their own names.

    TIMED of its launches are then of processes whose graphs' kernels were timed: those say nothing of the others.
    """
    return all(counts.graphs_timed >= TIMED * counts.launches for counts in sides if counts.launches)


def _best(pair: Pair, no_device: str) -> Plan:
    """The best measure that both windows have, or that the only window has."""
    sides = [c for c, present in ((pair.before, pair.in_before), (pair.after, pair.in_after)) if present]
    if all(c.executions for c in sides):
        return Plan(pair, "device")
    if len(sides) == 1:
        metric: Metric = "completion" if sides[0].completions else "launch"
        return Plan(pair, metric if sides[0].available(metric, isolated=False) else None)
    return _plan(pair, "completion", True, no_device)


def _plan(pair: Pair, metric: Metric, isolated: bool, no_device: str) -> Plan:
    missing = [
        side
        for side, counts, present in (
            ("before", pair.before, pair.in_before),
            ("after", pair.after, pair.in_after),
        )
        if present and not counts.available(metric, isolated)
    ]
    if not missing:
        return Plan(pair, metric, isolated)
    where = f"in the {missing[0]} window" if len(missing) == 1 else "in either window"
    if not (pair.in_before and pair.in_after):
        return Plan(pair, None)
    if metric == "device":
        return Plan(pair, None, why=f"{no_device} {where}.")
    if isolated:
        ran = "graph launch" if metric == "graph" else "launch"
        return Plan(pair, None, why=f"{no_device}, and no {ran} {where} was alone between two syncs to bound it.")
    what = {"launch": "time in the host call", "completion": "completion", "graph": "completion of a graph"}
    return Plan(pair, None, why=f"No {what[metric]} is known {where}.")


def unlike(before: Evidence, after: Evidence) -> bool:
    """Whether calls in device windows, which take longer, are left out: one window has more of these than the other."""
    less, more = sorted((before.device.coverage, after.device.coverage))
    # Of a p99 the slowest hundredth decides: a share that is small is not therefore harmless.
    return less < ALIKE * more


def keys_of(plans: Mapping[int, Plan], side: Side) -> dict[int, int]:
    """kernel_key -> index of the plans' kernels in one window."""
    return {key: index for index, plan in plans.items() for key in getattr(plan.pair, side).keys}


def gather(before: Evidence, after: Evidence, plans: Sequence[Plan]) -> Samples:
    """The samples of every plan by its index: one read for each window and measure."""
    outside = unlike(before, after)
    found = of_both(before, after, lambda evidence, side: read_samples(evidence, side, plans, outside))
    return {i: (found[0].get(i), found[1].get(i)) for i in range(len(plans))}


def read_samples(evidence: Evidence, side: Side, plans: Sequence[Plan], outside: bool) -> dict[int, Sample | None]:
    """Those of one window, of the plans that have any. `outside` as Evidence.values. Raises StoreError."""
    samples = {}
    for metric in sorted({plan.metric for plan in plans if plan.metric}):
        keys = keys_of({index: plan for index, plan in enumerate(plans) if plan.metric == metric}, side)
        for index, values in evidence.values(metric, keys, outside).items():
            samples[index] = values.choose(plans[index].isolated)
    return samples
