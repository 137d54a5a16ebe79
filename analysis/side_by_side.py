"""The measures of a kernel beside the one it is judged by: for information, no verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kdiff.analysis.at_once import Answer, Side
from kdiff.analysis.counts import Metric, is_graph
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.interval import ratio_interval, tail_estimate
from kdiff.analysis.measure import Plan, read_samples
from kdiff.analysis.report import Measured
from kdiff.analysis.sample import Sample
from kdiff.analysis.verdict import Policy

METRICS: Final[tuple[Metric, ...]] = ("device", "completion", "launch")


@dataclass(frozen=True, slots=True)
class OtherMeasure:
    """A measure of plans, by index, that are judged by others. Completions are those of all launches."""

    metric: Metric
    plans: Mapping[int, Plan]
    outside: bool

    def ask(self, evidence: Evidence, side: Side) -> dict[int, Sample | None]:
        """Its samples in one window, by index. Raises StoreError."""
        indices = list(self.plans)
        found = read_samples(evidence, side, list(self.plans.values()), self.outside)
        return {indices[place]: sample for place, sample in found.items()}

    def measured(self, answer: Answer[dict[int, Sample | None]], policy: Policy) -> Iterator[tuple[int, Measured]]:
        """Of each plan, by index, that has it in both windows."""
        before, after = answer()
        for index in self.plans:
            one, other = before.get(index), after.get(index)
            if one is not None and other is not None:
                yield index, measured(self.metric, one, other, policy)


def other_measures(plans: Sequence[Plan], chosen: Collection[int], outside: bool) -> list[OtherMeasure]:
    """What may be known beside what the `chosen` plans, by index, are judged by; `outside` as Evidence.values."""
    return [
        OtherMeasure(
            metric,
            {i: replace(plans[i], metric=metric, isolated=False) for i in chosen if _has(plans[i], metric)},
            outside,
        )
        for metric in METRICS
    ]


def others(
    asked: Sequence[OtherMeasure], answers: Sequence[Answer[dict[int, Sample | None]]], policy: Policy
) -> dict[int, tuple[Measured, ...]]:
    """What else both windows have of each plan, by index, from the answers to `asked`. Raises StoreError."""
    found: dict[int, tuple[Measured, ...]] = {}
    for measure, answer in zip(asked, answers, strict=True):
        # One at a time: of rows, the samples of two measures would not fit beside each other.
        for index, one in measure.measured(answer, policy):
            found[index] = (*found.get(index, ()), one)
    return found


def measured(metric: Metric, before: Sample, after: Sample, policy: Policy) -> Measured:
    """The judged quantile of one measure in both windows; neither sample is empty."""
    b, a = tail_estimate(before, policy.quantile), tail_estimate(after, policy.quantile)
    limits = ratio_interval(b, a, policy.alpha_pass)
    return Measured(metric, False, b.n, a.n, b.value, a.value, limits.ratio, limits.ci)


def _has(plan: Plan, metric: Metric) -> bool:
    pair = plan.pair
    both = all(counts.available(metric, isolated=False) for counts in (pair.before, pair.after))
    return both and metric != plan.metric and not is_graph(pair.kernel)
