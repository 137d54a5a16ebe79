"""Wording that the formats for people share: times, changes, names and the verdict in one line."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter

from kdiff.analysis.counts import is_graph
from kdiff.analysis.report import (
    GROUP_METRIC,
    Arm,
    KernelReport,
    Measured,
    Report,
    WindowReport,
    quantile_name,
    statistic,
)
from kdiff.analysis.verdict import NOT_COMPARED, UNDECIDED, Verdict
from kdiff.analysis.window import length_text, utc_short
from kdiff.queries.printable import cells, printable, shorten

# How a name is cut, tried in turn until no two are alike: without namespaces or with them, and the share of the head.
# In "kernel<arguments>" the head says most, in other names the tail.
_CUTS: tuple[tuple[bool, float | None], ...] = (
    (True, None),
    (True, 0.4),
    (False, 0.4),
    (False, 0.65),
    (False, 0.2),
    (False, 0.85),
)
_ARGUMENT = re.compile(r"--map '(?:[^']|'\"'\"')*'")
_NAMESPACES = re.compile(r"\b(?:[A-Za-z_]\w*::)+")
_SHARED_BY = 3
_HOSTS = 8
_MEASURES = {
    "device": "device time",
    "completion": "completion",
    "launch": "time in the host call",
    "graph": "graph completion",
    "mixed": "each kernel's metric",
    GROUP_METRIC: "device time a launch of groups of kernels",
}


def duration(ns: float | None) -> str:
    """Three digits and a unit: 2.66 us, 80.0 us, 1.02 ms."""
    if ns is None:
        return "-"
    if ns < 1_000:
        return f"{ns:.0f} ns"
    for size, unit in ((1e3, "us"), (1e6, "ms"), (1e9, "s")):
        value = ns / size
        # 999.96 would round up to the next unit's 1000.
        if value < 999.5 or unit == "s":
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    raise AssertionError


def two_digits(share: float) -> str:
    """A share in percent, however small it is: 0%, 0.0021%, 12%, 100%."""
    percent = 100 * share
    return f"{percent:.2g}%" if percent < 99.5 else f"{percent:.0f}%"  # not 1e+02


def change(ratio: float | None) -> str:
    """+24.3%, or x12.5 where a percentage would no longer be read; - where there is none."""
    if ratio is None or math.isnan(ratio):
        return "-"
    if math.isinf(ratio):
        return "+inf"
    return f"x{ratio:.1f}" if ratio >= 10 else f"{100 * (ratio - 1):+.1f}%".replace("-0.0%", "+0.0%")


def interval(ci: tuple[float, float] | None) -> str:
    """[+22.1%, +26.9%]."""
    return "-" if ci is None else f"[{change(ci[0])}, {change(ci[1])}]"


def count(number: int) -> str:
    """950, 60.1k, 2.40M: four or five characters."""
    if number < 10_000:
        return str(number)
    for size, unit in ((1e3, "k"), (1e6, "M"), (1e9, "G")):
        value = number / size
        if value < 999.5 or unit == "G":
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}{unit}"
    raise AssertionError


def short_names(names: list[str], width: int) -> dict[str, str]:
    """Each name in at most `width` cells, no two alike."""
    shown: dict[str, str] = {}
    for bare, head_share in _CUTS:
        for name in names:
            if name not in shown:
                shown[name] = _compact(name, width, bare, head_share)
        alike = Counter(shown.values())
        shown = {name: text for name, text in shown.items() if alike[text] == 1}
    taken = set(shown.values())
    for number, name in enumerate((n for n in names if n not in shown), start=1):
        mark = f"~{number}"
        text = _compact(name, max(width - len(mark), 1), *_CUTS[0]) + mark
        shown[name] = text if text not in taken else mark
        taken.add(text)
    return shown


def headline(report: Report, width: int = 200) -> str:
    """The verdict and what it rests on, in one line; a kernel's name is shortened to keep it below `width`."""
    named = quantile_name(report.quantile)
    if report.verdict is Verdict.REGRESSED:
        worst = next(k for k in report.kernels if k.verdict is Verdict.REGRESSED)
        others = sum(k.verdict is Verdict.REGRESSED for k in report.kernels) - 1
        shape = worst.mix.worst if worst.mix and worst.mix.decides else None
        part, where = (shape, f" at {shape.name}") if shape else (worst, "")
        moved = f", {duration(part.value_before)} -> {duration(part.value_after)}"
        more = f", and {others} more" if others else ""
        core = f" {statistic(worst.metric, report.quantile)}{where} {change(part.ratio)}"
        full = f"{core} {interval(part.ci)} ({worst.metric})"
        # One line if it can be: the table above has what is dropped here.
        for facts in (full + moved + more, full + more, core + more):
            line = _with_name("REGRESSED: ", worst.kernel, facts, width)
            if cells(line) <= width:
                break
        return line
    compared = [k for k in report.kernels if k.verdict not in NOT_COMPARED]
    if report.verdict is Verdict.PASS:
        metrics = " and ".join(sorted({k.metric for k in compared}))
        noun = "kernel" if len(compared) == 1 else "kernels"
        over = "its tolerance" if report.own_tolerances else f"+{100 * report.tolerance:g}%"
        return f"PASS: {len(compared)} {noun}, none over {over} at {named} ({metrics})"
    if report.cause:
        return f"{report.word}: {printable(report.cause)}"
    undecided = [k for k in compared if k.verdict in UNDECIDED]
    reason = undecided[0].reasons[0].rstrip(".") if undecided and undecided[0].reasons else "see above"
    common = all(k.verdict is Verdict.CONFOUNDED for k in undecided)
    what = "told from what moved all" if undecided and common else "judged"
    start = f"{report.word}: {len(undecided)} of {len(compared)} kernels cannot be {what}: "
    name = undecided[0].kernel if undecided else ""
    more = f" and {len(undecided) - 1} more" if len(undecided) > 1 else ""
    line = _with_name(start, name, f" ({printable(reason)}){more}", width)
    return line if cells(line) <= width else _with_name(start, name, more, width)


