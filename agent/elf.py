"""What the agent needs of an ELF file: where functions are, what their first instruction is, the build id.

Sections are read, never mapped: a library that is overwritten in place while it is looked at must not kill the agent.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

import numpy as np
from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection, SymbolTableSection
from elftools.elf.segments import InterpSegment
from numpy.typing import NDArray

from kdiff.agent.errors import ElfError

_SYMBOL: Final = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_LAUNCHES: Final = (b"cudaLaunchKernel\0", b"cuLaunchKernel\0")  # no runtime and no driver is without
_FUNCTION: Final = 2  # STT_FUNC
_OBJECT: Final = 1  # STT_OBJECT
_EXECUTABLE: Final = 1  # PF_X
_WRITABLE: Final = 2  # PF_W
_ENDBR64: Final = bytes.fromhex("f30f1efa")
_BROKEN: Final = (
    ELFError,
    ConstructError,
    AttributeError,
    ValueError,
    KeyError,
    IndexError,
    OverflowError,
    MemoryError,
    TypeError,
    struct.error,
)


@dataclass(frozen=True)
class Site:
    """Where to probe a function. `slow`: the kernel single-steps there, 20 us a hit in a virtual machine."""

    offset: int  # bytes into the file
    slow: bool


@dataclass(frozen=True)
class _Table:
    symbols_at: int
    symbols_bytes: int
    names_at: int
    names_bytes: int


class Elf:
    """An ELF file open for reading. Close it, or use it as a context."""

    def __init__(self, fd: int, name: str) -> None:
        """Takes a descriptor, which stays the caller's. Raises ElfError when the file is cut off or no ELF file."""
        self.name = name
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ElfError(f"{name} is no regular file: it is not probed")
        self._stream = os.fdopen(os.dup(fd), "rb")
        try:
            self._elf = _parse(self._stream)
            self._tables = list(self._symbol_tables(os.fstat(fd).st_size))
            loaded = [
                (int(s["p_flags"]), (int(s["p_vaddr"]), int(s["p_filesz"]), int(s["p_offset"])))
                for s in self._elf.iter_segments("PT_LOAD")
            ]
            self._segments = [place for flags, place in loaded if flags & _EXECUTABLE]
            self._data = [place for flags, place in loaded if flags & _WRITABLE]
        except (OSError, *_BROKEN) as error:
            self._stream.close()
            raise self._broken(error) from error

    def __enter__(self) -> Elf:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes this object's own descriptor."""
        self._stream.close()

    def _broken(self, error: BaseException) -> ElfError:
        return ElfError(f"{self.name} is cut off or no ELF file ({_first_line(error)}): it is not probed")

    def _symbol_tables(self, file_bytes: int) -> Iterator[_Table]:
        for section in self._elf.iter_sections():
            if not isinstance(section, SymbolTableSection):
                continue
            names = self._elf.get_section(section["sh_link"])
            table = _Table(section["sh_offset"], section["sh_size"], names["sh_offset"], names["sh_size"])
            if max(table.symbols_at + table.symbols_bytes, table.names_at + table.names_bytes) > file_bytes:
                raise ValueError("a symbol table lies beyond its end")
            yield table

    def _symbols(self, table: _Table) -> NDArray[np.void]:
        data = os.pread(self._stream.fileno(), table.symbols_bytes, table.symbols_at)
        return np.frombuffer(data, _SYMBOL, len(data) // _SYMBOL.itemsize)

    def sites(self, wanted: frozenset[str]) -> dict[str, Site]:
        """Which of the wanted functions the file defines, local symbols included, and where to probe each.

        Raises ElfError.
        """
        try:
            return self._sites(wanted)
        except (OSError, *_BROKEN) as error:
            raise self._broken(error) from error

    def _sites(self, wanted: frozenset[str]) -> dict[str, Site]:
        found: dict[str, Site] = {}
        for table in self._tables:
            names = os.pread(self._stream.fileno(), table.names_bytes, table.names_at)
            if not any(launch in names for launch in _LAUNCHES):
                continue
            by_offset = {at: symbol for symbol in wanted for at in _occurrences(symbol.encode() + b"\0", names)}
            if not by_offset:
                continue
            symbols = self._symbols(table)
            hits = symbols[np.isin(symbols["name"], np.fromiter(by_offset, np.uint32))]
            for hit in hits[(hits["section"] != 0) & (hits["info"] & 0xF == _FUNCTION)]:
                site = self._site(int(hit["value"]))
                if site:
                    found.setdefault(by_offset[int(hit["name"])], site)
        return found

    def _site(self, address: int) -> Site | None:
        for start, size, offset in self._segments:
            if start <= address < start + size:
                at = address - start + offset
                break
        else:
            return None
        first = os.pread(self._stream.fileno(), 8, at)
        if first.startswith(_ENDBR64) and _emulated(first[4:]):
            return Site(at + 4, slow=False)
        return Site(at, slow=self._elf["e_machine"] == "EM_X86_64" and not _emulated(first))

    def function_and_data(self, function: str, data: str) -> tuple[int, int] | None:
        """File offsets of a function and of an initialised variable; None unless the file defines both.

        Raises ElfError.
        """
        try:
            at, kept = self._offset(function, _FUNCTION, self._segments), self._offset(data, _OBJECT, self._data)
        except (OSError, *_BROKEN) as error:
            raise self._broken(error) from error
        return None if at is None or kept is None else (at, kept)

    def _offset(self, symbol: str, kind: int, segments: list[tuple[int, int, int]]) -> int | None:
        for table in self._tables:
            names = os.pread(self._stream.fileno(), table.names_bytes, table.names_at)
            symbols = self._symbols(table)
            named = np.isin(symbols["name"], list(_occurrences(symbol.encode() + b"\0", names)))
            for hit in symbols[named & (symbols["section"] != 0) & (symbols["info"] & 0xF == kind)]:
                for start, size, offset in segments:
                    if start <= int(hit["value"]) < start + size:
                        return int(hit["value"]) - start + offset
        return None

    def function_at(self, file_offset: int) -> str | None:
        """The function whose first byte is at `file_offset`, as the symbol table names it. Raises ElfError."""
        try:
            return self._function_at(file_offset)
        except (OSError, *_BROKEN) as error:
            raise self._broken(error) from error

    def _function_at(self, file_offset: int) -> str | None:
        for start, size, offset in self._segments:
            if offset <= file_offset < offset + size:
                address = file_offset - offset + start
                break
        else:
            return None
        for table in self._tables:
            symbols = self._symbols(table)
            hits = symbols[(symbols["value"] == address) & (symbols["info"] & 0xF == _FUNCTION)]
            if len(hits):
                name = os.pread(self._stream.fileno(), 65536, table.names_at + int(hits[0]["name"]))
                return name.partition(b"\0")[0].decode("ascii", "replace")
        return None

    def build_id(self) -> str:
        """The build id in hex, or '' when the file has none."""
        try:
            for section in self._elf.iter_sections():
                if isinstance(section, NoteSection):
                    for note in section.iter_notes():
                        if note["n_type"] == "NT_GNU_BUILD_ID":
                            return str(note["n_desc"])
        except (OSError, *_BROKEN):
            pass
        return ""

    def interpreter(self) -> str | None:
        """The dynamic loader the program asks for; None when it is static or a library. Raises ElfError."""
        try:
            for segment in self._elf.iter_segments("PT_INTERP"):
                if isinstance(segment, InterpSegment):
                    return str(segment.get_interp_name())
        except (OSError, *_BROKEN) as error:
            raise self._broken(error) from error
        return None


def _parse(stream: BinaryIO) -> ELFFile:
    elf = ELFFile(stream)
    if elf.elfclass != 64 or not elf.little_endian:
        raise ELFError("it is not 64-bit little-endian")
    return elf


def may_hold_cuda(fd: int) -> bool:
    """Whether a file deserves to be read as ELF for CUDA functions: it holds device code, or cannot be told.

    A quick look at the section names alone: a program that uses PyTorch maps hundreds of libraries. A library that
    brings a runtime of its own brings kernels too; libcuda and libcudart themselves are known by their file names.
    """
    header = os.pread(fd, 64, 0)
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        return False
    sections_at = struct.unpack_from("<Q", header, 40)[0]
    size, _, names_index = struct.unpack_from("<HHH", header, 58)
    try:
        entry = os.pread(fd, size, sections_at + names_index * size)
        names_at, names_bytes = struct.unpack_from("<QQ", entry, 24)
        return b".nv_fatbin" in os.pread(fd, min(names_bytes, 1 << 20), names_at)
    except (OSError, struct.error, OverflowError):
        return True


def _occurrences(name: bytes, names: bytes) -> Iterator[int]:
    """Offsets in a string table at which `name` can be read: also as the tail of a longer string."""
    at = names.find(name)
    while at >= 0:
        yield at
        at = names.find(name, at + 1)


def _emulated(code: bytes) -> bool:
    """Whether Linux emulates the x86 instruction at a uprobe instead of single-stepping it: push, nop."""
    if code[:1] == b"\x41":
        code = code[1:]
    return code[:1] == b"\x90" or (len(code) > 0 and 0x50 <= code[0] < 0x58)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def open_elf(path: str) -> Elf:
    """Opens by path. Raises ElfError, also when the path cannot be opened."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ElfError(f"{path} cannot be read ({error.strerror}): it is not probed") from error
    try:
        return Elf(fd, path)
    finally:
        os.close(fd)
