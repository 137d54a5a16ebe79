"""Segments on their way to a server: each row once, whatever fails in between and however often it is repeated.

What the server's `shipped_segments` lists is not sent again. What it does not list is sent in blocks that carry a
token, the same one whenever and from wherever the block is sent: a server that has it adds nothing. After the insert is
confirmed the block is listed; the server remembers tokens for longer than the time between the two.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import IO, Any, Final, TypeVar

from kdiff.agent.accounts import ACCOUNTS
from kdiff.agent.blocks import BLOCK_ROWS, Block, OpenSegment
from kdiff.agent.segment_files import SegmentFile
from kdiff.queries import migrations
from kdiff.queries.address import Address
from kdiff.queries.connection import connect, explain, is_passing, known_settings
from kdiff.queries.errors import StoreError
from kdiff.queries.printable import printable
from kdiff.queries.segments_read import UnreadableError

T = TypeVar("T")

RETRY_FOR_S: Final = 300.0
_FIRST_DELAY_S: Final = 0.25
_LONGEST_DELAY_S: Final = 30.0
_ASKED_AT_ONCE: Final = 200  # names: they are a part of the request's line, which proxies bound
_AT_ONCE: Final = 16  # segments that are looked up, sent and then listed together
_ANSWER_WITHIN_S: Final = 60
_LISTED_ANEW_S: Final = 10.0
_LIST_EVERY_S: Final = 1.0
_DAY_NS: Final = 86_400_000_000_000
# What is wrong with these is wrong with every segment: rights, database, tables, columns, users.
_HOPELESS: Final = frozenset({16, 47, 60, 81, 115, 164, 192, 193, 194, 452, 497, 516})
_BLOCK_SETTINGS: Final = {
    "async_insert": 0,
    "insert_deduplicate": 1,
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    # One insert is one block: tokens are of blocks.
    "min_insert_block_size_rows": 2 * BLOCK_ROWS,
    "min_insert_block_size_bytes": 0,
    "max_insert_threads": 1,
    "max_partitions_per_insert_block": 1000,  # of an import: days
    "distributed_foreground_insert": 1,  # confirmed is on the shards, not in a queue before them
    "wait_end_of_query": 1,
}


class EndedError(Exception):
    """Shipping was told to end while it waited."""


@dataclass
class Tally:
    """What became of the segments. `confirmed`: keys; `left`: why, by key, of those that are not in the store."""

    segments: int = 0  # sent now, and confirmed
    bytes: int = 0
    rows: int = 0
    known: int = 0  # segments that the server had already
    retries: int = 0
    last_success: float = 0.0  # Unix time
    confirmed: set[str] = field(default_factory=set)
    outlived: set[str] = field(default_factory=set)  # confirmed, and so old that the server drops their rows
    left: dict[str, str] = field(default_factory=dict)


@dataclass
class Hooks:
    """What the shipper tells as it goes."""

    note: Callable[[str], None] = lambda _: None
    begun: Callable[[SegmentFile], None] = lambda _: None
    confirmed: Callable[[SegmentFile], None] = lambda _: None
    withdrawn: Callable[[SegmentFile], None] = lambda _: None
    """What was begun is not in the store: it was refused at the first attempt."""
    given_up: Callable[[SegmentFile], bool] = lambda _: False
    """Whether the spool has counted it as lost, asked while it is held: then it is not sent."""


class Shipper:
    """Sends segments to the servers of an address. Not for use by two threads at once."""

    def __init__(
        self,
        address: Callable[[], Address],
        hooks: Hooks,
        *,
        retry_for_s: float = RETRY_FOR_S,
        ending: threading.Event | None = None,
        block_rows: int = BLOCK_ROWS,
    ) -> None:
        """`address` is asked anew before each connection: a password file may have changed.

        `retry_for_s`: give up after so long without a success. `ending`: once set, nothing is waited for.
        """
        self._address = address
        self._hooks = hooks
        self._retry_for_s = retry_for_s
        self._ending = ending or threading.Event()
        self._block_rows = block_rows
        self._client: Any = None
        self._host = 0  # which of the address's hosts comes first
        self._random = random.Random()
        self._keeps: dict[str, int] = {}  # days, by table
        self._sent: list[tuple[str, str, int]] = []  # blocks that are not listed yet: name, table, rows
        self._whole: list[OpenSegment] = []  # segments whose blocks are all sent, the last of them not listed yet
        self._listed_at = self._looked_at = 0.0
        self.tally = Tally()

    def ship(self, files: Sequence[SegmentFile]) -> None:
        """Sends what the server does not list, in order.

        A segment that cannot be read or that the server refuses is left, told and noted in `tally.left`. Raises
        StoreError where no segment can be sent, EndedError.
        """
        waiting = iter(files)
        while batch := list(islice(waiting, _AT_ONCE)):
            self._ship_batch(batch)

    def end_if_told(self) -> None:
        """Raises EndedError once `ending` is set."""
        if self._ending.is_set():
            raise EndedError

    def close(self) -> None:
        """Closes the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # ---- segments ----

    def _ship_batch(self, files: list[SegmentFile]) -> None:
        with ExitStack() as held:
            opened = [held.enter_context(one) for file in files if (one := self._open(file)) is not None]
            names = [name for one in opened for name in one.names]
            listed = self._persist(lambda client: _listed(client, names)) if names else {}
            self._listed_at = self._looked_at = time.monotonic()
            try:
                for one in opened:
                    missing = self._missing(one, listed)
                    if missing == []:
                        self.tally.known += 1
                        self._done(one)
                    elif missing and one.hold():
                        if self._hooks.given_up(one.file):
                            self._leave(one.file, f"skipped {printable(str(one.file.path))}: its rows are given up")
                            continue
                        self._hooks.begun(one.file)
                        if self._send(one, set(missing)):
                            self._whole.append(one)
                self._list()
            except BaseException:
                # Told to end, or interrupted: tokens are remembered for a time only, the list is kept.
                with suppress(Exception):
                    if self._sent and self._client is not None:
                        _list(self._client, self._sent)
                raise
            finally:
                self._sent, self._whole = [], []

    def _list(self) -> None:
        """Lists what was sent; only then it counts as confirmed."""
        sent = self._sent
        if sent:
            self._persist(lambda client: _list(client, sent))
        self.tally.rows += sum(rows for _, _, rows in sent)
        for one in self._whole:
            self.tally.segments += 1
            self.tally.bytes += one.file.size
            self._done(one)
        self._sent, self._whole = [], []
        self._listed_at = time.monotonic()

    def _open(self, file: SegmentFile) -> OpenSegment | None:
        try:
            return OpenSegment(file, self._block_rows)
        except UnreadableError as error:
            if str(error):
                self._leave(file, f"skipped {printable(str(file.path))}: {error}")
            return None

    def _missing(self, one: OpenSegment, listed: dict[tuple[str, str], int]) -> list[Block] | None:
        """The blocks to send; None where another segment of the name was, or its rows are counted as lost."""
        if any((one.account, table) in listed for table in ACCOUNTS):
            self._leave(
                one.file,
                f"skipped {printable(str(one.file.path))}: the store counts its rows as lost, since the spool that it "
                "was recorded to gave them up; remove it",
            )
            return None
        missing = []
        for block in one.blocks:
            if block.instead and all(name in listed for name in block.instead):
                continue
            rows = listed.get((block.name, one.file.table))
            if rows is None:
                missing.append(block)
            elif rows < block.rows:  # fewer in the file: some were deleted since
                self._leave(
                    one.file,
                    f"skipped {printable(str(one.file.path))}: the store has a segment of that name with {rows:,} "
                    f"rows, this one has {block.rows:,}; record it again under another host name",
                )
                return None
        return missing

    def _done(self, one: OpenSegment) -> None:
        self.tally.confirmed.add(one.file.key)
        days = self._keeps.get(one.file.table)
        if days is not None and one.last_ns is not None and one.last_ns < time.time_ns() - days * _DAY_NS:
            if not self.tally.outlived:
                self._hooks.note(
                    f"{printable(str(one.file.path))} and what else is older than {days} days is dropped by the "
                    "server, which keeps its roll-ups only: `kdiff migrate` sets how long rows are kept"
                )
            self.tally.outlived.add(one.file.key)
        self._hooks.confirmed(one.file)

    def _leave(self, file: SegmentFile, why: str) -> None:
        if self.tally.left.get(file.key) != why:
            self.tally.left[file.key] = why
            self._hooks.note(why)

    def _send(self, one: OpenSegment, missing: set[Block]) -> bool:
        """Whether all blocks of the segment are in the store now."""
        shown = printable(str(one.file.path))
        nothing = missing == set(one.blocks)
        try:
            for block, body in one.bodies():
                if block not in missing:
                    continue
                if block.rows:
                    self._persist(self._insertion(one, block, body))
                nothing = False
                self._sent.append((block.name, one.file.table, block.rows))
                if time.monotonic() - self._listed_at >= _LIST_EVERY_S:
                    self._list()
        except UnreadableError as error:
            self._leave(one.file, f"skipped {shown}: {error}")
            return False
        except RefusedError as error:
            if nothing and error.at_once:
                self._hooks.withdrawn(one.file)
            damaged = one.damaged()
            self._leave(one.file, f"skipped {shown}: damaged" if damaged else f"{shown} is refused: {error}")
            return False
        return True

    def _insertion(self, one: OpenSegment, block: Block, body: IO[bytes]) -> Callable[[Any], None]:
        start = body.tell()
        attempts = 0

        def insert(client: Any) -> None:
            nonlocal attempts
            attempts += 1
            # What another shipper has listed meanwhile is not sent, however old its token is.
            look = attempts > 1 or time.monotonic() - self._looked_at > _LISTED_ANEW_S
            if look and (block.name, one.file.table) in _listed(client, [block.name]):
                return
            body.seek(start)
            token = f"{one.file.table}/{block.name}"
            settings = known_settings(client, {**_BLOCK_SETTINGS, "insert_deduplication_token": token})
            client.raw_insert(one.file.table, one.columns, body, settings, fmt="Parquet")

        return insert

    # ---- the connection ----

    def _persist(self, action: Callable[[Any], T]) -> T:
        """What `action` returns once it succeeds: what may pass is tried again.

        Raises RefusedError for what is wrong with this block, StoreError for what is wrong with all, EndedError.
        """
        began = time.monotonic()
        failures = 0
        while True:
            try:
                answer = action(self._connected())
            except (UnreadableError, EndedError):
                raise
            except Exception as error:
                told = self._failed(error, failures)
                failures += 1
                if time.monotonic() - began > self._retry_for_s:
                    raise StoreError(f"given up after {self._retry_for_s:.0f} s: {told}") from error
                if failures == 3:
                    self._hooks.note(f"{told}; trying again")
                self.tally.retries += 1
                self._wait(failures)
            else:
                self.tally.last_success = time.time()
                return answer

    def _failed(self, error: Exception, failures: int) -> StoreError:
        """Why, where trying again may help; the next attempt goes to the next host. Raises what will not pass."""
        address = self._address()
        told = explain(error, address)
        cause: BaseException = error
        while isinstance(cause, StoreError) and cause.__cause__ is not None:
            cause = cause.__cause__
        many_days = "partitions for single INSERT block" in str(cause)
        if isinstance(cause, StoreError) or many_days or not is_passing(cause):
            code = getattr(cause, "code", None)
            if isinstance(code, int) and code not in _HOPELESS and not isinstance(cause, StoreError):
                raise RefusedError(str(told), at_once=not failures) from error
            if self._client is None:  # a host that cannot be used must not keep another from being asked that can
                self._host += 1
            raise told from error
        self.close()
        self._host += 1
        return told

    def _connected(self) -> Any:
        if self._client is None:
            address = self._address()
            first = self._host % len(address.hosts)
            address = replace(address, hosts=address.hosts[first:] + address.hosts[:first])
            client = connect(address, timeout_s=min(_ANSWER_WITHIN_S, address.timeout_s))
            try:
                migrations.check(client)
                self._keeps = _retention(client)
            except BaseException:
                client.close()
                raise
            self._client = client
        return self._client

    def _wait(self, failures: int) -> None:
        """Full jitter: shippers that failed together do not come back together."""
        delay = self._random.uniform(0, min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(failures, 20)))
        if self._ending.wait(delay):
            raise EndedError


