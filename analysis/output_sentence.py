"""One sentence for a webhook or a chat: the verdict, what it rests on, and which windows it is about."""

from __future__ import annotations

import re
from typing import Final

from kdiff.analysis import output_text as text
from kdiff.analysis.report import Report, WindowReport
from kdiff.analysis.window import length_text, utc_second
from kdiff.queries.printable import cells, shorten

MOST_CELLS: Final = 400
_HEADLINE: Final = 240
# What a chat would read as a call to people: <!channel>, <@U123>, @here. No kernel is called so.
_CALL: Final = re.compile(r"<(?=[!@#])|@(?=here\b|channel\b|everyone\b|all\b)")


def render(report: Report, width: int = 0, colour: bool = False) -> str:
    """The sentence and a newline."""
    return sentence(report) + "\n"


def sentence(report: Report) -> str:
    """Plain text on one line, at most MOST_CELLS wide, with nothing in it that moves a cursor or calls people."""
    windows = f" ({_window(report.after)} against {_window(report.before)})."
    if report.arms:
        control, canary = map(text.arm_brief, report.arms)
        windows = f" (canary on {canary} against control on {control}, {_window(report.after)})."
    line = _CALL.sub(r"\g<0> ", f"kdiff: {text.headline(report, _HEADLINE)}").rstrip(".")
    return shorten(line, MOST_CELLS - cells(windows), 0.9) + windows


def _window(report: WindowReport) -> str:
    """To the second: what tells two windows apart in a chat."""
    window = report.window
    return f"{utc_second(window.from_ns)}/{length_text(window.length_ns)}"
