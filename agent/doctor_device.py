"""`doctor`: whether device time can be recorded: the device library, CUPTI, and what forbids them."""

from __future__ import annotations

import glob
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile

from kdiff.agent.doctor_check import Answer, Check, ok, warn
from kdiff.agent.libraries import loader_cache
from kdiff.probes import device_library
from kdiff.probes.device_library import INJECTION, SETTING, DeviceLibraryError
from kdiff.probes.device_wire import HANDOVER

GROUP: Final = "Device time"
KNOWN_RELEASES: Final = (12, 13)
OTHER_INJECTION: Final = "NVTX_INJECTION64_PATH"
GIVEN_CUPTI: Final = "KDIFF_DEVICE_CUPTI"
_LIBRARY_BYTES: Final = 16 << 20  # ours is far smaller
_INSTALLED: Final = (
    "usr/local/cuda*/lib64/libcupti.so.*",
    "usr/local/cuda*/extras/CUPTI/lib64/libcupti.so.*",
    "usr/local/cuda*/targets/*/lib/libcupti.so.*",
    "usr/local/cuda*/lib/libcupti.so.*",
    "usr/lib/python3*/dist-packages/",
    "usr/local/lib/python3*/dist-packages/",
    "usr/local/lib/python3*/site-packages/",
    "opt/*/lib/python3*/site-packages/",
)
_IN_PACKAGES: Final = ("nvidia/*/lib/libcupti.so.*", "triton/backends/nvidia/lib/cupti/libcupti.so*")
_LISTED: Final = re.compile(r"^\s*libcupti\.so\.\d+.* => (/.*)$", re.MULTILINE)


# ---- CUPTI ----


def cupti_copies(
    environment: Mapping[str, str], packages: Iterable[str] = (), root: Path = Path("/"), listing: str | None = None
) -> list[str]:
    """Copies of libcupti on this host, one path a file: of the loader, of toolkits, of Python packages.

    `packages`: further folders of Python packages. `listing`: what `ldconfig -p` prints; None: asked.
    """
    patterns: list[str] = []
    for pattern in (*_INSTALLED, *(f"{glob.escape(place)}/" for place in packages)):
        base = pattern if pattern.startswith("/") else f"{glob.escape(str(root).rstrip('/'))}/{pattern}"
        patterns += [base + tail for tail in _IN_PACKAGES] if pattern.endswith("/") else [base]
    for directory in environment.get("LD_LIBRARY_PATH", "").split(":"):
        if directory:
            patterns.append(f"{glob.escape(directory)}/libcupti.so*")
    found = [path for pattern in patterns for path in sorted(glob.glob(pattern))]
    found += _LISTED.findall(loader_cache() if listing is None else listing)
    by_file = {os.path.realpath(path): path for path in reversed(found) if os.path.isfile(path)}
    return sorted(by_file.values())


def cupti_release(path: str) -> int | None:
    """The CUDA release a libcupti is of, from its soname (libcupti.so.12), else its name; None: it cannot be told."""
    for name in (_soname(path), os.path.basename(path)):
        found = re.fullmatch(r"libcupti\.so\.(\d{1,3})", name)
        if found is not None:
            return int(found[1])
    return None


def cupti(copies: Sequence[str], group: str = GROUP) -> Check:
    """Whether a program here can find a CUPTI whose records are known."""
    if not copies:
        mend = "install it (pip: nvidia-cuda-cupti, apt: cuda-cupti), unless your programs bring it, as PyTorch does"
        return warn(group, "CUPTI", "none found on this host", mend, Answer.UNSURE)
    releases = {path: cupti_release(path) for path in copies}
    known = [path for path, release in releases.items() if release in KNOWN_RELEASES]
    if not known:
        shown = ", ".join(f"{path} (CUDA {release or 'unknown'})" for path, release in releases.items())
        mend = "use CUDA 12 or 13: the records of other releases are not known to kdiff"
        return warn(group, "CUPTI", shown, mend, Answer.FAILS)
    best = max(known, key=lambda path: releases[path] or 0)
    more = f", and {len(copies) - 1} more" if len(copies) > 1 else ""
    return ok(group, "CUPTI", f"of CUDA {releases[best]}: {best}{more}")


