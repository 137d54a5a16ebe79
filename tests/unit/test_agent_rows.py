"""kdiff.agent.rows: from paired records to the columns of cuda_events, value for value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kdiff.agent.graphs import Graph
from kdiff.agent.names import Kernel
from kdiff.agent.pairing import PAIRED
from kdiff.agent.rows import Owner, RowMaker
from kdiff.agent.service_names import Services
from kdiff.probes.points import POINTS
from kdiff.probes.wire import Kind, WireFlags
from kdiff.queries.tables import CUDA_EVENTS, EventFlags

API = {point.symbol: number for number, point in enumerate(POINTS)}
ONE, TWO = Kernel("_Z3onev", "one()", "load"), Kernel("two", "two", "handle")
NONE = Kernel("unresolved:ab+0x1", "unresolved:ab+0x1", "unresolved")


def paired(*records: dict[str, Any]) -> np.ndarray:
    rows = np.zeros(len(records), PAIRED)
    for row, record in zip(rows, records, strict=True):
        for name, value in record.items():
            if name in ("completion_ns", "batch_launches", "captured", "after_graph", "clock_offset_ns"):
                row[name] = value
            else:
                row["event"][name] = value
    return rows


class Lookups:
    """What is known of handles and threads, and what was asked."""

    def __init__(self) -> None:
        self.kernels = {(1, 0, 16): ONE, (1, 0, 32): TWO, (1, 5, 16): TWO, (2, 0, 16): NONE}
        self.asked: list[tuple[int, ...]] = []

    def kernel(self, pid: int, generation: int, handle: int) -> Kernel:
        self.asked.append((pid, generation, handle))
        return self.kernels[pid, generation, handle]

    def owner(self, pid: int, tid: int) -> Owner:
        self.asked.append((pid, tid))
        return Owner(f"comm{tid}", "c" * 64 if pid == 2 else "", f"GPU-{pid}")


def made(*records: dict[str, Any], lookups: Lookups | None = None) -> tuple[list[dict[str, Any]], set[Kernel]]:
    known = lookups or Lookups()
    table, kernels = RowMaker(Services("svc").periods, "host-1", known.kernel, known.owner, boot_id="b-1").make(
        paired(*records)
    )
    assert table.schema.equals(CUDA_EVENTS)
    table.validate(full=True)
    assert {service for _, service in kernels} <= {"svc"}
    return table.to_pylist(), {kernel for kernel, _ in kernels}


LAUNCH = {
    "timestamp_ns": 1_764_237_600_000_000_123, "duration_ns": 4567, "handle": 16, "stream": 2**64 - 1, "pid": 1,
    "tid": 11, "grid": [2**31 - 1, 65535, 3], "block": [1024, 2, 1], "shared_bytes": 232_448, "status": 0,
    "kind": Kind.LAUNCH, "api": API["cudaLaunchKernel_ptsz"], "completion_ns": 99_000, "batch_launches": 7,
    "clock_offset_ns": 1_764_000_000_000_000_077,
}  # fmt: skip


def test_every_column_of_a_launch() -> None:
    rows, kernels = made(LAUNCH)
    assert rows == [
        {
            "timestamp_ns": 1_764_237_600_000_000_123, "duration_ns": 4567, "kind": "launch", "api": "cudaLaunchKernel",
            "kernel_name": "one()", "kernel_id": ONE.id, "service": "svc", "host": "host-1", "gpu_uuid": "GPU-1",
            "pid": 1, "container_id": "", "tid": 11, "comm": "comm11", "stream": 2**64 - 1, "grid_x": 2**31 - 1,
            "grid_y": 65535, "grid_z": 3, "block_x": 1024, "block_y": 2, "block_z": 1, "shared_bytes": 232_448,
            "status": 0, "completion_ns": 99_000, "batch_launches": 7, "flags": 0,
            "boot_id": "b-1", "clock_offset_ns": 1_764_000_000_000_000_077,
            "runnable_ns": None, "blocked_ns": None, "runnable_before_ns": None, "blocked_before_ns": None,
        }
    ]  # fmt: skip
    assert kernels == {ONE}


def test_syncs_and_graph_launches_have_no_kernel() -> None:
    sync = {"kind": Kind.SYNC, "api": API["cuCtxSynchronize_v2"], "handle": 16, "pid": 1, "status": -7}
    graph = {"kind": Kind.GRAPH_LAUNCH, "api": API["cuGraphLaunch"], "handle": 77, "pid": 1, "completion_ns": 5}
    rows, kernels = made(sync, graph)
    assert [(r["kind"], r["api"], r["kernel_name"], r["kernel_id"], r["status"], r["flags"]) for r in rows] == [
        ("sync", "cuCtxSynchronize_v2", "", 0, -7, 0),
        ("graph_launch", "cuGraphLaunch", "", 0, 0, 0),
    ]
    assert kernels == set()


def test_only_launches_and_syncs_become_rows() -> None:
    others = [{"kind": kind, "pid": 1} for kind in (Kind.CAPTURE_BEGIN, Kind.CAPTURE_END, Kind.INIT)]
    rows, _ = made(others[0], LAUNCH, others[1], others[2], {"kind": Kind.SYNC, "pid": 1})
    assert [row["kind"] for row in rows] == ["launch", "sync"]


@pytest.mark.parametrize("records", [(), ({"kind": Kind.INIT, "pid": 1},)])
def test_no_rows(records: tuple[dict[str, Any], ...]) -> None:
    assert made(*records) == ([], set())


def test_flags_are_of_each_row() -> None:
    rows, _ = made(
        {**LAUNCH, "captured": True},
        {**LAUNCH, "pid": 2, "flags": WireFlags.NO_RETURN | WireFlags.PER_THREAD},
        {**LAUNCH, "flags": WireFlags.RUNTIME_HANDLE | WireFlags.PER_THREAD},
        {"kind": Kind.SYNC, "pid": 2, "flags": WireFlags.NO_RETURN},
    )
    assert [row["flags"] for row in rows] == [
        EventFlags.CAPTURED,
        EventFlags.UNRESOLVED | EventFlags.NO_RETURN,
        0,
        EventFlags.NO_RETURN,
    ]


def test_a_handle_means_something_else_in_another_process_or_generation() -> None:
    lookups = Lookups()
    rows, kernels = made(
        LAUNCH,
        {**LAUNCH, "pid": 2, "tid": 21},
        {**LAUNCH, "generation": 5},
        {**LAUNCH, "handle": 32},
        LAUNCH,
        {"kind": Kind.SYNC, "pid": 2, "tid": 22},
        lookups=lookups,
    )
    assert [row["kernel_name"] for row in rows] == ["one()", NONE.name, "two", "two", "one()", ""]
    assert [row["kernel_id"] for row in rows] == [ONE.id, NONE.id, TWO.id, TWO.id, ONE.id, 0]
    assert [(r["comm"], r["gpu_uuid"], bool(r["container_id"])) for r in rows] == [
        ("comm11", "GPU-1", False), ("comm21", "GPU-2", True), ("comm11", "GPU-1", False), ("comm11", "GPU-1", False),
        ("comm11", "GPU-1", False), ("comm22", "GPU-2", True),
    ]  # fmt: skip
    assert kernels == {ONE, TWO, NONE}
    assert len(lookups.asked) == len(set(lookups.asked)), "nothing is asked twice"


def test_a_sync_is_named_by_the_last_launch_that_it_proves() -> None:
    graph = Graph(Kernel("graph:1", "(graph 1: 2 x k)", "capture"), 2, 77)
    known = Lookups()
    maker = RowMaker(Services("svc").periods, "host-1", known.kernel, known.owner, {8: graph}.get)
    after = {"kind": Kind.SYNC, "pid": 1, "batch_launches": 3, "handle": 16}
    table, kernels = maker.make(
        paired(
            after,
            {**after, "batch_launches": 0},
            {**after, "handle": 8, "after_graph": True},
            {**after, "handle": 9, "after_graph": True},
            {**after, "pid": 2},
            {"kind": Kind.GRAPH_LAUNCH, "pid": 1, "handle": 8},
        )
    )
    rows = table.to_pylist()
    assert [row["kernel_name"] for row in rows] == [ONE.name, "", "(graph 1: 2 x k)", "", NONE.name, "(graph 1: 2 x k)"]
    assert [row["grid_x"] for row in rows] == [0, 0, 0, 0, 0, 2]
    assert {row["flags"] for row in rows} == {0}
    assert kernels == {(ONE, "svc"), (NONE, "svc"), (graph.kernel, "svc")}


def test_unresolved_rows_are_counted() -> None:
    known = Lookups()
    table, _ = RowMaker(Services("svc").periods, "host-1", known.kernel, known.owner).make(
        paired(LAUNCH, {**LAUNCH, "pid": 2}, {**LAUNCH, "pid": 2, "captured": True}, {"kind": Kind.SYNC, "pid": 2})
    )
    assert RowMaker.by_service(table) == {"svc": (4, 2)}


def test_rows_are_of_the_service_that_their_process_was_then() -> None:
    known = Lookups()
    periods = {1: [(0, "a"), (200, "b"), (300, "c")], 2: [(500, "b")], 3: [(0, "a")]}
    calls = [(1, 199), (2, 100), (1, 200), (3, 400), (1, 299), (1, 2**62), (1, 0)]
    # The host's clock is set back again and again: names follow the one that is not.
    set_back = [(pid, at, 10_000 - 1_000 * number) for number, (pid, at) in enumerate(calls)]
    events = paired(
        *({**LAUNCH, "pid": pid, "timestamp_ns": at + by, "clock_offset_ns": by} for pid, at, by in set_back)
    )
    events["event"]["kind"][3], events["batch_launches"][3] = Kind.SYNC, 0
    table, kernels = RowMaker(periods.__getitem__, "host-1", known.kernel, known.owner).make(events)
    assert table["service"].to_pylist() == ["a", "b", "b", "a", "b", "c", "a"]
    assert kernels == {(ONE, "a"), (NONE, "b"), (ONE, "b"), (ONE, "c")}
    assert RowMaker.by_service(table) == {"a": (3, 0), "b": (3, 1), "c": (1, 0)}


def test_every_function_by_the_name_people_write() -> None:
    rows, _ = made(*({**LAUNCH, "api": number} for number in range(len(POINTS))))
    assert [row["api"] for row in rows] == [point.symbol.removesuffix("_ptsz") for point in POINTS]
