"""`doctor`: the CUDA driver, its GPUs, and whether kernels that were loaded before recording get names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kdiff.agent.doctor_check import Answer, Check, ok, warn
from kdiff.agent.doctor_child import Found
from kdiff.agent.drivers import Drivers
from kdiff.agent.elf import open_elf
from kdiff.agent.errors import ElfError
from kdiff.probes.points import DRIVER_SYMBOLS

GROUP: Final = "CUDA"


def nvml(found: Found) -> list[Check]:
    """Driver and GPUs, as NVML tells (see doctor_child.ask_nvml)."""
    if "error" in found:
        mend = "install the NVIDIA driver, or give the container its GPUs; until then GPUs are not told apart"
        if "mismatch" in str(found["error"]).lower():
            mend = "reboot, or reload the nvidia module: the driver was upgraded while it ran"
        return [warn(GROUP, "GPUs", f"NVML: {found['error']}", mend)]
    names = [gpu["name"] for gpu in found["gpus"]]
    cuda = f", CUDA {found['cuda'] // 1000}.{found['cuda'] % 1000 // 10}" if found["cuda"] else ""
    shown = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"
    checks = [
        ok(GROUP, "driver", f"{found['driver']}{cuda}"),
        ok(GROUP, "GPUs", shown) if names else warn(GROUP, "GPUs", "none", "give the container its GPUs"),
    ]
    if any(gpu["mig"] for gpu in found["gpus"]):
        mend = "record once and look at device_windows: CUPTI sees a MIG slice on some drivers only"
        checks.append(warn(GROUP, "MIG", "on", mend, Answer.UNSURE))
    if found["confidential"]:
        mend = "turn confidential computing off, or on in devtools mode: else CUPTI collects nothing"
        checks.append(warn(GROUP, "confidential computing", "on", mend, Answer.FAILS))
    return checks


def driver_library(paths: Sequence[str], state: Path | None, group: str = GROUP, root: str = "") -> list[Check]:
    """Where libcuda can be probed, and whether names can be read from its handles.

    `paths`: copies to look at. `root`: what of them is not shown.
    """
    drivers = Drivers(state)
    checks: list[Check] = []
    seen: set[str] = set()
    for path in paths:
        real = os.path.realpath(path)
        if real in seen:
            continue
        seen.add(real)
        checks += _driver(path, drivers, group, path.removeprefix(root))
    if not checks:
        mend = "install the NVIDIA driver on this host: without it no program launches kernels"
        checks.append(warn(group, "libcuda", "none found by the loader", mend, Answer.UNSURE))
    return checks


def _driver(path: str, drivers: Drivers, group: str, name: str) -> list[Check]:
    try:
        with open_elf(path) as elf:
            sites = elf.sites(DRIVER_SYMBOLS)
            build = elf.build_id()
    except ElfError as error:
        return [warn(group, "libcuda", str(error), "reinstall the NVIDIA driver")]
    if "cuLaunchKernel" not in sites:
        return [warn(group, "libcuda", f"{name} launches nothing", "install the NVIDIA driver, not a stub of it")]
    slow = sorted(symbol for symbol, site in sites.items() if site.slow)
    checks = [ok(group, "libcuda", f"{name}: {len(sites)} functions to probe")]
    if slow:
        mend = "each such call costs about 20 us in a virtual machine: --layer runtime leaves this library out"
        checks.append(warn(group, "libcuda", f"{name}: single-stepped: {', '.join(slow)}", mend))
    if drivers.get(build).confirmed:
        checks.append(ok(group, "names", f"confirmed for build {build[:12]}, also of kernels loaded before"))
    else:
        mend = "record any program with it from its start once: then running processes have names too"
        checks.append(warn(group, "names", f"nothing has confirmed build {build[:12] or 'unknown'} yet", mend))
    return checks
