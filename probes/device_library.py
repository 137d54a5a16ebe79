"""The device library: built from the C sources beside this file, once for each version of them."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

from kdiff.probes.device_wire import library_header

NAME: Final = "libkdiff-device.so"
BASENAME: Final = "kdiff-device"  # in the file's name wherever it lies: by it the agent finds the library
INJECTION: Final = "CUDA_INJECTION64_PATH"  # names the library to the CUDA driver
SETTING: Final = "KDIFF_DEVICE_TIME"  # WINDOW_MS/PERIOD_MS, always or off
BUDGET: Final = "KDIFF_DEVICE_BUDGET"  # a share of all time, or none
_FLAGS: Final = (
    "-std=gnu11",
    "-D_GNU_SOURCE",
    "-O2",
    "-g1",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-Wall",
    "-Wextra",
)
_LINK: Final = (
    "-Wl,--no-as-needed",
    "-ldl",
    "-lpthread",
    "-Wl,--build-id=sha1",
    "-Wl,-z,now",
    "-Wl,-z,relro",
    f"-Wl,-soname,{NAME}",
)


class DeviceLibraryError(Exception):
    """Why there is no device library, as one sentence that names the mend."""


def library(directory: Path | None = None) -> Path:
    """The built library; builds it when it is not there yet. Raises DeviceLibraryError.

    `directory`: where it is kept; the first of `places()` that can be written unless given.
    KDIFF_DEVICE_LIBRARY names one built elsewhere.
    """
    given = os.environ.get("KDIFF_DEVICE_LIBRARY")
    if given:
        if not Path(given).is_file():
            raise DeviceLibraryError(f"KDIFF_DEVICE_LIBRARY={given} is no file: name a built {NAME}")
        return Path(given).absolute()
    candidates = [directory] if directory else places()
    found = built(candidates)
    if found is not None:
        return found
    for place in candidates:
        target = place / version() / NAME
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(target.parent, os.W_OK):
            with _sources() as sources:
                _build(sources, target)
            return target
    raise DeviceLibraryError(f"{NAME} cannot be written anywhere: set KDIFF_DEVICE_LIBRARY to one built elsewhere")


def places() -> list[Path]:
    """Where built libraries are kept, one folder a version: root's for every process, then the user's own."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [Path("/var/lib/kdiff/device"), Path(cache) / "kdiff" / "device"]


def built(candidates: Iterable[Path] | None = None) -> Path | None:
    """The library as it is kept in one of the places, if it is."""
    for place in places() if candidates is None else candidates:
        target = place / version() / NAME
        if target.is_file():
            return target
    return None


@cache
def version() -> str:
    """Machine and sources: a library of another version does not speak this agent's format."""
    with _sources() as sources:
        texts = [path.read_bytes() for path in sorted(sources.glob("*.[ch]"))]
    texts += [library_header().encode(), " ".join(_FLAGS + _LINK).encode()]
    digest = hashlib.blake2b(b"\0".join(texts), digest_size=8).hexdigest()
    return f"{platform.machine()}-{digest}"


def _sources() -> AbstractContextManager[Path]:
    return as_file(files("kdiff.probes") / "device")


def _build(sources: Path, target: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise DeviceLibraryError(
            f"there is no C compiler to build {NAME} with: apt-get install gcc libc6-dev, or set KDIFF_DEVICE_LIBRARY"
        )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as work:
        (Path(work) / "device_wire.h").write_text(library_header())
        made = Path(work) / NAME
        command = [compiler, *_FLAGS, f"-I{work}", f"-I{sources}", "-include", "portable.h", "-o", str(made)]
        command += [str(path) for path in sorted(sources.glob("*.c"))] + list(_LINK)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
            raise DeviceLibraryError(f"{NAME} cannot be built ({first.strip()}): is libc6-dev installed?")
        made.chmod(0o755)
        made.replace(target)  # whole or not at all, also for a process that looks at the same time
