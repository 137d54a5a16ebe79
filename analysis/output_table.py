"""The table for terminals: both windows, one line a kernel, the reasons, and the verdict last."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal

from kdiff.analysis import output_text as text
from kdiff.analysis.output_cleaning import cleaning_line
from kdiff.analysis.report import KernelReport, Measured, Report
from kdiff.queries.printable import cells, printable, shorten

_COLOURS: Final = {
    "REGRESSED": "31;1",
    "PASS": "32",
    "IMPROVED": "32",
    "UNDECIDED": "33",
    "INCONCLUSIVE": "33",
    "CONFOUNDED": "33",
    "MIX_NOT_COMPARABLE": "33",
    "NOT_ENOUGH_DATA": "33",
    "RENAME_SUSPECTED": "33",
    "NEW": "36",
    "GONE": "36",
}
_MIN_NAME: Final = 16
_MAX_NAME: Final = 100
_LEAST_NAME: Final = 8
_NOT_JUDGED: Final = "not judged"
Cell = Callable[[KernelReport | Measured], str]


def render(report: Report, width: int, colour: bool) -> str:
    """The report in lines of at most `width` cells (40 at least)."""
    width = max(width, 40)
    lines: list[str] = []
    for place, (name, window) in enumerate(zip(report.sides, (report.before, report.after), strict=True)):
        lines += text.wrap(f"{name:<7} {text.window_line(window)}", width, 8)
        if report.arms:
            lines += text.wrap(f"        {text.arm_line(report.arms[place])}", width, 8)
        lines += text.wrap(f"        {text.window_facts(window)}; {window.store}", width, 8)
        if told := cleaning_line(window):
            lines += text.wrap(f"        {printable(told)}", width, 8)
    lines += text.wrap(f"judged  {text.judged_line(report)}", width, 8)
    if report.kernels:
        shared = text.shared_reasons(report)
        lines += ["", *_table(report, width, colour, shared), ""]
        for reason, number in shared.items():
            lines += text.wrap(f"[{number}] {printable(reason)}", width, 4)
    for note in report.notes:
        lines += text.wrap(printable(note), width, 2)
    rare = text.rare_line(report, width)
    if rare:
        lines += text.wrap(rare, width, 2)
    line = text.headline(report, width)
    word = line.partition(":")[0]
    wrapped = text.wrap(line, width, 2)
    wrapped[0] = wrapped[0].replace(word, _paint(word, word, colour), 1)
    return "\n".join([*lines, *wrapped]) + "\n"


def _table(report: Report, width: int, colour: bool, shared: dict[str, int]) -> Iterable[str]:
    # In the order in which they are given room; change and verdict are always there.
    before, after = report.sides
    optional: dict[str, Cell] = {
        before: lambda m: text.duration(m.value_before),
        after: lambda m: text.duration(m.value_after),
        "interval": lambda m: text.interval(m.ci),
        "launches": lambda m: f"{text.count(m.n_before)}/{text.count(m.n_after)}",
        "metric": lambda m: m.metric,
        "p50 change": _p50_change,
        f"p50 {before}": lambda m: _p50(m, "before"),
        f"p50 {after}": lambda m: _p50(m, "after"),
    }
    change: Cell = lambda m: text.change(m.ratio)  # noqa: E731
    measures = [measure for k in report.kernels for measure in k.others]
    shown: list[KernelReport | Measured] = [*report.kernels, *measures]
    verdicts = [text.marked_verdict(k, report, shared) for k in report.kernels]
    left = _column_width("verdict", [*verdicts, *(_NOT_JUDGED for _ in measures)])
    widths = {title: _column_width(title, map(cell, shown)) for title, cell in (optional | {"change": change}).items()}
    wanted = max(min(max(cells(printable(k.kernel)) for k in report.kernels), _MAX_NAME), len("kernel"))
    used = left + 1 + widths["change"] + 1
    chosen: list[str] = []
    for title in optional:
        needed = widths[title] + 1
        # Columns beyond those that a verdict cannot be read without must leave the names their room.
        name = _MIN_NAME if len(chosen) < 3 else min(max(wanted, _LEAST_NAME), 40 if len(chosen) < 5 else 60)
        if used + needed + name > width:
            continue
        chosen.append(title)
        used += needed
    room = max(min(max([wanted, *(len(m.metric) + 2 for m in measures)]), width - used), _LEAST_NAME)
    names = text.short_names([k.kernel for k in report.kernels], room)
    first = [title for title in chosen if title in report.sides]
    titles = [*first, "change", *(title for title in chosen if title not in first)]
    columns = [(optional | {"change": change})[title] for title in titles]

    def line(name: str, verdict: str, values: Iterable[str]) -> str:
        padded = name + " " * (room - cells(name))
        aligned = (value.rjust(widths[title]) for title, value in zip(titles, values, strict=True))
        return " ".join([padded, verdict, *aligned]).rstrip()

    yield line("kernel", "verdict".ljust(left), titles)
    for kernel, word in zip(report.kernels, verdicts, strict=True):
        verdict = _paint(word.ljust(left), kernel.verdict.value, colour)
        yield line(names[kernel.kernel], verdict, [cell(kernel) for cell in columns])
        for measure in kernel.others:
            label = shorten(f"  {measure.metric}", room)
            yield line(label, _NOT_JUDGED.ljust(left), [cell(measure) for cell in columns])
        for reason in text.own_reasons(kernel, report):
            if reason not in shared:
                yield from text.wrap(f"  {printable(reason)}", width, 2)


def _p50(measure: KernelReport | Measured, side: Literal["before", "after"]) -> str:
    quantiles = None if isinstance(measure, Measured) else getattr(measure, f"quantiles_{side}")
    return text.duration(quantiles.p50 if quantiles else None)


def _p50_change(measure: KernelReport | Measured) -> str:
    if isinstance(measure, Measured):
        return "-"
    before, after = measure.quantiles_before, measure.quantiles_after
    return text.change(after.p50 / before.p50 if before and after and before.p50 else None)


def _column_width(title: str, values: Iterable[str]) -> int:
    return max([len(title), *map(len, values)])


def _paint(shown: str, word: str, colour: bool) -> str:
    code = _COLOURS.get(word)
    return f"\x1b[{code}m{shown}\x1b[0m" if colour and code else shown
