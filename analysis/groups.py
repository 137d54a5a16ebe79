"""Fusions and splits: kernels that are compared together, as --map A+B=C says.

A group is judged by its mean device time for each launch of its first kernel, see totals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from kdiff.analysis import clusters
from kdiff.analysis.at_once import Side, of_both
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.measure import NO_DEVICE_TIME, MetricChoice, Plan
from kdiff.analysis.pairing import Group, Pair, show
from kdiff.analysis.report import GROUP_METRIC, KernelReport
from kdiff.analysis.totals import MIN_LAUNCHES, Total, Totals
from kdiff.analysis.values import RowValues, read_rows
from kdiff.analysis.verdict import MIN_BUCKETS, MIN_EVEN_BUCKETS, QUANTA, Policy

MOST_APART: Final = 1.1
"""By how much the launches of a group's first kernel, for each launch of other kernels, may differ: beyond that a
launch of it is another unit of work, as where one launch does what two did."""


def plan_groups(
    groups: Sequence[Group],
    pairs: Sequence[Pair],
    metric: MetricChoice,
    rolled: bool,
    seconds: tuple[float, float] = (1.0, 1.0),
) -> list[Plan]:
    """One plan a group; beside them `pairs` are compared, from roll-ups if `rolled`.

    `seconds` that were timed before and after: what launches are counted by where nothing else ran in both windows.
    """
    beside = [pair for pair in pairs if pair.before.executions and pair.after.executions]
    others = sum(p.before.executions for p in beside), sum(p.after.executions for p in beside)
    ran: tuple[float, float] = others if all(others) else seconds
    what = "run of the kernels that ran in both windows" if all(others) else "second that was timed"
    return [Plan(group.pair, None, why=_why(group, ran, what, metric, rolled)) for group in groups]


def read_groups(
    before: Evidence,
    after: Evidence,
    groups: Mapping[int, Group],
    policy: Policy,
    margins: Mapping[int, float] | None = None,
) -> dict[int, Totals]:
    """By index, the groups' device times in both windows; `margins` as in judging.judge_all. Raises StoreError."""
    found = of_both(before, after, lambda evidence, side: _read(evidence, side, groups))
    totals = {}
    for index in groups:
        one, other = found[0].get(index), found[1].get(index)
        if one is not None and other is not None:
            lack = (*_lack("before", one), *_lack("after", other))
            tolerance = (margins or {}).get(index, policy.tolerance)
            margin = max(tolerance, QUANTA * max(one.tick, other.tick) / one.mean)
            totals[index] = Totals(one, other, margin, lack)
    return totals


def as_group(row: KernelReport, group: Group, totals: Totals | None) -> KernelReport:
    """The row of a group: what was judged, in words."""
    if totals is None:
        return row
    old, new = (" + ".join(show(name) for name, _ in side) for side in (group.before, group.after))
    first_old, first_new = show(group.before[0][0]), show(group.after[0][0])
    reason = (
        f"Judged by the mean device time of {old} for each launch of {first_old} before, of {new} for each launch of "
        f"{first_new} after: the quantiles of a group are not known."
    )
    return replace(
        row,
        metric=GROUP_METRIC,
        n_before=totals.before.n,
        n_after=totals.after.n,
        reasons=(reason, *row.reasons),
    )


def _why(group: Group, ran: tuple[float, float], what: str, metric: MetricChoice, rolled: bool) -> str:
    """Why a group cannot be judged; '' if it can. Its launches are counted for each of `ran`, called `what`."""
    if metric not in ("auto", "device"):
        return "A group of --map is judged by device time only: leave out --metric, or map one kernel to one."
    for side, members in (("before", group.before), ("after", group.after)):
        missing = [name for name, counts in members if not counts.executions]
        if missing:
            return f"{NO_DEVICE_TIME} of {show(missing[0])} in the {side} window: the time of its group is not known."
    if rolled:
        return (
            "A group of --map is judged from rows, and roll-ups do not tell its time: choose windows of under two "
            "hours, or add --exact."
        )
    rates = [side[0][1].executions / its for side, its in zip((group.before, group.after), ran, strict=True)]
    if max(rates) > MOST_APART * min(rates):
        names = show(group.before[0][0]), show(group.after[0][0])
        return (
            f"{names[0]} ran {rates[0]:.3g} times before, {names[1]} {rates[1]:.3g} times after, for each {what}: "
            "a launch of one is not what a launch of the other is. Name those first in the group that run equally "
            "often."
        )
    return ""


def _read(evidence: Evidence, side: Side, groups: Mapping[int, Group]) -> dict[int, Total]:
    members = [(index, counts) for index, group in groups.items() for _, counts in getattr(group, side)]
    keys = {key: place for place, (_, counts) in enumerate(members) for key in counts.keys}
    hosts = len(evidence.scope.hosts) if evidence.scope.by_host else 0
    values = read_rows(evidence, "device", keys, outside=False, hosts=hosts) if keys else {}
    found = {}
    for index in groups:
        read = [values.get(place) for place, (its, _) in enumerate(members) if its == index]
        samples = [value.sample for value in read if isinstance(value, RowValues)]
        if len(samples) < len(read):
            continue
        total = Total.of(samples)
        if total.n and total.spent.sum() > 0:
            found[index] = total
    return found


def _lack(side: str, total: Total) -> list[str]:
    if total.n < MIN_LAUNCHES:
        return [
            f"The {side} window has {total.n:,} launches of the group's first kernel; its mean needs {MIN_LAUNCHES}."
        ]
    if total.clustered:
        return clusters.too_few(side, total.filled, total.even)
    if total.filled < MIN_BUCKETS or total.even < MIN_EVEN_BUCKETS:
        held = min(float(total.filled), total.even)
        return [
            f"The {side} window's launches of the group crowd into the equal of {held:.1f} stretches of time; "
            f"{MIN_BUCKETS} are needed: take a longer window, or one of steadier traffic."
        ]
    return []
