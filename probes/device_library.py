"""The device library: built from the C sources beside this file, once for each version of them."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

from kdiff.probes.device_wire import library_header

NAME: Final = "libkdiff-device.so"
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

    `directory`: where it is kept; the first of /var/lib/kdiff and the user's cache that can be written unless given.
    KDIFF_DEVICE_LIBRARY names one built elsewhere.
    """
    given = os.environ.get("KDIFF_DEVICE_LIBRARY")
    if given:
        if not Path(given).is_file():
            raise DeviceLibraryError(f"KDIFF_DEVICE_LIBRARY={given} is no file: name a built {NAME}")
        return Path(given).absolute()
    header = library_header()
    with as_file(files("kdiff.probes") / "device") as sources:
        texts = {path.name: path.read_bytes() for path in sorted(sources.glob("*.[ch]"))}
        version = hashlib.blake2b(
            b"\0".join([*texts.values(), header.encode(), " ".join(_FLAGS + _LINK).encode()]), digest_size=8
        ).hexdigest()
        for place in [directory] if directory else _places():
            target = place / f"{platform.machine()}-{version}" / NAME
            if target.is_file():
                return target
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
            except OSError:
                continue
            if os.access(target.parent, os.W_OK):
                _build(sources, header, target)
                return target
    raise DeviceLibraryError(f"{NAME} cannot be written anywhere: set KDIFF_DEVICE_LIBRARY to one built elsewhere")


def _places() -> list[Path]:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [Path("/var/lib/kdiff/device"), Path(cache) / "kdiff" / "device"]


def _build(sources: Path, header: str, target: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise DeviceLibraryError(
            f"there is no C compiler to build {NAME} with: apt-get install gcc libc6-dev, or set KDIFF_DEVICE_LIBRARY"
        )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as work:
        (Path(work) / "device_wire.h").write_text(header)
        made = Path(work) / NAME
        command = [compiler, *_FLAGS, f"-I{work}", f"-I{sources}", "-include", "portable.h", "-o", str(made)]
        command += [str(path) for path in sorted(sources.glob("*.c"))] + list(_LINK)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
            raise DeviceLibraryError(f"{NAME} cannot be built ({first.strip()}): is libc6-dev installed?")
        made.chmod(0o755)
        made.replace(target)  # whole or not at all, also for a process that looks at the same time
