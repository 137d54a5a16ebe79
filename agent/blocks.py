"""Segments as insert blocks: what is sent at once, and the token by which the server knows it again.

A segment that fits a block is sent as the file it is: Parquet is compressed, holds its columns' names, and one that is
cut off cannot be read, so that no server takes half of it for the whole. A larger one is cut every BLOCK_ROWS rows.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from kdiff.agent.accounts import NO_VICTIM, Victim, victims_of
from kdiff.agent.segment_files import SegmentFile
from kdiff.queries.locks import lock
from kdiff.queries.segments_read import UnreadableError, read_footer
from kdiff.queries.segments_write import layout
from kdiff.queries.tables import TABLES

# A part of what a block of a cut segment is called: with another one, half-shipped segments would be sent twice.
BLOCK_ROWS: Final = 500_000
_BATCH_ROWS: Final = 1 << 15
_MOST_ROWS: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Block:
    """Rows [begin, end) of a segment. `name` is what shipped_segments lists.

    `instead`: what it lists of the rows that these account for, by name and table: where it has them all, the account
    is not sent.
    """

    name: str
    begin: int
    end: int
    instead: tuple[tuple[str, str], ...] = ()

    @property
    def rows(self) -> int:
        """How many."""
        return self.end - self.begin


class OpenSegment:
    """A readable segment, which stays readable when it is removed. Use as a context manager."""

    def __init__(self, file: SegmentFile, block_rows: int = BLOCK_ROWS) -> None:
        """Raises UnreadableError: no segment of its table, torn, or gone ('')."""
        self.last_ns = read_footer(file.path, file.table, TABLES[file.table]).last_ns
        self.file = file
        try:
            self._stream = open(file.path, "rb")  # noqa: SIM115
        except FileNotFoundError as error:
            raise UnreadableError from error
        except OSError as error:
            raise UnreadableError(error.strerror or "cannot be read") from error
        try:
            self._parquet = pq.ParquetFile(self._stream, pre_buffer=False, buffer_size=1 << 20)
            rows = self._parquet.metadata.num_rows
            if rows > _MOST_ROWS:
                raise pa.ArrowInvalid("more rows than anybody recorded")
            present = set(self._parquet.schema_arrow.names)
            self.columns = [name for name in TABLES[file.table].names if name in present]
            self._identity = identity_of(file, self._stream)
            victims = victims_of(self._parquet.metadata.metadata, file.table, rows) if file.own else []
            cut = _cut(self._identity, rows, block_rows)
            self.blocks = _of_victims(victims, self._identity, block_rows) if victims else cut
        except (pa.ArrowException, OSError) as error:
            self._stream.close()
            raise UnreadableError("torn or not a Parquet file") from error

    @property
    def account(self) -> str:
        """What a server lists, as a block of one of ACCOUNTS, that counts this segment as lost."""
        return _account_of(self.file.table, self._identity)

    @property
    def names(self) -> list[str]:
        """What a server may list that decides whether a block is sent."""
        own = [block.name for block in self.blocks]
        return [*own, self.account, *(name for block in self.blocks for name, _ in block.instead)]

    def hold(self) -> bool:
        """Keeps the disk policy from giving it up until it is closed; whether it has not been given up before."""
        return lock(self._stream.fileno(), shared=True) and os.fstat(self._stream.fileno()).st_nlink > 0

    def bodies(self) -> Iterator[tuple[Block, IO[bytes]]]:
        """Each block with its rows as Parquet, in order; memory is bounded by one. Raises UnreadableError."""
        if len(self.blocks) == 1:
            self._stream.seek(0)
            yield self.blocks[0], self._stream
            return
        rows = _Rows(self._parquet, self.columns)
        for block in self.blocks:
            try:
                taken = rows.take(block.rows)
            except (pa.ArrowException, OSError) as error:
                raise UnreadableError("damaged") from error
            body = io.BytesIO()
            pq.write_table(taken, body, **layout(taken.schema))
            body.seek(0)
            yield block, body

    def damaged(self) -> bool:
        """Whether rows cannot be read, although the footer can: what a server says about it may be anything."""
        try:
            for _ in self._parquet.iter_batches(_BATCH_ROWS):
                pass
        except (pa.ArrowException, OSError):
            return True
        return False

    def close(self) -> None:
        """Lets go of it."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


class _Rows:
    """A Parquet file's rows, taken in pieces of any length: where a reader cuts them is its own affair."""

    def __init__(self, file: pq.ParquetFile, columns: list[str]) -> None:
        self._batches: Iterator[Any] = file.iter_batches(_BATCH_ROWS, columns=columns)
        self._rest: pa.Table | None = None

    def take(self, rows: int) -> pa.Table:
        parts, have = ([self._rest], len(self._rest)) if self._rest is not None else ([], 0)
        while have < rows:
            batch = next(self._batches, None)
            if batch is None:
                raise pa.ArrowInvalid("fewer rows than the footer says")
            parts.append(pa.Table.from_batches([batch]))
            have += len(batch)
        whole = pa.concat_tables(parts, promote_options="none")
        self._rest = whole.slice(rows)
        return whole.slice(0, rows)


def hold_for_shedding(path: Path) -> IO[bytes] | None:
    """The file, held alone, unless it is being shipped or gone. It is let go of when closed."""
    try:
        stream = open(path, "rb", opener=_without_waiting)  # noqa: SIM115
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode) and lock(stream.fileno()) and is_named(stream, path):
        return stream
    stream.close()
    return None


def is_named(stream: IO[bytes], path: Path) -> bool:
    """Whether the open file is that of the name still: not once it was removed or another has taken its place."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except OSError:
        return False


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO has no writer


def identity_of(file: SegmentFile, stream: IO[bytes]) -> str:
    """What no other segment of the table is called: its name, and where others may have the same, its content."""
    if file.own:
        return file.name
    stream.seek(0)
    digest = hashlib.sha256()
    while part := stream.read(1 << 20):
        digest.update(part)
    return f"{file.name}@{digest.hexdigest()[:32]}"


def _cut(identity: str, rows: int, size: int) -> list[Block]:
    if rows <= size:
        return [Block(identity, 0, rows)]
    bounds = [(begin, min(begin + size, rows)) for begin in range(0, rows, size)]
    return [Block(f"{identity}#{begin}-{end}", begin, end) for begin, end in bounds]


def _of_victims(victims: list[tuple[Victim, int]], identity: str, size: int) -> list[Block]:
    """A block for each victim, called after it whatever others it is accounted for with; the rest is the segment's."""
    blocks, at = [], 0
    for victim, rows in victims:
        instead = tuple((block.name, victim.table) for block in _cut(victim.identity, victim.rows, size))
        if victim == NO_VICTIM:
            blocks.append(Block(identity, at, at + rows))
        else:
            blocks.append(Block(_account_of(victim.table, victim.identity), at, at + rows, instead))
        at += rows
    return blocks


def _account_of(table: str, identity: str) -> str:
    return f"lost:{table}/{identity}"
