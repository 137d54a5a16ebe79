"""From paired records to rows of `cuda_events`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kdiff.agent.graphs import Graph
from kdiff.agent.names import Kernel
from kdiff.agent.ring import Columns, chosen, columns, in_one
from kdiff.agent.scheduling import wait_columns
from kdiff.probes.points import POINTS
from kdiff.probes.wire import Kind, WireFlags
from kdiff.queries.tables import CUDA_EVENTS, KERNELS, KIND_GRAPH_LAUNCH, KIND_LAUNCH, KIND_SYNC, EventFlags

_KINDS: Final = {Kind.LAUNCH: KIND_LAUNCH, Kind.GRAPH_LAUNCH: KIND_GRAPH_LAUNCH, Kind.SYNC: KIND_SYNC}
_APIS: Final = [point.api for point in POINTS]

pa.array([""])  # at its first conversion pyarrow imports pandas, for 0.2 s: not while a ring fills


@dataclass(frozen=True)
class Owner:
    """The columns that a process or a thread gives its rows."""

    comm: str
    container_id: str
    gpu_uuid: str


@dataclass
class RowMaker:
    """Knows whose rows these are.

    `kernel(pid, generation, handle)`, `owner(pid, tid)`, `graph(number)`: look-ups, called once a key.
    `service(pid)`: the names of a process's service with since when each, monotonic ns, ascending; one at least.
    `boot_id`: of the boot whose monotonic times they are.
    """

    service: Callable[[int], Sequence[tuple[int, str]]]
    host: str
    kernel: Callable[[int, int, int], Kernel]
    owner: Callable[[int, int], Owner]
    graph: Callable[[int], Graph | None] = lambda number: None
    boot_id: str = ""

    def make(
        self, paired: NDArray[np.void], waits: NDArray[np.int64] | None = None
    ) -> tuple[pa.Table, set[tuple[Kernel, str]]]:
        """Rows for every launch, graph launch and sync among `paired` (their times Unix ns).

        And their kernels, each with the services that launched it. `waits`: of each of `paired`, see Waits.take.
        """
        of_rows = paired["event"]["kind"] <= max(_KINDS)
        paired, waits = chosen(paired, of_rows), None if waits is None else waits[of_rows]
        count = len(paired)
        event = columns(paired)
        kernels, which = self._kernels(event)
        owners, whose = self._owners(event)
        services, of_service = self._services(event)
        resolved = np.array([k is None or k.resolved for k in kernels], bool)
        flags = np.zeros(count, np.uint16)
        if event["captured"].any():
            flags[event["captured"]] |= np.uint16(EventFlags.CAPTURED)
        if not resolved.all():
            flags[(~resolved)[which] & (event["kind"] != Kind.SYNC)] |= np.uint16(EventFlags.UNRESOLVED)
        if (no_return := event["flags"] & WireFlags.NO_RETURN).any():
            flags[no_return != 0] |= np.uint16(EventFlags.NO_RETURN)
        arrays: dict[str, pa.Array] = {
            "timestamp_ns": pa.array(event["timestamp_ns"].view(np.int64)),
            "duration_ns": pa.array(event["duration_ns"].view(np.int64)),
            "kind": _dictionary(event["kind"], {int(k): v for k, v in _KINDS.items()}),
            "api": _dictionary(event["api"], dict(enumerate(_APIS))),
            "kernel_name": named(which, ["" if k is None else k.name for k in kernels]),
            "kernel_id": pa.array(np.array([0 if k is None else k.id for k in kernels], np.uint64)[which]),
            "service": named(of_service, services),
            "host": constant(self.host, count),
            "gpu_uuid": named(whose, [o.gpu_uuid for o in owners]),
            "pid": pa.array(event["pid"]),
            "container_id": named(whose, [o.container_id for o in owners]),
            "tid": pa.array(event["tid"]),
            "comm": named(whose, [o.comm for o in owners]),
            "stream": pa.array(event["stream"]),
            **{f"grid_{axis}": pa.array(event["grid"][:, i]) for i, axis in enumerate("xyz")},
            **{f"block_{axis}": pa.array(event["block"][:, i]) for i, axis in enumerate("xyz")},
            "shared_bytes": pa.array(event["shared_bytes"]),
            "status": pa.array(event["status"]),
            "completion_ns": pa.array(event["completion_ns"]),
            "batch_launches": pa.array(event["batch_launches"]),
            "flags": pa.array(flags),
            "boot_id": constant(self.boot_id, count),
            "clock_offset_ns": pa.array(event["clock_offset_ns"]),
            **wait_columns(waits, count),
        }
        table = pa.Table.from_arrays([arrays[name] for name in CUDA_EVENTS.names], schema=CUDA_EVENTS)
        pairs = encode(in_one(which.view(np.uint32), of_service.view(np.uint32)))[0]
        launched = ((kernels[int(pair) >> 32], services[int(pair) & 0xFFFFFFFF]) for pair in pairs)
        return table, {(kernel, service) for kernel, service in launched if kernel is not None}

    @staticmethod
    def by_service(rows: pa.Table) -> dict[str, tuple[int, int]]:
        """How many of the rows each service has, and how many of them are launches of a kernel without a name."""
        unresolved = rows["flags"].to_numpy() & np.uint16(EventFlags.UNRESOLVED) != 0
        whose = rows["service"].combine_chunks()
        names, codes = whose.dictionary.to_pylist(), whose.indices.to_numpy()
        every, without = (np.bincount(its, minlength=len(names)) for its in (codes, codes[unresolved]))
        return {name: (int(every[at]), int(without[at])) for at, name in enumerate(names) if every[at]}

    def _services(self, event: Columns) -> tuple[list[str], NDArray[np.int32]]:
        """Services, and for each event which one of them it is of."""
        names: dict[str, int] = {}
        pids, of_process = encode(event["pid"].astype(np.uint64))
        periods = [self.service(int(pid)) for pid in pids]
        first = np.array([names.setdefault(its[0][1], len(names)) for its in periods], np.int32)
        which = first[of_process]
        for index, its in enumerate(periods):
            if len(its) > 1:
                rows = np.flatnonzero(of_process == index)
                called = event["timestamp_ns"][rows].view(np.int64) - event["clock_offset_ns"][rows]
                since = np.searchsorted([at for at, _ in its[1:]], called, "right")
                which[rows] = np.array([names.setdefault(name, len(names)) for _, name in its], np.int32)[since]
        return list(names), which

    def _kernels(self, event: Columns) -> tuple[list[Kernel | None], NDArray[np.int32]]:
        """Kernels, the first of which is none, and for each event which one it launched."""
        kernels: list[Kernel | None] = [None]
        which = np.zeros(len(event["kind"]), np.int32)
        after = (event["kind"] == Kind.SYNC) & (event["batch_launches"] > 0)
        launches = np.flatnonzero((event["kind"] == Kind.LAUNCH) | (after & ~event["after_graph"]))
        distinct, of_process = encode(in_one(event["pid"][launches], event["generation"][launches]))
        for index, one in enumerate(distinct):
            rows = launches if len(distinct) == 1 else launches[of_process == index]
            handles, codes = encode(event["handle"][rows])
            which[rows] = codes + np.int32(len(kernels))
            pid, generation = int(one) >> 32, int(one) & 0xFFFFFFFF
            kernels += [self.kernel(pid, generation, int(handle)) for handle in handles]
        graphs = np.flatnonzero((event["kind"] == Kind.GRAPH_LAUNCH) | (after & event["after_graph"]))
        if len(graphs):
            numbers, codes = encode(event["handle"][graphs])
            which[graphs] = codes + np.int32(len(kernels))
            for index, graph in enumerate(self.graph(int(number)) for number in numbers):
                kernels.append(graph.kernel if graph else None)
                if graph:
                    launched = graphs[(codes == index) & (event["kind"][graphs] == Kind.GRAPH_LAUNCH)]
                    event["grid"][launched] = graph.kernels, graph.shapes, 0
        return kernels, which

    def _owners(self, event: Columns) -> tuple[list[Owner], NDArray[np.int32]]:
        threads, whose = encode(in_one(event["pid"], event["tid"]))
        return [self.owner(int(t) >> 32, int(t) & 0xFFFFFFFF) for t in threads], whose


def kernel_rows(kernels: Iterable[tuple[Kernel, str]], now_ns: int, host: str) -> pa.Table:
    """Rows of `kernels`, each first seen of its service at `now_ns` (Unix)."""
    return pa.Table.from_pylist(
        [
            {
                "kernel_id": kernel.id,
                "mangled_name": kernel.mangled,
                "kernel_name": kernel.name,
                "name_source": kernel.source,
                "first_seen_ns": now_ns,
                "service": service,
                "host": host,
            }
            for kernel, service in kernels
        ],
        schema=KERNELS,
    )


def encode(values: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Distinct values in order of appearance, and for each value its position among them."""
    if len(values) and (values == values[0]).all():
        return values[:1], np.zeros(len(values), np.int32)
    encoded = pa.array(values).dictionary_encode()
    return encoded.dictionary.to_numpy(), encoded.indices.to_numpy()


def named(which: NDArray[np.int32], names: Sequence[str]) -> pa.DictionaryArray:
    """Dictionary strings; equal names of different entries become one."""
    unique: dict[str, int] = {}
    codes = np.array([unique.setdefault(name, len(unique)) for name in names], np.int32)
    if len(unique) < 2:
        return constant(next(iter(unique), ""), len(which))
    return pa.DictionaryArray.from_arrays(pa.array(codes[which]), pa.array(list(unique), pa.string()))


def _dictionary(codes: NDArray[np.uint8], names: dict[int, str]) -> pa.DictionaryArray:
    """Dictionary strings of small codes; only those that occur are in the dictionary."""
    used = np.flatnonzero(np.bincount(codes, minlength=1))
    lookup = np.zeros(256, np.int32)
    lookup[used] = np.arange(len(used))
    values = pa.array([names[int(code)] for code in used], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(lookup[codes]), values)


def constant(value: str, count: int) -> pa.DictionaryArray:
    """Dictionary strings that are all alike."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([value], pa.string()))
