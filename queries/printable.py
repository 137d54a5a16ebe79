"""Text from outside (file names, kernel names) made safe to print on one line of a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with every character that could move a cursor, colour, reorder or break a line escaped.

    Control characters, ANSI escapes, bidirectional marks and undecodable bytes become \\x1b, \\u202e and
    \\udc80.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shorten(text: str, width: int) -> str:
    """At most `width` characters of `text`: its head and, longer, its end.

    The end is what tells two instances of one template apart.
    """
    if len(text) <= width:
        return text
    if width < 8:
        return text[: max(width, 0)]
    head = (width - 1) * 2 // 5
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"
