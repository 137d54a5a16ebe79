"""Segments that a capture holds twice: copied under another name, restored from a backup, merged from two directories.

A segment is written once and never changed, and its rows carry times in ns, so that two files of the same bytes are one
segment. Only files that agree in size, rows, times and size of the footer are read to tell.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kdiff.queries.printable import printable
from kdiff.queries.segments_read import Segment

_READ_BYTES: Final = 1 << 20
_MAY_REPEAT: Final = "kernels"
"""A table whose rows say the same however often: a month has thousands of small files of it."""


def copies(files: Mapping[str, Iterable[Segment]]) -> dict[str, dict[Segment, Segment]]:
    """Of each table each segment that is a copy, and the one it is a copy of: of those alike the first is none.

    A file that cannot be read is not a copy: what reads its rows says why.
    """
    return {table: _copies(segments) for table, segments in files.items() if table != _MAY_REPEAT}


def without(
    files: Mapping[str, Sequence[Segment]], found: Mapping[str, Mapping[Segment, Segment]]
) -> dict[str, list[Segment]]:
    """The segments of each table that are no copies."""
    return {table: [one for one in its if one not in found.get(table, {})] for table, its in files.items()}


def _copies(segments: Iterable[Segment]) -> dict[Segment, Segment]:
    alike: dict[tuple[int | None, ...], list[Segment]] = defaultdict(list)
    for one in segments:
        alike[one.size, one.rows, one.first_ns, one.last_ns, one.footer_size].append(one)
    found: dict[Segment, Segment] = {}
    for group in alike.values():
        if len(group) < 2 or not group[0].rows:
            continue
        first: dict[bytes, Segment] = {}
        for one in group:
            digest = _digest(one)
            if digest is not None and first.setdefault(digest, one) is not one:
                found[one] = first[digest]
    return found


def warnings(found: Mapping[str, Mapping[Segment, Segment]]) -> list[str]:
    """One line for each table that has copies."""
    return [_warning(table, its) for table, its in found.items() if its]


def rows_in(of: Sequence[Segment], from_ns: int, to_ns: int) -> int:
    """How many rows segments have that may lie in [from_ns, to_ns)."""
    return sum(one.rows for one in of if one.overlaps(from_ns, to_ns))


def _warning(table: str, its: Mapping[Segment, Segment]) -> str:
    copy, original = next(iter(its.items()))
    rows = sum(one.rows for one in its)
    example = f"{printable(str(copy.path))} is {printable(original.path.name)}"
    number = "a segment that is a copy" if len(its) == 1 else f"{len(its):,} segments that are copies"
    return f"skipped {number} of another in {table} ({rows:,} rows, which are read once): {example}"


def _digest(one: Segment) -> bytes | None:
    digest = hashlib.blake2b(digest_size=16)
    try:
        with one.path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                digest.update(data)
    except OSError:
        return None
    return digest.digest()
