"""kdiff.agent.elf on files that gcc makes, and on what is left of them when they are cut off or scribbled over."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiff.agent.elf import Elf, Site, open_elf
from kdiff.agent.errors import ElfError

WANTED = frozenset({"cudaLaunchKernel", "cuLaunchKernel", "cudaStreamSynchronize", "missing"})
SOURCE = """
int cuLaunchKernel(int a) { return a + 1; }
int cudaLaunchKernel(int a) { return a + 2; }
int xcudaLaunchKernel(int a) { return a + 3; }
static int __attribute__((noinline, used)) cudaStreamSynchronize(int a) { return a + 4; }
int missing_not(int a) { return cudaStreamSynchronize(a); }
int missing_data;
"""
MAIN = SOURCE + "\nint main(int argc, char **argv) { (void)argv; return cudaLaunchKernel(argc); }\n"
FRAME = ("-O0", "-fcf-protection=none")
PUSH, ENDBR64 = b"\x55", bytes.fromhex("f30f1efa")

Make = Callable[..., Path]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    folder = tmp_path_factory.mktemp("elf")

    def compiled(*options: str, source: str = SOURCE, strip: Sequence[str] | None = None) -> Path:
        path = folder / f"{abs(hash((options, source, tuple(strip or ()))))}.elf"
        if not path.exists():
            text = path.with_suffix(".c")
            text.write_text(source)
            subprocess.run(["gcc", *options, "-o", str(path), str(text)], check=True, capture_output=True)
            if strip is not None:
                subprocess.run(["strip", *strip, str(path)], check=True)
        return path

    return compiled


@pytest.fixture(scope="session")
def library(make: Make) -> Path:
    return make("-shared", "-fPIC", "-Wl,--build-id=0x0123456789abcdef", *FRAME)


def sites_of(path: Path) -> dict[str, Site]:
    with open_elf(str(path)) as elf:
        return elf.sites(WANTED)


def file_offset(path: Path, symbol: str) -> int:
    """By pyelftools: where a function's first byte is in the file."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        for table in (".symtab", ".dynsym"):
            section = elf.get_section_by_name(table)
            for found in section.get_symbol_by_name(symbol) or () if section else ():
                if found["st_shndx"] != "SHN_UNDEF":
                    offsets = list(elf.address_offsets(found["st_value"]))
                    return int(offsets[0])
    raise AssertionError(symbol)


@pytest.mark.parametrize(
    "options",
    [
        ("-shared", "-fPIC", *FRAME),
        ("-shared", "-fPIC", *FRAME, "-Wl,-z,noseparate-code"),
        ("-shared", "-fPIC", *FRAME, "-Wl,-z,max-page-size=65536"),
        ("-shared", "-fPIC", *FRAME, "-Wl,--hash-style=sysv"),
        ("-pie", "-fPIE", *FRAME),
        ("-no-pie", "-fno-pie", *FRAME),
        ("-static", *FRAME),
    ],
    ids=" ".join,
)
def test_where_functions_are(make: Make, options: tuple[str, ...]) -> None:
    path = make(*options, source=SOURCE if "-shared" in options else MAIN)
    sites = sites_of(path)
    assert set(sites) == {"cudaLaunchKernel", "cuLaunchKernel", "cudaStreamSynchronize"}
    code = path.read_bytes()
    for symbol, site in sites.items():
        assert site == Site(file_offset(path, symbol), slow=False)
        assert code[site.offset : site.offset + 1] == PUSH
    with open_elf(str(path)) as elf:
        for symbol, site in sites.items():
            assert elf.function_at(site.offset) == symbol
            assert elf.function_at(site.offset + 1) is None


def test_a_name_that_is_the_tail_of_a_longer_one_is_found(make: Make) -> None:
    """The linker stores `cudaLaunchKernel` only inside `xcudaLaunchKernel`."""
    path = make("-shared", "-fPIC", *FRAME, "-Wl,-O2")
    with path.open("rb") as file:
        strings = ELFFile(file).get_section_by_name(".dynstr").data()
    assert b"xcudaLaunchKernel\0" in strings
    assert b"\0cudaLaunchKernel\0" not in strings
    assert sites_of(path)["cudaLaunchKernel"].offset == file_offset(path, "cudaLaunchKernel")
    with open_elf(str(path)) as elf:
        assert elf.function_at(file_offset(path, "xcudaLaunchKernel")) == "xcudaLaunchKernel"


def test_what_strip_leaves(make: Make) -> None:
    stripped = make("-shared", "-fPIC", *FRAME, strip=["--strip-all"])
    assert set(sites_of(stripped)) == {"cudaLaunchKernel", "cuLaunchKernel"}, "exported symbols stay"
    program = make("-pie", "-fPIE", *FRAME, source=MAIN, strip=["--strip-all"])
    assert sites_of(program) == {}


