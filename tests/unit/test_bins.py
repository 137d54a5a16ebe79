"""What bins hide: by how much a duration may be off, and the timer's tick."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from kdiff.analysis import bins
from kdiff.analysis.judging import judge
from kdiff.analysis.sample import Sample
from kdiff.analysis.verdict import Policy


def binned(durations: NDArray[np.int64]) -> NDArray[np.int64]:
    """What the roll-ups make of durations, as queries/sql/rollup_events.sql puts them."""
    above = 201 + np.floor(np.log(np.maximum(durations, 201) / 200.5) / math.log(1.005))
    return bins.durations_ns(np.where(durations <= 200, durations, above).astype(np.int64))


def test_no_duration_is_off_by_more_than_is_told() -> None:
    durations = np.arange(1, 60_000)
    told = np.array([bins.rounding(value, value) for value in binned(durations)])
    assert (np.abs(np.log(binned(durations) / durations)) <= told).all()
    assert bins.rounding(3, 200) == 0.0
    assert bins.rounding(1e7, 1e7) == pytest.approx(0.0025, rel=0.01)


@pytest.mark.parametrize(
    ("before_ns", "after_ns", "tolerance"), [(276, 290, 0.05), (280, 308, 0.10), (1082, 1190, 0.10)]
)
def test_a_nanosecond_of_rounding_decides_nothing(before_ns: int, after_ns: int, tolerance: float) -> None:
    sides = []
    for duration in (before_ns, after_ns):
        bucket = np.arange(120, dtype=np.int32)
        value = binned(np.full(120, duration))
        sides.append(Sample(value, bucket, 120, np.full(120, 30), tick=1, binned=True))
    assert judge(sides[0], sides[1], Policy(tolerance=tolerance)).verdict.value == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("tick", "typical", "told"),
    [
        (32, 300, 32),
        (1, 300, 1),
        (1, 1_200, 1),
        (32, 5_000, 32),
        (1_024, 20_000, 1_024),
        (1_000, 20_000, 1_000),
        (1, 1_000_000, 32),  # bins this wide show no tick, and it does not matter
        (1_024, 1_000_000, 32),
    ],
)
def test_the_tick_that_bins_show(tick: int, typical: int, told: int) -> None:
    rng = np.random.default_rng(3)
    durations = np.rint(typical * rng.lognormal(0, 0.3, 9_001) / tick).astype(np.int64) * tick
    durations += rng.integers(-1, 2, durations.size) * (tick == 32)
    values, counts = np.unique(binned(np.maximum(durations, 1)), return_counts=True)
    assert bins.device_tick(values, counts) == told


@pytest.mark.parametrize(("values", "told"), [([0], 1), ([0, 37], 1), ([0, 64], 32)])
def test_durations_of_nothing_show_no_tick(values: list[int], told: int) -> None:
    assert bins.device_tick(binned(np.array(values)), np.full(len(values), 1_000)) == told
