"""The measures of a kernel beside the one it is judged by: for information, no verdict."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from kdiff.analysis.counts import Metric, is_graph
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.interval import Sample, ratio_interval, tail_estimate
from kdiff.analysis.measure import Plan, gather
from kdiff.analysis.report import Measured
from kdiff.analysis.verdict import Policy

METRICS: Final[tuple[Metric, ...]] = ("device", "completion", "launch")


def others(
    before: Evidence, after: Evidence, plans: Sequence[Plan], chosen: Collection[int], policy: Policy
) -> dict[int, tuple[Measured, ...]]:
    """What else both windows have of the `chosen` plans, by index: one read for each window and measure.

    Completions are those of all launches. Raises StoreError.
    """
    found: dict[int, list[Measured]] = {index: [] for index in chosen}
    for metric in METRICS:
        asked = {i: replace(plans[i], metric=metric, isolated=False) for i in found if _has(plans[i], metric)}
        samples = gather(before, after, list(asked.values()))
        for place, index in enumerate(asked):
            one, other = samples[place]
            if one is not None and other is not None:
                found[index].append(measured(metric, one, other, policy))
    return {index: tuple(measures) for index, measures in found.items()}


def measured(metric: Metric, before: Sample, after: Sample, policy: Policy) -> Measured:
    """The judged quantile of one measure in both windows; neither sample is empty."""
    b, a = tail_estimate(before, policy.quantile), tail_estimate(after, policy.quantile)
    limits = ratio_interval(b, a, policy.alpha_pass)
    return Measured(metric, False, b.n, a.n, b.value, a.value, limits.ratio, limits.ci)


def _has(plan: Plan, metric: Metric) -> bool:
    pair = plan.pair
    both = all(counts.available(metric, isolated=False) for counts in (pair.before, pair.after))
    return both and metric != plan.metric and not is_graph(pair.kernel)
