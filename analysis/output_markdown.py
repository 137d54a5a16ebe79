"""Markdown for a pull request or $GITHUB_STEP_SUMMARY."""

from __future__ import annotations

import re

from kdiff.analysis import output_text as text
from kdiff.analysis.output_cleaning import cleaning_line
from kdiff.analysis.report import KernelReport, Measured, Report, quantile_name
from kdiff.queries.printable import printable

_NAME = 100
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$@])")


def render(report: Report, width: int = 0, colour: bool = False) -> str:
    """The verdict, both windows, a table of the kernels and the reasons."""
    named = quantile_name(report.quantile)
    before, after = report.sides
    lines = [f"### kdiff: {_escape(text.headline(report))}", ""]
    for place, (name, window) in enumerate(zip(report.sides, (report.before, report.after), strict=True)):
        arm = f", {_escape(text.arm_line(report.arms[place]))}" if report.arms else ""
        lines.append(f"- **{name}** {text.window_line(window)}{arm}: {text.window_facts(window)}")
        if told := cleaning_line(window):
            lines[-1] += f"; {_escape(printable(told))}"
    lines += [f"- **judged** {text.judged_line(report)}", ""]
    if report.kernels:
        lines += [
            f"| kernel | verdict | {named} {before} | {named} {after} | change | interval | launches | metric |",
            "|---|---|--:|--:|--:|---|--:|---|",
        ]
        shared = text.shared_reasons(report)
        names = text.short_names([k.kernel for k in report.kernels], _NAME)
        for kernel in report.kernels:
            lines.append(_row(_escape(names[kernel.kernel]), text.marked_verdict(kernel, report, shared), kernel))
            lines += [_row("", "not judged", measure) for measure in kernel.others]
        lines.append("")
        lines += [
            f"- {_escape(names[k.kernel])}: {_escape(printable(reason))}"
            for k in report.kernels
            for reason in text.own_reasons(k, report)
            if reason not in shared
        ]
        lines += [f"- [{number}] {_escape(printable(reason))}" for reason, number in shared.items()]
    lines += [f"- {_escape(printable(note))}" for note in report.notes]
    lines += [f"- {_escape(rare)}" for rare in [text.rare_line(report, 400)] if rare]
    lines += [f"- warning: {_escape(printable(warning))}" for warning in report.warnings]
    return "\n".join(lines).rstrip() + "\n"


def _row(name: str, verdict: str, row: KernelReport | Measured) -> str:
    return (
        f"| {name} | {verdict} | {text.duration(row.value_before)} | {text.duration(row.value_after)} | "
        f"{text.change(row.ratio)} | {text.interval(row.ci)} | {text.count(row.n_before)} / "
        f"{text.count(row.n_after)} | {row.metric} |"
    )


def _escape(value: str) -> str:
    return _SPECIAL.sub(r"\\\1", value)
