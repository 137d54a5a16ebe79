"""kdiff.agent.queueing: an execution gets its own launch or none, whatever is missing and however alike they are."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdiff.agent.queueing import NEVER, Executions, Extent, Launches, keys, match

LATENCY = 4_000


class Run:
    """A program on one stream: what it launched, what ran, and which execution is of which launch."""

    def __init__(
        self,
        kernels: NDArray[np.int64],
        gaps: NDArray[np.int64],
        lengths: NDArray[np.int64],
        sync_every: int = 0,
        call: int = 2_000,
    ) -> None:
        count = len(kernels)
        self.entered = np.zeros(count, np.int64)
        self.start = np.zeros(count, np.int64)
        self.end = np.zeros(count, np.int64)
        self.proven = np.full(count, NEVER, np.int64)
        now, free, unproven = 10**9, 0, 0
        for i in range(count):
            now += int(gaps[i]) + call
            self.entered[i] = now
            self.start[i] = max(now + LATENCY, free + 1_000)
            free = self.end[i] = self.start[i] + int(lengths[i])
            if sync_every and i % sync_every == sync_every - 1:
                now = max(now + call, free) + 5_000
                self.proven[unproven : i + 1] = now
                unproven = i + 1
        self.left = self.entered + call
        self.key = keys(kernels.astype(np.uint64), np.ones((count, 3), np.uint32), np.ones((count, 3), np.uint32))
        self.tid = np.ones(count, np.uint32)

    def matched(
        self, first: int, last: int, inside: int, without: list[int] | None = None, foreign: list[int] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(found, true) for a window in which launches first..last are collected, but for `without`.

        The window's own times are only that exact: opening and closing take `inside`, somewhere in which it happens.
        `foreign`: launches of a kernel that the host never sees launched.
        """
        ran = np.setdiff1d(np.arange(first, last), without or [])
        known = np.setdiff1d(np.arange(len(self.key)), foreign or [])
        key = self.key.copy()
        key[foreign or []] = 0
        extent = Extent(int(self.entered[first]) - inside, int(self.entered[last - 1]) + inside)
        whole = not np.isin(without or [], np.arange(first, last)).any()
        executions = Executions(key[ran], self.start[ran], self.end[ran], 1_000, whole)
        launches = Launches(*(c[known] for c in (self.key, self.entered, self.left, self.proven, self.tid)))
        found = match(executions, launches, extent)
        return np.where(found >= 0, known[found], -1), ran


