"""Which GPU a process uses, by NVML. A host without NVML, or whose GPU has fallen off the bus, keeps tracing."""

from __future__ import annotations

import warnings
from typing import Any


class Gpus:
    """The GPUs of this host. Without NVML there are none, and every process's GPU is ''."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: dict[str, Any] = {}
        self._of_process: dict[int, set[str]] = {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            for index in range(pynvml.nvmlDeviceGetCount()):
                device = pynvml.nvmlDeviceGetHandleByIndex(index)
                self._devices[str(pynvml.nvmlDeviceGetUUID(device))] = device
        except Exception:  # NVML's errors are generated classes; ImportError and OSError belong here too
            self._nvml = None
        self.refresh()

    def refresh(self) -> None:
        """Reads anew which processes compute on which GPU; keeps the old answer where NVML gives none."""
        if self._nvml is None or len(self._devices) < 2:
            return
        found: dict[int, set[str]] = {}
        for uuid, device in self._devices.items():
            try:
                processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
            except Exception:
                return
            for process in processes:
                found.setdefault(int(process.pid), set()).add(uuid)
        self._of_process = found

    def of(self, pid: int) -> set[str]:
        """UUIDs of the GPUs the process computes on; on a host with one GPU that one. Empty: not known."""
        if len(self._devices) == 1:
            return set(self._devices)
        return self._of_process.get(pid, set())
