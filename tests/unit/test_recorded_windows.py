"""Short windows of a real recording: whichever are compared, what is said is true. All of them: bench_recorded.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pytest
from executions import (
    SERVING,
    SWAP,
    SWAPPED,
    Executions,
    Key,
    apart,
    judged,
    judged_by_mix,
    phases,
    slices,
)

from kdiff.analysis.sample import Sample
from kdiff.analysis.verdict import Policy, Verdict
from kdiff.analysis.window import Window

P99: Final = Policy()
P90: Final = Policy(quantile=0.9)
STEP_S: Final = 7.5
GRIDS: Final = (64, 512, 2048, 8192)

Judge = Callable[[dict[Key, Sample], dict[Key, Sample], Policy], dict[Key, Verdict]]


@pytest.fixture(scope="module")
def kernels() -> Executions:
    return Executions.read(SERVING / "device.parquet")


@pytest.fixture(scope="module")
def shapes() -> Executions:
    return Executions.read(SERVING / "device.parquet", by_shape=True)


def windows(seconds: float) -> tuple[list[Window], list[Window]]:
    """Those of A and B, which ran the same program, and those of C, which ran a slower fused_gelu."""
    cut = {phase: slices(window, seconds, STEP_S) for phase, window in phases().items()}
    return cut["A"] + cut["B"], cut["C"]


def names(verdicts: dict[Key, Verdict], verdict: Verdict) -> set[Key]:
    return {key for key, found in verdicts.items() if found is verdict}


def of_swapped(verdicts: dict[Key, Verdict]) -> list[Verdict]:
    """Of the swapped kernel, or of its shapes, the smallest first."""
    return [verdict for key, verdict in sorted(verdicts.items()) if key[0] == SWAPPED]


@pytest.mark.parametrize("seconds", [10, 15, 20])
def test_by_kernel(kernels: Executions, shapes: Executions, seconds: int) -> None:
    """Of all launches together, and at one mix of their shapes, as a comparison does."""
    same, slower = windows(seconds)
    for source, judge in ((kernels, judged), (shapes, judged_by_mix)):
        cut = {window: source.samples(window) for window in same + slower}
        pairs = [*apart(same, same)]
        assert len(pairs) >= 2
        for before, after in pairs:
            assert names(judge(cut[before], cut[after], P99), Verdict.REGRESSED) == set()
        for before, after in apart(same, slower):
            there, back = (judge(cut[a], cut[b], P99) for a, b in ((before, after), (after, before)))
            assert names(there, Verdict.REGRESSED) == {(SWAPPED, 0, 0)}
            assert names(back, Verdict.REGRESSED) == set()
            assert of_swapped(back) == [Verdict.IMPROVED]


@pytest.mark.parametrize("seconds", [15, 20])
def test_each_of_the_four_shapes(shapes: Executions, seconds: int) -> None:
    """Of the largest there are 400 to 700 launches, enough for a p90."""
    same, slower = windows(seconds)
    cut = {window: shapes.samples(window) for window in same + slower}
    for before, after in apart(same, same):
        assert names(judged(cut[before], cut[after], P90), Verdict.REGRESSED) == set()
    for before, after in apart(same, slower):
        there, back = (judged(cut[a], cut[b], P90) for a, b in ((before, after), (after, before)))
        assert names(there, Verdict.REGRESSED) == {(SWAPPED, grid, 1) for grid in GRIDS}
        assert of_swapped(back) == [Verdict.IMPROVED] * len(GRIDS)
        assert names(back, Verdict.REGRESSED) == set()


def test_shapes_too_rare_for_a_p99_do_not_pass(shapes: Executions) -> None:
    same, slower = windows(15)
    cut = {window: shapes.samples(window) for window in same + slower}
    for before, after in apart(same, slower):
        found = judged(cut[before], cut[after], P99)
        assert names(found, Verdict.REGRESSED) == {(SWAPPED, 64, 1), (SWAPPED, 512, 1)}
        assert of_swapped(found) == [*[Verdict.REGRESSED] * 2, *[Verdict.NOT_ENOUGH_DATA] * 2]


def test_ties_decide_nothing(kernels: Executions) -> None:
    """In whole ticks of 32 ns, and spread inside their tick, durations give the verdicts that they gave as recorded."""
    same, slower = windows(15)
    for other in (kernels.rounded(), kernels.spread(np.random.default_rng(1))):
        cut = {window: other.samples(window) for window in same + slower}
        for before, after in apart(same, same):
            found = judged(cut[before], cut[after], P99)
            assert names(found, Verdict.REGRESSED) == set()
            assert of_swapped(found) == [Verdict.PASS]
        for before, after in apart(same, slower):
            assert names(judged(cut[before], cut[after], P99), Verdict.REGRESSED) == {(SWAPPED, 0, 0)}
            assert of_swapped(judged(cut[after], cut[before], P99)) == [Verdict.IMPROVED]


def test_halves_of_captures_with_device_windows() -> None:
    """Each half has 1,400 executions of a kernel, some crowded into too few stretches: no answer, or the right one."""
    right = {"before": 1.0, "again": 1.0, "after": 1.12, "faster": 0.8}
    halves = {}
    for side in right:
        source = Executions.read(SWAP / side / "kernel_executions")
        half = source.whole.length_ns * (0.5 - 1e-6) / 1e9
        halves[side] = [source.samples(window) for window in slices(source.whole, half, half)]
    answers = 0
    for before, slow_before in right.items():
        for after, slow_after in right.items():
            for one in halves[before]:
                for other in halves[after] if before != after else ():
                    found = judged(one, other, P90)
                    assert names(found, Verdict.REGRESSED) <= ({(SWAPPED, 0, 0)} if slow_after > slow_before else set())
                    assert found["layer_norm", 0, 0] in (Verdict.PASS, Verdict.IMPROVED)
                    (verdict,) = of_swapped(found)
                    if verdict is not Verdict.NOT_ENOUGH_DATA:
                        answers += 1
                        assert (verdict is Verdict.REGRESSED) == (slow_after > slow_before)
    assert answers >= 36
