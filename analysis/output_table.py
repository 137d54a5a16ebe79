"""The table for terminals: both windows, one line a kernel, the reasons, and the verdict last."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kdiff.analysis import output_text as text
from kdiff.analysis.report import KernelReport, Report
from kdiff.queries.printable import cells, printable

_COLOURS: Final = {
    "REGRESSED": "31;1",
    "PASS": "32",
    "IMPROVED": "32",
    "UNDECIDED": "33",
    "INCONCLUSIVE": "33",
    "NOT_ENOUGH_DATA": "33",
    "NEW": "36",
    "GONE": "36",
}
_MIN_NAME: Final = 16
_MAX_NAME: Final = 100
Cell = Callable[[KernelReport], str]


def render(report: Report, width: int, colour: bool) -> str:
    """The report in lines of at most `width` cells (40 at least)."""
    width = max(width, 40)
    lines: list[str] = []
    for name, window in (("before", report.before), ("after", report.after)):
        lines += text.wrap(f"{name:<7} {text.window_line(window)}", width, 8)
        lines += text.wrap(f"        {text.window_facts(window)}; {window.store}", width, 8)
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
    optional: list[tuple[str, Cell]] = [
        ("before", lambda k: text.duration(k.value_before)),
        ("after", lambda k: text.duration(k.value_after)),
        ("interval", lambda k: text.interval(k.ci)),
        ("launches", lambda k: f"{text.count(k.n_before)}/{text.count(k.n_after)}"),
        ("metric", lambda k: k.metric),
        ("p50 change", _p50_change),
        ("p50 before", lambda k: text.duration(k.quantiles_before.p50 if k.quantiles_before else None)),
        ("p50 after", lambda k: text.duration(k.quantiles_after.p50 if k.quantiles_after else None)),
    ]
    verdicts = ("verdict", [text.marked_verdict(k, report, shared) for k in report.kernels])
    changes = ("change", [text.change(k.ratio) for k in report.kernels])
    columns = {title: [cell(k) for k in report.kernels] for title, cell in optional}
    wanted = max(min(max(cells(printable(k.kernel)) for k in report.kernels), _MAX_NAME), len("kernel"))
    used = sum(_column_width(*column) + 1 for column in (verdicts, changes))
    chosen: list[str] = []
    for title, _ in optional:
        needed = _column_width(title, columns[title]) + 1
        # Columns beyond those that a verdict cannot be read without must leave the names their room.
        name = _MIN_NAME if len(chosen) < 3 else min(wanted, 40 if len(chosen) < 5 else 60)
        if used + needed + name > width:
            continue
        chosen.append(title)
        used += needed
    room = max(min(wanted, width - used), 8)
    names = text.short_names([k.kernel for k in report.kernels], room)
    shown = [t for t, _ in optional[:2] if t in chosen]
    rest = [t for t in chosen if t not in shown]
    body = [(t, columns[t]) for t in shown] + [changes] + [(t, columns[t]) for t in rest]
    widths = [_column_width(*column) for column in body]
    left = _column_width(*verdicts)

    def line(name: str, verdict: str, values: list[str]) -> str:
        padded = name + " " * (room - cells(name))
        return " ".join([padded, verdict, *(v.rjust(w) for v, w in zip(values, widths, strict=True))]).rstrip()

    yield line("kernel", "verdict".ljust(left), [title for title, _ in body])
    for i, kernel in enumerate(report.kernels):
        verdict = _paint(verdicts[1][i].ljust(left), kernel.verdict.value, colour)
        yield line(names[kernel.kernel], verdict, [values[i] for _, values in body])
        for reason in text.own_reasons(kernel, report):
            if reason not in shared:
                yield from text.wrap(f"  {printable(reason)}", width, 2)


def _p50_change(kernel: KernelReport) -> str:
    before, after = kernel.quantiles_before, kernel.quantiles_after
    return text.change(after.p50 / before.p50 if before and after and before.p50 else None)


def _column_width(title: str, values: list[str]) -> int:
    return max(len(title), *(len(value) for value in values))


def _paint(shown: str, word: str, colour: bool) -> str:
    code = _COLOURS.get(word)
    return f"\x1b[{code}m{shown}\x1b[0m" if colour and code else shown
