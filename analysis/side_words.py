"""What the sentences of a comparison call its sides where these are the arms of one window, not two windows.

The sentences are made in many places, of windows; here they are told of arms, once, when the comparison is complete.
`tests/unit/test_side_words.py` holds every sentence of the package to it. What stands in quotes, a name, stays.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from kdiff.analysis.report import Arm, Report

_QUOTED: Final = re.compile(r"(?<!\w)'.*?'(?!\w)")  # a name may hold a quote
_NAME: Final = "\x00"
_END: Final = r"(?=[,.:;)]|$| \(| (?:and|or|are|is|were|was)\b)"
_RULES: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"\bbefore windows?\b"), "control"),
    (re.compile(r"\bafter windows?\b"), "canary"),
    (re.compile(r"\b([Oo]ne|[Bb]oth|[Ee]ach|[Ee]ither|[Nn]either) window(s?)\b"), r"\1 arm\2"),
    (re.compile(r"\b[Tt]hese windows\b"), "this window"),
    (re.compile(r"\b(take|choose) (longer|later|other) windows\b"), r"\1 a \2 window"),
    (re.compile(r"\b(take|choose) windows\b"), r"\1 a window"),
    (re.compile(rf"(?<=\S) before{_END}"), " in the control"),
    (re.compile(rf"(?<=\S) after{_END}"), " in the canary"),
)


def in_arms(sentence: str) -> str:
    """A sentence about the before and after windows, told of the control and the canary."""
    sentence = sentence.replace(_NAME, "")
    names = _QUOTED.findall(sentence)
    text = _QUOTED.sub(_NAME, sentence)
    for pattern, words in _RULES:
        text = pattern.sub(words, text)
    return "".join(part for pair in zip(text.split(_NAME), [*names, ""], strict=True) for part in pair)


def reworded(report: Report, arms: tuple[Arm, Arm], warnings: tuple[str, ...] = ()) -> Report:
    """The report of control and canary: its sentences told of them, and further `warnings`, which are so already."""
    kernels = (replace(row, reasons=tuple(map(in_arms, row.reasons))) for row in report.kernels)
    sides = [
        replace(
            side,
            buckets=len(arm.hosts),
            bucket_ns=side.window.length_ns,
            cleaning=tuple(replace(step, why=in_arms(step.why)) for step in side.cleaning),
        )
        for side, arm in zip((report.before, report.after), arms, strict=True)
    ]
    return replace(
        report,
        before=sides[0],
        after=sides[1],
        cause=in_arms(report.cause),
        kernels=tuple(kernels),
        notes=tuple(map(in_arms, report.notes)),
        warnings=(*warnings, *map(in_arms, report.warnings)),
        arms=arms,
    )
