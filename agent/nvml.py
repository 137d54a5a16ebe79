"""NVML from nvmlInit to nvmlShutdown: the GPUs of this host and what each says of itself, None where it does not say.

Any call may take 100 ms, and on a sick GPU seconds or for ever: only the sampler's thread makes one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the package that once had the module's name
    import pynvml

# After these the GPU, or NVML as it was opened, answers nothing any more.
_GONE: Final = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
}
_OLDER: Final = {pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH}
# This reading is not to be had: of this kind of GPU, by this user, of an instance.
_UNSUPPORTED: Final = {
    *_OLDER,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_NO_DATA,
    pynvml.NVML_ERROR_DEPRECATED,
}

Processes = dict[int, int | None]
"""Bytes of GPU memory, None where NVML does not know them, of each process that computes, by pid."""


class NvmlError(Exception):
    """NVML's own words. `absent`: there is no NVML, or no driver. `upgraded`: the driver no longer fits the library."""

    def __init__(self, error: Any) -> None:
        super().__init__((str(error).splitlines() or [type(error).__name__])[0].rstrip("."))
        code = getattr(error, "value", None)
        self.absent = code in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        self.upgraded = code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH


@dataclass(frozen=True)
class Device:
    """A GPU, or with `parent_uuid` a MIG instance of one. `index`: NVML's, of the GPU."""

    index: int
    handle: Any
    uuid: str
    name: str
    parent_uuid: str = ""


class Nvml:
    """NVML while it is open."""

    def __init__(self) -> None:
        """Raises NvmlError."""
        _call(pynvml.nvmlInit)

    def close(self) -> None:
        """Lets go of it, so that opening it again finds the driver anew. Never raises."""
        try:
            _call(pynvml.nvmlShutdown)
        except NvmlError:
            return

    def count(self) -> int:
        """How many GPUs there are, also those that do not answer. Raises NvmlError."""
        return int(_call(pynvml.nvmlDeviceGetCount))

    def devices(self, index: int) -> Iterator[Device]:
        """The GPU of an index and its MIG instances. Raises NvmlError, of the GPU."""
        handle = _call(pynvml.nvmlDeviceGetHandleByIndex, index)
        gpu = Device(index, handle, str(_call(pynvml.nvmlDeviceGetUUID, handle)), _name(handle))
        yield gpu
        mode = _reading(pynvml.nvmlDeviceGetMigMode, handle)
        if not mode or not mode[0]:
            return
        for place in range(_reading(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            instance = _reading(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
            uuid = None if instance is None else _reading(pynvml.nvmlDeviceGetUUID, instance)
            if uuid is not None:
                yield Device(index, instance, str(uuid), _name(instance), gpu.uuid)

    def processes(self, device: Device) -> Processes | None:
        """Those that compute on it. Raises NvmlError where the GPU is gone."""
        versions = (pynvml.nvmlDeviceGetComputeRunningProcesses_v3, pynvml.nvmlDeviceGetComputeRunningProcesses_v2)
        found = _reading(_newest(*versions), device.handle)
        if found is None:
            return None
        memory: Processes = {}
        for one in sorted(found, key=lambda one: int(one.pid)):  # of a GPU with instances one pid for each
            used, before = one.usedGpuMemory, memory.get(int(one.pid), 0)
            memory[int(one.pid)] = None if used is None or before is None else before + int(used)
        return memory

    def read(self, device: Device) -> dict[str, Any] | None:
        """The columns of `gpu_samples` that NVML gives, None for each that this GPU lacks.

        None for an instance that gives nothing. Raises NvmlError where the GPU is gone.
        """
        readings = _Readings(device.handle)
        utilization = readings.take(pynvml.nvmlDeviceGetUtilizationRates)
        memory = readings.take(_newest(_memory_v2, pynvml.nvmlDeviceGetMemoryInfo))
        reasons = _newest(
            pynvml.nvmlDeviceGetCurrentClocksEventReasons, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons
        )
        columns = {
            "sm_clock_mhz": readings.take(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            "mem_clock_mhz": readings.take(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
            "throttle_reasons": readings.take(reasons),
            "power_mw": readings.take(pynvml.nvmlDeviceGetPowerUsage),
            "temperature_c": readings.take(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
            "gpu_utilization": None if utilization is None else utilization.gpu,
            "memory_utilization": None if utilization is None else utilization.memory,
            "memory_used_bytes": None if memory is None else memory.used,
            "memory_total_bytes": None if memory is None else memory.total,
            "ecc_corrected": readings.take(_ecc, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            "ecc_uncorrected": readings.take(_ecc, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        }
        if readings.answered:
            return columns
        if device.parent_uuid:
            return None
        if readings.failure is not None:
            raise NvmlError(readings.failure)
        return columns


class _Readings:
    """What one device answers. `failure`: an error that is no lack of support; one alone makes a reading None."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.answered = False
        self.failure: Any = None

    def take(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            value = function(self._handle, *arguments)
        except pynvml.NVMLError as error:
            if error.value in _GONE:
                raise NvmlError(error) from error
            if error.value not in _UNSUPPORTED:
                self.failure = error
            return None
        self.answered = True
        return value


def _newest(*versions: Callable[..., Any]) -> Callable[..., Any]:
    """The first of the versions of a function that this driver has."""

    def call(*arguments: Any) -> Any:
        for version in versions[:-1]:
            try:
                return version(*arguments)
            except pynvml.NVMLError as error:
                if error.value not in _OLDER:
                    raise
        return versions[-1](*arguments)

    return call


def _memory_v2(handle: Any) -> Any:
    return pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)


def _ecc(handle: Any, kind: int) -> Any:
    return pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_VOLATILE_ECC)


def _name(handle: Any) -> str:
    return str(_reading(pynvml.nvmlDeviceGetName, handle) or "")


def _reading(function: Callable[..., Any], *arguments: Any) -> Any:
    """The answer; None where there is none, unless the GPU is gone."""
    return _Readings(arguments[0]).take(function, *arguments[1:])


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (pynvml.NVMLError, OSError) as error:
        raise NvmlError(error) from error