def test_undefined_symbols_and_data_are_no_functions(make: Make) -> None:
    path = make(
        "-shared",
        "-fPIC",
        source="extern int cuLaunchKernel(int); int missing; int f(void) { return cuLaunchKernel(1); }",
    )
    assert sites_of(path) == {}


def test_endbr64_is_stepped_over_only_before_an_emulated_instruction(make: Make) -> None:
    with_frame = make("-shared", "-fPIC", "-O0", "-fcf-protection=full")
    site = sites_of(with_frame)["cuLaunchKernel"]
    at = file_offset(with_frame, "cuLaunchKernel")
    assert with_frame.read_bytes()[at : at + 5] == ENDBR64 + PUSH
    assert site == Site(at + 4, slow=False)
    without = make("-shared", "-fPIC", "-O2", "-fcf-protection=full")
    at = file_offset(without, "cuLaunchKernel")
    assert without.read_bytes()[at : at + 4] == ENDBR64
    assert sites_of(without)["cuLaunchKernel"] == Site(at, slow=True)
    with open_elf(str(with_frame)) as elf:
        assert elf.function_at(file_offset(with_frame, "cuLaunchKernel")) == "cuLaunchKernel"


def test_an_instruction_that_is_single_stepped_is_slow(make: Make) -> None:
    path = make("-shared", "-fPIC", "-O2", "-fomit-frame-pointer", "-fcf-protection=none")
    assert sites_of(path)["cuLaunchKernel"].slow


def test_pushes_of_the_upper_registers_and_nops_are_not_slow(make: Make) -> None:
    body = '__attribute__((naked)) void {}(void) {{ __asm__("{}; ret"); }}'
    source = "\n".join([
        body.format("cuLaunchKernel", "push %r15"),
        body.format("cudaLaunchKernel", "nop"),
        body.format("cudaStreamSynchronize", "pop %rax"),
    ])  # fmt: skip
    sites = sites_of(make("-shared", "-fPIC", "-fcf-protection=none", source=source))
    assert {symbol: site.slow for symbol, site in sites.items()} == {
        "cuLaunchKernel": False,
        "cudaLaunchKernel": False,
        "cudaStreamSynchronize": True,
    }


def test_build_ids(make: Make, library: Path) -> None:
    with open_elf(str(library)) as elf:
        assert elf.build_id() == "0123456789abcdef"
        assert elf.interpreter() is None
    with open_elf(str(make("-shared", "-fPIC", "-Wl,--build-id=none"))) as elf:
        assert elf.build_id() == ""


def test_interpreters(make: Make) -> None:
    with open_elf(str(make("-pie", "-fPIE", *FRAME, source=MAIN))) as elf:
        assert os.path.exists(elf.interpreter() or "")
    with open_elf(str(make("-static", *FRAME, source=MAIN))) as elf:
        assert elf.interpreter() is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # see test_a_refused_file_is_closed
def test_32_bit_files_are_refused(make: Make) -> None:
    try:
        path = make("-m32", "-shared", "-nostdlib", "-fPIC", source="int cuLaunchKernel(int a) { return a; }")
    except subprocess.CalledProcessError:
        pytest.skip("gcc makes no 32-bit files here")
    with pytest.raises(ElfError, match="not 64-bit little-endian"):
        open_elf(str(path))