def window_line(window: WindowReport) -> str:
    """The window in full, in UTC."""
    bounds = window.window
    return f"{utc_short(bounds.from_ns)} .. {utc_short(bounds.to_ns)} ({length_text(bounds.length_ns)})"


def arm_line(arm: Arm) -> str:
    """An arm's hosts, the first few, and its service."""
    return f"{arm_brief(arm)}: {arm_hosts(arm)}"


def arm_brief(arm: Arm) -> str:
    """How many hosts an arm has, and its service."""
    number = "1 host" if len(arm.hosts) == 1 else f"{len(arm.hosts):,} hosts"
    return f"{number} of {shorten(printable(arm.service), 60)}" if arm.service else number


def arm_hosts(arm: Arm) -> str:
    """The first few of an arm's hosts."""
    shown = ", ".join(shorten(printable(host), 60) for host in arm.hosts[:_HOSTS])
    more = len(arm.hosts) - _HOSTS
    return f"{shown} and {more:,} more" if more > 0 else shown


def side_text(report: Report, place: int) -> str:
    """A side's window, and the hosts of an arm; `place` 0 is before, or control."""
    window = str((report.before, report.after)[place].window)
    return f"{window}, {arm_line(report.arms[place])}" if report.arms else window


def window_facts(window: WindowReport) -> str:
    """What was recorded in a window."""
    parts = [f"{window.launches:,} launches"]
    if window.executions or window.device:
        parts.append(f"{window.executions:,} timed on the device")
    if window.device and window.device.windows:
        parts.append(f"device time known for {_percent(window.device.coverage)} of the window")
        if window.device.loss:
            parts.append(f"device loss {two_digits(window.device.loss)}")
    parts.append("loss not known" if window.loss is None else f"loss {two_digits(window.loss)}")
    parts.append(f"recorded {100 * window.coverage:.0f}%")
    return ", ".join(parts)


def judged_line(report: Report) -> str:
    """What is judged, how strictly, and how the windows are cut."""
    cuts = [f"{w.buckets} x {length_text(w.bucket_ns)}" for w in (report.before, report.after)]
    if report.arms:
        cuts = [f"{len(arm.hosts):,}" for arm in report.arms]
    if report.metric not in _MEASURES:
        return f"nothing: no kernel has times in both {'arms' if report.arms else 'windows'} that may decide"
    what = _MEASURES[report.metric]
    cut = cuts[0] if cuts[0] == cuts[1] else " and ".join(cuts)
    unit = "hosts each" if report.arms and cuts[0] == cuts[1] else "hosts" if report.arms else "stretches"
    own = f" ({report.own_tolerances} by the policy file)" if report.own_tolerances else ""
    strict = f"tolerance {100 * report.tolerance:g}%{own}, 90% intervals"
    return f"{statistic(report.metric, report.quantile)} of {what}, {strict}, {cut} {unit}"


