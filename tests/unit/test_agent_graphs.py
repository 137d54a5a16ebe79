"""What graphs hold, from the calls that make them; the calls as pairing gets them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from kdiff.agent import captures, graphs
from kdiff.agent.graphs import Graph, _simple
from kdiff.agent.names import Kernel
from kdiff.agent.pairing import Pairing
from kdiff.probes.points import POINTS
from kdiff.probes.wire import EVENT, Kind, Sync, WireFlags

NO_RETURN = int(WireFlags.NO_RETURN)
TO_GRAPH = next(number for number, point in enumerate(POINTS) if point.symbol == "cuStreamBeginCaptureToGraph")


def kernel(pid: int, generation: int, handle: int) -> Kernel:
    return Kernel(f"k{handle}", f"k{handle}", "load" if handle < 90 else "unresolved")


class Calls:
    """Calls one after another, and the graphs of the graph launches among them."""

    def __init__(self) -> None:
        self.pairing = Pairing()
        self.now = 0
        self.events: list[dict[str, Any]] = []

    def add(self, kind: Kind, handle: int = 0, stream: int = 7, **more: Any) -> Calls:
        self.now += 10
        self.events.append(
            {"timestamp_ns": self.now, "duration_ns": 5, "pid": 1, "tid": 1, "kind": kind, "handle": handle}
            | {"stream": stream, **more}
        )
        return self

    def launch(self, handle: int, **more: Any) -> Calls:
        return self.add(Kind.LAUNCH, handle, **{"grid": (4, 1, 1), "block": (64, 1, 1), **more})

    def captured(self, graph: int, *handles: int, **more: Any) -> Calls:
        self.add(Kind.CAPTURE_BEGIN)
        for handle in handles:
            self.launch(handle, **more)
        return self.add(Kind.CAPTURE_END, graph)

    def made(self, handle: int, source: int, **more: Any) -> Calls:
        return self.add(Kind.GRAPH_MADE, handle, source, **more)

    def ran(self, handle: int, **more: Any) -> Calls:
        return self.add(Kind.GRAPH_LAUNCH, handle, 7, **more)

    def graphs(self, *, one_by_one: bool = False) -> list[Graph | None]:
        records = np.zeros(len(self.events), EVENT)
        for record, event in zip(records, self.events, strict=True):
            for name, value in event.items():
                record[name] = value
        self.events = []
        parts = np.split(records, range(1, len(records))) if one_by_one else [records]
        rows = np.concatenate([self.pairing.feed(part, 0, last=not one_by_one) for part in parts])
        if one_by_one:
            rows = np.concatenate([rows, self.pairing.feed(records[:0], 0, last=True)])
        event = rows["event"][np.argsort(rows["event"]["timestamp_ns"], kind="stable")]
        numbers = event["handle"][event["kind"] == Kind.GRAPH_LAUNCH]
        return [self.pairing.graphs.of(int(number), kernel) for number in numbers]


def names(graphs: list[Graph | None]) -> list[str | None]:
    """Without the hash."""
    return [graph and graph.kernel.name.split(": ", 1)[1] for graph in graphs]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_what_was_captured_is_what_is_launched(one_by_one: bool) -> None:
    calls = Calls().captured(100, 3, 5, 3).made(200, 100).ran(200).ran(201).ran(200, pid=2)
    first, other, stranger = calls.graphs(one_by_one=one_by_one)
    assert first is not None
    assert first.kernel.name.startswith("(graph ")
    assert first.kernel.name.endswith(": 2 x k3, 1 x k5)")
    assert first.kernels == 3
    assert other is stranger is None


def test_a_handle_means_what_it_was_made_from_last() -> None:
    calls = Calls().captured(100, 3).made(200, 100).ran(200)
    calls.captured(100, 5).ran(200).made(200, 100).ran(200)  # instantiated again at the same handle, or updated
    calls.made(300, 200).made(100, 0).made(200, 100).ran(300).ran(200)  # a clone; made anew, and empty
    assert names(calls.graphs()) == ["1 x k3)", "1 x k3)", "1 x k5)", "1 x k5)", None]


def test_a_call_that_failed_makes_nothing() -> None:
    calls = Calls().captured(100, 3).made(200, 100).made(200, 0, status=1).ran(200)
    calls.add(Kind.CAPTURE_BEGIN, stream=9).add(Kind.CAPTURE_END, 100, 9, status=901).made(201, 100).ran(201)
    calls.made(202, 100, flags=NO_RETURN).ran(202)
    assert names(calls.graphs()) == ["1 x k3)", "1 x k3)", None]


def test_a_launch_that_failed_is_not_in_the_graph() -> None:
    calls = Calls().add(Kind.CAPTURE_BEGIN).launch(3).launch(5, status=1).add(Kind.CAPTURE_END, 100)
    assert names(calls.made(200, 100).ran(200).graphs()) == ["1 x k3)"]


def test_graphs_within_graphs_and_streams_that_joined() -> None:
    calls = Calls().captured(100, 3, 3).made(200, 100).add(Kind.CAPTURE_BEGIN)
    calls.launch(4).add(Kind.EVENT_RECORD, 31).add(Kind.STREAM_WAIT, 31, 9, flags=NO_RETURN, duration_ns=0)
    calls.launch(5, stream=9).ran(200).launch(6).add(Kind.CAPTURE_END, 101).made(201, 101).ran(201)
    whole = calls.graphs()[-1]
    assert whole is not None
    assert whole.kernels == 5
    assert names([whole]) == ["2 x k3, 1 x k4, 1 x k5, 1 more)"]


def test_what_may_not_be_all_is_not_known() -> None:
    into = Calls().add(Kind.CAPTURE_BEGIN, api=TO_GRAPH).launch(3).add(Kind.CAPTURE_END, 100).made(200, 100).ran(200)
    assert into.graphs() == [None]
    unknown_inside = Calls().add(Kind.CAPTURE_BEGIN).launch(3).ran(555).add(Kind.CAPTURE_END, 100).made(200, 100)
    assert unknown_inside.ran(200).graphs() == [None, None]
    assert Calls().captured(100, 3, 95).made(200, 100).ran(200).graphs() == [None]  # a kernel without a name
    assert Calls().captured(100).made(200, 100).ran(200).graphs() == [None]  # no kernel
    lost = Calls().captured(100, 3).made(200, 100).ran(200)
    lost.pairing.events_lost({1})
    assert lost.graphs() == [None]
    known_before = Calls().captured(100, 3).made(200, 100)
    known_before.graphs()
    known_before.pairing.events_lost({1})
    assert known_before.captured(100, 5).made(200, 100).ran(200).graphs() == [None]
    halfway = Calls().add(Kind.CAPTURE_BEGIN).launch(3)
    halfway.graphs()
    halfway.pairing.events_lost({0})
    halfway.launch(5).graphs()
    assert halfway.add(Kind.CAPTURE_END, 100).made(200, 100).ran(200).graphs() == [None]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_graph_of_a_capture_that_was_not_seen_is_not_what_the_one_before_it_was(one_by_one: bool) -> None:
    calls = Calls().captured(100, 3).made(200, 100).ran(200)
    calls.launch(5).add(Kind.CAPTURE_END, 100).made(200, 100).ran(200)
    assert names(calls.graphs(one_by_one=one_by_one)) == ["1 x k3)", None]


def test_a_stream_that_left_before_the_end_leaves_the_graph_unknown() -> None:
    calls = Calls().add(Kind.CAPTURE_BEGIN).add(Kind.EVENT_RECORD, 31).add(Kind.STREAM_WAIT, 31, 9, duration_ns=0)
    calls.launch(5, stream=9).launch(4).add(Kind.SYNC, 0, 9, sync=Sync.STREAM).add(Kind.CAPTURE_END, 100)
    assert calls.made(200, 100).ran(200).graphs() == [None]
    failed = Calls().add(Kind.CAPTURE_BEGIN).add(Kind.EVENT_RECORD, 31).add(Kind.STREAM_WAIT, 31, 9, duration_ns=0)
    failed.launch(5, stream=9).add(Kind.CAPTURE_END, 0, 9, status=903).launch(6, stream=9).add(Kind.CAPTURE_END, 100)
    assert names(failed.made(200, 100).ran(200).graphs()) == ["1 x k5, 1 x k6)"]


def test_a_graph_within_a_graph_is_what_it_was_when_it_was_launched_or_not_known() -> None:
    calls = Calls().captured(100, 3).made(200, 100).add(Kind.CAPTURE_BEGIN, stream=9)
    calls.add(Kind.GRAPH_LAUNCH, 200, 9).captured(101, 5).made(200, 101).add(Kind.CAPTURE_END, 102, 9).made(
        202, 102
    ).ran(202)
    assert names(calls.graphs()) == ["1 x k3)", None]


def test_a_capture_that_never_ends_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "_MOST_NODES", 3)
    calls = Calls().captured(100, 3, 3, 3).made(200, 100).ran(200).captured(100, 3, 3, 3, 3).made(200, 100).ran(200)
    assert names(calls.graphs(one_by_one=True)) == ["3 x k3)", None]


def test_without_room_what_no_handle_stands_for_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_MOST_NODES", 4 * (1 + graphs._OVERHEAD))
    calls = Calls().captured(100, 7).made(300, 100).ran(300)
    for grid in range(1, 20):  # captured again and again, each time with another grid
        calls.captured(100, 3, grid=(grid, 1, 1)).made(200, 100).ran(200)
    calls.captured(100, *([3] * 60)).made(201, 100).ran(201).ran(300)
    found = names(calls.graphs(one_by_one=True))
    assert found[-5:] == ["1 x k3)", "1 x k3)", "1 x k3)", None, "1 x k7)"]
    assert len(calls.pairing.graphs._held) <= 4


def test_beyond_the_most_handles_no_more_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_MOST_HANDLES", 2)
    calls = Calls().captured(100, 3).made(200, 100).made(201, 100).ran(201).made(200, 100).ran(200)
    assert names(calls.graphs()) == [None, "1 x k3)"]


def test_the_same_kernels_in_the_same_order_are_one_graph_whatever_their_grids() -> None:
    one, other = Calls().captured(100, 3, 5).made(200, 100).captured(101, 3, 5, grid=(8, 1, 1)).made(201, 101), Calls()
    small, large = one.ran(200).ran(201).graphs()
    (elsewhere,) = other.captured(7, 3, 5).made(8, 7).ran(8).graphs()
    (turned,) = Calls().captured(7, 5, 3).made(8, 7).ran(8).graphs()
    assert small is not None
    assert large is not None
    assert turned is not None
    assert small == elsewhere
    assert small.kernel == large.kernel
    assert small.shapes != large.shapes
    assert turned.kernel.id != small.kernel.id


def test_a_process_that_ends_takes_its_handles_along_but_not_what_is_still_to_be_written() -> None:
    calls = Calls().captured(100, 3).made(200, 100).ran(200)
    before = calls.graphs()
    calls.pairing.process_ended(1)
    assert names([*before, *calls.ran(200).graphs()]) == ["1 x k3)", None]


@pytest.mark.parametrize(
    ("name", "simple"),
    [
        ("fused_gelu", "fused_gelu"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::F<float>, std::array<char*, 2ul> >(int)",
         "vectorized_elementwise_kernel"),
        ("void (anonymous namespace)::softmax_warp_forward<float, 10>(float*, int)", "softmax_warp_forward"),
        ("gemm(float*)", "gemm"),
        ("triton_poi_fused_add_0d1d2d", "triton_poi_fused_add_0d1d2d"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "sm90_xmma_gemm_bf16bf16_bf16f32…"[:31] + "…"),
        ("ns::operator()<int>(int)", "operator"),
    ],
)  # fmt: skip
def test_short_names(name: str, simple: str) -> None:
    assert _simple(name) == simple


def test_a_long_name_is_shortened_at_once() -> None:
    began = time.process_time()
    assert _simple("a" * 60_000 + "[abi:cxx11](int)") == "a" * 31 + "…"
    assert time.process_time() - began < 1.0
