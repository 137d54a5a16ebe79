"""A fleet's capture for bench_store.py, the same for the same arguments: 300 kernels in 50 shapes each, on 4 hosts.

Two windows of three hours. How often a kernel is launched falls exponentially: the most frequent one has 2% of the
launches, the rarest 0.003%. A fifth as many syncs come to them; a fifth of the launches is alone between two syncs. The
device is timed for 1 s of every 10. In the second window one kernel in 25 takes 20% longer, others 4 or 6%.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kdiff.analysis.window import MINUTE_NS, NS, Window
from kdiff.queries.segments_write import layout, required
from kdiff.queries.tables import NULLABLE, TABLES

KERNELS: Final = 300
SHAPES: Final = 50
HOSTS: Final = 4
HOURS: Final = 3
T0: Final = 1_764_237_600 * NS  # 2025-11-27T10:00:00Z
LENGTH: Final = HOURS * 60 * MINUTE_NS
BEFORE: Final = Window(T0, T0 + LENGTH)
AFTER: Final = Window(T0 + LENGTH + 60 * MINUTE_NS, T0 + 2 * LENGTH + 60 * MINUTE_NS)
PERIOD: Final = 10 * NS
OPEN: Final = 1 * NS
SYNCS: Final = 0.2
SEGMENT_ROWS: Final = 100_000
NAMES: Final = [f"void serving::kernel_{k:03d}<__half, {k % 8}>(__half*, __half const*, int)" for k in range(KERNELS)]


@dataclass(frozen=True)
class Load:
    """How many launches, and where from chance comes."""

    launches: int
    seed: int

    @cached_property
    def per_window(self) -> int:
        """Segments of one host in one window: whole periods of the device windows each."""
        wanted = self.launches * (1 + SYNCS) / SEGMENT_ROWS / (2 * HOSTS)
        periods = LENGTH // PERIOD
        return next(d for d in range(1, periods + 1) if periods % d == 0 and (d >= wanted or d == periods))

    @property
    def segments(self) -> int:
        """Of cuda_events; each has one of kernel_executions, device_windows and agent_health."""
        return 2 * HOSTS * self.per_window

    def write(self, root: Path) -> None:
        """All segments, by two processes."""
        for table in TABLES:
            (root / table).mkdir(parents=True, exist_ok=True)
        rows = KERNELS * HOSTS
        kernel = np.tile(np.arange(KERNELS), HOSTS)
        columns = {
            "kernel_id": _ids(kernel), "mangled_name": _pick(kernel, NAMES).cast(pa.string()),
            "kernel_name": _pick(kernel, NAMES).cast(pa.string()), "name_source": _pick(np.zeros(rows), ["handle"]),
            "first_seen_ns": np.full(rows, T0), "service": _pick(np.zeros(rows), ["serving"]),
            "host": _pick(np.repeat(np.arange(HOSTS), KERNELS), _hosts()),
        }  # fmt: skip
        _write(root, "kernels", f"gpu-host-0-00000000-{T0}-00000000.parquet", columns, rows)
        with ProcessPoolExecutor(2) as pool:
            list(pool.map(self.segment, range(self.segments), [root] * self.segments, chunksize=4))

    def segment(self, index: int, root: Path) -> None:
        """Segment `index` of each table."""
        rng = np.random.default_rng([self.seed, index])
        number, host = divmod(index, HOSTS)
        window, part = divmod(number, self.per_window)
        length = LENGTH // self.per_window
        begin = (BEFORE, AFTER)[window].from_ns + part * length
        n = int(rng.poisson(self.launches * (1 + SYNCS) / self.segments))
        t = np.sort(begin + rng.integers(0, length, n))
        sync = rng.random(n) < SYNCS / (1 + SYNCS)
        share = np.exp(-np.arange(KERNELS) / 45)
        kernel = np.searchsorted(np.cumsum(share / share.sum())[:-1], rng.random(n))
        often = 1 / np.arange(1, SHAPES + 1)
        shape = np.searchsorted(np.cumsum(often / often.sum())[:-1], rng.random(n))
        device = self._device_ns(rng, window, kernel, shape, (t // MINUTE_NS).astype(np.int64))
        alone = rng.random(n) < 0.2
        excess = 8_000 * np.exp(rng.normal(0, 0.1, n)) + np.where(alone, 0, rng.exponential(50_000, n))
        name = f"gpu-host-{host}-0000000{host}-{T0}-{number + 1:08d}.parquet"
        where = {
            "service": _pick(np.zeros(n), ["serving"]), "host": _pick(np.full(n, host), _hosts()),
            "gpu_uuid": _pick(np.full(n, host), [f"GPU-{h:08x}-aaaa-bbbb-cccc-0123456789ab" for h in range(HOSTS)]),
            "pid": np.full(n, 4_000 + host), "container_id": _pick(np.zeros(n), [""]), **_clock(n, host),
        }  # fmt: skip
        launch = ~sync
        tid = rng.integers(0, 2, n)
        grid = {"grid_x": launch * (1 + 8 * shape), **dict.fromkeys(("grid_y", "grid_z"), launch * 1)}
        grid |= {"block_x": launch * 256, **dict.fromkeys(("block_y", "block_z"), launch * 1)}
        events: dict[str, Any] = {
            "timestamp_ns": t, "duration_ns": np.exp(rng.normal(np.log(4_500), 0.25, n)),
            "kind": _pick(sync, ["launch", "sync"]),
            "api": _pick(sync, ["cudaLaunchKernel", "cudaStreamSynchronize"]),
            "kernel_name": _pick(np.where(sync, KERNELS, kernel), [*NAMES, ""]),
            "kernel_id": np.where(sync, 0, _ids(kernel)), **where, "tid": 4_000 + host + tid,
            "comm": _pick(np.zeros(n), ["python3"]), "stream": 0x7F3A_0000_1000 + 512 * tid, **grid,
            "shared_bytes": launch * 1_024 * (shape % 3), "status": np.zeros(n),
            "completion_ns": np.where(sync, 0, device + excess),
            "batch_launches": np.where(sync, 0, np.where(alone, 1, rng.integers(2, 33, n))), "flags": np.zeros(n),
        }  # fmt: skip
        _write(root, "cuda_events", name, events, n)
        timed = launch & ((t - begin) % PERIOD < OPEN)
        queue = (3_000 + rng.exponential(2_000, n)).astype(np.int64)
        executed = {key: where[key] for key in where} | {
            "timestamp_ns": t + queue, "duration_ns": device, "kernel_name": events["kernel_name"],
            "kernel_id": events["kernel_id"], "stream": events["stream"], **grid, "registers": 32 + kernel % 64,
            "static_shared": np.zeros(n), "dynamic_shared": events["shared_bytes"], "local_bytes": np.zeros(n),
            "graph_id": np.zeros(n), "graph_node_id": np.zeros(n), "queue_ns": queue,
        }  # fmt: skip
        _write(root, "kernel_executions", name, executed, n, timed)
        self._accounts(root, name, begin, length, t[timed], n)

    def _device_ns(
        self,
        rng: np.random.Generator,
        window: int,
        kernel: NDArray[np.int64],
        shape: NDArray[np.int64],
        minute: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Lognormal (sd 5%) about a level that moves from minute to minute (sd 3%); in the second some slower."""
        fixed = np.random.default_rng(self.seed)
        base = np.exp(fixed.normal(np.log(20_000), 1, KERNELS))
        level = np.exp(fixed.normal(0, 0.03, (KERNELS, 64)))
        which = np.arange(KERNELS)
        slower = np.where(which % 25 == 7, 1.2, np.where(which % 10 == 3, 1.04, np.where(which % 10 == 5, 1.06, 1.0)))
        if window:
            base = base * slower
        mixed = (minute * 37 + minute // 64 * 11) % 64
        durations = base[kernel] * (1 + shape / 100) * level[kernel, mixed] * np.exp(rng.normal(0, 0.05, kernel.size))
        ticks: NDArray[np.int64] = (durations / 32).astype(np.int64) * 32
        return ticks

    def _accounts(self, root: Path, name: str, begin: int, length: int, timed: NDArray[np.int64], events: int) -> None:
        count = length // PERIOD
        host = int(name.split("-")[2])
        starts = begin + PERIOD * np.arange(count)
        place = {"service": _pick(np.zeros(count), ["serving"]), "host": _pick(np.full(count, host), _hosts())}
        zeros = np.zeros(count)
        windows = {
            "from_ns": starts, "to_ns": starts + OPEN, **place, "pid": np.full(count, 4_000 + host),
            "container_id": _pick(zeros, [""]),
            "executions": np.bincount((timed - begin) // PERIOD, minlength=count), "uncollected": zeros,
            "dropped": zeros, "lost": zeros, "clock_error_ns": zeros + 200, "inside_ns": zeros + 100_000,
            "ended": _pick(zeros, ["duration"]), "skipped": zeros, **_clock(count, host),
        }  # fmt: skip
        _write(root, "device_windows", name, windows, count)
        health = {key: column[:1] for key, column in place.items()} | {
            "from_ns": [begin], "to_ns": [begin + length], "layer": _pick(zeros[:1], ["both"]), "events": [events],
            **{f"lost_{what}": [0] for what in ("launches", "syncs", "other")},
            "drain_lag_ns": [0], "unresolved_launches": [0],
            "agent_cpu_ns": [events * 800], "attached_probes": [12], **_clock(1, host),
            "clock_set_ns": [0], "slept_ns": [0],
        }  # fmt: skip
        _write(root, "agent_health", name, health, 1)


def _hosts() -> list[str]:
    return [f"gpu-host-{h}" for h in range(HOSTS)]


def _clock(rows: int, host: int) -> dict[str, Any]:
    boots = [f"{h:08x}-1111-2222-3333-444455556666" for h in range(HOSTS)]
    return {"boot_id": _pick(np.full(rows, host), boots), "clock_offset_ns": np.full(rows, T0 - 1_000_000 * (1 + host))}


def _ids(kernel: NDArray[np.int64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        return (kernel.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E37_79B9_7F4A_7C15)


def _pick(index: Any, values: list[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.asarray(index).astype(np.int32)), pa.array(values, pa.string()))


def _write(
    root: Path, table: str, name: str, columns: dict[str, Any], rows: int, only: NDArray[np.bool_] | None = None
) -> None:
    schema = required(TABLES[table])
    arrays = []
    for column in schema:
        values = pa.nulls(rows, column.type) if column.name in NULLABLE else columns[column.name]
        if not isinstance(values, (pa.Array, pa.ChunkedArray)):
            values = pa.array(np.asarray(values).astype(column.type.to_pandas_dtype()))
        assert len(values) == rows, column.name
        arrays.append(values)
    data = pa.Table.from_arrays(arrays, schema=schema)
    if only is not None:
        data = data.filter(pa.array(only))
    pq.write_table(data, root / table / name, **layout(schema))
