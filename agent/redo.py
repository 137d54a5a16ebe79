"""The redo log of giving up: which segments are lost, and the accounts that count them, before either happens.

Once an entry is in the log its victims are lost, whatever is killed then: nobody ships them, and whoever comes next
writes the accounts and removes the victims. Before that nothing has happened. The file is as large as it needs to be
from the start and rewritten in place, so that a full disk has room for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kdiff.queries.locks import lock, unlock
from kdiff.queries.segments_read import SUFFIX
from kdiff.queries.segments_write import replacing, sync_directory
from kdiff.queries.tables import TABLES

LOG: Final = ".shedding"
LOG_BYTES: Final = 1 << 20
_MAGIC: Final = b"kdiffRD1"
# magic, generation, length of the payload, checksum of both
_HEADER: Final = struct.Struct("<8s8sQ32s")
_END: Final = bytes(_HEADER.size)


@dataclass(frozen=True)
class Entry:
    """Segments that are lost, and the segments to write that say so: keys, and a file's bytes by key."""

    victims: tuple[str, ...]
    accounts: tuple[tuple[str, bytes], ...] = ()

    def pack(self) -> bytes:
        """As the log holds it."""
        told = {"victims": self.victims, "accounts": [(key, len(data)) for key, data in self.accounts]}
        return json.dumps(told).encode("ascii") + b"\n" + b"".join(data for _, data in self.accounts)

    @classmethod
    def unpack(cls, payload: bytes) -> Entry:
        """Raises ValueError where it names anything but segments of a capture: a log may have come with a copy."""
        head, _, rest = payload.partition(b"\n")
        try:
            told: dict[str, Any] = json.loads(head)
            victims = tuple(_key(key) for key in told["victims"])
            accounts, at = [], 0
            for key, size in told["accounts"]:
                accounts.append((_key(key), rest[at : at + size]))
                at += size
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError("no entry of the log") from error
        return cls(victims, tuple(accounts))


class RedoLog:
    """The log in DIR/.shedding. Whoever gives up or finishes holds its lock; reading needs none."""

    def __init__(self, root: Path) -> None:
        """Touches nothing yet."""
        self._root = root
        self._path = root / LOG

    def prepare(self) -> None:
        """Sees that it is there, as large as it needs to be. Raises OSError: then a full disk has no room for it."""
        with contextlib.suppress(OSError):
            there = os.stat(self._path, follow_symlinks=False)
            if stat.S_ISREG(there.st_mode) and there.st_size >= LOG_BYTES:
                return
            if not stat.S_ISREG(there.st_mode):
                self._path.unlink()
        with self._opened(os.O_RDWR | os.O_CREAT) as fd:
            if lock(fd):
                # Written, not only reserved: an extent that is not written yet may need room when it is.
                size = os.fstat(fd).st_size
                while size < LOG_BYTES:
                    size += os.pwrite(fd, bytes(min(1 << 16, LOG_BYTES - size)), size)
                os.fsync(fd)

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """The log for this process alone while the body runs; False where another has it. Raises OSError."""
        with self._opened(os.O_RDWR | os.O_CREAT) as fd:
            held = lock(fd)
            try:
                yield held
            finally:
                if held:
                    unlock(fd)

    def entries(self) -> list[Entry]:
        """What was begun and has not been finished, in order. Cheap where there is nothing."""
        try:
            with self._opened(os.O_RDONLY) as fd:
                return [entry for entry, _, _ in _entries(fd)]
        except OSError:
            return []

    def victims(self) -> frozenset[str]:
        """Keys of the segments that are lost although they may still be there."""
        return frozenset(key for entry in self.entries() for key in entry.victims)

    def append(self, entry: Entry) -> None:
        """From here on its victims are lost. Raises OSError, then nothing has happened. The log is held."""
        payload = entry.pack()
        with self._opened(os.O_RDWR | os.O_CREAT) as fd:
            at, generation = 0, os.urandom(8)
            for _, generation, at in _entries(fd):  # noqa: B007  # of the last one
                pass
            header = _HEADER.pack(_MAGIC, generation, len(payload), _checksum(generation, payload))
            _write_at(fd, header + payload + _END, at)
            os.fsync(fd)

    def finish(self) -> None:
        """Writes the accounts of every entry, removes the victims and empties the log. The log is held.

        Raises OSError where a part of that cannot be done yet; it may be called again.
        """
        entries = self.entries()
        if not entries:
            return
        victims = dict.fromkeys(key for entry in entries for key in entry.victims)
        # An account that a later entry has summed up is not written again.
        accounts = [(key, data) for entry in entries for key, data in entry.accounts if key not in victims]
        with contextlib.suppress(OSError):  # a full disk: the victims make room
            self._write(accounts)
        refused = self._remove(victims)
        self._write(accounts)
        if refused is not None:
            raise refused
        with self._opened(os.O_RDWR) as fd:
            _write_at(fd, _END, 0)
            if os.fstat(fd).st_size > LOG_BYTES:
                os.ftruncate(fd, LOG_BYTES)
            os.fsync(fd)

    def finish_for_another(self) -> None:
        """Finishes what a process that was killed has left, unless one is at it. Raises OSError."""
        if self.entries():
            with self.held() as held:
                if held:
                    self.finish()

    def _write(self, accounts: Iterable[tuple[str, bytes]]) -> None:
        for key, data in accounts:
            path = self._root / key
            if path.exists():
                continue
            if not path.parent.is_dir():
                path.parent.mkdir(exist_ok=True)
                sync_directory(self._root)
            with replacing(path) as file:
                file.write(data)

    def _remove(self, keys: Iterable[str]) -> OSError | None:
        folders: set[Path] = set()
        refused = None
        for key in keys:
            path = self._root / key
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                refused = error
            folders.add(path.parent)
        for folder in folders:
            if folder.is_dir():
                sync_directory(folder)
        return refused

    @contextlib.contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        fd = os.open(self._path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(f"{LOG} is not a file")
            yield fd
        finally:
            os.close(fd)


def _entries(fd: int) -> Iterator[tuple[Entry, bytes, int]]:
    """Each whole entry with its generation and where it ends; what was not emptied has one generation."""
    at = 0
    of_first: bytes | None = None
    while True:
        head = os.pread(fd, _HEADER.size, at)
        if len(head) < _HEADER.size:
            return
        magic, generation, size, checksum = _HEADER.unpack(head)
        at += _HEADER.size
        if magic != _MAGIC or size > os.fstat(fd).st_size - at or of_first not in (None, generation):
            return
        payload = os.pread(fd, size, at)
        at += size
        if _checksum(generation, payload) != checksum:
            return
        try:
            entry = Entry.unpack(payload)
        except ValueError:
            return
        of_first = generation
        yield entry, generation, at


def _checksum(generation: bytes, payload: bytes) -> bytes:
    return hashlib.sha256(generation + payload).digest()


def _write_at(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


def _key(key: str) -> str:
    """ValueError for anything but table/segment."""
    table, _, name = key.partition("/")
    if table not in TABLES or "/" in name or "\0" in name or not name.endswith(SUFFIX):
        raise ValueError(key)
    return key
