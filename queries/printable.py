"""Text from outside (file names, kernel names) made safe to print on one line of a terminal."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """`text` with every character that could move a cursor, colour, reorder or break a line escaped.

    Control characters, ANSI escapes, bidirectional marks and undecodable bytes become \\x1b, \\u202e and \\udc80.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def cells(text: str) -> int:
    """The columns that printable text takes in a terminal: wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(_cells(c) for c in text)


def shorten(text: str, width: int, head_share: float = 0.4) -> str:
    """At most `width` cells of `text`: its head and, longer unless told otherwise, its end.

    The end is what tells two instances of one template apart.
    """
    if cells(text) <= width:
        return text
    if width < 8:
        return _head(text, width)
    head = _head(text, int((width - 1) * head_share))
    tail = _head(text[::-1], width - 1 - cells(head))[::-1]
    return f"{head}…{tail}"


def quoted(text: str) -> str:
    """What a user gave, fit to print in a sentence: printable, in quotes, at most 80 cells of it."""
    return f"'{shorten(printable(text), 80)}'"


def _head(text: str, width: int) -> str:
    taken = 0
    for i, c in enumerate(text):
        taken += _cells(c)
        if taken > width:
            return text[:i]
    return text


def _cells(c: str) -> int:
    if unicodedata.category(c) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(c) in ("W", "F") else 1
