"""Traces with known kernels, in each format that `kdiff import` reads, written as their tools write them."""

from __future__ import annotations

import csv
import gzip
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

BASE = 1_764_237_600 * 1_000_000_000  # 2025-11-27T10:00:00Z, Unix ns
PID = 4_711
TID = 4_713


@dataclass(frozen=True)
class Kernel:
    """One kernel that ran; `start_ns` since the trace began, `launch_ns` when it was launched, None if not recorded."""

    name: str
    start_ns: int
    duration_ns: int
    launch_ns: int | None = None
    launch_duration_ns: int = 5_000
    api: str = "cudaLaunchKernel"
    pid: int = PID
    device: int = 0
    context: int = 1
    stream: int = 7
    correlation: int = 0
    grid: tuple[int, int, int] = (64, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    registers: int = 40
    static_shared: int = 0
    dynamic_shared: int = 0
    local_bytes: int = 0
    graph_id: int = 0
    graph_node_id: int = 0


def numbered(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Each with a correlation of its own, from 1."""
    return [replace(kernel, correlation=number) for number, kernel in enumerate(kernels, 1)]


@contextmanager
def quiet(*first: Callable[[], Any]) -> Iterator[Callable[[int], None]]:
    """No progress bar; calls `first`."""
    for call in first:
        call()
    yield lambda _more: None


# ---- Kineto ----


def us(ns: int) -> str:
    """As Kineto writes times."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


@dataclass
class Raw:
    """A number that is to be written with these digits."""

    text: str


def dumps(value: Any) -> str:
    """JSON in which Raw is written as it is."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)}: {dumps(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(dumps, value)) + "]"
    return json.dumps(value)


def kineto_event(kernel: Kernel, ts: Callable[[int], Raw]) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": kernel.name,
        "pid": kernel.device,
        "tid": kernel.stream,
        "ts": ts(kernel.start_ns),
        "dur": Raw(us(kernel.duration_ns)),
        "args": {
            "External id": kernel.correlation,
            "queued": 0,
            "device": kernel.device,
            "context": kernel.context,
            "stream": kernel.stream,
            "correlation": kernel.correlation,
            "registers per thread": kernel.registers,
            "shared memory": kernel.static_shared + kernel.dynamic_shared,
            "blocks per SM": Raw("0.484848"),
            "warps per SM": Raw("1.939394"),
            "grid": kernel.grid,
            "block": kernel.block,
            "est. achieved occupancy %": 3,
            "graph id": kernel.graph_id,
            "graph node id": kernel.graph_node_id,
        },
    }


def kineto_launch(kernel: Kernel, ts: Callable[[int], Raw]) -> dict[str, Any]:
    assert kernel.launch_ns is not None
    return {
        "ph": "X",
        "cat": "cuda_driver" if kernel.api.startswith("cu") and not kernel.api.startswith("cuda") else "cuda_runtime",
        "name": kernel.api,
        "pid": kernel.pid,
        "tid": TID,
        "ts": ts(kernel.launch_ns),
        "dur": Raw(us(kernel.launch_duration_ns)),
        "args": {"External id": kernel.correlation, "cbid": 211, "correlation": kernel.correlation},
    }


def relative(ns: int) -> Raw:
    return Raw(us(ns))


def absolute(ns: int) -> Raw:
    return Raw(us(BASE + ns))


def kineto_text(
    kernels: Sequence[Kernel],
    *,
    ts: Callable[[int], Raw] = relative,
    header: Mapping[str, Any] | None = None,
    more: Sequence[Mapping[str, Any]] = (),
) -> str:
    launches: dict[int, dict[str, Any]] = {}
    for kernel in kernels:
        if kernel.launch_ns is not None:
            launches.setdefault(kernel.correlation, kineto_launch(kernel, ts))
    events = [*more, *launches.values(), *(kineto_event(kernel, ts) for kernel in kernels)]
    said = {"baseTimeNanoseconds": BASE, "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}}
    members = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}]}
    whole = {**members, **(said if header is None else header), "displayTimeUnit": "ms"}
    head = dumps(whole)[:-1]
    body = ",\n  ".join(map(dumps, events))
    return f'{head},\n  "traceEvents": [\n  {body}\n  ],\n  "traceName": "/tmp/trace.json"\n}}\n'


def kineto(path: Path, kernels: Sequence[Kernel], **options: Any) -> Path:
    text = kineto_text(kernels, **options).encode("utf-8", "surrogatepass")
    path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
    return path


# ---- Nsight Systems ----

KERNEL_COLUMNS = tuple(
    re.split(
        r"\s+",
        "start end deviceId contextId greenContextId streamId correlationId globalPid demangledName shortName "
        "mangledName launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ "
        "staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted "
        "graphNodeId",
    )
)
UUIDS = {0: "3e2b4bd2-7d5a-4c3f-9a57-2d3a6f0c8f10", 1: "8c1d6a70-11d1-4a44-b6e1-1b6a2f9d5c02"}


@dataclass
class Nsys:
    """What the export has besides kernels."""

    drop: Sequence[str] = ()  # columns of the kernels
    without: Sequence[str] = ()  # tables
    began: int | None = BASE
    demangled: Mapping[str, str] = field(default_factory=dict)
    more: str = ""  # SQL


def nsys(path: Path, kernels: Sequence[Kernel], options: Nsys | None = None) -> Path:
    options = options or Nsys()
    columns = [column for column in KERNEL_COLUMNS if column not in options.drop]
    strings: dict[str, int] = {}

    def string(text: str) -> int:
        return strings.setdefault(text, len(strings) + 1)

    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            f"""
            CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({", ".join(f'"{column}" INTEGER' for column in columns)});
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
                eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
                returnValue INTEGER NOT NULL, callchainId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, bytes INTEGER);
            CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, uuid TEXT);
            CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL,
                uuid TEXT, numMultiprocessors INTEGER);
            CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER,
                value TEXT);
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
            INSERT INTO TARGET_INFO_SYSTEM_ENV (name, value) VALUES ('Hostname', 'node7');
            INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (5, 10, 4096);
            """
        )
        for number, text in UUIDS.items():
            database.execute("INSERT INTO TARGET_INFO_GPU VALUES (?, 'NVIDIA H200', ?)", (number, text))
        for pid in {kernel.pid for kernel in kernels}:
            database.executemany(
                "INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (?, ?, ?, NULL, 132)",
                [(number, number, pid) for number in UUIDS],
            )
        if options.began is not None:
            database.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", (options.began,))
        rows = []
        for kernel in kernels:
            row = {
                "start": kernel.start_ns,
                "end": kernel.start_ns + kernel.duration_ns,
                "deviceId": kernel.device,
                "contextId": kernel.context,
                "streamId": kernel.stream,
                "correlationId": kernel.correlation,
                "globalPid": 1 << 48 | kernel.pid << 24,
                "demangledName": string(options.demangled.get(kernel.name, kernel.name)),
                "shortName": string(kernel.name.partition("<")[0]),
                "mangledName": string(kernel.name),
                "registersPerThread": kernel.registers,
                **dict(zip(("gridX", "gridY", "gridZ"), kernel.grid, strict=True)),
                **dict(zip(("blockX", "blockY", "blockZ"), kernel.block, strict=True)),
                "staticSharedMemory": kernel.static_shared,
                "dynamicSharedMemory": kernel.dynamic_shared,
                "localMemoryPerThread": kernel.local_bytes,
                "graphNodeId": kernel.graph_node_id or None,
            }
            rows.append([row.get(column) for column in columns])
        marks = ", ".join("?" * len(columns))
        database.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", rows)
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0, NULL)",
            {
                (kernel.pid, kernel.correlation): (
                    kernel.launch_ns,
                    kernel.launch_ns + kernel.launch_duration_ns,
                    1 << 48 | kernel.pid << 24 | TID,
                    kernel.correlation,
                    string(f"{kernel.api}_v7000"),
                )
                for kernel in kernels
                if kernel.launch_ns is not None
            }.values(),
        )
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, 0, 0, 1, ?, 0, NULL)", [string("cudaMalloc")]
        )
        database.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(number, text) for text, number in strings.items()]
        )
        for table in options.without:
            database.execute(f"DROP TABLE {table}")
        database.executescript(options.more)
        database.commit()
    return path


# ---- CSV ----

NSYS_HEADER = re.split(
    ",",
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),"
    "Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name",
)
OWN_HEADER = re.split(
    " ",
    "start_ns duration_ns name pid device context stream correlation grid_x grid_y grid_z block_x block_y block_z "
    "registers static_shared dynamic_shared local_bytes graph_id graph_node_id",
)


def csv_own(path: Path, kernels: Sequence[Kernel], offset: int = BASE) -> Path:
    """With the columns that the guide names."""
    with path.open("w", newline="", encoding="utf-8", errors="surrogatepass") as file:
        writer = csv.writer(file)
        writer.writerow(OWN_HEADER)
        for k in kernels:
            shape = *k.grid, *k.block
            memory = k.static_shared, k.dynamic_shared, k.local_bytes
            place = k.pid, k.device, k.context, k.stream, k.correlation
            graph = k.graph_id, k.graph_node_id
            writer.writerow([offset + k.start_ns, k.duration_ns, k.name, *place, *shape, k.registers, *memory, *graph])
    return path


def csv_nsys(path: Path, kernels: Sequence[Kernel], before: str = "") -> Path:
    """As `nsys stats --report cuda_gpu_trace --format csv` writes it, with a copy and a fill among the kernels."""
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(before)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(NSYS_HEADER)
        gpu = "NVIDIA H200 (0)"
        writer.writerow(
            [10, 20, 1, *[""] * 9, "0.004", "1.0", "Pageable", "Device", gpu, 1, "", 7, "[CUDA memcpy HtoD]"]
        )
        for k in kernels:
            memory = f"{k.static_shared / 1e6:.3f}", f"{k.dynamic_shared / 1e6:.3f}"
            row = [k.start_ns, k.duration_ns, k.correlation, *k.grid, *k.block, k.registers, *memory]
            writer.writerow([*row, *[""] * 4, f"NVIDIA H200 ({k.device})", k.context, "", k.stream, k.name])
        writer.writerow([30, 20, 2, *[""] * 9, "0.004", "1.0", "Device", "", gpu, 1, "", 7, "[CUDA memset]"])
    return path
