"""How far a completion lies above the device time it bounds, and what a bound says of the device then.

The excess is completion minus device time of launches that have both: isolated, and run in a device window. Whatever
the store holds of the same service calibrates, in either window or outside of them.

A bound C = D + E is taken to have the same excess E in both windows, since only the kernel was swapped. Which quantile
of E goes with the judged one of C is not known, so every shift e from its (1 - q)- to its q-quantile is allowed: the
interval is the union of those of (C_after - e) / (C_before - e). If the bound did not move no shift matters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis.columns import column
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.interval import RatioLimits, TailEstimate, among_hosts, joint_quantum, mover
from kdiff.analysis.measure import Plan
from kdiff.analysis.quantiles import Ordered, quantile
from kdiff.analysis.window import HOUR_NS

MIN_LAUNCHES: Final = 100
"""Launches with both times that a calibration needs."""
MAX_LAUNCHES: Final = 20_000
"""Of more isolated launches of a kernel a share is looked up, chosen by a hash of their times."""
_HOURS: Final = 6
"""Of so many hours rows are looked at where a window is so long that it is judged by hours."""
_ALWAYS: Final[dict[str, int | str | list[int]]] = {"from_ns": 0, "to_ns": 2**62}


@dataclass(frozen=True, slots=True)
class Excess:
    """Completion minus device time of one kernel, in ns.

    Attributes:
        n: launches that have both times.
        low, p50, high: its (1 - q)-, 0.5- and q-quantile, q the judged one.
        hosts: where it was measured, ascending.
        foreign: measured on hosts other than those judged: whether their GPUs are of one model is not recorded.
    """

    n: int
    low: int
    p50: int
    high: int
    hosts: tuple[str, ...]
    foreign: bool


def device_interval(before: TailEstimate, after: TailEstimate, excess: Excess, alpha: float) -> RatioLimits:
    """Limits of log(after/before) of the device time under two bounds, each wrong with probability alpha.

    Infinite where the excess may be all of the bound.
    """
    middle = _shifted(before, after, excess.p50, alpha)
    ends = [middle, *(_shifted(before, after, shift, alpha) for shift in (excess.low, excess.high))]
    return RatioLimits(middle.log_ratio, min(e.low for e in ends), max(e.high for e in ends))


def _shifted(before: TailEstimate, after: TailEstimate, shift: int, alpha: float) -> RatioLimits:
    tick = joint_quantum(before, after)
    logs, rounding = [], 0.0
    for estimate in (before, after):
        lower, upper = estimate.limits(alpha)
        if lower - shift < tick:
            return RatioLimits(math.nan, -math.inf, math.inf)
        logs.append((math.log(estimate.value - shift), math.log(lower - shift), math.log(upper - shift)))
        rounding += estimate.rounding(alpha) * estimate.value / (lower - shift)
    found = among_hosts(mover(*logs), before, after, alpha, tick, shift)
    return RatioLimits(found.log_ratio, found.low - rounding, found.high + rounding)


def calibrate(values: NDArray[np.int64], q: float, hosts: Sequence[str], foreign: bool) -> Excess | None:
    """The excess of one kernel from its `values`, shape (n,), any order, ns; None if they are too few."""
    if values.size < MIN_LAUNCHES:
        return None
    # A launch cannot end before its kernel has run: a shift below 0 would only dilute what the bound shows.
    ordered = Ordered.of(np.maximum(values, 0))
    low, p50, high = (quantile(ordered, level) for level in (1.0 - q, 0.5, q))
    return Excess(int(values.size), low, p50, high, tuple(sorted(hosts)), foreign)


def read_excess(
    evidence: Sequence[Evidence], plans: Sequence[Plan], q: float, hosts: Collection[str]
) -> dict[int, Excess]:
    """The excess of the plans judged by isolated completions, by index, from all that the stores hold.

    That measured on one of `hosts` if it is enough, else that of all hosts. Raises StoreError.
    """
    keys = {
        key: index
        for index, plan in enumerate(plans)
        if plan.metric == "completion" and plan.isolated and plan.in_both
        for key in (*plan.pair.before.keys, *plan.pair.after.keys)
    }
    if not keys:
        return {}
    values: dict[int, dict[str, list[NDArray[np.int64]]]] = {}
    for one in {id(e.store): e for e in evidence}.values():
        for (key, host), found in excesses(one, sorted(keys), always=True).items():
            values.setdefault(keys[key], {}).setdefault(host, []).append(found)
    calibrated = {}
    for index, by_host in values.items():
        own = {host: found for host, found in by_host.items() if host in hosts}
        for part, foreign in ((own, False), (by_host, True)):
            together = [array for found in part.values() for array in found]
            excess = calibrate(np.concatenate(together), q, list(part), foreign) if together else None
            if excess is not None:
                calibrated[index] = excess
                break
    return calibrated


def excesses(evidence: Evidence, keys: list[int], always: bool) -> Mapping[tuple[int, str], NDArray[np.int64]]:
    """The excess in ns by kernel key and host: of all that the store holds, or of the window. No `keys`: all kernels.

    Where the window is judged by hours, all is the rows of its last ones. Raises StoreError.
    """
    asked: dict[str, int | str | list[int]] = {"keys": keys} | (dict(_ALWAYS) if always else {})
    if always and evidence.hourly:
        asked |= {"from_ns": evidence.window.to_ns - _HOURS * HOUR_NS, "to_ns": evidence.window.to_ns}
    counts = {row["kernel_key"]: row["launches"] for row in evidence.query("calibration_counts", asked).to_pylist()}
    if not counts:
        return {}
    every = [-(-count // MAX_LAUNCHES) for count in counts.values()]
    table = evidence.query("calibration", asked | {"keys": list(counts), "every": every})
    if not table.num_rows:
        return {}
    values = column(table, "excess_ns", np.int64)
    kernels, kernel = np.unique(column(table, "kernel_key", np.uint64), return_inverse=True)
    names, host = np.unique(np.array(table["host"].to_pylist(), object), return_inverse=True)
    group = kernel * len(names) + host
    order = np.argsort(group, kind="stable")
    present, starts = np.unique(group[order], return_index=True)
    return {
        (int(kernels[code // len(names)]), str(names[code % len(names)])): values[piece]
        for code, piece in zip(present, np.split(order, starts[1:]), strict=True)
    }
