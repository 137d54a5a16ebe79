"""Files in directories of others, opened with care, and locks of open files, which a kill releases."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kdiff.queries.errors import StoreError
from kdiff.queries.printable import printable

PATIENCE_S: Final = 10.0
"""How long the lock of a file that is written in a moment is waited for."""


def open_regular(path: Path, flags: int) -> int:
    """A descriptor of a regular file, never through a link: the directory may be another user's. Raises OSError."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "not a regular file")
    return fd


def lock(fd: int, *, shared: bool = False) -> bool:
    """Takes the lock of an open file without waiting; False where another holds it against that.

    On a file system without locks everybody has it: that is no reason to refuse work.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def unlock(fd: int) -> None:
    """Lets go of it while the file stays open."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)


@contextlib.contextmanager
def held(path: Path) -> Iterator[int]:
    """The regular file at `path`, made where it is missing, open to read and append and locked against other writers.

    It is the one that is at `path` even where the one before renamed another there. Raises OSError, and StoreError
    where another holds it for longer than PATIENCE_S.
    """
    until = time.monotonic() + PATIENCE_S
    while True:
        fd = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            while not lock(fd):
                if time.monotonic() > until:
                    raise StoreError(f"{printable(str(path))} is locked by another kdiff: see what it does")
                time.sleep(0.01)
            if _is_at(fd, path):
                yield fd
                return
        finally:
            os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False