def python_packages(program: str | None = None) -> list[str]:
    """Folders of Python packages: this interpreter's, or those beside a program's."""
    if program is None:
        return [place for place in sys.path if place.endswith(("site-packages", "dist-packages"))]
    prefix = glob.escape(str(Path(program).parent.parent))
    return sorted(glob.glob(f"{prefix}/lib/python3*/site-packages"))


def _soname(path: str) -> str:
    try:
        with open(path, "rb") as file:
            for segment in ELFFile(file).iter_segments("PT_DYNAMIC"):
                if isinstance(segment, DynamicSegment):
                    return next((str(vars(tag)["soname"]) for tag in segment.iter_tags("DT_SONAME")), "")
    except Exception:  # a damaged file raises anything
        pass
    return ""


# ---- the library of our own ----


def library(build: Callable[[Path], Path] = device_library.library, places: Iterable[Path] | None = None) -> Check:
    """Whether the device library is there or can be built: tried in a folder that goes away again.

    `places`: where it is kept once it is built.
    """
    kept = device_library.built(places)
    if not os.environ.get("KDIFF_DEVICE_LIBRARY") and kept is not None:
        return ok(GROUP, "library", str(kept))
    with tempfile.TemporaryDirectory(prefix="kdiff-doctor-") as scratch:
        try:
            made = build(Path(scratch))
            complaint = "" if is_device_library(made) else f"{made} is none: set KDIFF_DEVICE_LIBRARY to a built one"
        except DeviceLibraryError as error:
            complaint = str(error)
    if complaint:
        fact, _, mend = complaint.partition(": ")
        return warn(GROUP, "library", fact, mend or "set KDIFF_DEVICE_LIBRARY to one built elsewhere", Answer.FAILS)
    if os.environ.get("KDIFF_DEVICE_LIBRARY"):
        return ok(GROUP, "library", f"{made}, as KDIFF_DEVICE_LIBRARY says")
    return ok(GROUP, "library", "can be built here, and is at the first recording that wants it")


def is_device_library(path: str | Path) -> bool:
    """Whether a file is kdiff's device library, of whatever version: it has the function that hands over."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # it may be a FIFO
    except OSError:
        return False
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LIBRARY_BYTES:
            return False
        return HANDOVER.encode() + b"\0" in os.read(descriptor, _LIBRARY_BYTES)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def injected(environment: Mapping[str, str], group: str, root: str = "") -> list[Check]:
    """What the environment of a program makes the CUDA driver load. `root`: where the program's files are.

    Only the injection's own variables are looked at: an environment holds secrets.
    """
    checks: list[Check] = []
    path = environment.get(INJECTION, "")
    if path and is_device_library(root + path):
        checks.append(ok(group, "injection", f"{INJECTION} names kdiff's library"))
        if environment.get(SETTING) == "off":
            mend = f"start it without {SETTING}=off"
            checks.append(warn(group, "injection", f"{SETTING}=off turns it off", mend, Answer.FAILS))
    elif path:
        there = "" if os.path.exists(root + path) else ", which is not there"
        mend = "start it without: the driver loads one such library, and this one is another tool's"
        checks.append(warn(group, "injection", f"{INJECTION}={path}{there}", mend, Answer.FAILS))
    other = environment.get(OTHER_INJECTION, "")
    if other:
        mend = "windows are skipped while another tool has CUPTI: start it without nsys or ncu"
        checks.append(warn(group, "profiler", f"{OTHER_INJECTION}={other}", mend, Answer.UNSURE))
    return checks


# ---- the driver's settings ----


def admin_only(params: Path = Path("/proc/driver/nvidia/params")) -> Check | None:
    """NVreg_RestrictProfilingToAdminUsers: it guards counters, not activity records. None without the driver."""
    try:
        found = re.search(r"^RmProfilingAdminOnly:\s*(\d)", params.read_text(), re.MULTILINE)
    except OSError:
        return None
    if found is None:
        return None
    who = "administrators only" if found[1] == "1" else "everybody"
    return ok(GROUP, "GPU counters", f"for {who}; kernel times need none")
