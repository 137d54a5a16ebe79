"""A small fleet with shapes, processes and hostile host names, and what is true of each of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import captures
from captures import MINUTE, SECOND, T0
from kdiff.analysis.scope import Cut, Scope
from kdiff.analysis.window import Window

HOURS: Final = 3
WINDOW: Final = Window(T0, T0 + HOURS * 60 * MINUTE)
HOSTS: Final = ("plain-1", "a'); DROP TABLE cuda_events; --", 'b\\"`{keys:String}\t\nü')
PIDS: Final = (7, 8, 4_294_967_295)
KERNELS: Final = ("gelu", "norm")
SHAPES: Final = (
    (1, 1, 1, 32, 1, 1),
    (3, 1, 1, 128, 1, 1),
    (4, 2, 1, 16, 8, 1),
    (65_536, 65_535, 2, 1_024, 1, 1),
    (0,) * 6,
)
LOG2: Final = ((0, 5), (2, 7), (3, 7), (33, 10), (-1, -1))
GPUS: Final = ("GPU-0", "GPU-1", "GPU-2")
MODELS: Final = {"GPU-0": "NVIDIA H200", "GPU-1": "Tesla'T4"}


@dataclass(frozen=True, eq=False)
class Fleet:
    """Rows of cuda_events and, where `executed`, of kernel_executions at the same time; arrays of shape (n,)."""

    time: NDArray[np.int64]
    kernel: NDArray[np.int64]
    host: NDArray[np.int64]
    pid: NDArray[np.int64]
    shape: NDArray[np.int64]
    gpu: NDArray[np.int64]
    completion: NDArray[np.int64]
    call: NDArray[np.int64]
    device: NDArray[np.int64]
    batch: NDArray[np.int64]
    graph: NDArray[np.int64]

    @classmethod
    def random(cls, n: int, seed: int, window: Window = WINDOW) -> Fleet:
        rng = np.random.default_rng(seed)
        shape = rng.integers(0, len(SHAPES), n)
        device = (np.exp2(shape + 9) * rng.lognormal(0, 0.1, n)).astype(np.int64)
        return cls(
            np.sort(rng.integers(window.from_ns, window.to_ns, n)),
            rng.integers(0, len(KERNELS), n),
            rng.integers(0, len(HOSTS), n),
            rng.integers(0, len(PIDS), n),
            shape,
            rng.integers(0, len(GPUS), n),
            device + rng.integers(1, 9_000, n),
            rng.integers(1, 9_000, n),
            device,
            rng.integers(1, 3, n),
            rng.integers(0, 2, n),
        )

    def only(self, kept: NDArray[np.bool_]) -> Fleet:
        return Fleet(**{field.name: getattr(self, field.name)[kept] for field in fields(self)})

    def write(self, root: Path, window: Window = WINDOW, hosts: Sequence[str] = HOSTS, sparse: bool = False) -> Path:
        """As a capture; `sparse`: one account of each host, and no device windows."""
        shapes = np.array(SHAPES)[self.shape]
        names = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
        place = {
            "host": [HOSTS[i] for i in self.host],
            "pid": np.array(PIDS)[self.pid],
            "gpu_uuid": [GPUS[i] for i in self.gpu],
        } | {name: shapes[:, i] for i, name in enumerate(names)}
        kernels = [KERNELS[i] for i in self.kernel]
        times = {"duration_ns": self.call, "completion_ns": self.completion, "batch_launches": self.batch}
        captures.write(root, "cuda_events", captures.launches(kernels, self.time, **times, **place))
        ran = captures.executions(kernels, self.time, self.device, graph_id=self.graph, **place)
        captures.write(root, "kernel_executions", ran)
        for number, host in enumerate(hosts):
            step = window.length_ns if sparse else 30 * SECOND
            account = captures.health(
                window.from_ns, window.to_ns, events=1_000 + HOSTS.index(host), step=step, host=host
            )
            captures.write(root, "agent_health", account, f"{number}")
            captures.write(root, "gpu_samples", _sample(window.from_ns + MINUTE, host), f"{number}")
            if sparse:
                continue
            windows = captures.device_windows(
                np.arange(window.from_ns, window.to_ns, MINUTE) + HOSTS.index(host), pid=7, host=host, executions=100
            )
            captures.write(root, "device_windows", windows, f"{number}")
        captures.write(root, "gpu_samples", _sample(window.from_ns - 86_400 * SECOND, hosts[0]), "old")
        return root

    def kept(self, scope: Scope, unit: int = 1) -> NDArray[np.bool_]:
        """Which rows `scope` leaves; its cuts are widened to whole units of time."""
        names, pids = np.array(HOSTS, object)[self.host], np.array(PIDS)[self.pid]
        kept = np.isin(self.host, [HOSTS.index(host) for host in scope.hosts if host in HOSTS])
        if not scope.hosts:
            kept[:] = True
        for cut in scope.cuts:
            start, end = cut.from_ns // unit * unit, -(-cut.to_ns // unit) * unit
            whose = ((names == cut.host) | (cut.host == "")) & ((pids == cut.pid) | (cut.pid == 0))
            kept &= ~(whose.astype(bool) & (self.time >= start) & (self.time < end))
        return kept


def _sample(at_ns: int, host: str) -> pa.Table:
    columns = {"timestamp_ns": at_ns, "gpu_uuid": list(MODELS), "gpu_name": list(MODELS.values()), "host": host}
    return captures.table("gpu_samples", columns, rows=len(MODELS))


def some_cuts(rng: np.random.Generator, count: int, window: Window = WINDOW) -> tuple[Cut, ...]:
    """Of all levels, some of no length to speak of, some open, some outside of the window, some on each other."""
    found: list[Cut] = []
    hosts: Sequence[str] = ("", *HOSTS, "nobody")
    for _ in range(count):
        start = int(rng.integers(window.from_ns - 10 * MINUTE, window.to_ns))
        length = int(rng.choice([1, SECOND, MINUTE, 7 * MINUTE]))
        end = 2**62 if rng.random() < 0.02 else start + length
        start = 0 if rng.random() < 0.02 else start
        pid = int(rng.choice([0, *PIDS, 5]))
        host = hosts[int(rng.integers(len(hosts)))]
        if host or pid or end - start < MINUTE:  # else little is left
            found.append(Cut(host, pid, start, end))
    return tuple(found)
