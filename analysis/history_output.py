"""What `kdiff calibrate` found: as it is kept, as a table and as JSON."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from kdiff.analysis import output_text as text
from kdiff.analysis.history_calibration import upper_limit
from kdiff.analysis.history_windows import Options, Seen, reasons
from kdiff.analysis.report import quantile_name
from kdiff.analysis.window import Window, length_text, utc, utc_short
from kdiff.queries.calibrations import MOST_FACTOR, Factor, KeptCalibration
from kdiff.queries.printable import cells, printable

_MOST_KERNELS: Final = 20
"""In the table; JSON has all."""


def calibration(seen: Seen, windows: Sequence[Window], service: str, options: Options, now_ns: int) -> KeptCalibration:
    """What is kept of a history that was read, made at `now_ns`, Unix ns."""
    measured = seen.history.measure()
    kernels = [
        Factor(name, metric, min(found.factor, MOST_FACTOR), found.pairs)
        for (name, metric), found in sorted(measured.kernels.items())
    ]
    return KeptCalibration(
        made_at_ns=now_ns,
        calibration_id=uuid.uuid4().hex,
        service=service,
        metric=options.metric,
        quantile=options.policy.quantile,
        tolerance=options.policy.tolerance,
        window_ns=windows[0].length_ns,
        from_ns=windows[0].from_ns,
        to_ns=windows[-1].to_ns,
        windows=seen.used,
        left_out=sum(seen.left_out.values()),
        pairs=measured.pairs,
        shifts=measured.shifts,
        pooled=min(measured.pooled, MOST_FACTOR),
        kernels=tuple(kernels),
        comparisons=measured.plain.comparisons,
        regressed=measured.plain.regressed,
        regressed_widened=measured.widened.regressed,
        not_passed=measured.plain.not_passed,
        not_passed_widened=measured.widened.not_passed,
        runs=measured.plain.runs,
        runs_regressed=measured.plain.runs_regressed,
        runs_regressed_widened=measured.widened.runs_regressed,
    )


def as_json(store: str, found: KeptCalibration, seen: Seen, kept: bool) -> str:
    """One object, keys in a fixed order; no NaN, no Infinity."""
    document = {
        "schema": "kdiff-calibrate/1",
        "store": store,
        "kept": kept,
        "made_at": utc(found.made_at_ns),
        "service": found.service,
        "metric": found.metric,
        "quantile": found.quantile,
        "tolerance": found.tolerance,
        "window_ns": found.window_ns,
        "from": utc(found.from_ns),
        "to": utc(found.to_ns),
        "from_ns": found.from_ns,
        "to_ns": found.to_ns,
        "windows": found.windows,
        "left_out": [{"why": why, "windows": count} for why, count in seen.left_out.most_common()],
        "pairs": found.pairs,
        "shifts": found.shifts,
        "factor": found.pooled,
        "kernels": [one._asdict() for one in found.kernels],
        "plain": _rates(found, widened=False),
        "widened": _rates(found, widened=True),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def as_table(store: str, found: KeptCalibration, seen: Seen, kept: bool, width: int) -> str:
    """The history, the factors, the largest first, and the rates, in lines of at most `width` cells (40 at least)."""
    width = max(width, 40)
    service = f", service {printable(found.service)}" if found.service else ""
    out = f"; left out: {reasons(seen.left_out)}" if seen.left_out else ""
    told = [
        f"{store}{service}",
        f"{utc_short(found.from_ns)} .. {utc_short(found.to_ns)} ({length_text(found.to_ns - found.from_ns)})",
        f"{quantile_name(found.quantile)}, metric {found.metric}: {found.pairs} pairs of adjacent windows of "
        f"{length_text(found.window_ns)}{out}",
    ]
    lines = [line for whole in told for line in text.wrap(whole, width, 2)]
    lines += ["", *_factors(found, width), "", *_shares(found)]
    ends = [_shifted(found.shifts)] if found.shifts else []
    if kept:
        ends.append("Kept: comparisons of windows of half to twice this length use it.")
    return "\n".join([*lines, *(line for whole in ends for line in text.wrap(whole, width, 2))]) + "\n"


def _shifted(shifts: int) -> str:
    pairs = "1 pair" if shifts == 1 else f"{shifts} pairs"
    return (
        f"Left out of all this: {pairs} of windows of a kernel whose level changed for good between them, as by a "
        "swap. If it was none, it is an error that this does not know."
    )


def _factors(found: KeptCalibration, width: int) -> list[str]:
    shown = sorted(found.kernels, key=lambda one: (-one.factor, one.kernel, one.metric))[:_MOST_KERNELS]
    rows = [(one.metric, f"{one.pairs:,}", f"x{one.factor:.2f}") for one in shown]
    rows.append(("", f"{found.comparisons:,}", f"x{found.pooled:.2f}"))
    titles = ("metric", "pairs", "widened by")
    widths = [max(len(title), *(len(row[place]) for row in rows)) for place, title in enumerate(titles)]
    room = max(width - sum(widths) - len(widths), 12)
    short = text.short_names([one.kernel for one in shown], room)
    names = [short[one.kernel] for one in shown] + ["(all together)"]
    room = min(room, max(cells(name) for name in [*names, "kernel"]))

    def line(name: str, values: Sequence[str]) -> str:
        padded = name + " " * (room - cells(name))
        return " ".join([padded, *(v.rjust(w) for v, w in zip(values, widths, strict=True))])

    lines = [line("kernel", titles), *map(line, names, rows)]
    more = len(found.kernels) - len(shown)
    return [*lines, f"and {more} more, by less"] if more else lines


def _shares(found: KeptCalibration) -> list[str]:
    """The rates, each with its 95% upper limit."""
    rows = [
        ("REGRESSED", found.regressed, found.regressed_widened, found.comparisons),
        ("not PASS", found.not_passed, found.not_passed_widened, found.comparisons),
        ("runs REGRESSED", found.runs_regressed, found.runs_regressed_widened, found.runs),
    ]
    lines = [f"{'':<14} {'as it was':>16} {'widened':>16}"]
    for name, plain, widened, total in rows:
        lines.append(f"{name:<14} {_share(plain, total):>16} {_share(widened, total):>16}")
    return lines


def _share(count: int, total: int) -> str:
    return f"{text.two_digits(count / total if total else 0.0)} (<= {text.two_digits(upper_limit(count, total))})"


def _rates(found: KeptCalibration, widened: bool) -> dict[str, Any]:
    if widened:
        found = replace(
            found,
            regressed=found.regressed_widened,
            not_passed=found.not_passed_widened,
            runs_regressed=found.runs_regressed_widened,
        )
    return {
        "comparisons": found.comparisons,
        "regressed": found.regressed,
        "regressed_limit": upper_limit(found.regressed, found.comparisons),
        "not_passed": found.not_passed,
        "not_passed_limit": upper_limit(found.not_passed, found.comparisons),
        "runs": found.runs,
        "runs_regressed": found.runs_regressed,
        "runs_regressed_limit": upper_limit(found.runs_regressed, found.runs),
    }
