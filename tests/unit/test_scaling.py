"""What executions stand for, where it is not told which process ran which kernel, against knowing it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kdiff.analysis import scaling
from kdiff.analysis.scaling import Scale, by_kernel, common_scale, minutes_to_read
from kdiff.analysis.window import HOUR_NS, MINUTE_NS, NS, Window

MONTH = Window(480 * HOUR_NS, 1_200 * HOUR_NS)
COUNTS = st.lists(st.tuples(st.integers(0, 9_000), st.integers(0, 9_000), st.floats(1, 30)), min_size=1, max_size=9)


@given(COUNTS)
def test_one_scale_for_all_moves_no_group_of_kernels_by_more_than_half_of_what_is_allowed(
    processes: list[tuple[int, int, float]],
) -> None:
    """Two kernels; each process ran the first one so often and the second one so often."""
    rows = [{"executions": a + b, "device_ns": 7 * (a + b)} for a, b, _ in processes]
    common, alike = common_scale(rows, [scale for *_, scale in processes])
    true = np.array([[a * scale, b * scale] for a, b, scale in processes]).sum(axis=0)
    if alike and true.sum():
        told = common.runs * np.array([(a, b) for a, b, _ in processes]).sum(axis=0)
        assert np.abs(told - true).max() <= (scaling.ALIKE / 2 + 1e-9) * true.sum()
        assert abs(told.sum() - true.sum()) <= 1e-9 * true.sum()
        assert common.of({"executions": 3, "device_ns": 5})["device_ns"] == common.time * 5


def test_processes_that_are_alike_and_not() -> None:
    rows = [{"executions": 100, "device_ns": 900}] * 2
    assert common_scale(rows, [10.0, 10.1]) == (Scale(10.05, 10.05), True)
    assert common_scale(rows, [10.0, 20.0]) == (Scale(15.0, 15.0), False)
    assert common_scale([], []) == (Scale(1.0, 1.0), True)


def test_some_minutes_of_a_large_fleet_and_all_of_a_small_one() -> None:
    assert minutes_to_read(MONTH, 4, 100) is None
    chosen = minutes_to_read(MONTH, 8_000, 300)
    assert chosen is not None
    assert len(chosen) == scaling.LEAST_MINUTES
    seconds = np.array(chosen)
    assert (seconds % 60 == 0).all()
    assert seconds.min() >= MONTH.from_ns // NS
    assert seconds.max() < MONTH.to_ns // NS
    # No day of 30 goes without a minute for long, and they are in step with no hour.
    assert np.diff(seconds).max() < 3 * 86_400
    assert len(set(seconds % 3_600)) > 20
    more = minutes_to_read(MONTH, 800, 300)
    assert more is not None
    assert 0.95 * scaling.MOST_ROWS / 240_000 < len(more) <= scaling.MOST_ROWS / 240_000
    assert MONTH.length_ns // MINUTE_NS == 43_200


def test_each_kernel_by_who_ran_it() -> None:
    sample = pa.table(
        {
            "kernel_key": pa.array([5, 5, 6, 7], pa.uint64()),
            "process": pa.array([1, 2, 2, 3], pa.uint64()),
            "executions": pa.array([30, 10, 4, 0], pa.uint64()),
            "device_ns": pa.array([100, 100, 8, 0], pa.int64()),
        }
    )
    assert by_kernel(sample, {1: 10.0, 2: 30.0}) == {5: Scale(15.0, 20.0), 6: Scale(30.0, 30.0)}
    assert by_kernel(sample.slice(0, 0), {1: 10.0}) == {}
