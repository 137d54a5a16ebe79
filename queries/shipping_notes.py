"""How a capture's segments are known to servers: what the agent notes as it ships, and who else must heed it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

NOTES: Final = ".shipped"
"""The file in the capture's directory: a line for each note, a mark and table/segment."""
BEGUN: Final = "?"
CONFIRMED: Final = "+"
OWN_NAME: Final = re.compile(r"(.+-[0-9a-f]{8})-(\d{1,20})-(\d{8,})\.parquet")
"""What a recording calls a segment, which no other of the table is called on any host: host and boot, begin, number."""


def read_marks(root: Path) -> dict[str, str]:
    """table/segment -> BEGUN, a server may have some of it, or CONFIRMED, it has all. {} where nothing can be read."""
    try:
        lines = (root / NOTES).read_text(encoding="utf-8", errors="surrogateescape").split("\n")[:-1]
    except OSError:
        return {}
    marks: dict[str, str] = {}
    for line in lines:
        if marks.get(line[1:]) != CONFIRMED:
            marks[line[1:]] = line[:1]
    return marks
