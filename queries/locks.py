"""Files in directories of others, opened with care, and locks of open files, which a kill releases."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path


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
