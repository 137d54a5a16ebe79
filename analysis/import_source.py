"""Reading the files of others: gzip or not, with progress, and one sentence for each way in which they are broken."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from kdiff.queries.errors import KdiffError
from kdiff.queries.printable import printable

Format = Literal["nsys", "kineto", "csv"]

SQLITE: Final = b"SQLite format 3\0"
_GZIP: Final = b"\x1f\x8b"
_HEAD: Final = 4096
_REPORTS: Final = (".nsys-rep", ".qdrep", ".qdstrm", ".nsys-rep.gz")
_EXPORT: Final = "export it with `nsys export --type sqlite FILE`"


class TraceError(KdiffError):
    """A trace that cannot be imported."""


class Counted(io.RawIOBase):
    """A file that tells how far it was read, in bytes."""

    def __init__(self, path: Path, advance: Callable[[int], None]) -> None:
        """Raises OSError."""
        self._file = io.FileIO(path)
        self._advance = advance

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Reads some bytes. Raises OSError."""
        count = self._file.readinto(buffer) or 0
        self._advance(count)
        return count

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
        super().close()


def shown(path: Path) -> str:
    """What messages call a file."""
    return printable(str(path))


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What goes wrong with a file inside becomes one sentence. Raises TraceError."""
    try:
        yield
    except EOFError as error:
        raise TraceError(f"{shown(path)} was cut off (its gzip stream does not end): copy it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{shown(path)} is damaged ({printable(str(error))}): copy it again") from error
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or printable(str(error))
        raise TraceError(f"{shown(path)} cannot be read ({why}): name a file that can be") from error


@contextmanager
def opened(path: Path, advance: Callable[[int], None] = lambda _: None) -> Iterator[io.BufferedIOBase]:
    """The file's bytes, decompressed where it is compressed. `advance` is told of bytes of the file.

    Raises TraceError where it cannot be opened; what goes wrong later is for `reading`.
    """
    with reading(path):
        counted = Counted(path, advance)
    with io.BufferedReader(counted, 1 << 20) as raw:
        with reading(path):
            compressed = raw.peek(2)[:2] == _GZIP
        if compressed:
            with gzip.GzipFile(fileobj=raw) as file:
                yield file
        else:
            yield raw


def size_of(path: Path) -> int:
    """Bytes of a regular file with something in it. Raises TraceError."""
    with reading(path):
        info = os.stat(path)
    if not stat.S_ISREG(info.st_mode):
        raise TraceError(f"{shown(path)} is not a file: name the trace itself")
    if not info.st_size:
        raise TraceError(f"{shown(path)} is empty: was the profiler ended before it wrote? record again")
    return info.st_size


def format_of(path: Path) -> Format:
    """What wrote a file, by its first bytes. Raises TraceError."""
    if path.name.endswith(_REPORTS):
        raise TraceError(f"{shown(path)} is a report of Nsight Systems: {_EXPORT}, and import that")
    with reading(path), opened(path) as file:
        head = file.read(_HEAD)
        compressed = isinstance(file, gzip.GzipFile)
    if head.startswith(SQLITE):
        if compressed:
            raise TraceError(f"{shown(path)} is a compressed database: decompress it with gunzip first")
        return "nsys"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return "kineto"
    if text and b"\0" not in head:
        return "csv"
    raise TraceError(
        f"{shown(path)} is no SQLite database, JSON or CSV: give an export of Nsight Systems, a trace of the PyTorch "
        "profiler, or a CSV of kernels"
    )
