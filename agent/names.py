"""Which kernel a launch launched: from the function handle to a name, and how far to trust it."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from kdiff.agent.drivers import Driver, Drivers
from kdiff.probes.wire import NAME_BYTES, NameSource
from kdiff.queries.kernel_names import demangle, kernel_id

# What PTX allows as an identifier, and '.', which tools append; anything else was no kernel's name.
_IDENTIFIER: Final = re.compile(r"[A-Za-z_$%][A-Za-z0-9_$.]*")
_MAX_NAME: Final = 65536
_HANDLE_WORDS: Final = 64  # how far into a handle a name pointer is looked for

Key = tuple[int, int, int]  # pid, generation, handle


@dataclass(frozen=True)
class Kernel:
    """A kernel's identity. `source`: load, handle, symbol or unresolved."""

    mangled: str
    name: str
    source: str

    @property
    def id(self) -> int:
        """64-bit hash of the mangled name: the same on every host and in every run."""
        return kernel_id(self.mangled)

    @property
    def resolved(self) -> bool:
        """Whether `name` is the kernel's own."""
        return self.source != "unresolved"


@dataclass(frozen=True)
class Place:
    """What is at an address of a process: a file's build id, the offset into it, the function that begins there."""

    build_id: str
    offset: int
    function: str | None


class Processes(Protocol):
    """What names need to know of processes."""

    def driver_build(self, pid: int) -> str:
        """The build id of the libcuda the process maps; '' when not known."""

    def locate(self, pid: int, address: int) -> Place | None:
        """The file at an address; None when it is no file's, or the process is gone."""

    def read(self, pid: int, address: int, size: int) -> bytes:
        """Memory of the process; b'' when it cannot be read."""


@dataclass(frozen=True)
class _Read:
    name: str | None
    source: NameSource


@dataclass(frozen=True)
class _Origin:
    """What stands for a kernel without a name: a module and an offset in it, the same in every run of one build.

    `exact`: it is the host function that stands for the kernel, not just where it was launched from.
    """

    place: Place | None
    exact: bool


def plausible(name: str) -> bool:
    """Whether a string can be a kernel's name."""
    return _IDENTIFIER.fullmatch(name) is not None


