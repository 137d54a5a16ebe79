"""What a spool remembers of its shipping: which segments were begun, and which of them the server has confirmed.

The server's own list decides what is sent. These notes tell the disk policy which segments may go without loss, and
of which it is unknown whether the server has them, also after a kill and while the server is away.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import IO, Final

from kdiff.queries.shipping_notes import BEGUN, CONFIRMED, NOTES, read_marks

_SPARE_LINES: Final = 10_000


class Journal:
    """The notes in DIR/.shipped, a line each. One process at a time; threads may share it.

    What cannot be read or written is done without.
    """

    def __init__(self, root: Path) -> None:
        """Reads what is there, as far as the segments still are."""
        self._path = root / NOTES
        self._lock = threading.Lock()
        self._confirmed: set[str] = set()
        self._begun: set[str] = set()
        self._file: IO[str] | None = None
        self._lines = 0
        for key, mark in read_marks(root).items():
            if key.count("/") == 1 and os.path.lexists(root / key):
                self._note(mark, key)
        self._rewrite()

    def begun(self, key: str) -> None:
        """The segment is about to be sent."""
        self._write(BEGUN, key)

    def confirmed(self, key: str) -> None:
        """The server has all of it, and has listed it."""
        self._write(CONFIRMED, key)

    def forget(self, key: str) -> None:
        """The segment is gone."""
        with self._lock:
            self._confirmed.discard(key)
            self._begun.discard(key)

    def is_confirmed(self, key: str) -> bool:
        """Whether the server has it for certain."""
        return key in self._confirmed

    def in_doubt(self, key: str) -> bool:
        """Whether the server may have it."""
        return key in self._begun

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None

    def _note(self, mark: str, key: str) -> None:
        if mark == CONFIRMED:
            self._confirmed.add(key)
            self._begun.discard(key)
        elif mark == BEGUN and key not in self._confirmed:
            self._begun.add(key)

    def _write(self, mark: str, key: str) -> None:
        with self._lock:
            if key in self._confirmed or (mark == BEGUN and key in self._begun):
                return
            self._note(mark, key)
            if self._file is None or self._lines > 2 * len(self._confirmed) + _SPARE_LINES:
                self._rewrite()  # holds the new note
            elif "\n" not in key:
                with contextlib.suppress(OSError):
                    self._file.write(f"{mark}{key}\n")
                    self._file.flush()
                    self._lines += 1

    def _rewrite(self) -> None:
        """Only what is of use, in the place of the old file."""
        lines = [f"{CONFIRMED}{key}\n" for key in self._confirmed] + [f"{BEGUN}{key}\n" for key in self._begun]
        beside = self._path.with_name(f"{NOTES}.tmp")
        with contextlib.suppress(OSError):
            beside.write_text("".join(line for line in lines if line.count("\n") == 1), "utf-8", "surrogateescape")
            beside.replace(self._path)
            if self._file is not None:
                self._file.close()
            self._file = open(self._path, "a", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
            self._lines = len(lines)