def shared_reasons(report: Report) -> dict[str, int]:
    """Reasons that several kernels share, numbered from 1: they are told once, below the table."""
    told = Counter(reason for k in report.kernels for reason in own_reasons(k, report))
    return {reason: i for i, reason in enumerate((r for r, times in told.items() if times >= _SHARED_BY), start=1)}


def own_reasons(kernel: KernelReport, report: Report) -> list[str]:
    """The reasons worth telling: not what a note says of the whole run, nor what NEW and GONE say themselves."""
    if kernel.verdict in (Verdict.NEW, Verdict.GONE):
        return []
    return [reason for reason in kernel.reasons if reason not in report.notes]


def marked_verdict(kernel: KernelReport, report: Report, shared: dict[str, int]) -> str:
    """The verdict, with the numbers of the shared reasons: INCONCLUSIVE [1]."""
    numbers = [str(shared[reason]) for reason in own_reasons(kernel, report) if reason in shared]
    return f"{kernel.verdict.value} [{','.join(numbers)}]" if numbers else kernel.verdict.value


def measure_line(measure: Measured, quantile: float) -> str:
    """A measure that is not judged, in a sentence."""
    return (
        f"{_MEASURES[measure.metric].capitalize()}, not judged: {quantile_name(quantile)} "
        f"{duration(measure.value_before)} -> {duration(measure.value_after)}, {change(measure.ratio)} "
        f"{interval(measure.ci)}."
    )


def rare_line(report: Report, width: int) -> str:
    """The kernels that are too rare to judge, in about two lines of `width`; '' if there are none."""
    if not report.rare:
        return ""
    names = short_names([k.kernel for k in report.rare], 40)
    items = [f"{names[k.kernel]} ({count(k.n_before)}/{count(k.n_after)})" for k in report.rare]
    noun = "kernel" if len(items) == 1 else "kernels"
    held = f"{_percent(report.rare_launches)} of the launches, {_percent(report.rare_time)} of the time"
    text = f"Rare, not judged: {len(items)} {noun}, {held}: "
    fitting: list[str] = []
    for item in items:
        if cells(text + ", ".join([*fitting, item])) > 2 * width - 16:
            break
        fitting.append(item)
    more = len(items) - len(fitting)
    if not fitting:
        return f"{text.removesuffix(': ')}."
    return text + ", ".join(fitting) + (f" and {more} more" if more else "")


def wrap(line: str, width: int, indent: int) -> list[str]:
    """`line` in lines of at most `width` cells; its own indent stays, the others get `indent`.

    A --map with its argument is never broken, so that a shell takes it as it is shown.
    """
    argument = _ARGUMENT.search(line)
    if argument and cells(line) > width:
        head, tail = line[: argument.start()].rstrip(), line[argument.end() :]
        end = tail[: len(tail) - len(tail.lstrip(".,"))]
        lines = wrap(head, width, indent) if head.strip() else []
        rest = tail[len(end) :].strip()
        return [*lines, " " * indent + argument[0] + end, *(wrap(" " * indent + rest, width, indent) if rest else [])]
    # Words are broken where one alone is too long: a path, a name.
    start = len(line) - len(line.lstrip(" "))
    wrapper = textwrap.TextWrapper(
        width, initial_indent=" " * start, subsequent_indent=" " * indent, break_on_hyphens=False
    )
    if not line.isascii():
        wrapper.width = max(width - (cells(line) - len(line)), 20)
    return wrapper.wrap(line[start:]) or [""]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def is_undecided(kernel: KernelReport) -> bool:
    """Whether the kernel's verdict leaves the run undecided."""
    return kernel.verdict in UNDECIDED


def _with_name(start: str, name: str, facts: str, width: int) -> str:
    room = max(width - cells(start) - cells(facts), 12)
    return start + short_names([name], room)[name] + facts


def _compact(name: str, width: int, bare: bool, head_share: float | None) -> str:
    """Drop what tells least (return type, argument list, namespaces where `bare`) before cutting."""
    text = whole = printable(name)
    if cells(text) <= width:
        return text
    if is_graph(text):  # its number comes first
        return shorten(text, width, 1.0)
    text = re.sub(r"^(?:static )?void ", "", text.replace("(anonymous namespace)::", ""))
    if text.endswith(")"):
        depth = 0
        for i in range(len(text) - 1, 0, -1):
            depth += {")": 1, "(": -1}.get(text[i], 0)
            if depth == 0:
                text = text[:i]
                break
    text = text or whole
    if bare and cells(text) > width:
        text = _NAMESPACES.sub("", text) or text
    return shorten(text, width, head_share or (0.65 if "<" in text else 0.4))
