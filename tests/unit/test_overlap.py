"""The sweep over executions against a count of every nanosecond, and what is told of queues and overlap."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import captures
from captures import MINUTE, SECOND, T0
from kdiff.analysis import overlap
from kdiff.analysis.device import DeviceRecording
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.overlap import read_activity, sweep
from kdiff.analysis.share import Share, moved
from kdiff.analysis.window import Window
from kdiff.queries.store import CaptureStore

pytestmark = pytest.mark.usefixtures("engine")

WINDOW = Window(T0, T0 + 2 * MINUTE)
Execution = tuple[int, int, int]  # group, start, length


def brute(executions: list[Execution]) -> tuple[list[int], dict[int, int]]:
    """Every nanosecond of every execution, looked up in all others of its group: O(n^2)."""
    shared = []
    for i, (group, start, length) in enumerate(executions):
        beside: set[int] = set()
        for j, (other, begin, size) in enumerate(executions):
            if i != j and other == group:
                beside |= set(range(max(start, begin), min(start + length, begin + size)))
        shared.append(len(beside))
    union: dict[int, set[int]] = {}
    for group, start, length in executions:
        union.setdefault(group, set()).update(range(start, start + length))
    return shared, {group: len(held) for group, held in union.items()}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=30))
@settings(max_examples=300, deadline=None)
def test_the_sweep_is_exact(executions: list[Execution]) -> None:
    used = sorted({group for group, _, _ in executions})
    group = np.array([used.index(g) for g, _, _ in executions])
    start = np.array([s for _, s, _ in executions], np.int64)
    length = np.array([n for _, _, n in executions], np.int64)
    found = sweep(group, start, start + length, len(used))
    shared, union = brute(executions)
    assert found.shared.tolist() == shared
    assert found.union().tolist() == [union[g] for g in used]


def test_times_too_far_apart_for_one_number_are_sorted_all_the_same() -> None:
    far = 2**62
    group, start = np.array([1, 0, 1, 0]), np.array([far, 5, far + 3, 0], np.int64)
    found = sweep(group, start, start + np.array([10, 5, 2, 7]), 2)
    assert found.shared.tolist() == [2, 2, 2, 2]
    assert found.union().tolist() == [10, 10]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 119), st.integers(0, 40)), min_size=1, max_size=25),
    st.integers(1, 13),
)
@settings(max_examples=200, deadline=None)
def test_the_busy_time_of_a_stretch_is_exact(executions: list[Execution], width: int) -> None:
    used = sorted({group for group, _, _ in executions})
    start = np.array([s for _, s, _ in executions], np.int64)
    length = np.array([n for _, _, n in executions], np.int64)
    found = sweep(np.array([used.index(g) for g, _, _ in executions]), start, start + length, len(used))
    buckets = -(-120 // width)
    got = overlap._busy(found, buckets, width)
    held = {g: {t for group, s, n in executions if group == g for t in range(s, s + n)} for g in used}
    edges = [*(width * i for i in range(buckets)), 10_000]
    assert got.tolist() == [sum(len(held[g] & set(range(a, b))) for g in used) for a, b in pairwise(edges)]


# ---- from a capture ----


def activity(root: Path) -> Any:
    with CaptureStore(root) as store:
        evidence = Evidence(store, WINDOW)
        census = evidence.census()
        names = sorted(census)
        found = read_activity(evidence, {key: i for i, name in enumerate(names) for key in census[name].keys})
        assert found is not None
        return {name: found.kernels[i] for i, name in enumerate(names)}, found.busy


def ran(root: Path, name: str, first: int, step: int, duration: int, count: int, **columns: Any) -> None:
    times = T0 + first + step * np.arange(count)
    segment = f"{name}-{first}-{columns.get('stream', 0)}-{columns.get('pid', 0)}-{columns.get('gpu_uuid', '')}"
    captures.write(root, "kernel_executions", captures.executions(name, times, duration, **columns), segment)


def test_overlap_busy_and_queue_have_their_exact_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ms of a stream: `a` from 0 to 400 us; on another stream `b` from 300 to 900 us: 100 us of both."""
    count = 120_000
    monkeypatch.setattr(overlap, "MAX_EXECUTIONS", 3 * count)
    ran(tmp_path, "a", 0, 1_000_000, 400_000, count, stream=7, queue_ns=3_001 + np.arange(count) % 2)
    ran(tmp_path, "b", 300_000, 1_000_000, 600_000, count, stream=8)
    # Neither another GPU nor another process runs beside these.
    ran(tmp_path, "c", 0, 2_000_000, 1_000_000, count // 2, stream=7, gpu_uuid="GPU-2")
    ran(tmp_path, "d", 0, 2_000_000, 1_000_000, count // 2, stream=7, pid=5)
    kernels, busy = activity(tmp_path)
    assert {name: kernels[name].overlap.value for name in "abcd"} == pytest.approx(
        {"a": 100 / 400, "b": 100 / 600, "c": 0.0, "d": 0.0}
    )
    assert {name: kernels[name].stream_busy for name in "abcd"} == pytest.approx(
        {"a": 0.4, "b": 0.6, "c": 0.5, "d": 0.5}
    )
    # Of three devices all the time: 0.9, 0.5 and 0.5.
    assert busy.value == pytest.approx(1.9 / 3)
    queue = kernels["a"].queue
    assert (queue.durations_ns.size, int(np.median(queue.durations_ns))) == (count, 3_001)
    assert kernels["b"].queue is None


def test_shares_are_of_the_timed_time(tmp_path: Path) -> None:
    """One second of ten is timed; the device is busy half of it, and idle as far as is known otherwise."""
    starts = T0 + SECOND // 2 + 10 * SECOND * np.arange(12)
    captures.write(tmp_path, "device_windows", captures.device_windows(starts, executions=1_000))
    times = (starts[:, None] + 1_000_000 * np.arange(1_000)).ravel()
    captures.write(tmp_path, "kernel_executions", captures.executions("a", times, 500_000))
    kernels, busy = activity(tmp_path)
    assert busy.value == pytest.approx(0.5)
    assert kernels["a"].stream_busy == pytest.approx(0.5)
    assert busy.whole.sum() == pytest.approx(12 * SECOND)


def test_of_very_many_executions_some_slices_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran(tmp_path, "a", 0, 1_000_000, 400_000, 120_000, stream=7)
    ran(tmp_path, "b", 300_000, 1_000_000, 600_000, 120_000, stream=8)
    monkeypatch.setattr(overlap, "MAX_EXECUTIONS", 100_000)
    kernels, busy = activity(tmp_path)
    assert busy.whole.sum() == overlap.LEAST_SLICES * SECOND
    assert int((kernels["a"].overlap.whole > 0).sum()) == overlap.LEAST_SLICES
    assert kernels["a"].overlap.value == pytest.approx(0.25)
    assert busy.value == pytest.approx(0.9, rel=1e-4)


def test_slices_are_not_in_step_with_device_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of ten is timed over two hours; the device is busy for 0.2 of the first hour, for 0.6 of the second."""
    window = Window(T0, T0 + 120 * MINUTE)
    starts = T0 + 3 * SECOND + SECOND // 3 + 10 * SECOND * np.arange(720)
    captures.write(tmp_path, "device_windows", captures.device_windows(starts, executions=100))
    times = (starts[:, None] + SECOND // 100 * np.arange(100)).ravel()
    durations = np.where(times < T0 + 60 * MINUTE, 2_000_000, 6_000_000)
    captures.write(tmp_path, "kernel_executions", captures.executions("a", times, durations))
    monkeypatch.setattr(overlap, "MAX_EXECUTIONS", 7_200)
    monkeypatch.setattr(overlap, "LEAST_SLICES", 0)
    with CaptureStore(tmp_path) as store:
        evidence = Evidence(store, window)
        [counts] = evidence.census().values()
        found = read_activity(evidence, dict.fromkeys(counts.keys, 0))
    assert found is not None
    assert found.busy.whole.sum() == pytest.approx(72 * SECOND, rel=0.02)
    assert 50 <= int((found.busy.whole > 0).sum()) <= 120
    for half, share in ((slice(None, 60), 0.2), (slice(60, None), 0.6)):
        assert found.busy.part[half].sum() == pytest.approx(share * found.busy.whole[half].sum(), rel=0.02)
    assert found.busy.value == pytest.approx(0.4, rel=0.03)


@pytest.mark.parametrize(
    ("days", "timed"), [(90, 200_000), (90, 2_000_000), (90, 10**12), (90_000, 200_000), (90_000, 10**12)]
)
def test_long_windows_have_no_more_slices_than_can_be_held(days: int, timed: int) -> None:
    """A process is timed for a second of each 10,000: of that the share is read which is wanted."""
    window = Window(0, days * 1440 * MINUTE)
    begins = np.arange(0, window.to_ns, 10_000 * SECOND)
    device = DeviceRecording(stretches={("host-1", 7): np.stack([begins, begins + SECOND], 1)})
    source: Any = SimpleNamespace(window=window, device=device, timed_processes={1: ("host-1", 7)})
    slices = overlap._Slices.of(source, timed)
    assert slices.buckets * slices.each <= overlap.MOST_SLICES
    assert slices.bounds()[0].size <= 1.1 * overlap.MOST_READ
    read = overlap._covered(source, np.array([1], np.uint64), slices).sum() / device.covered_ns
    assert read == pytest.approx(slices.chosen / 2**32, rel=0.2, abs=3 / slices.bounds()[0].size)


def share(value: float, noise: float, seed: int, stretches: int = 120) -> Share:
    rng = np.random.default_rng(seed)
    whole = rng.uniform(0.5e8, 1.5e8, stretches)
    return Share(whole * np.clip(value + rng.normal(0, noise, stretches), 0, 1), whole)


def test_a_share_moves_only_beyond_its_noise() -> None:
    false = sum(moved(share(0.5, 0.2, 2 * i), share(0.5, 0.2, 2 * i + 1), 0.0) for i in range(1_000))
    assert false <= 8
    assert all(moved(share(0.5, 0.2, 2 * i), share(0.75, 0.2, 2 * i + 1), 0.1) for i in range(50))
    assert not moved(share(0.5, 0.0, 1), share(0.55, 0.0, 2), 0.1)
    assert not moved(share(0.9, 0.0, 1, stretches=9), share(0.1, 0.0, 2), 0.1)
    assert Share(np.zeros(3), np.zeros(3)).value == 0.0
