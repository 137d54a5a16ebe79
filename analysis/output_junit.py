"""JUnit XML: one test case a kernel, and one for the run where no kernel's verdict says why it is undecided."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from kdiff.analysis import output_text as text
from kdiff.analysis.output_cleaning import cleaning_line
from kdiff.analysis.report import EXIT_OK, KernelReport, Report, statistic
from kdiff.analysis.verdict import Verdict
from kdiff.queries.printable import printable


def render(report: Report, width: int = 0, colour: bool = False) -> str:
    """REGRESSED is a failure; undecided is an error, or skipped where the run passes all the same."""
    cases = [_case(kernel, report) for kernel in report.kernels]
    if report.cause:
        case = ET.Element("testcase", classname="kdiff", name="run")
        _mark(case, report, printable(report.cause))
        cases.append(case)
    suite = ET.Element(
        "testsuite",
        name="kdiff",
        tests=str(len(cases)),
        failures=str(_number(cases, "failure")),
        errors=str(_number(cases, "error")),
        skipped=str(_number(cases, "skipped")),
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in (
        (report.sides[0], text.side_text(report, 0)),
        (report.sides[1], text.side_text(report, 1)),
        ("verdict", report.verdict.value),
        ("judged", text.judged_line(report)),
    ):
        ET.SubElement(properties, "property", name=name, value=value)
    for side, window in zip(report.sides, (report.before, report.after), strict=True):
        if told := cleaning_line(window):
            ET.SubElement(properties, "property", name=f"cleaning {side}", value=printable(told))
    suite.extend(cases)
    output = ET.SubElement(suite, "system-out")
    output.text = printable(text.headline(report))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(kernel: KernelReport, report: Report) -> ET.Element:
    case = ET.Element("testcase", classname=f"kdiff.{kernel.metric}", name=printable(kernel.kernel))
    facts = (
        f"{statistic(kernel.metric, report.quantile)} {text.duration(kernel.value_before)} -> "
        f"{text.duration(kernel.value_after)}, {text.change(kernel.ratio)} {text.interval(kernel.ci)}"
    )
    told_besides = [text.measure_line(measure, report.quantile) for measure in kernel.others]
    reasons = " ".join([*map(printable, kernel.reasons), *told_besides])
    if kernel.verdict is Verdict.REGRESSED:
        ET.SubElement(case, "failure", type="REGRESSED", message=facts).text = reasons
    elif text.is_undecided(kernel):
        _mark(case, report, reasons, kernel.verdict.value)
    else:
        told = reasons if kernel.ratio is None else f"{facts}. {reasons}"
        ET.SubElement(case, "system-out").text = f"{kernel.verdict.value}: {told}".strip()
    return case


def _mark(case: ET.Element, report: Report, message: str, kind: str = "INCONCLUSIVE") -> None:
    if report.exit_code == EXIT_OK:
        ET.SubElement(case, "skipped", message=message)
    else:
        ET.SubElement(case, "error", type=kind, message=message)


def _number(cases: list[ET.Element], tag: str) -> int:
    return sum(case.find(tag) is not None for case in cases)
