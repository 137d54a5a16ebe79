"""What a spool remembers of its shipping: which segments were begun, and which of them a server has confirmed.

The server's own list decides what is sent. These notes tell the disk policy which segments may go without loss, and
of which it is unknown whether a server has them, also after a kill and while the server is away. `run` and every
`ship` of the directory add to the same notes.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kdiff.queries.address import Address
from kdiff.queries.locks import lock, unlock
from kdiff.queries.shipping_notes import (
    BEGUN,
    CONFIRMED,
    CONFIRMED_TO_RUN,
    NOTES,
    WITHDRAWN,
    line,
    open_notes,
    parse,
    split,
)

_SPARE_LINES: Final = 10_000
_PATIENCE_S: Final = 2.0  # for another process, which holds the notes for as long as a write takes
_ROOM_BYTES: Final = 1 << 16
_KEEP_SIZE: Final = 1  # FALLOC_FL_KEEP_SIZE


def server_id(address: Address) -> str:
    """What notes call the server of an address, whoever asks it."""
    named = f"{sorted(address.hosts)}/{address.database}"
    return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:8]


class Journal:
    """The notes in DIR/.shipped, a line each. Several processes and threads may share them.

    What cannot be read or written is done without.
    """

    def __init__(self, root: Path, *, server: str = "", of_run: bool = True) -> None:
        """Reads what is there, as far as the segments still are.

        `server`: whom this process ships to, by `server_id`, '' for nobody. `of_run`: what `run` has sent it does not
        send again, to whichever server; what `ship` has sent is known of the server that it was sent to.
        """
        self._root = root
        self._path = root / NOTES
        self._server = server
        self._confirmation = CONFIRMED_TO_RUN if of_run else CONFIRMED
        self._lock = threading.RLock()
        self._settled: dict[str, str] = {}  # confirmed to `run`, by which server
        self._marks: dict[str, dict[str, str]] = {}  # of others, by segment and server
        self._own: set[str] = set()  # begun by this process, and by nobody before
        self._fd = -1
        self._impatient_until = 0.0
        self._read_to = self._lines = self._room_to = self._rewrite_at = 0
        with self._lock, self._alone() as held:
            self._read()
            if of_run and held:
                self._rewrite()

    def begun(self, key: str) -> None:
        """The segment is about to be sent."""
        if self._write(BEGUN, key):
            self._own.add(key)

    def withdrawn(self, key: str) -> None:
        """The server has refused it, as a whole and at once: it has none of it unless it had before."""
        if key in self._own:
            self._own.discard(key)
            self._write(WITHDRAWN, key)

    def confirmed(self, key: str) -> None:
        """The server has all of it, and has listed it."""
        self._write(self._confirmation, key)

    def forget(self, key: str) -> None:
        """The segment is gone."""
        with self._lock:
            self._settled.pop(key, None)
            self._marks.pop(key, None)
            self._own.discard(key)

    def refresh(self) -> None:
        """Reads what other processes have noted since."""
        with self._lock, self._alone():
            self._read()

    def is_confirmed(self, key: str) -> bool:
        """Whether the server has it for certain; where this process ships to none, whether any has."""
        if key in self._settled:
            return True
        marks = self._marks.get(key)
        if not marks:
            return False
        if self._server:
            return marks.get(self._server) == CONFIRMED
        return all(mark == CONFIRMED for mark in marks.values())

    def in_doubt(self, key: str) -> bool:
        """Whether a server may have it without its being known."""
        return BEGUN in self._marks.get(key, {}).values()

    def is_noted(self, key: str) -> bool:
        """Whether a server has it or may have it."""
        return key in self._settled or key in self._marks

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def _note(self, mark: str, key: str, server: str) -> None:
        if mark == CONFIRMED_TO_RUN:
            self._settled[key] = server
            marks = self._marks.get(key, {})
            marks.pop(server, None)
            if not marks:
                self._marks.pop(key, None)
        elif mark == WITHDRAWN:
            marks = self._marks.get(key, {})
            if marks.get(server) == BEGUN:
                del marks[server]
            if not marks:
                self._marks.pop(key, None)
        elif mark in (BEGUN, CONFIRMED):
            marks = self._marks.setdefault(key, {})
            if marks.get(server) != CONFIRMED:
                marks[server] = mark

    def _is_noted_so(self, mark: str, key: str) -> bool:
        if self._confirmation == CONFIRMED_TO_RUN and key in self._settled:
            return True
        return self._marks.get(key, {}).get(self._server) in (mark, CONFIRMED) and mark != CONFIRMED_TO_RUN

    def _write(self, mark: str, key: str) -> bool:
        """Whether it was news."""
        with self._lock:
            if self._is_noted_so(mark, key):
                return False
            with self._alone() as held:
                self._read()
                news = not self._is_noted_so(mark, key)
                self._note(mark, key, self._server)
                note = line(mark, key, self._server).encode("utf-8", "surrogateescape")
                if note and self._fd >= 0:
                    with contextlib.suppress(OSError):
                        self._make_room()
                        os.write(self._fd, note)
                if held and self._lines > max(
                    self._rewrite_at, 2 * (len(self._settled) + len(self._marks)) + _SPARE_LINES
                ):
                    self._rewrite()
                return news

    # ---- the file: a descriptor that is locked is that of the file under the name ----

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether no other process writes meanwhile: one that was stopped in mid-write is not waited for."""
        now = time.monotonic()
        until = now + (_PATIENCE_S if now > self._impatient_until else 0)
        while not (held := self._locked()) and time.monotonic() < until:
            time.sleep(0.002)
        if not held:
            self._impatient_until = time.monotonic() + 60 * _PATIENCE_S
        try:
            yield held
        finally:
            if held and self._fd >= 0:
                unlock(self._fd)

    def _locked(self) -> bool:
        """Whether the file is open and locked, or there can be none."""
        try:
            there = os.stat(self._path, follow_symlinks=False)
        except OSError:
            there = None
        if self._fd >= 0 and (there is None or not os.path.samestat(os.fstat(self._fd), there)):
            os.close(self._fd)
            self._fd = -1
        if self._fd < 0:
            try:
                self._fd = open_notes(self._root, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            except OSError:
                return True
            self._read_to = self._lines = self._room_to = 0
        return lock(self._fd) and self._is_named()

    def _is_named(self) -> bool:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._fd), os.stat(self._path, follow_symlinks=False)):
                return True
        unlock(self._fd)
        return False

    def _read(self) -> None:
        """What has come since the last time."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            size = os.fstat(self._fd).st_size
            data = b""
            while self._read_to + len(data) < size and (part := os.pread(self._fd, 1 << 20, self._read_to + len(data))):
                data += part
            if data and not data.endswith(b"\n"):  # of one that was killed in mid-write
                os.write(self._fd, b"\n")
                data += b"\n"
            lines = split(data)
            for mark, key, server in parse(lines):
                if key.count("/") == 1 and os.path.lexists(self._root / key):
                    self._note(mark, key, server)
            self._read_to += len(data)
            self._lines += len(lines)

    def _make_room(self) -> None:
        """A disk that is full later has room for notes."""
        size = os.fstat(self._fd).st_size
        if size + 1024 > self._room_to:
            self._room_to = size + _ROOM_BYTES
            ctypes.CDLL(None).fallocate(self._fd, _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(self._room_to))

    def _rewrite(self) -> None:
        """Only what is of use, in the place of the old file."""
        self._rewrite_at = self._lines + _SPARE_LINES
        notes = [(CONFIRMED_TO_RUN, key, server) for key, server in self._settled.items()]
        notes += [(mark, key, server) for key, marks in self._marks.items() for server, mark in marks.items()]
        alive = [line(*note) for note in notes if os.path.lexists(self._root / note[1])]
        beside = self._path.with_name(f"{NOTES}.tmp")
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError):
                beside.unlink()
            beside.write_text("".join(alive), "utf-8", "surrogateescape")
            beside.replace(self._path)
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1
            self._fd = open_notes(self._root, os.O_RDWR | os.O_APPEND)
            self._read_to, self._room_to = os.fstat(self._fd).st_size, 0
            self._lines = len(alive)
            self._rewrite_at = self._lines + _SPARE_LINES
