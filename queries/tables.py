"""The tables, the same on both engines: one Arrow schema each, from which segments are written and read.

Times are nanoseconds; `timestamp_ns` is Unix time at entry to the call (host) or at the start on the device.
"""

from __future__ import annotations

from enum import IntFlag
from typing import Final

import pyarrow as pa

KIND_LAUNCH: Final = "launch"
KIND_GRAPH_LAUNCH: Final = "graph_launch"
KIND_SYNC: Final = "sync"


class EventFlags(IntFlag):
    """Bits of `cuda_events.flags`."""

    CAPTURED = 1  # recorded into a graph during stream capture: did not execute by itself
    UNRESOLVED = 2  # the kernel's name could not be read or could not be trusted
    NO_RETURN = 4  # the return was not probed: duration_ns and status are unknown (0)


_DICT = pa.dictionary(pa.int32(), pa.string())
_PLACE: Final = [
    ("service", _DICT),
    ("host", _DICT),
    ("gpu_uuid", _DICT),
    ("pid", pa.uint32()),
    ("container_id", _DICT),
]
_CLOCK: Final = [
    ("boot_id", _DICT),  # the boot of the host whose CLOCK_MONOTONIC is meant; '' = not recorded, then the next is 0
    ("clock_offset_ns", pa.int64()),  # a row's times less this are by that clock, which is never set
]
_SHAPE: Final = [
    *[(f"grid_{a}", pa.uint32()) for a in "xyz"],  # of a graph launch: how many kernels, a hash of shapes
    *[(f"block_{a}", pa.uint32()) for a in "xyz"],
]

WAITS: Final = pa.schema(  # of the thread that called; null = unknown, as everywhere without --scheduling
    [
        ("runnable_ns", pa.int64()),  # in the call: ready to run, but without a processor
        ("blocked_ns", pa.int64()),  # in the call: asleep, or waiting for something
        ("runnable_before_ns", pa.int64()),  # the same from the end of the thread's launch or sync before to this one's
        ("blocked_before_ns", pa.int64()),  # entry; null of its first one. Without a return: from entry to entry
    ]
)

CUDA_EVENTS: Final = pa.schema(
    [
        ("timestamp_ns", pa.int64()),
        ("duration_ns", pa.int64()),  # entry to return; 0 if the return is not probed
        ("kind", _DICT),  # launch, graph_launch, sync
        ("api", _DICT),  # the CUDA function called
        ("kernel_name", _DICT),  # demangled; of a graph what it holds, '' unknown; of a sync the last launch it proves
        ("kernel_id", pa.uint64()),  # hash of the mangled name; 0 where there is no name
        *_PLACE,
        ("tid", pa.uint32()),
        ("comm", _DICT),
        ("stream", pa.uint64()),
        *_SHAPE,
        ("shared_bytes", pa.uint32()),
        ("status", pa.int32()),  # CUDA return code, 0 = success
        ("completion_ns", pa.int64()),  # launch entry to the end of the sync that proves it finished; 0 = unknown
        ("batch_launches", pa.uint32()),  # launches that share that sync, or this one; 1 = isolated; 0 = unknown
        ("flags", pa.uint16()),  # EventFlags
        *_CLOCK,
        *WAITS,
    ]
)

KERNEL_EXECUTIONS: Final = pa.schema(
    [
        ("timestamp_ns", pa.int64()),
        ("duration_ns", pa.int64()),  # device start to device end
        ("kernel_name", _DICT),
        ("kernel_id", pa.uint64()),
        *_PLACE,
        ("stream", pa.uint64()),
        *_SHAPE,
        ("registers", pa.uint16()),
        ("static_shared", pa.uint32()),
        ("dynamic_shared", pa.uint32()),
        ("local_bytes", pa.uint32()),
        ("graph_id", pa.uint32()),
        ("graph_node_id", pa.uint64()),
        # Launch call to device start; timestamp_ns - queue_ns is the timestamp_ns of the launch's row in cuda_events.
        ("queue_ns", pa.int64()),  # 0 = unknown
        *_CLOCK,
    ]
)

DEVICE_WINDOWS: Final = pa.schema(
    [
        ("from_ns", pa.int64()),  # kernels launched in between were timed on the device, this process's only
        ("to_ns", pa.int64()),
        ("service", _DICT),
        ("host", _DICT),
        ("pid", pa.uint32()),
        ("container_id", _DICT),
        ("executions", pa.uint64()),  # rows of kernel_executions
        ("uncollected", pa.uint64()),  # ran, but their times were not collected
        ("dropped", pa.uint64()),  # CUPTI had no room for them
        ("lost", pa.uint64()),  # handed over, but the agent's ring was full
        ("clock_error_ns", pa.int64()),  # how far device times may lie from the host's clock
        ("inside_ns", pa.int64()),  # time in the calls that opened and closed it
        ("ended", _DICT),  # duration, budget, yielded, unheard, exit, failed, shed; '' = unknown
        ("skipped", pa.uint32()),  # windows before it that another user of CUPTI forbade
        *_CLOCK,  # the offset when it opened
    ]
)

