"""The BPF ring buffer read as numpy arrays, without a call per record.

The kernel's layout (kernel/bpf/ringbuf.c): one page with the consumer position, one with the producer position,
then the data, mapped twice in a row so that a record never wraps. Each record has an 8-byte header whose first
word holds its length and, in the highest bit, whether it is still being written.
"""

from __future__ import annotations

import mmap
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from kdiff.probes.device_wire import HANDED
from kdiff.probes.program import Tracing
from kdiff.probes.wire import EVENT, NAME, WAIT

if TYPE_CHECKING:
    from kdiff.agent.bpf import Program

_BUSY: Final = np.uint32(1 << 31)
_FILL_OVER_S: Final = 60.0
_BLOCK: Final = 4096  # records of 100 bytes: half a megabyte


Columns = dict[str, NDArray[Any]]


class Highest:
    """The highest of what was seen in the last minute or two: a scrape each minute misses nothing of it."""

    def __init__(self) -> None:
        self._began = 0.0
        self._now = self._before = 0.0

    def see(self, value: float, now: float) -> None:
        """`now`: monotonic, s."""
        if now - self._began >= _FILL_OVER_S:
            self._before = self._now if now - self._began < 2 * _FILL_OVER_S else 0.0
            self._now = 0.0
            self._began = now
        self._now = max(self._now, value)

    @property
    def value(self) -> float:
        """0.0 where nothing was seen."""
        return max(self._now, self._before)


class Ring:
    """Consumer of a ring that holds records of one dtype only, never discarded ones."""

    def __init__(self, map_fd: int, size_bytes: int, record: np.dtype[np.void]) -> None:
        if record.itemsize % 8:
            raise ValueError("a record that is no multiple of 8 bytes would be padded by the kernel")
        page = mmap.PAGESIZE
        self._size = size_bytes
        self._consumer = mmap.mmap(map_fd, page, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self._producer = mmap.mmap(
            map_fd, page + 2 * size_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=page
        )
        self._consumed = np.frombuffer(self._consumer, np.uint64, 1)
        self._produced = np.frombuffer(self._producer, np.uint64, 1)
        self._slot = np.dtype([("length", "<u4"), ("page", "<u4"), ("record", record)])
        self._data_start = page
        self.record = record
        self.fill = Highest()  # a share of its size, before a read

    def read(self) -> NDArray[np.void]:
        """Every finished record since the last read, copied, in the order in which they were reserved."""
        start = int(self._consumed[0])
        size = self._slot.itemsize
        held = int(self._produced[0]) - start
        self.fill.see(held / self._size, time.monotonic())
        slots = held // size
        view = np.frombuffer(self._producer, self._slot, slots, self._data_start + start % self._size)
        busy = np.flatnonzero(view["length"] & _BUSY)
        if busy.size:
            slots = int(busy[0])
        raw = np.frombuffer(self._producer, np.uint8, slots * size, self._data_start + start % self._size)
        records = np.ascontiguousarray(raw.reshape(slots, size)[:, size - self.record.itemsize :])
        # The position moves only after the copy: from then on the kernel may overwrite the slots.
        self._consumed[0] = start + slots * size
        return records.reshape(-1).view(self.record)


def rings_of(program: Program, tracing: Tracing) -> dict[str, Ring]:
    """The rings of a BPF program by name."""
    sizes = {"events": tracing.event_pages, "names": tracing.name_pages, "device": tracing.device_pages}
    if tracing.scheduling:
        sizes["waits"] = tracing.wait_pages
    records = {"events": EVENT, "names": NAME, "device": HANDED, "waits": WAIT}
    return {name: Ring(program.map(name).map_fd, pages * 4096, records[name]) for name, pages in sizes.items()}


def joined(parts: list[NDArray[np.void]], record: np.dtype[np.void]) -> NDArray[np.void]:
    """The arrays one after another: as bytes, since numpy copies structured arrays field by field."""
    if len(parts) == 1:
        return parts[0]
    whole = np.concatenate([part.view(np.uint8) for part in parts]) if parts else np.zeros(0, np.uint8)
    return whole.view(record)


class Gathered:
    """Arrays of records, read one after another, until they are taken as one."""

    def __init__(self, record: np.dtype[np.void]) -> None:
        self._record = record
        self._parts: list[NDArray[np.void]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, records: NDArray[np.void]) -> None:
        """Of the dtype that was named."""
        if len(records):
            self._parts.append(records)
            self._count += len(records)

    def take(self) -> NDArray[np.void]:
        """All that was added since the last time, in that order."""
        parts, self._parts, self._count = self._parts, [], 0
        return joined(parts, self._record)


def chosen(records: NDArray[np.void], which: NDArray[np.bool_]) -> NDArray[np.void]:
    """The records where `which` is true, as bytes like `joined`."""
    if which.all():
        return records
    return records.view(np.dtype((np.void, records.dtype.itemsize)))[which].view(records.dtype)


def columns(records: NDArray[np.void]) -> Columns:
    """Each field as an array of its own; fields of a nested record under their own names.

    In blocks that stay in the processor's cache: a field at a time over the whole would read all of the memory for
    each field.
    """
    fields: Columns = {}
    for name in records.dtype.names or ():
        if records.dtype[name].names:
            fields.update({inner: records[name][inner] for inner in records.dtype[name].names or ()})
        else:
            fields[name] = records[name]
    out = {name: np.empty(field.shape, field.dtype, order="F") for name, field in fields.items()}
    for start in range(0, len(records), _BLOCK):
        block = slice(start, start + _BLOCK)
        for name, field in fields.items():
            out[name][block] = field[block]
    return out


def in_one(high: NDArray[np.uint32], low: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Two 32-bit columns, a process and its thread, say, as one of 64 bits."""
    both = np.empty((len(high), 2), np.uint32)
    both[:, 0], both[:, 1] = low, high  # little-endian
    return both.reshape(-1).view(np.uint64)