def test_what_is_no_file_of_symbols(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    text = tmp_path / "text"
    text.write_text("#!/bin/sh\n" * 100)
    for path in ("/dev/null", str(empty), str(text), str(tmp_path / "none")):
        with pytest.raises(ElfError, match="not probed"):
            open_elf(path)


def test_a_descriptor_stays_its_owners(library: Path) -> None:
    fd = os.open(library, os.O_RDONLY)
    before = set(os.listdir("/proc/self/fd"))
    with Elf(fd, "x") as elf:
        assert elf.sites(WANTED)
    assert set(os.listdir("/proc/self/fd")) == before
    os.lseek(fd, 0, os.SEEK_SET)
    assert os.read(fd, 4) == b"\x7fELF"
    os.close(fd)


def test_a_file_cut_off_while_it_is_read_is_no_fault(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(library.read_bytes())
    with open_elf(str(path)) as elf:
        os.truncate(path, 64)
        assert elf.sites(WANTED) == {}
        assert elf.function_at(0x1100) is None


# Damage


def check_survives(path: Path) -> None:
    """Everything the agent asks of a file answers, or raises ElfError."""
    try:
        elf = open_elf(str(path))
    except ElfError:
        return
    with elf:
        with contextlib.suppress(ElfError):
            assert elf.sites(WANTED).keys() <= WANTED
        for question in (
            elf.build_id, elf.interpreter,
            *(lambda at=at: elf.function_at(at) for at in (0, 0x1000, 0x1100, 0x1119)),
        ):  # fmt: skip
            with contextlib.suppress(ElfError):
                question()


def test_cut_off_at_any_length(library: Path, tmp_path: Path) -> None:
    data = library.read_bytes()
    torn = tmp_path / "torn.so"
    refused = 0
    for length in range(0, len(data), 64):
        torn.write_bytes(data[:length])
        check_survives(torn)
        try:
            open_elf(str(torn)).close()
        except ElfError:
            refused += 1
    assert refused == -(-len(data) // 64), "the section headers come last, so that every cut is noticed"


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_bytes_overwritten_anywhere(
    library: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(library.read_bytes())
    headers = header_ranges(content)
    for _ in range(data.draw(st.integers(1, 8))):
        # Mostly where it hurts: the headers of file, segments and sections.
        where = data.draw(st.one_of(*(st.integers(a, b - 1) for a, b in headers), st.integers(0, len(content) - 1)))
        content[where] = data.draw(st.one_of(st.sampled_from([0, 0xFF, 0x7F, 0x80]), st.integers(0, 255)))
    path = tmp_path_factory.getbasetemp() / "scribbled.so"
    path.write_bytes(content)
    check_survives(path)


def header_ranges(content: bytes) -> list[tuple[int, int]]:
    program, sections = struct.unpack_from("<QQ", content, 32)
    count, size = struct.unpack_from("<H", content, 56)[0], struct.unpack_from("<H", content, 60)[0]
    return [(16, 64), (program, program + 56 * count), (sections, sections + 64 * size)]


def check_huge_sections(library: Path, tmp_path: Path, field: int, value: int) -> None:
    data = library.read_bytes()
    (sections,) = struct.unpack_from("<Q", data, 40)
    count = struct.unpack_from("<H", data, 60)[0]
    for index in range(count):
        torn = bytearray(data)
        struct.pack_into("<Q", torn, sections + 64 * index + field, value)
        (tmp_path / "huge.so").write_bytes(torn)
        check_survives(tmp_path / "huge.so")


@pytest.mark.parametrize("value", [2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1])
def test_huge_sections(library: Path, tmp_path: Path, value: int) -> None:
    check_huge_sections(library, tmp_path, 32, value)


@pytest.mark.parametrize("value", [2**31, 2**32 - 1, 2**40])
def test_sections_behind_the_end(library: Path, tmp_path: Path, value: int) -> None:
    check_huge_sections(library, tmp_path, 24, value)


SEGMENT_FIELDS = {"offset": 8, "address": 16, "size in the file": 32, "size in memory": 40}


def check_huge_segments(make: Make, tmp_path: Path, field: int, value: int) -> None:
    data = make("-pie", "-fPIE", *FRAME, source=MAIN).read_bytes()
    (segments,) = struct.unpack_from("<Q", data, 32)
    for index in range(struct.unpack_from("<H", data, 56)[0]):
        torn = bytearray(data)
        struct.pack_into("<Q", torn, segments + 56 * index + field, value)
        (tmp_path / "huge").write_bytes(torn)
        check_survives(tmp_path / "huge")


@pytest.mark.parametrize("value", [2**31, 2**40])
@pytest.mark.parametrize("field", list(SEGMENT_FIELDS.values())[1:], ids=list(SEGMENT_FIELDS)[1:])
def test_large_segments(make: Make, tmp_path: Path, field: int, value: int) -> None:
    check_huge_segments(make, tmp_path, field, value)


# Faults


def test_sections_far_behind_the_end(library: Path, tmp_path: Path) -> None:
    for value in (2**62, 2**63 - 1):
        check_huge_sections(library, tmp_path, 24, value)


def test_segments_that_lie_elsewhere(make: Make, tmp_path: Path) -> None:
    for value in (2**40, 2**62, 2**63, 2**64 - 8):
        check_huge_segments(make, tmp_path, SEGMENT_FIELDS["offset"], value)


def test_a_directory(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    try:
        with pytest.raises(ElfError, match="not probed"):
            open_elf(str(tmp_path))
    finally:
        assert os.listdir("/proc/self/fd") == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_refused_file_is_closed(make: Make) -> None:
    path = make("-m32", "-shared", "-nostdlib", "-fPIC", source="int cuLaunchKernel(int a) { return a; }")
    before = len(os.listdir("/proc/self/fd"))
    try:
        open_elf(str(path))
    except ElfError:  # its traceback keeps what was not closed
        assert len(os.listdir("/proc/self/fd")) == before