class Names:
    """Every name seen, and the kernels they stand for."""

    def __init__(self, drivers: Drivers, processes: Processes, moved: Callable[[int, int], None]) -> None:
        """`moved(pid, offset)`: tells BPF that names are elsewhere in that process's handles."""
        self._drivers = drivers
        self._processes = processes
        self._moved = moved
        self._at_load: dict[Key, str] = {}
        self._read: dict[Key, _Read] = {}
        self._kernels: dict[Key, Kernel] = {}
        self._places: dict[Key, _Origin] = {}
        self._read_through: set[str] = set()

    def feed(self, records: NDArray[np.void]) -> None:
        """Takes NAME records in ring order."""
        for record in records:
            key = (int(record["pid"]), int(record["generation"]), int(record["handle"]))
            source = NameSource(int(record["source"]))
            caller = int(record["caller"])
            if source is NameSource.ALIAS:
                name = self._at_load.get((key[0], key[1], caller))
                if name is not None:
                    self._at_load[key] = name
                    self._compare(key)
                continue
            name = self._whole_name(key, record, source)
            if source is NameSource.LOAD:
                if name is not None:
                    self._at_load[key] = name
            else:
                self._read[key] = _Read(name, source)
                if name is not None:
                    self._read_through.add(self._processes.driver_build(key[0]))
                # Asked now, while the process lives.
                self._places[key] = self._place(key, source, caller)
            self._kernels.pop(key, None)
            self._compare(key)

    def kernel(self, pid: int, generation: int, handle: int) -> Kernel:
        """The kernel behind a handle, as well as is known now."""
        key = (pid, generation, handle)
        known = self._kernels.get(key)
        if known is None:
            known = self._resolve(key)
            if known.resolved:
                self._kernels[key] = known
        return known

    def forget(self, pid: int) -> None:
        """Drops what is kept for a process that has ended."""
        for table in (self._at_load, self._read, self._kernels, self._places):
            for key in [k for k in table if k[0] == pid]:
                del table[key]

    def unconfirmed(self) -> set[str]:
        """Build ids of drivers through whose handles names were read that nothing confirmed."""
        return {build for build in self._read_through if not self._drivers.get(build).confirmed}

    def _driver(self, pid: int) -> Driver:
        return self._drivers.get(self._processes.driver_build(pid))

    def _whole_name(self, key: Key, record: NDArray[np.void] | np.void, source: NameSource) -> str | None:
        length = int(record["length"])
        offset = self._driver(key[0]).name_offset
        if source is not NameSource.LOAD and int(record["name_offset"]) != offset:
            self._moved(key[0], offset)  # BPF did not know this process's driver yet
            return self._at_offset(key[0], key[2], offset)
        if length <= 0:
            return None
        raw = bytes(record["name"])
        if length >= NAME_BYTES:
            start = int(record["caller"])
            if source is not NameSource.LOAD:
                pointer = self._processes.read(key[0], key[2] + offset, 8)
                start = struct.unpack("<Q", pointer)[0] if len(pointer) == 8 else 0
            longer = self._read_string(key[0], start)
            if not longer.startswith(raw):
                return None  # half a name could be two kernels'
            raw = longer
        name = raw.decode("ascii", "replace")
        return name if plausible(name) else None

    def _read_string(self, pid: int, address: int) -> bytes:
        found = b""
        while len(found) < _MAX_NAME:
            # Up to the end of the page: the next one may not be mapped.
            part = self._processes.read(pid, address + len(found), 4096 - (address + len(found)) % 4096)
            end = part.find(b"\0")
            if end >= 0:
                return found + part[:end]
            if not part:
                break
            found += part
        return b""

    def _compare(self, key: Key) -> None:
        """Checks the driver's name offset wherever one handle's name is known both ways."""
        at_load, read = self._at_load.get(key), self._read.get(key)
        if at_load is None or read is None or read.source is not NameSource.HANDLE:
            return
        driver = self._driver(key[0])
        if read.name == at_load:
            self._drivers.agree(driver)
            return
        self._drivers.disagree(driver)
        for other in [k for k, kernel in self._kernels.items() if kernel.source == "handle"]:
            del self._kernels[other]
        offset = self._drivers.suggest(driver, self._search(key[0], key[2], at_load))
        if offset is None:
            return
        self._moved(key[0], offset)
        for other, old in list(self._read.items()):
            if self._driver(other[0]) is driver and old.source is NameSource.HANDLE:
                self._read[other] = _Read(self._at_offset(other[0], other[2], offset), old.source)
                if other in self._at_load:
                    same = self._read[other].name == self._at_load[other]
                    (self._drivers.agree if same else self._drivers.disagree)(driver)
                self._kernels.pop(other, None)

    def _search(self, pid: int, handle: int, name: str) -> list[int]:
        """The offsets in a handle of pointers to `name`."""
        words = self._processes.read(pid, handle, 8 * _HANDLE_WORDS)
        return [
            8 * index
            for index, (pointer,) in enumerate(struct.iter_unpack("<Q", words[: len(words) // 8 * 8]))
            if pointer and self._processes.read(pid, pointer, len(name) + 1) == name.encode() + b"\0"
        ]

    def _at_offset(self, pid: int, handle: int, offset: int) -> str | None:
        pointer = self._processes.read(pid, handle + offset, 8)
        if len(pointer) != 8:
            return None
        name = self._read_string(pid, struct.unpack("<Q", pointer)[0]).decode("ascii", "replace")
        return name if plausible(name) else None

    def _resolve(self, key: Key) -> Kernel:
        at_load = self._at_load.get(key)
        if at_load is not None:
            return Kernel(at_load, demangle(at_load), "load")
        read, origin = self._read.get(key), self._places.get(key, _Origin(None, exact=False))
        if origin.exact and origin.place and origin.place.function and plausible(origin.place.function):
            # A host function bears the mangled name of the kernel it launches.
            return Kernel(origin.place.function, demangle(origin.place.function), "symbol")
        if not origin.exact and read is not None and read.name is not None and self._driver(key[0]).confirmed:
            return Kernel(read.name, demangle(read.name), "handle")
        place = origin.place
        name = f"unresolved:{place.build_id or 'no-build-id'}+{place.offset:#x}" if place else "unresolved:unknown"
        return Kernel(name, name, "unresolved")

    def _place(self, key: Key, source: NameSource, caller: int) -> _Origin:
        if source is NameSource.RUNTIME:
            function = self._processes.locate(key[0], key[2])
            if function is not None:
                return _Origin(function, exact=True)
        return _Origin(self._processes.locate(key[0], caller), exact=False)