KERNELS: Final = pa.schema(
    [
        ("kernel_id", pa.uint64()),
        ("mangled_name", pa.string()),
        ("kernel_name", pa.string()),  # demangled
        # handle (read and checked), load (seen at load), symbol (ELF symbol), device (of an execution), unresolved
        ("name_source", _DICT),
        ("first_seen_ns", pa.int64()),
        ("service", _DICT),
        ("host", _DICT),
    ]
)

AGENT_HEALTH: Final = pa.schema(
    [
        ("from_ns", pa.int64()),  # the stretch of time this row accounts for, without gaps while an agent records
        ("to_ns", pa.int64()),
        ("service", _DICT),  # '' = of the host: its losses may be any service's that it has
        ("host", _DICT),
        ("layer", _DICT),  # both, runtime, driver
        ("events", pa.uint64()),  # rows of cuda_events that began in the stretch as far as they were received
        ("lost_launches", pa.uint64()),
        ("lost_syncs", pa.uint64()),
        ("lost_other", pa.uint64()),
        ("agent_cpu_ns", pa.int64()),  # this and the next two are the agent's own: 0 in rows of one service of several
        ("drain_lag_ns", pa.int64()),  # the longest time between two reads of the ring
        ("attached_probes", pa.uint32()),
        ("unresolved_launches", pa.uint64()),
        *_CLOCK,  # the offset at its end
        ("clock_set_ns", pa.int64()),  # by how much Unix time was set meanwhile: stretches around it overlap, or gape
        ("slept_ns", pa.int64()),  # for how long the host was suspended meanwhile
    ]
)

_PIDS: Final = pa.list_(pa.field("element", pa.uint32(), nullable=False))
GPU_SAMPLES: Final = pa.schema(
    [
        ("timestamp_ns", pa.int64()),  # right before the GPU was asked
        ("service", _DICT),  # of the whole recording, '' where it has several: a sample is of the host
        ("host", _DICT),
        ("gpu_uuid", _DICT),
        ("parent_uuid", _DICT),  # of a MIG instance its GPU; '' = a GPU
        ("gpu_name", _DICT),
        ("sm_clock_mhz", pa.uint32()),
        ("mem_clock_mhz", pa.uint32()),
        ("throttle_reasons", pa.uint64()),  # nvmlClocksEventReasons: why clocks are not higher; 0 = nothing
        ("power_mw", pa.uint32()),
        ("temperature_c", pa.uint16()),
        ("gpu_utilization", pa.uint16()),  # percent of NVML's last period in which a kernel ran
        ("memory_utilization", pa.uint16()),  # percent of it in which memory was read or written
        ("memory_used_bytes", pa.uint64()),  # without what the driver reserves, from R510 on
        ("memory_total_bytes", pa.uint64()),
        ("ecc_corrected", pa.uint64()),  # errors since the driver was loaded
        ("ecc_uncorrected", pa.uint64()),
        ("processes", pa.uint32()),  # that compute
        ("pids", _PIDS),  # theirs, as in cuda_events; [] also where they are not known
        ("pid_memory_bytes", pa.list_(pa.uint64())),  # of each of pids; null = not known
    ]
)

NULLABLE: Final = frozenset((*GPU_SAMPLES.names[6:-2], *WAITS.names))
"""The columns that may be null: readings that a GPU does not have, and what a recording was not asked for."""

ROLLUPS: Final = {
    "health_hours": "hour",
    "device_hours": "hour",
    "kernel_minutes": "minute",
    "kernel_totals": "minute",
    "process_minutes": "minute",
    "kernel_hours": "hour",
    "process_hours": "hour",
}
"""The tables of a server that hold whole minutes or hours, by queries/schema, and the column that says which."""

TABLES: Final[dict[str, pa.Schema]] = {
    "cuda_events": CUDA_EVENTS,
    "kernel_executions": KERNEL_EXECUTIONS,
    "device_windows": DEVICE_WINDOWS,
    "kernels": KERNELS,
    "agent_health": AGENT_HEALTH,
    "gpu_samples": GPU_SAMPLES,
}
