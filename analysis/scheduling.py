"""Whether a kernel's calls took longer because the host was preempted: a reason where a verdict needs one.

Of each value that was judged the time is taken off for which its thread was ready to run and had no processor. The
quantile of what is left says what the calls would have taken on processors of their own. It changes no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kdiff.analysis.at_once import Side, of_both
from kdiff.analysis.columns import column
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.measure import Plan, keys_of, unlike
from kdiff.analysis.output_text import duration
from kdiff.analysis.quantiles import Ordered, quantile
from kdiff.analysis.report import KernelReport, Scheduling, quantile_name
from kdiff.analysis.values import by_index, indices
from kdiff.queries.tables import KIND_GRAPH_LAUNCH, KIND_LAUNCH

LEAST_KNOWN: Final = 0.9
"""Of the values judged, in both windows: below it nothing is said of the host."""
MOSTLY, HARDLY = 0.8, 0.2
"""The share of the growth that waiting for a processor must hold, or must not reach, to be called all or none of it."""
_KINDS: Final = {"completion": KIND_LAUNCH, "graph": KIND_GRAPH_LAUNCH}


def explain_waits(
    before: Evidence, after: Evidence, plans: Sequence[Plan], rows: Sequence[KernelReport], p: float
) -> list[KernelReport]:
    """Add to each row that got slower by a measure of the host, that of the plan at its place, what its threads waited.

    `p`: the quantile judged. Only where both windows are read from rows and have these. Raises StoreError.
    """
    told = list(rows)
    slower = {
        index: plan
        for index, (plan, row) in enumerate(zip(plans, rows, strict=True))
        if plan.in_both and plan.metric not in (None, "device") and row.ratio and row.ratio > 1.0 + row.margin
    }
    if not slower or before.rolled or after.rolled or unlike(before, after):
        return told
    if not all(evidence.query("waits_known").to_pylist()[0]["known"] for evidence in (before, after)):
        return told
    found = of_both(before, after, lambda evidence, side: _read(evidence, side, slower, p))
    for index in slower:
        one, other = found[0].get(index), found[1].get(index)
        if one is not None and other is not None:
            reason = waiting_reason(one, other, p)
            reasons = (*rows[index].reasons, *filter(None, [reason]))
            told[index] = replace(rows[index], scheduling_before=one, scheduling_after=other, reasons=reasons)
    return told


def waiting_reason(before: Scheduling, after: Scheduling, p: float) -> str:
    """One sentence on how much of the growth of the p-quantile is waiting for a processor; '' where that is unknown."""
    values = before.value, after.value, before.value_without, after.value_without
    if any(side.known < LEAST_KNOWN * side.n for side in (before, after)) or None in values:
        return ""
    old, new, old_without, new_without = (value or 0 for value in values)
    if new <= old:
        return ""
    share = (new - old - (new_without - old_without)) / (new - old)
    named = quantile_name(p)
    what = "In part the host was preempted"
    if share >= MOSTLY:
        what = "The host was preempted"
    elif share < HARDLY:
        what = "The host was not preempted"
    return (
        f"{what}: without the time in which its threads were ready to run and had no processor {named} is "
        f"{duration(old_without)} -> {duration(new_without)}, with it {duration(old)} -> {duration(new)}."
    )


def _read(evidence: Evidence, side: Side, plans: Mapping[int, Plan], p: float) -> dict[int, Scheduling]:
    found: dict[int, Scheduling] = {}
    for metric, isolated in sorted({(str(plan.metric), plan.isolated) for plan in plans.values()}):
        of_metric = {i: plan for i, plan in plans.items() if (plan.metric, plan.isolated) == (metric, isolated)}
        keys = keys_of(of_metric, side)
        asked: dict[str, int | str | list[int]] = {"keys": sorted(keys)}
        if metric in _KINDS:
            asked |= {"kind": _KINDS[metric], "isolated": int(isolated)}
        read = evidence.query("waits_completion" if metric in _KINDS else "waits_launch", asked)
        if not read.num_rows:
            continue
        values, waited = column(read, "value", np.int64), column(read, "waited", np.int64)
        for index, its in by_index(indices(read, keys)):
            known = its[waited[its] >= 0]
            found[index] = _scheduling(len(its), values[known], waited[known], p)
    return found


def _scheduling(n: int, values: np.ndarray, waited: np.ndarray, p: float) -> Scheduling:
    if not len(values):
        return Scheduling(n, 0, 0, None, None)
    left = np.maximum(values - waited, 0)
    return Scheduling(n, len(values), int(waited.sum()), quantile(Ordered.of(values), p), quantile(Ordered.of(left), p))
