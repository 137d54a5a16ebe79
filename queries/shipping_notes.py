"""How a capture's segments are known to servers: what the agent notes as it ships, and who else must heed it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from kdiff.queries.locks import open_regular

NOTES: Final = ".shipped"
"""The file in the capture's directory. A note is a line: a mark, table/segment, a space and which server."""
BEGUN: Final = "?"
CONFIRMED: Final = "+"
CONFIRMED_TO_RUN: Final = "*"
"""The same, for `run`: which does not send it again, to another server neither."""
WITHDRAWN: Final = "-"
"""It was begun, and the server has none of it."""
OWN_NAME: Final = re.compile(r"(.+-[0-9a-f]{8})-(\d{1,20})-(\d{8,})\.parquet")
"""What a recording calls a segment, which no other of the table is called on any host: host and boot, begin, number."""
_LINE: Final = re.compile(r"(.)(.*?)(?: ([0-9a-f]{8}))?", re.DOTALL)
_MOST_BYTES: Final = 1 << 30


def read_marks(root: Path) -> dict[str, str]:
    """table/segment -> BEGUN, a server may have some of it, or CONFIRMED, one has all and none may have a part.

    {} where nothing can be read.
    """
    marks: dict[tuple[str, str], str] = {}
    for mark, key, server in parse(_lines(root)):
        if mark == WITHDRAWN:
            marks.pop((key, server), None)
        elif marks.get((key, server)) != CONFIRMED:
            marks[key, server] = CONFIRMED if mark == CONFIRMED_TO_RUN else mark
    found: dict[str, str] = {}
    for (key, _), mark in marks.items():
        if found.get(key) != BEGUN:
            found[key] = mark
    return found


def parse(lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """(mark, table/segment, server) of each note; server is '' where none is named."""
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is not None:
            yield found[1], found[2], found[3] or ""


def line(mark: str, key: str, server: str) -> str:
    """The note as the file holds it; '' where a hostile name would be more than a line."""
    if "\n" in key:
        return ""
    return f"{mark}{key} {server}\n" if server else f"{mark}{key}\n"


def open_notes(root: Path, flags: int) -> int:
    """A descriptor of the notes. Raises OSError, also where they are a link or no file: a capture may be hostile."""
    return open_regular(root / NOTES, flags)


def _lines(root: Path) -> list[str]:
    try:
        with open(open_notes(root, os.O_RDONLY), "rb") as file:
            return split(file.read(_MOST_BYTES))
    except OSError:
        return []


def split(data: bytes) -> list[str]:
    """The whole lines of `data`: the last one may have been cut off."""
    return data.decode("utf-8", "surrogateescape").split("\n")[:-1]
