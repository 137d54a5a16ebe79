"""What to write in place of a wrong word."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def nearest(word: str, known: Collection[str]) -> str:
    """The known word that may be meant, or all of them, as the end of a sentence."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"is {found[0]} meant?" if found else f"there are {', '.join(known)}"
