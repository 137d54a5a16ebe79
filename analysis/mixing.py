"""Which kernels of a comparison have several strata, and what of these is read to judge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kdiff.analysis.at_once import Side, of_both
from kdiff.analysis.counts import Metric
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.measure import Plan, Samples, keys_of
from kdiff.analysis.mix import Mix
from kdiff.analysis.mix_screen import may_tell
from kdiff.analysis.mix_words import why_not_comparable
from kdiff.analysis.quantiles import Ordered
from kdiff.analysis.sample import Sample
from kdiff.analysis.strata import Likeness, Stratum, Support, find_support, together
from kdiff.analysis.verdict import Policy, values_needed

_METRICS: Final[tuple[Metric, ...]] = ("device", "completion")
"""What depends on the shape: the time of a host call does not, and a graph has none."""


def read_mixes(
    before: Evidence,
    after: Evidence,
    plans: Sequence[Plan],
    samples: Samples,
    groups: Mapping[int, object],
    outside: bool,
    policy: Policy,
    margins: Mapping[int, float],
) -> dict[int, Mix]:
    """The mix of every kernel of several strata that has enough launches to be judged, by the index of its plan.

    Of the others no value is read again. `groups`: plans that are judged in another way. `outside` as Evidence.values.
    `margins`: of those plans whose accepted slowdown is another than that of `policy`. Raises StoreError.
    """
    asked = {
        i: plan for i, plan in enumerate(plans) if i not in groups and _has_enough(plan, samples[i], before.quantile)
    }
    if not asked:
        return {}
    graphs = not (before.rolled or after.rolled)  # roll-ups do not tell
    shapes = of_both(before, after, lambda evidence, side: _shapes(evidence, side, asked, graphs))
    several: dict[int, Support] = {}
    for index in asked:
        sides = [found.get(index, {}) for found in shapes]
        if all(sum(side.values()) for side in sides):
            support = find_support(sides[0], sides[1])
            if support.likeness is Likeness.SEVERAL:
                several[index] = support
    read = {index: plan for index, plan in asked.items() if index in several and several[index].common}
    whole = of_both(before, after, lambda evidence, side: _whole(evidence, side, read, outside))
    for index in whole[0].keys() & whole[1].keys():
        margin = margins.get(index, policy.tolerance)
        if not may_tell(several[index], whole[0][index], whole[1][index], before.quantile, margin):
            del several[index], read[index]
    strata = of_both(before, after, lambda evidence, side: _strata(evidence, side, read, outside, graphs))
    mixes = {}
    for index, support in several.items():
        old, new = (found.get(index, {}) for found in strata)
        if old and new:
            # What was read is what is judged: the counts were of another moment.
            support = find_support(_sizes(old), _sizes(new))
        mix = Mix.of(support, old, new, why_not_comparable(support))
        if mix.why or mix.standardised is not None:
            mixes[index] = mix
    return mixes


def _has_enough(plan: Plan, samples: tuple[Sample | None, Sample | None], quantile: float) -> bool:
    if plan.metric not in _METRICS or plan.why or not plan.in_both:
        return False
    return all(sample is not None and sample.size >= values_needed(quantile) for sample in samples)


def _shapes(evidence: Evidence, side: Side, plans: Mapping[int, Plan], graphs: bool) -> dict[int, dict[Stratum, int]]:
    found: dict[int, dict[Stratum, int]] = {}
    for metric, isolated, of in _questions(plans):
        for index, sizes in evidence.shapes(metric, keys_of(of, side), isolated).items():
            its = found.setdefault(index, {})
            for stratum, size in sizes.items():
                name = stratum if graphs else stratum._replace(in_graph=False)
                its[name] = its.get(name, 0) + size
    return found


def _strata(
    evidence: Evidence, side: Side, plans: Mapping[int, Plan], outside: bool, graphs: bool
) -> dict[int, dict[Stratum, Sample]]:
    found: dict[int, dict[Stratum, Sample]] = {}
    for metric, isolated, of in _questions(plans):
        for index, samples in evidence.strata(metric, keys_of(of, side), isolated, outside).items():
            groups: dict[Stratum, list[Sample]] = {}
            for stratum, sample in samples.items():
                groups.setdefault(stratum if graphs else stratum._replace(in_graph=False), []).append(sample)
            found[index] = {stratum: together(its) for stratum, its in groups.items()}
    return found


def _whole(
    evidence: Evidence, side: Side, plans: Mapping[int, Plan], outside: bool
) -> dict[int, dict[Stratum, Ordered]]:
    """Of the plans whose values are read from histograms."""
    found: dict[int, dict[Stratum, Ordered]] = {}
    for metric, isolated, of in _questions(plans):
        found |= evidence.strata_whole(metric, keys_of(of, side), isolated, outside) or {}
    return found


def _questions(plans: Mapping[int, Plan]) -> list[tuple[Metric, bool, dict[int, Plan]]]:
    """Plans by what is asked for them: metric, and whether of isolated launches."""
    found: dict[tuple[Metric, bool], dict[int, Plan]] = {}
    for index, plan in plans.items():
        if plan.metric is not None:
            found.setdefault((plan.metric, plan.isolated), {})[index] = plan
    return [(metric, isolated, of) for (metric, isolated), of in found.items()]


def _sizes(samples: Mapping[Stratum, Sample]) -> dict[Stratum, int]:
    return {stratum: sample.size for stratum, sample in samples.items()}
