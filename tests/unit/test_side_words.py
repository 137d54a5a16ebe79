"""Every sentence of a comparison can be told of control and canary: none speaks of a before or an after then."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kdiff.analysis
from kdiff.analysis.side_words import in_arms

PACKAGE = Path(kdiff.analysis.__file__).parent
# What prints lists or usage, is of two windows only, or is an error of a programmer.
OTHERS = (
    *("import_", "command_", "timespec", "watch", "gate", "cli", "history", "options", "listing"),
    *("selectors", "side_words", "scope", "window", "kept"),
)
# The device windows of an agent, a window of some length, windows one would take: no side of the comparison.
LEFT = re.compile(
    r"device windows?|timed windows|windows? of|a window|the window|longer windows?|any window|windows? in"
)


def sentences() -> Iterator[tuple[str, str]]:
    """(where, text) of each string with words in it, sides in place of the variables that hold them."""
    for path in sorted(PACKAGE.glob("*.py")):
        if path.name.startswith(OTHERS):
            continue
        tree = ast.parse(path.read_text())
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            where = f"{path.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                for side in ("before", "after"):
                    yield where, _filled(node.values, side)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside | docs:
                yield where, node.value


def _filled(parts: list[ast.expr], side: str) -> str:
    text = ""
    for place, part in enumerate(parts):
        if isinstance(part, ast.Constant):
            text += str(part.value)
            continue
        assert isinstance(part, ast.FormattedValue)
        following = parts[place + 1] if place + 1 < len(parts) else None
        of_side = isinstance(following, ast.Constant) and str(following.value).startswith(" window")
        # What is filled in right behind a word goes on with its own ": ", " (" or nothing.
        text += side if of_side else "" if text[-1:].isalpha() else "7"
    return text


@pytest.mark.parametrize(
    ("of_windows", "of_arms"),
    [
        ("The before window has 300 launches; p99 needs 2,000.", "The control has 300 launches; p99 needs 2,000."),
        ("'it's before.' ran before.", "'it's before.' ran in the control."),
        ("The after window's slow launches come in bursts.", "The canary's slow launches come in bursts."),
        ("Device time not recorded in both windows.", "Device time not recorded in both arms."),
        ("The kernel ran in neither window.", "The kernel ran in neither arm."),
        (
            "Left out: failed launches, 3 before and 4 after.",
            "Left out: failed launches, 3 in the control and 4 in the canary.",
        ),
        (
            "75% of its time overlapped others before, 0% after.",
            "75% of its time overlapped others in the control, 0% in the canary.",
        ),
        (
            "12 more before and 9 more after, if the ratio stays.",
            "12 more in the control and 9 more in the canary, if the ratio stays.",
        ),
        (
            "The device was busy 97% of the timed windows (61% before).",
            "The device was busy 97% of the timed windows (61% in the control).",
        ),
        (
            "--map: no kernel named 'the before window' ran in the after window",
            "--map: no kernel named 'the before window' ran in the canary",
        ),
        ("'a before' ran in the before window's time", "'a before' ran in the control's time"),
        ("only 40% of the before window A..B was recorded", "only 40% of the control A..B was recorded"),
        ("judge it alone (--kernel), or take longer windows.", "judge it alone (--kernel), or take a longer window."),
        ("Nothing of either.", "Nothing of either."),
        (
            "of each launch of 'a' before, 'b' after: 'c'",
            "of each launch of 'a' in the control, 'b' in the canary: 'c'",
        ),
        ("'a' before 'b'", "'a' before 'b'"),
        ("7 in 'before' and 8 after are alike", "7 in 'before' and 8 in the canary are alike"),
    ],
)
def test_a_sentence_of_windows_is_told_of_arms(of_windows: str, of_arms: str) -> None:
    assert in_arms(of_windows) == of_arms
    assert in_arms(of_arms) == of_arms


def test_no_sentence_of_the_package_speaks_of_two_windows_then() -> None:
    found = [(where, text) for where, text in sentences() if re.search(r"\b(before|after) window|\bwindows?\b", text)]
    assert len(found) > 40  # the scan sees them
    left = []
    for where, text in sentences():
        if " " not in text.strip():
            continue
        told = in_arms(text)
        rest = LEFT.sub("", told)
        if re.search(r"\b(before|after)\b|\bwindows\b", rest) or re.search(r"\b(one|each|either|both) window", rest):
            left.append(f"{where}: {told}")
    assert left == []


def test_what_formats_say_themselves_is_of_both_kinds() -> None:
    """Sentences are reworded before a format has them: what it adds must not speak of two windows on its own."""
    said = [(where, text) for where, text in sentences() if where.startswith("output_")]
    assert len(said) > 100
    assert [(where, text) for where, text in said if in_arms(text) != text] == []
