"""What goes when a spool is larger than it may be: first what the server has, then the oldest rows, which are counted.

Rows that are given up are accounted for in `agent_health` and `device_windows`, in the stretch of time in which they
lay: those accounts are segments as all others and are shipped as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Final

from kdiff.agent.accounts import ACCOUNTS, Accounts
from kdiff.agent.blocks import hold_for_shedding, identity_of, is_named
from kdiff.agent.journal import Journal
from kdiff.agent.redo import Entry, RedoLog
from kdiff.agent.segment_files import Listing, SegmentFile
from kdiff.queries.printable import printable
from kdiff.queries.segments_write import remove_torn

_DOWN_TO: Final = 0.9  # of the bound: a batch has one account
_RESERVE_BYTES: Final = 256 << 20  # of free space, as far as confirmed segments can give it
_AT_ONCE: Final = 500  # victims whose accounts the log has room for several times
# What is given up first comes first. Names and accounts are small, and say what the rest means.
_SHED_ORDER: Final = {
    "cuda_events": 0,
    "kernel_executions": 0,
    "gpu_samples": 0,
    "device_windows": 1,
    "agent_health": 2,
    "kernels": 2,
}


@dataclass
class Shed:
    """What went so far."""

    rows: dict[str, int] = field(default_factory=dict)  # given up, by table
    segments: int = 0
    removed: int = 0  # segments that the server had


class DiskPolicy:
    """Keeps a spool within a bound. One for a directory at a time; shippers may run beside it."""

    def __init__(
        self, listing: Listing, max_bytes: int, journal: Journal, prefix: str, note: Callable[[str], None]
    ) -> None:
        """`prefix`: of the names of accounts, host, boot and begin, as no other writer of the spool has it.

        `note` is told once that rows are given up. Ends what a kill cut short.
        """
        self._listing = listing
        self._root = listing.root
        self._max_bytes = max_bytes
        self._journal = journal
        self._log = RedoLog(self._root)
        self._prefix = prefix
        self._sequence = 0
        self._at_once = _AT_ONCE
        self._note: Callable[[str], None] | None = note
        self.shed = Shed()
        self.bytes = 0  # in the spool
        self.waiting = self.waiting_bytes = 0  # of it, what no server has confirmed
        remove_torn(self._root)
        with suppress(OSError):  # a full disk: `apply` tries again
            self._prepare()

    def apply(self) -> None:
        """Removes what is too much. Raises OSError, StoreError."""
        refused = None
        try:
            self._prepare()
        except OSError as error:
            refused = error
        self._journal.refresh()
        lost = self._log.victims()
        files = [file for file in self._listing.read() if file.key not in lost]
        self.bytes = sum(file.size for file in files)
        waiting = [file.size for file in files if not self._journal.is_confirmed(file.key)]
        self.waiting, self.waiting_bytes = len(waiting), sum(waiting)
        free = os.statvfs(self._root)
        short = min(_RESERVE_BYTES, free.f_blocks * free.f_frsize // 100) - free.f_bavail * free.f_frsize
        self._remove_confirmed(files, max(self.bytes - self._max_bytes, short))
        if self.bytes > self._max_bytes:
            self._give_up(files, self.bytes - int(self._max_bytes * _DOWN_TO))
        if refused is not None:
            raise refused

    def _prepare(self) -> None:
        if self._root.is_dir():  # a spool that was removed is the recorder's to complain about
            self._log.prepare()
            self._log.finish_for_another()

    def _remove_confirmed(self, files: Iterable[SegmentFile], excess: int) -> None:
        for file in files:
            if excess <= 0:
                return
            if self._journal.is_confirmed(file.key) and file.path.exists():
                file.path.unlink(missing_ok=True)
                self._journal.forget(file.key)
                self.shed.removed += 1
                self.bytes -= file.size
                excess -= file.size

    def _give_up(self, files: list[SegmentFile], excess: int) -> None:
        waiting = sorted(files, key=lambda file: (_SHED_ORDER[file.table], file.order), reverse=True)
        while excess > 0 and waiting:
            with ExitStack() as held:
                victims: dict[SegmentFile, IO[bytes]] = {}
                taken = 0
                while waiting and taken < excess and len(victims) < self._at_once:
                    file = waiting.pop()
                    if self._may_go(file) and (stream := hold_for_shedding(file.path)) is not None:
                        victims[file] = held.enter_context(stream)
                        taken += file.size
                # Nobody can begin to ship them now, but somebody may have before they were held.
                self._journal.refresh()
                victims = {file: stream for file, stream in victims.items() if self._may_go(file)}
                for table in ACCOUNTS:
                    same = [file for file in victims if file.table == table]
                    if len(same) == 1:  # nothing to sum up
                        del victims[same[0]]
                if victims:
                    self._lose(victims)
                    excess -= sum(file.size for file in victims)

    def _may_go(self, file: SegmentFile) -> bool:
        """What a server may have is not called lost; an account that one has is not summed up with others."""
        if file.table in ACCOUNTS:
            return not self._journal.is_noted(file.key)
        return not self._journal.is_confirmed(file.key) and not self._journal.in_doubt(file.key)

    def _tell(self) -> None:
        if self._note is not None:
            self._note(
                f"{printable(str(self._root))} is over its {self._max_bytes:,} bytes and no server has confirmed "
                "what it holds: the oldest rows are given up and counted as lost"
            )
            self._note = None

    def _lose(self, victims: dict[SegmentFile, IO[bytes]]) -> None:
        accounts = Accounts()
        rows: dict[str, int] = {}
        for file, stream in victims.items():
            try:
                lost = accounts.add(file, partial(identity_of, file, stream))
            except OSError:  # fewer at once want fewer descriptors
                self._at_once = max(1, len(victims) // 2)
                raise
            if file.table not in ACCOUNTS:  # those are summed up
                rows[file.table] = rows.get(file.table, 0) + lost
        entry = Entry(
            tuple(file.key for file in victims),
            tuple((f"{table}/{self._next_name()}", data) for table, data in accounts.segments()),
        )
        with self._log.held() as held:
            # Another policy may have come first: the recorder before this one was killed, its keeper lives on a moment.
            gone = self._log.victims()
            if not held or any(file.key in gone or not is_named(stream, file.path) for file, stream in victims.items()):
                return
            try:
                self._log.append(entry)
            except OSError:  # a full disk, and a log that is full as well
                self._at_once = max(1, len(victims) // 2)
                raise
            self._at_once = _AT_ONCE
            self._tell()
            self.bytes -= sum(file.size for file in victims)
            self.shed.segments += len(victims)
            for table, lost in rows.items():
                self.shed.rows[table] = self.shed.rows.get(table, 0) + lost
            for file, stream in victims.items():
                self._journal.forget(file.key)
                stream.close()  # the log keeps them from being shipped now; open, they would keep their room
            self._log.finish()

    def _next_name(self) -> str:
        name = f"{self._prefix}-{self._sequence:08d}.parquet"
        self._sequence += 1
        return name


def account_prefix(host: str, boot_id: str, began_ns: int) -> str:
    """What a policy's accounts are called, after the pattern of a recording's segments."""
    safe = "".join(c if c.isalnum() or c in "-." else "_" for c in host) or "host"
    return f"{safe}-{boot_id[:8]}-{began_ns}"
