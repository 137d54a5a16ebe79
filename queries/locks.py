"""Locks of open files, which a kill releases."""

from __future__ import annotations

import contextlib
import fcntl


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