class RefusedError(StoreError):
    """The server does not take a block, and will not later. `at_once`: no attempt before may have taken effect."""

    def __init__(self, message: str, *, at_once: bool) -> None:
        super().__init__(message)
        self.at_once = at_once


def _retention(client: Any) -> dict[str, int]:
    """For how many days the server keeps rows of each table, where it says so."""
    found = client.query("SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()")
    days = ((name, re.search(r"toIntervalDay\((\d+)\)", engine)) for name, engine in found.result_rows)
    return {name.removesuffix("_local"): int(told[1]) for name, told in days if told}


def _listed(client: Any, names: Sequence[str]) -> dict[tuple[str, str], int]:
    """The rows of each block that the store has, by its name and table."""
    listed: dict[tuple[str, str], int] = {}
    for begin in range(0, len(names), _ASKED_AT_ONCE):
        found = client.query(
            'SELECT segment, "table", max(rows) FROM shipped_segments WHERE segment IN {names:Array(String)} '
            'GROUP BY segment, "table"',
            parameters={"names": list(names[begin : begin + _ASKED_AT_ONCE])},
        )
        listed |= {(str(name), str(table)): int(rows) for name, table, rows in found.result_rows}
    return listed


def _list(client: Any, sent: Sequence[tuple[str, str, int]]) -> None:
    settings = known_settings(client, {**_BLOCK_SETTINGS, "insert_deduplicate": 0})
    rows = [list(row) for row in sent]
    client.insert("shipped_segments", rows, ["segment", "table", "rows"], settings=settings)
