"""How a segment is laid out, and how one is put in its place so that a reader sees a whole one or none."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from kdiff.queries.locks import lock
from kdiff.queries.shipping_notes import OWN_NAME
from kdiff.queries.tables import NULLABLE, TABLES, WAITS

_COMPRESSION_LEVEL: Final = 3
_MEASURES: Final = ("duration_ns", "completion_ns", "queue_ns", *WAITS.names)
_BEGUN_WITHIN_S: Final = 1.0  # its writer may not have locked it yet
_TORN_AFTER_S: Final = 3600.0  # where the file system has no locks


def layout(schema: pa.Schema) -> dict[str, Any]:
    """The options of pyarrow's Parquet writer for rows of `schema`."""
    # Times rise by little; of measures the upper bytes are alike.
    encoding = {name: "BYTE_STREAM_SPLIT" for name in schema.names if name in _MEASURES}
    if "timestamp_ns" in schema.names:
        encoding["timestamp_ns"] = "DELTA_BINARY_PACKED"
    return {
        "compression": "zstd",
        "compression_level": _COMPRESSION_LEVEL,
        "use_dictionary": [name for name in schema.names if name not in encoding],
        "column_encoding": encoding,
        "write_statistics": [name for name in schema.names if name.endswith("_ns") and name not in _MEASURES],
        "write_batch_size": 1 << 16,
        "data_page_size": 1 << 20,
    }


def required(schema: pa.Schema) -> pa.Schema:
    """`schema` whose columns have no nulls, but NULLABLE: said in the file, it saves a third of the time of writing."""
    return pa.schema([field.with_nullable(field.name in NULLABLE) for field in schema])


def write_batches(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Writes the segment `path`, in the place of one that is there, in memory bounded by a batch. Raises OSError."""
    with replacing(path) as file, pq.ParquetWriter(file, schema, **layout(schema)) as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_arrays(batch.columns, schema=schema))


@contextlib.contextmanager
def replacing(path: Path, exclusive: bool = False) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` once it is whole and on the disk; where that fails no trace is left.

    `exclusive`: one that another is writing is an error: the writers of a capture have names of their own.
    """
    beside = path.parent / f".{path.name}.tmp"
    file = open(beside, "xb" if exclusive else "wb")  # noqa: SIM115  # when it is another's, it stays
    try:
        with file:
            lock(file.fileno())  # while it is held its writer lives: see remove_torn
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.utime(file.fileno())  # between here and the rename nobody holds it: see remove_torn
        beside.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    sync_directory(path.parent)


def remove_torn(root: Path) -> None:
    """Removes what writers of a capture that were killed have left half written; what is being written stays.

    So does what is not named as recordings name segments, or is no regular file: it is somebody else's.
    """
    for torn in (path for table in TABLES for path in (root / table).glob(".*.parquet.tmp")):
        if OWN_NAME.fullmatch(torn.name[1:].removesuffix(".tmp")) is None:
            continue
        with contextlib.suppress(OSError):
            found = torn.lstat()
            age_s = time.time() - found.st_mtime
            if stat.S_ISREG(found.st_mode) and age_s > _BEGUN_WITHIN_S and _is_abandoned(torn, age_s):
                torn.unlink()


def _is_abandoned(torn: Path, age_s: float) -> bool:
    fd = os.open(torn, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return age_s > _TORN_AFTER_S
    finally:
        os.close(fd)
    return True


def sync_directory(folder: Path) -> None:
    """Brings what was renamed or removed in `folder` to the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
