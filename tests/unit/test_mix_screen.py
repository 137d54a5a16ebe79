"""Whose strata are read by stretch: where whole windows say that they may decide something."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from kdiff.analysis.mix_screen import may_tell
from kdiff.analysis.quantiles import Ordered
from kdiff.analysis.strata import Stratum, find_support

SMALL, USUAL, BIG = (Stratum(grid, 8, "H200", False) for grid in (4, 8, 12))
LEVEL = {SMALL: 1_000.0, USUAL: 10_000.0, BIG: 80_000.0}
Sizes = Mapping[Stratum, int]


def window(sizes: Sizes, slower: Mapping[Stratum, float] | None = None) -> dict[Stratum, Ordered]:
    """Each stratum's durations are the same quantiles of a lognormal, whatever its size."""
    found = {}
    for stratum, size in sizes.items():
        at = (np.arange(size) + 0.5) / size
        values = LEVEL[stratum] * (slower or {}).get(stratum, 1.0) * np.exp(0.3 * at + 0.4 * at**40)
        found[stratum] = Ordered.of(np.rint(values).astype(np.int64))
    return found


def told(
    before: Sizes, after: Sizes, slower: Mapping[Stratum, float] | None = None, q: float = 0.99, margin: float = 0.05
) -> bool:
    return may_tell(find_support(before, after), window(before), window(after, slower), q, margin)


SIZES = {SMALL: 25_000, USUAL: 24_000, BIG: 1_000}


def test_nothing_moved() -> None:
    assert not told(SIZES, SIZES)
    assert not told(SIZES, {stratum: 2 * size for stratum, size in SIZES.items()})


@pytest.mark.parametrize("factor", [1.04, 1.2, 0.8])
def test_all_alike_slower_is_found_without_them(factor: float) -> None:
    assert not told(SIZES, SIZES, dict.fromkeys(SIZES, factor))


@pytest.mark.parametrize("big", [400, 600, 1_300, 3_000])
def test_a_big_shape_that_comes_more_or_less_often(big: int) -> None:
    """Beside 1,000 of 50,000, so that p99 is among or beside its launches."""
    assert told({SMALL: 25_000, USUAL: 24_600, BIG: 400}, {SMALL: 25_000, USUAL: 25_000 - big, BIG: big}) == (
        big != 400
    )


@pytest.mark.parametrize("stratum", [SMALL, USUAL])
@pytest.mark.parametrize("factor", [1.06, 1.3])
def test_one_shape_slower_that_p99_of_all_does_not_show(stratum: Stratum, factor: float) -> None:
    assert told(SIZES, SIZES, {stratum: factor})
    assert not told(SIZES, SIZES, {stratum: factor}, margin=0.5)


def test_one_shape_that_was_left_behind_where_all_others_got_faster() -> None:
    assert told(SIZES, SIZES, {USUAL: 0.8, BIG: 0.8})


def test_one_worse_than_what_is_beyond_the_margin_anyhow() -> None:
    assert told(SIZES, SIZES, {SMALL: 1.4, USUAL: 1.2, BIG: 1.2})
    assert not told(SIZES, SIZES, {SMALL: 1.22, USUAL: 1.2, BIG: 1.2})


def test_few_launches_and_strata_apart_are_always_read() -> None:
    few = {SMALL: 4_000, USUAL: 3_999}
    assert told(few, few)
    assert not told(few, few, q=0.9)
    assert told({SMALL: 50_000, USUAL: 50_000}, {SMALL: 50_000, USUAL: 50_000, BIG: 400})


def test_zeros_are_read() -> None:
    zeros = {stratum: Ordered(np.zeros(1, np.int64), np.array([size])) for stratum, size in SIZES.items()}
    assert may_tell(find_support(SIZES, SIZES), zeros, zeros, 0.99, 0.05)
