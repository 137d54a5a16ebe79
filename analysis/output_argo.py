"""JSON for the `web` metric of Argo Rollouts, and what `kdiff gate` answers: schema kdiff-argo/1, docs/json.md.

Small, since Argo keeps it with the rollout; words for its conditions, and numbers that are always there.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from kdiff.analysis import output_sentence
from kdiff.analysis import output_text as text
from kdiff.analysis.output_json import finite, limits
from kdiff.analysis.report import EXIT_OK, KernelReport, Report
from kdiff.analysis.verdict import NOT_COMPARED, Verdict
from kdiff.queries.printable import printable, shorten

SCHEMA: Final = "kdiff-argo/1"
_NAME: Final = 200
_REASON: Final = 400
_REASONS: Final = 8


def render(report: Report, width: int = 0, colour: bool = False) -> str:
    """The verdict as one JSON object on one line."""
    return json.dumps(document(report), allow_nan=False) + "\n"


def document(report: Report) -> dict[str, Any]:
    """The verdict as plain values."""
    compared = [k for k in report.kernels if k.verdict not in NOT_COMPARED]
    regressed = [k for k in compared if k.verdict is Verdict.REGRESSED]
    shapes = [k.mix.worst.ratio for k in compared if k.mix and k.mix.decides and k.mix.worst]
    ratios = [ratio for ratio in (*(k.ratio for k in compared), *shapes) if ratio is not None and math.isfinite(ratio)]
    worst = compared[0] if compared else None  # by verdict, then by ratio
    return {
        "schema": SCHEMA,
        "verdict": report.word,
        "go": int(report.exit_code == EXIT_OK),
        "passed": int(report.word == "PASS"),
        "regressed": int(report.word == "REGRESSED"),
        "undecided": int(report.word == "UNDECIDED"),
        "exit_code": report.exit_code,
        "kernels": len(compared),
        "kernels_regressed": len(regressed),
        "kernels_undecided": sum(text.is_undecided(k) for k in compared),
        "largest_ratio": max(ratios, default=0.0),
        "worst": None if worst is None else _kernel(worst),
        "sentence": output_sentence.sentence(report),
        "reasons": _reasons(report, worst),
    }


def _kernel(kernel: KernelReport) -> dict[str, Any]:
    return {
        "kernel": shorten(printable(kernel.kernel), _NAME),
        "verdict": kernel.verdict.value,
        "metric": kernel.metric,
        "value_before": kernel.value_before,
        "value_after": kernel.value_after,
        "ratio": finite(kernel.ratio),
        "ci": limits(kernel.ci),
    }


def _reasons(report: Report, worst: KernelReport | None) -> list[str]:
    """Why, the run's cause first; each once."""
    told = [*([f"{report.cause}."] if report.cause else []), *(worst.reasons if worst else ()), *report.notes]
    return [shorten(printable(reason), _REASON, 0.9) for reason in dict.fromkeys(told)][:_REASONS]
