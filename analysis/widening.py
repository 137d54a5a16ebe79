"""Widening the intervals of a comparison by what the history of the service says: the calibration that is found in
the store, the factor of each kernel, and the sentence on how often comparisons of that history were wrong.

Not to be taken for analysis/calibration.py, which says how far a completion lies above the device time it bounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import Final

from kdiff.analysis.evidence import Evidence
from kdiff.analysis.measure import MetricChoice, Plan
from kdiff.analysis.output_text import two_digits
from kdiff.analysis.report import HistoryReport
from kdiff.analysis.window import HOUR_NS, length_text, utc_second
from kdiff.queries.calibrations import Found, KeptCalibration, Wanted, calibrations_of
from kdiff.queries.errors import StoreError
from kdiff.queries.store import Store

APART: Final = 2
"""Windows up to so many times as long or as short as those of the history are judged by it."""
OLD_NS: Final = 30 * 24 * HOUR_NS
"""A calibration that is older is used with a warning."""
_EARLY_NS: Final = HOUR_NS  # a clock that is fast by more made no calibration that can be ordered among the others
_NOTHING: Final = Found(None)


@dataclass(frozen=True, slots=True)
class Widening:
    """What the history says of one comparison.

    Attributes:
        inflation: the factor by index of the plan.
        report: what is told of it; None where there is no calibration.
        notes, warnings: sentences for people.
    """

    inflation: Mapping[int, float]
    report: HistoryReport | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def seek(before: Evidence, after: Evidence, metric: MetricChoice, wanted: bool = True) -> Callable[[], Found]:
    """Asks for the newest calibration that fits both windows; what is returned waits for the answer.

    A server is asked beside the other questions. What cannot be read is a warning: no verdict fails for it.
    """
    lengths = [evidence.window.length_ns for evidence in (before, after)]
    shortest, longest = -(-max(lengths) // APART), min(lengths) * APART
    # Hosts beside each other at one time have errors of their own, which windows one after the other do not tell.
    if not wanted or shortest > longest or before.scope.by_host:
        return lambda: _NOTHING
    until_ns = time.time_ns() + _EARLY_NS
    asked = Wanted(before.service, metric, before.quantile, shortest, longest, until_ns)
    stores = list({id(evidence.store): evidence.store for evidence in (before, after)}.values())
    if not any(store.concurrent for store in stores):
        return lambda: _newest(stores, asked)
    answer: Future[Found] = Future()
    # A daemon: who interrupts the command does not wait for it.
    Thread(target=lambda: answer.set_result(_newest(stores, asked)), daemon=True).start()
    return answer.result


def widen(found: Found, plans: Sequence[Plan], tolerance: float, now_ns: int | None = None) -> Widening:
    """The factors of the kernels of a comparison. `now_ns`: Unix ns, None is now."""
    now_ns = time.time_ns() if now_ns is None else now_ns
    calibration = found.calibration
    if calibration is None:
        return Widening({}, warnings=found.warnings)
    if calibration.made_at_ns > now_ns + _EARLY_NS:
        told = f"the calibration of {utc_second(calibration.made_at_ns)} lies in the future and is not used: set the "
        return Widening({}, warnings=(*found.warnings, told + "clocks right and run `kdiff calibrate` again"))
    own = {(one.kernel, one.metric): one.factor for one in calibration.kernels}
    compared = {i: (plan.pair.kernel, plan.metric) for i, plan in enumerate(plans) if plan.in_both and plan.metric}
    inflation = {i: own.get((name, str(metric)), calibration.pooled) for i, (name, metric) in compared.items()}
    unknown = sum((name, str(metric)) not in own for name, metric in compared.values())
    warnings = list(found.warnings)
    age_ns = now_ns - calibration.made_at_ns
    if age_ns > OLD_NS:
        warnings.append(
            f"the calibration by the history is {length_text(age_ns // HOUR_NS * HOUR_NS)} old: run `kdiff calibrate`"
        )
    report = _report(calibration, inflation, unknown)
    return Widening(inflation, report, (_note(calibration, report, tolerance),), tuple(warnings))


def _newest(stores: Sequence[Store], wanted: Wanted) -> Found:
    """The newest of all stores."""
    best: KeptCalibration | None = None
    warnings: list[str] = []
    for store in stores:
        kept = calibrations_of(store)
        if kept is None:
            continue
        try:
            found = kept.newest(wanted)
        except StoreError as error:
            warnings.append(f"calibrations cannot be read, so that intervals are not widened: {error}")
            continue
        warnings += found.warnings
        one = found.calibration
        if one is not None and wanted.better(one, best):
            best = one
    return Found(best, tuple(warnings))


def _report(calibration: KeptCalibration, inflation: Mapping[int, float], unknown: int) -> HistoryReport:
    from kdiff.analysis.history_calibration import upper_limit  # where there is no calibration nothing waits for it

    factors = [*inflation.values()] or [calibration.pooled]
    return HistoryReport(
        made_at_ns=calibration.made_at_ns,
        from_ns=calibration.from_ns,
        to_ns=calibration.to_ns,
        window_ns=calibration.window_ns,
        pairs=calibration.pairs,
        tolerance=calibration.tolerance,
        factor_low=min(factors),
        factor_high=max(factors),
        unknown=unknown,
        comparisons=calibration.comparisons,
        regressed=calibration.regressed_widened,
        regressed_limit=upper_limit(calibration.regressed_widened, calibration.comparisons),
        runs=calibration.runs,
        runs_regressed=calibration.runs_regressed_widened,
        runs_regressed_limit=upper_limit(calibration.runs_regressed_widened, calibration.runs),
    )


def _note(calibration: KeptCalibration, report: HistoryReport, tolerance: float) -> str:
    low, high = f"x{report.factor_low:.2f}", f"x{report.factor_high:.2f}"
    by = "not widened" if high == "x1.00" else f"widened {high}" if low == high else f"widened {low} to {high}"
    others = ""
    if report.unknown and high != "x1.00":
        noun = "kernel" if report.unknown == 1 else "kernels"
        others = f" ({report.unknown} {noun} without pairs enough by the x{calibration.pooled:.2f} of all together)"
    at = "" if tolerance == calibration.tolerance else f", at a tolerance of {100 * calibration.tolerance:g}%"
    share = report.regressed / report.comparisons if report.comparisons else 0.0
    length = length_text(calibration.to_ns - calibration.from_ns)
    return (
        f"Calibrated on {length} of history ({calibration.pairs} pairs of "
        f"{length_text(calibration.window_ns)}): intervals {by}{others}; on that history {two_digits(share)} of "
        f"comparisons were REGRESSED (at most {two_digits(report.regressed_limit)}{at})."
    )
