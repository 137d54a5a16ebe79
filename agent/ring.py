"""The BPF ring buffer read as numpy arrays, without a call per record.

The kernel's layout (kernel/bpf/ringbuf.c): one page with the consumer position, one with the producer position,
then the data, mapped twice in a row so that a record never wraps. Each record has an 8-byte header whose first
word holds its length and, in the highest bit, whether it is still being written.
"""

from __future__ import annotations

import mmap
from typing import Final

import numpy as np
from numpy.typing import NDArray

_BUSY: Final = np.uint32(1 << 31)


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

    def fill(self) -> float:
        """How full the ring is, 0 to 1."""
        return float(int(self._produced[0]) - int(self._consumed[0])) / self._size

    def read(self) -> NDArray[np.void]:
        """Every finished record since the last read, copied, in the order in which they were reserved."""
        start = int(self._consumed[0])
        slots = (int(self._produced[0]) - start) // self._slot.itemsize
        view = np.frombuffer(self._producer, self._slot, slots, self._data_start + start % self._size)
        busy = np.flatnonzero(view["length"] & _BUSY)
        if busy.size:
            view = view[: busy[0]]
        records: NDArray[np.void] = view["record"].copy()
        # The position moves only after the copy: from then on the kernel may overwrite the slots.
        self._consumed[0] = start + len(view) * self._slot.itemsize
        return records
