"""The segments of a capture directory by name alone, in the order in which they may be shipped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kdiff.queries.errors import StoreError
from kdiff.queries.printable import printable
from kdiff.queries.segments_read import SUFFIX
from kdiff.queries.shipping_notes import OWN_NAME
from kdiff.queries.tables import TABLES

# The order of shipping: no account of rows before the rows, no row before the names of its kernels.
SHIPPING_ORDER: Final = (
    "kernels",
    "cuda_events",
    "kernel_executions",
    "device_windows",
    "gpu_samples",
    "agent_health",
)
_RANK: Final = {table: rank for rank, table in enumerate(SHIPPING_ORDER)}
_SETTLED_NS: Final = 2_000_000_000

assert _RANK.keys() == TABLES.keys()


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One file that is named as a segment; whether it is one its footer says."""

    table: str
    name: str
    path: Path
    size: int

    @property
    def key(self) -> str:
        """What it is called in the spool's notes: table/name."""
        return f"{self.table}/{self.name}"

    @property
    def own(self) -> bool:
        """Whether a recording named it: then no other segment of the table has the name, on any host."""
        return OWN_NAME.fullmatch(self.name) is not None

    @property
    def order(self) -> tuple[int, str, int, int, str]:
        """A recording writes a stretch's kernels, rows and account one after the other, and numbers them."""
        found = OWN_NAME.fullmatch(self.name)
        if found is None:
            return 0, "", 0, _RANK[self.table], self.name
        return int(found[2]), found[1], int(found[3]), _RANK[self.table], self.name


class Listing:
    """The files of a directory, listed anew where a folder has changed since."""

    def __init__(self, root: Path, warn: Callable[[str], None]) -> None:
        """`warn` takes a line for each file that is not named as a segment."""
        self.root = root
        self._warn = warn
        self._folders: dict[str, tuple[int, list[SegmentFile]]] = {}
        self._none: list[SegmentFile] = []
        self._strange: set[str] = set()
        self._read: tuple[list[list[SegmentFile]], list[SegmentFile]] = [], []

    def read(self) -> list[SegmentFile]:
        """All files, in the order of shipping. A missing directory is an empty one. Raises StoreError.

        Folders are listed in the opposite order: while an agent writes, no account is listed without its rows.
        """
        folders = [self._folder(table) for table in reversed(SHIPPING_ORDER)]
        known, files = self._read
        # A month's files take a second to sort.
        if len(known) != len(folders) or any(one is not other for one, other in zip(known, folders, strict=True)):
            files = sorted((file for folder in folders for file in folder), key=lambda file: file.order)
            self._read = folders, files
        return files.copy()

    def _folder(self, table: str) -> list[SegmentFile]:
        folder = self.root / table
        try:
            changed = folder.stat().st_mtime_ns
            known = self._folders.get(table)
            if known is not None and known[0] == changed:
                return known[1]
            with os.scandir(folder) as listing:
                files = [file for entry in listing if (file := self._file(table, entry)) is not None]
        except (FileNotFoundError, NotADirectoryError):
            self._folders.pop(table, None)
            return self._none
        except OSError as error:
            raise StoreError(
                f"{printable(str(folder))} cannot be listed ({error.strerror}): run as its owner or as root"
            ) from error
        # A file that came within the clock's tick of the listing would be missed.
        settled = time.time_ns() - changed > _SETTLED_NS
        self._folders[table] = (changed if settled else 0), files
        return files

    def _file(self, table: str, entry: os.DirEntry[str]) -> SegmentFile | None:
        if entry.name.startswith(".") or entry.name.endswith(".tmp"):
            return None  # being written
        if not entry.name.endswith(SUFFIX):
            if entry.path not in self._strange:
                self._strange.add(entry.path)
                self._warn(f"skipped {printable(entry.path)}: not named *{SUFFIX}")
            return None
        try:
            size = entry.stat().st_size
        except OSError:
            size = 0  # gone, or a link to nothing: opening it tells
        return SegmentFile(table, entry.name, Path(entry.path), size)
