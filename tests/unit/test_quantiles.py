"""Order statistics and the timer's tick on cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdiff.analysis.quantiles import Ordered, Quantiles, quantile, rank, summary, timer_quantum


def ordered(*values: int) -> Ordered:
    return Ordered.of(np.array(values, dtype=np.int64))


@pytest.mark.parametrize(
    ("n", "p", "expected"),
    [
        (100, 0.99, 99),
        (101, 0.99, 100),  # 99.99
        (1000, 0.999, 999),
        (100, 0.07, 7),  # 7.000000000000001 in binary
        (100, 0.29, 29),  # 28.999999999999996 in binary
        (1, 0.5, 1),
        (4, 0.5, 2),
        (5, 0.5, 3),
        (7, 0.0, 1),
        (7, 1.0, 7),
        (10**12, 0.99, 990_000_000_000),
    ],
)
def test_rank_is_the_exact_ceiling(n: int, p: float, expected: int) -> None:
    assert rank(n, p) == expected


@pytest.mark.parametrize(("n", "p"), [(0, 0.5), (3, -0.1), (3, 1.1), (3, float("nan"))])
def test_rank_refuses_what_has_no_quantile(n: int, p: float) -> None:
    with pytest.raises(ValueError, match=r"quantile|probability"):
        rank(n, p)


def test_quantile_is_a_measured_value_on_ties() -> None:
    values = Ordered.of(np.repeat(np.array([10, 20, 30], dtype=np.int64), [98, 1, 1]))
    assert [quantile(values, p) for p in (0.5, 0.98, 0.981, 0.99, 0.991, 1.0)] == [10, 10, 20, 20, 30, 30]


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=60), st.sampled_from([0.01, 0.5, 0.9, 0.99, 0.999]))
def test_quantile_is_the_smallest_value_that_covers_p(values: list[int], p: float) -> None:
    found = quantile(ordered(*values), p)
    at_most = sum(v <= found for v in values)
    below = sum(v < found for v in values)
    # In thousandths: p is a decimal and the comparison must be exact.
    need = round(p * 1000) * len(values)
    assert 1000 * at_most >= need
    assert 1000 * below < need


def test_summary_of_one_to_a_thousand() -> None:
    assert summary(ordered(*range(1, 1001))) == Quantiles(500, 900, 990, 999)


def test_p999_is_not_shown_where_it_is_the_maximum() -> None:
    shown = summary(ordered(*range(1, 1000)))
    assert shown is not None
    assert shown.p999 is None


def test_summary_of_nothing() -> None:
    assert summary(ordered()) is None


@pytest.mark.parametrize(
    ("values", "tick"),
    [
        ([], 1),
        ([0, 0, 0], 1),
        ([0, 32, 64], 32),
        ([2048] * 50, 32),
        ([2048, 2080] * 50, 32),
        ([1000 * k for k in range(1, 30)], 1000),
        ([10_007] * 50, 1),
        ([10_007, 20_011, 30_011], 1),
        # Few levels a wide gap apart are modes of the kernel; no tick above the device's is believed.
        ([20_480, 40_960], 32),
        ([2000, 3000], 1),
        (list(range(5000, 6000)), 1),
        ([2**62, 2**62 - 32], 32),
    ],
)
def test_timer_quantum(values: list[int], tick: int) -> None:
    assert timer_quantum(ordered(*values)) == tick


def test_timer_quantum_sees_through_rounding_and_strays() -> None:
    rng = np.random.default_rng(1)
    values = 32 * rng.integers(60, 90, 5000) + rng.integers(-1, 2, 5000)
    values[:20] = rng.integers(2000, 3000, 20)
    assert timer_quantum(Ordered.of(values.astype(np.int64))) == 32


def test_timer_quantum_of_continuous_durations_is_a_nanosecond() -> None:
    rng = np.random.default_rng(2)
    assert timer_quantum(Ordered.of(rng.lognormal(11, 0.2, 4000).astype(np.int64))) == 1
