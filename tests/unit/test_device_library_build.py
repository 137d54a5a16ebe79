"""kdiff.probes.device_library: how the device library is built and found."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from kdiff.probes import device_library
from kdiff.probes.device_library import NAME, DeviceLibraryError, built, library, version
from kdiff.probes.device_wire import HANDOVER, LISTENERS, library_header


@pytest.fixture(autouse=True)
def no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KDIFF_DEVICE_LIBRARY", raising=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("library"))


def test_it_exports_what_the_driver_and_the_agent_look_for_and_nothing_else(made: Path) -> None:
    listing = subprocess.run(["nm", "-D", "--defined-only", str(made)], capture_output=True, text=True, check=True)
    symbols = {line.split()[2]: line.split()[1] for line in listing.stdout.splitlines()}
    assert symbols == {"InitializeInjection": "T", HANDOVER: "T", LISTENERS: "D"}


def test_the_probed_function_begins_with_what_kernels_emulate(made: Path) -> None:
    listing = subprocess.run(["objdump", "-d", str(made)], capture_output=True, text=True, check=True).stdout
    body = listing.partition(f"<{HANDOVER}>:")[2].splitlines()
    assert body[1].split("\t")[-1].split() == ["push", "%rbp"]


def test_it_needs_no_glibc_newer_than_containers_have(made: Path) -> None:
    listing = subprocess.run(["objdump", "-T", str(made)], capture_output=True, text=True, check=True).stdout
    needed = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", listing)}
    assert max(needed) <= (2, 27)  # Ubuntu 18.04


def test_it_is_built_once_for_a_version(tmp_path: Path) -> None:
    assert built([tmp_path]) is None
    first = library(tmp_path)
    assert first == tmp_path / version() / NAME
    before = first.stat().st_mtime_ns
    assert library(tmp_path) == built([tmp_path / "none", tmp_path]) == first
    assert first.stat().st_mtime_ns == before
    assert [path.name for path in first.parent.iterdir()] == [NAME]


def test_one_built_elsewhere_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine.so"
    monkeypatch.setenv("KDIFF_DEVICE_LIBRARY", str(mine))
    with pytest.raises(DeviceLibraryError, match="is no file: name a built"):
        library()
    mine.write_bytes(b"")
    assert library() == mine


def test_without_a_compiler_the_mend_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceLibraryError, match=r"no C compiler .*: apt-get install gcc libc6-dev"):
        library(tmp_path)
    assert built([tmp_path]) is None


def test_a_compiler_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bin" / "cc"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'x.h: error: no such file' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}:/usr/bin:/bin")
    with pytest.raises(DeviceLibraryError, match=r"cannot be built .*error: no such file"):
        library(tmp_path / "kept")
    assert list((tmp_path / "kept" / version()).iterdir()) == []


def test_where_nothing_can_be_written_the_mend_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(device_library, "places", lambda: [blocked])
    with pytest.raises(DeviceLibraryError, match="set KDIFF_DEVICE_LIBRARY"):
        library()


def test_the_header_compiles_by_itself(tmp_path: Path) -> None:
    (tmp_path / "device_wire.h").write_text(library_header())
    (tmp_path / "one.c").write_text('#include "device_wire.h"\n')
    command = ["gcc", "-Wall", "-Wextra", "-Wpadded", "-fsyntax-only", str(tmp_path / "one.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