def steady(count: int, kernels: int, gap: int, length: int, sync_every: int = 0, seed: int = 1) -> Run:
    """A loop over some kernels."""
    random = np.random.default_rng(seed)
    return Run(
        np.arange(count) % kernels,
        random.integers(gap // 2, gap * 3 // 2 + 1, count),
        random.integers(length // 2, length * 3 // 2 + 1, count),
        sync_every,
    )


@pytest.mark.parametrize("kernels", [1, 3, 7])
@pytest.mark.parametrize(("gap", "length"), [(3_000, 2_000), (3_000, 40_000)], ids=["launch-bound", "queued"])
def test_with_syncs_every_execution_has_its_launch(kernels: int, gap: int, length: int) -> None:
    found, true = steady(5_003, kernels, gap, length, sync_every=11).matched(701, 4_203, inside=300_000)
    assert found.tolist() == true.tolist()


def test_what_is_alike_behind_a_deep_queue_stays_unknown() -> None:
    found, _ = steady(5_003, 1, 3_000, 40_000).matched(701, 1_203, inside=300_000)
    assert (found == -1).all()


def test_a_long_sequence_that_never_repeats_needs_no_sync() -> None:
    run = Run(np.random.default_rng(3).integers(0, 40, 5_003), np.full(5_003, 3_000), np.full(5_003, 40_000))
    found, true = run.matched(701, 4_203, inside=300_000)
    assert found.tolist() == true.tolist()


def test_a_window_that_opens_in_a_pause_is_exact_without_a_sync() -> None:
    run = steady(1_009, 1, 3_000, 2_000)
    found, true = run.matched(0, 1_009, inside=0)
    assert found.tolist() == true.tolist()


GONE = [1_000, 1_001, 1_500, 2_222, 3_001, 3_002, 3_003]


def test_around_missing_executions_the_rest_is_found() -> None:
    found, true = steady(5_003, 13, 3_000, 9_000, sync_every=17).matched(701, 4_203, 200_000, without=GONE)
    known = found >= 0
    assert (found[known] == true[known]).all()
    assert known.mean() > 0.95


def test_kernels_that_the_host_never_sees_are_passed_over() -> None:
    found, true = steady(5_003, 13, 3_000, 9_000, sync_every=17).matched(701, 4_203, 200_000, foreign=GONE)
    assert found.tolist() == np.where(np.isin(true, GONE), -1, true).tolist()


def test_concurrent_calls_that_are_alike_are_not_told_apart() -> None:
    run = steady(1_009, 1, 3_000, 2_000, sync_every=10)
    run.tid = (np.arange(1_009) % 2).astype(np.uint32)
    run.left = run.left + 6_000  # each call overlaps the next
    assert (run.matched(100, 900, 0)[0] == -1).all()


def test_another_programs_launches_match_nothing() -> None:
    run = steady(2_003, 5, 3_000, 2_000, sync_every=10)
    other = steady(2_003, 5, 3_000, 2_000, sync_every=10)
    run.key = run.key + np.uint64(1)
    launches = Launches(other.key, other.entered, other.left, other.proven, other.tid)
    executions = Executions(run.key, run.start, run.end, 1_000, True)
    assert (match(executions, launches, Extent(0, 2**62)) == -1).all()


def test_nothing_on_either_side() -> None:
    nothing = steady(0, 1, 3_000, 2_000)
    launches = Launches(nothing.key, nothing.entered, nothing.left, nothing.proven, nothing.tid)
    executions = Executions(nothing.key, nothing.start, nothing.end, 1_000, True)
    assert len(match(executions, launches, Extent(0, 2**62))) == 0
    some = steady(3, 1, 3_000, 2_000)
    executions = Executions(some.key, some.start, some.end, 1_000, True)
    assert match(executions, launches, Extent(0, 2**62)).tolist() == [-1, -1, -1]


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kernels=st.integers(1, 6),
    gap=st.sampled_from([0, 1_000, 10_000]),
    length=st.sampled_from([1_000, 5_000, 30_000]),
    sync_every=st.sampled_from([0, 3, 50]),
    inside=st.sampled_from([0, 20_000, 500_000]),
    lost=st.sets(st.integers(0, 599), max_size=6),
    foreign=st.sets(st.integers(0, 599), max_size=3),
    threads=st.sampled_from([1, 1, 3]),
    loop=st.booleans(),
)
def test_never_another_ones_launch(
    seed: int,
    kernels: int,
    gap: int,
    length: int,
    sync_every: int,
    inside: int,
    lost: set[int],
    foreign: set[int],
    threads: int,
    loop: bool,
) -> None:
    random = np.random.default_rng(seed)
    which = np.arange(600) % kernels if loop else random.integers(0, kernels, 600)
    run = Run(which, random.integers(0, gap + 1, 600), random.integers(length // 2, length + 1, 600), sync_every)
    run.tid = random.integers(0, threads, 600).astype(np.uint32)
    first, last = sorted(random.integers(0, 601, 2))
    if first == last:
        return
    found, true = run.matched(int(first), int(last), inside, sorted(lost - foreign), sorted(foreign))
    known = found >= 0
    assert (found[known] == true[known]).all()


@pytest.mark.parametrize("kernels", [1, 20])
@pytest.mark.parametrize("sync_every", [0, 1_000])
def test_a_window_of_150_000_takes_well_under_a_second(kernels: int, sync_every: int) -> None:
    run = steady(200_000, kernels, 3_000, 2_000, sync_every)
    began = time.process_time()
    run.matched(20_000, 170_000, 1_000_000)
    assert time.process_time() - began < 1
