"""From finished windows to rows of `kernel_executions` and `device_windows`."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kdiff.agent.device_batches import Name
from kdiff.agent.device_windows import DeviceProcess, Timed, Window, ended_as
from kdiff.agent.names import Kernel, plausible
from kdiff.agent.ring import columns, in_one
from kdiff.agent.rows import constant, encode, named
from kdiff.queries.kernel_names import demangle
from kdiff.queries.tables import DEVICE_WINDOWS, KERNEL_EXECUTIONS

_UNKNOWN = Kernel("unresolved:unknown", "unresolved:unknown", "unresolved")
_MOST_I64 = 2**63 - 1
_MOST_U32 = 2**32 - 1


@dataclass(frozen=True)
class Place:
    """The columns that a process gives its rows. `gpu_uuid`: of a device whose UUID the library has not said."""

    service: str
    host: str
    container_id: str
    gpu_uuid: str
    boot_id: str = ""


def kernel_of(name: Name | None) -> Kernel:
    """The kernel of a name: the same, by its id, as the one that the launch of it has."""
    if name is None:
        return _UNKNOWN
    text = name.mangled.decode("ascii", "replace")
    if not name.whole:  # half a name could be two kernels'
        text = f"unresolved:cut-name+{hashlib.blake2b(name.mangled, digest_size=8).hexdigest()}"
        return Kernel(text, text, "unresolved")
    return Kernel(text, demangle(text), "device") if plausible(text) else _UNKNOWN


def kernels_of(process: DeviceProcess, executions: NDArray[np.void]) -> tuple[list[Kernel], NDArray[np.int32]]:
    """The distinct kernels that ran, and for each execution which one of them."""
    numbers, which = encode(executions["name"].astype(np.uint64))
    return [kernel_of(process.names.get(int(number))) for number in numbers], which


def execution_rows(
    process: DeviceProcess,
    place: Place,
    of_window: Timed,
    offsets: NDArray[np.int64],
    queue_ns: NDArray[np.int64],
    kernels: tuple[list[Kernel], NDArray[np.int32]],
) -> pa.Table:
    """Rows of `kernel_executions`. `offsets`: from monotonic to Unix time, of each; `queue_ns`: 0 where unknown;
    `kernels`: as `kernels_of`.
    """
    count = len(of_window.executions)
    execution = columns(of_window.executions)
    devices, on = encode(execution["device"].astype(np.uint64))
    known, which = kernels
    arrays: dict[str, pa.Array] = {
        "timestamp_ns": pa.array(of_window.start_ns + offsets),
        "duration_ns": pa.array((execution["end"] - execution["start"]).view(np.int64)),
        "kernel_name": named(which, [kernel.name for kernel in known]),
        "kernel_id": pa.array(np.array([kernel.id for kernel in known], np.uint64)[which]),
        "service": constant(place.service, count),
        "host": constant(place.host, count),
        "gpu_uuid": named(on, [_gpu(process, int(device), place.gpu_uuid) for device in devices]),
        "pid": pa.array(np.full(count, process.pid, np.uint32)),
        "container_id": constant(place.container_id, count),
        "stream": pa.array(in_one(execution["context"], execution["stream"])),
        **{f"grid_{axis}": pa.array(execution["grid"][:, i]) for i, axis in enumerate("xyz")},
        **{f"block_{axis}": pa.array(execution["block"][:, i]) for i, axis in enumerate("xyz")},
        "registers": pa.array(np.minimum(execution["registers"], 65535).astype(np.uint16)),
        "static_shared": pa.array(execution["static_shared"]),
        "dynamic_shared": pa.array(execution["dynamic_shared"]),
        "local_bytes": pa.array(execution["local_bytes"]),
        "graph_id": pa.array(execution["graph_id"]),
        "graph_node_id": pa.array(execution["graph_node_id"]),
        "queue_ns": pa.array(queue_ns),
        "boot_id": constant(place.boot_id, count),
        "clock_offset_ns": pa.array(offsets),
    }
    return pa.Table.from_arrays([arrays[name] for name in KERNEL_EXECUTIONS.names], schema=KERNEL_EXECUTIONS)


def _gpu(process: DeviceProcess, device: int, otherwise: str) -> str:
    known = process.devices.get(device)
    return f"GPU-{uuid.UUID(bytes=known)}" if known is not None else otherwise


def window_row(
    window: Window, place: Place, of_window: Timed, extent_ns: tuple[int, int], lost: int, ended: str = ""
) -> pa.Table:
    """The row of `device_windows`. `extent_ns`: Unix; `lost`: handed over, not received; `ended`: unless it says."""
    record = window.record

    def said(name: str) -> int:
        return min(int(record[name]), _MOST_I64) if record is not None else 0

    return pa.Table.from_pylist(
        [
            {
                "from_ns": extent_ns[0],
                "to_ns": extent_ns[1],
                "service": place.service,
                "host": place.host,
                "pid": window.pid,
                "container_id": place.container_id,
                "executions": len(of_window.executions),
                "uncollected": min(said("uncollected") + of_window.senseless, _MOST_I64),
                "dropped": said("dropped"),
                "lost": lost,
                "clock_error_ns": said("error_ns"),
                "inside_ns": said("inside_ns"),
                "ended": ended_as(window) or ended,
                "skipped": min(said("skipped"), _MOST_U32),
                "boot_id": place.boot_id,
                "clock_offset_ns": extent_ns[0] - window.from_ns,
            }
        ],
        schema=DEVICE_WINDOWS,
    )
