"""What a history says of kdiff's errors: simulated histories whose truth is known, seeds fixed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from kdiff.analysis import bins
from kdiff.analysis.decision import smallest_level
from kdiff.analysis.history_calibration import (
    MIN_PAIRS,
    History,
    Measured,
    deviation,
    factor,
    neutral,
    shifts,
    upper_limit,
    widened,
)
from kdiff.analysis.interval import TailEstimate, ratio_interval, student_quantile, tail_estimate
from kdiff.analysis.judging import judge_all
from kdiff.analysis.sample import Sample
from kdiff.analysis.verdict import Policy, Verdict

POLICY = Policy()
LAUNCHES = 12_000
MINUTES = 60
BUCKETS = 120
KERNEL = ("gelu", "device")


def levels(rng: np.random.Generator, size: int, sd: float, rho: float) -> np.ndarray:
    """A stationary AR(1) path."""
    path = rng.normal(0.0, sd, size)
    for t in range(1, size):
        path[t] = rho * path[t - 1] + math.sqrt(1.0 - rho * rho) * path[t]
    return path


def history(
    rng: np.random.Generator,
    windows: int,
    sd: float = 0.03,
    rho: float = 0.0,
    drift: float = 0.0,
    steps: object = (),
    launches: int = LAUNCHES,
) -> Iterator[Sample]:
    """Windows of an hour that follow each other. `drift`: of each window as a whole; `steps`: (window, factor)."""
    minutes = levels(rng, windows * MINUTES, sd, rho)
    whole = rng.normal(0.0, drift, windows)
    moved = dict(steps)  # type: ignore[call-overload]
    level = 1.0
    for window in range(windows):
        level *= moved.get(window, 1.0)
        at = rng.random(launches)
        logs = minutes[window * MINUTES + (at * MINUTES).astype(np.int64)] + whole[window]
        slowed = np.where(rng.random(launches) < 0.03, 1.0 + rng.exponential(0.3, launches), 1.0)
        values = 50_000 * level * slowed * np.exp(rng.normal(0.0, 0.15, launches) + logs)
        yield Sample(np.rint(values).astype(np.int64), (at * BUCKETS).astype(np.int32), BUCKETS)


def measured(seed: int, windows: int = 41, **how: object) -> Measured:
    seen = History(POLICY)
    before: TailEstimate | None = None
    for place, sample in enumerate(history(np.random.default_rng(seed), windows, **how)):  # type: ignore[arg-type]
        after = tail_estimate(sample, POLICY.quantile)
        if before is not None:
            seen.add(place - 1, KERNEL, before, after)
        before = after
    return seen.measure()


def false_alarms(by: float, seed: int, runs: int, **how: object) -> float:
    """How often the lower 95% limit of two windows that follow each other is above 1, errors widened by a factor."""
    rng, above = np.random.default_rng(seed), 0
    for _ in range(runs):
        before, after = (tail_estimate(s, POLICY.quantile, by) for s in history(rng, 2, **how))  # type: ignore[arg-type]
        above += ratio_interval(before, after, 0.05).low > 0.0
    return above / runs


# ---- the factor ----


def test_independent_launches_need_no_factor() -> None:
    found = measured(1, windows=61, sd=0.0)
    assert (found.pairs, found.shifts, found.plain.comparisons) == (60, 0, 60)
    assert found.pooled == found.kernels[KERNEL].factor == 1.0
    assert found.plain == found.widened
    assert (found.plain.regressed, found.plain.runs_regressed) == (0, 0)


@pytest.mark.parametrize(("how", "least", "most"), [({"rho": 0.95, "sd": 0.06}, 1.3, 2.6), ({"drift": 0.03}, 2.0, 3.2)])
def test_slow_levels_need_one_and_with_it_false_alarms_are_near_nominal(
    how: dict[str, float], least: float, most: float
) -> None:
    found = measured(2, windows=61, **how)
    assert least < found.pooled < most
    assert found.shifts == 0
    plain, wide = (false_alarms(by, 3, 300, **how) for by in (1.0, found.pooled))
    assert plain > 0.12
    assert wide < 0.075


@pytest.mark.parametrize("at", [1, 10, 20, 40])
def test_a_real_swap_does_not_blow_it_up(at: int) -> None:
    found = measured(4, sd=0.01, steps=((at, 1.5),))
    assert found.shifts == 1
    assert found.kernels[KERNEL].pairs == found.plain.comparisons == 39
    assert found.pooled < 1.2
    assert found.plain.regressed == 0
    assert found.pairs == 40


def test_a_swap_and_its_rollback_are_both_left_out() -> None:
    found = measured(5, sd=0.01, steps=((12, 1.5), (28, 1 / 1.5)))
    assert (found.shifts, found.kernels[KERNEL].pairs) == (2, 38)
    assert found.pooled < 1.2


def test_a_swap_among_levels_that_wander_is_found_though_few_launches_bound_its_z() -> None:
    found = measured(16, drift=0.03, steps=((20, 1.5),))
    assert found.shifts == 1
    assert 2.0 < found.pooled < 3.2


def test_a_burst_that_goes_again_is_noise_of_the_history_and_counts() -> None:
    found = measured(6, sd=0.01, steps=((20, 1.5), (22, 1 / 1.5)))
    assert found.shifts == 0
    assert found.pooled > 2.0


def test_levels_that_wander_are_no_shifts() -> None:
    rng = np.random.default_rng(7)
    for _ in range(50):
        z = rng.standard_t(9, 100) * 2.5
        level = np.exp(np.cumsum(z) * 0.01)
        assert shifts(np.arange(100.0), z, np.full(100, 9.0), level, level * np.exp(z * 0.01)).sum() <= 1


def test_factor_is_the_root_mean_square_over_that_of_student() -> None:
    nu = np.full(1_000, 9.0)
    assert factor(np.full(1_000, 2.0 * neutral(9)), nu) == pytest.approx(2.0)
    assert factor(np.zeros(1_000), nu) == 1.0
    drawn = np.random.default_rng(8).standard_t(9, 200_000)
    assert factor(drawn, np.full(drawn.size, 9.0)) == pytest.approx(1.0, abs=0.01)
    assert neutral(4) == pytest.approx(math.sqrt(2.0))


# ---- z ----


def test_z_over_f_is_what_inflation_by_f_makes_of_it() -> None:
    """What makes a factor of z and the `inflation` of standard errors the same thing."""
    rng = np.random.default_rng(9)
    for _ in range(5):
        samples = list(history(rng, 2, drift=0.05))
        z = deviation(*(tail_estimate(s, 0.99) for s in samples))
        for by in (1.3, 2.0):
            before, after = (tail_estimate(s, 0.99, by) for s in samples)
            assert deviation(before, after) == pytest.approx(z / by, rel=0.02)
            level = smallest_level(partial(_excludes, before, after))
            assert abs(z) / by == pytest.approx(max(0.0, -student_quantile(before.nu, level)), rel=1e-6)


def _excludes(before: TailEstimate, after: TailEstimate, level: float) -> bool:
    low, high = ratio_interval(before, after, level)[1:]
    return low > 0.0 or high < 0.0


def test_z_is_signed_and_swapping_the_windows_turns_it() -> None:
    first, second = (tail_estimate(s, 0.99) for s in history(np.random.default_rng(10), 2, steps=((1, 1.1),)))
    assert deviation(first, second) > 1.5
    assert deviation(second, first) == pytest.approx(-deviation(first, second), rel=0.2)
    assert deviation(first, first) == 0.0


@pytest.mark.parametrize("ticks", [0, 1, 2])
def test_a_tick_is_no_evidence_of_moving(ticks: int) -> None:
    """A kernel on a timer of 32 ns whose values are nearly all alike, so that its limits are too."""
    estimates = []
    for value in (64, 64 + ticks):
        durations = np.full(6_000, 32 * value, np.int64)
        durations[::7] = 32 * (value - 1)
        durations[::900] = 32 * (value + 9)
        estimates.append(tail_estimate(Sample(durations, np.arange(6_000, dtype=np.int32) % 120, 120, tick=32), 0.99))
    z = deviation(*estimates)
    if ticks < 2:
        assert z == (0.0 if ticks == 0 else neutral(estimates[0].nu))
    else:
        assert z > 1.5 * neutral(estimates[0].nu)


@pytest.mark.parametrize("scale", [1.0, 1.01, 1.2])
def test_the_rounding_of_bins_is_no_noise_and_hides_none(scale: float) -> None:
    binned, rows = [], []
    for sample in history(np.random.default_rng(11), 2, sd=0.0, steps=((1, scale),)):
        place = np.ceil(np.log(sample.durations_ns / (bins.EXACT_NS + 0.5)) / math.log(bins.WIDTH))
        values = bins.durations_ns(bins.EXACT_NS + place.astype(np.int64))
        binned.append(tail_estimate(Sample(values, sample.bucket, BUCKETS, binned=True), 0.99))
        rows.append(tail_estimate(sample, 0.99))
    assert deviation(*binned) == pytest.approx(deviation(*rows), abs=0.2)


# ---- rates ----


@pytest.mark.parametrize("launches", [3_000, 12_000])
def test_rates_before_are_what_the_judging_code_says_and_after_what_it_says_inflated(launches: int) -> None:
    """The verdicts are not judged again: p-values that are widened must be those of inflated errors."""
    samples = list(history(np.random.default_rng(12), 31, sd=0.06, rho=0.97, drift=0.05, launches=launches))
    estimates = [tail_estimate(s, 0.99) for s in samples]
    seen = History(POLICY)
    for place, (before, after) in enumerate(itertools.pairwise(estimates)):
        seen.add(place, KERNEL, before, after)
    found = seen.measure()
    for by, rates in ((1.0, found.plain), (found.pooled, found.widened)):
        verdicts = [judge_all({0: pair}, POLICY, inflation={0: by})[0].verdict for pair in itertools.pairwise(samples)]
        assert rates.regressed == rates.runs_regressed == verdicts.count(Verdict.REGRESSED)
        enough = [v for v in verdicts if by == 1.0 and v is not Verdict.NOT_ENOUGH_DATA]
        if by == 1.0:
            assert rates.comparisons == len(enough)
        passed = sum(v in (Verdict.PASS, Verdict.IMPROVED) for v in verdicts)
        assert rates.comparisons - rates.not_passed == passed
    assert found.pooled > 1.5
    assert found.plain.regressed > found.widened.regressed or launches == 3_000


def test_a_run_is_regressed_where_any_kernel_is_and_holm_sees_all_of_them() -> None:
    seen = History(POLICY)
    first, second = (tail_estimate(s, 0.99) for s in history(np.random.default_rng(13), 2, steps=((1, 1.5),)))
    for place in range(MIN_PAIRS):
        for number in range(3):
            seen.add(place, (f"k{number}", "device"), first, second if place in (4, 5) and number else first)
    found = seen.measure().plain
    assert (found.comparisons, found.regressed, found.runs, found.runs_regressed) == (60, 4, 20, 2)


def test_kernels_with_few_pairs_have_the_factor_of_all() -> None:
    seen = History(POLICY)
    estimates = [tail_estimate(s, 0.99) for s in history(np.random.default_rng(14), 25, drift=0.04)]
    for place, (before, after) in enumerate(itertools.pairwise(estimates)):
        seen.add(place, KERNEL, before, after)
        if place < MIN_PAIRS - 1:
            seen.add(place, ("rare", "device"), before, before)
    found = seen.measure()
    assert list(found.kernels) == [KERNEL]
    assert 1.0 < found.pooled < found.kernels[KERNEL].factor
    assert found.plain.comparisons == 24 + 19


def test_too_few_launches_are_no_pair() -> None:
    seen = History(POLICY)
    few = Sample(np.arange(1, 1_000, dtype=np.int64), np.arange(999, dtype=np.int32) % 120, 120)
    assert not seen.add(0, KERNEL, tail_estimate(few, 0.99), tail_estimate(few, 0.99))
    assert seen.pairs == 0


def test_widened_p_values() -> None:
    p = np.array([1e-12, 0.01, 0.5, 0.95, 1.0 - 1e-12])
    nu = np.full(5, 9.0)
    assert widened(p, nu, 1.0) == pytest.approx(p, rel=1e-6)
    wide = widened(p, nu, 2.0)
    assert wide[1] == pytest.approx(0.09597, abs=1e-4)  # t(9) is 2.821 at 1%, half of it at 9.6%
    assert wide[2] == 0.5
    assert 0.78 < wide[3] < 0.82
    assert (np.diff(wide) > 0).all()


@pytest.mark.parametrize(
    ("count", "total", "limit"),
    [(0, 59, 0.0495), (0, 299, 0.00997), (3, 336, 0.02293), (5, 5, 1.0), (0, 0, 1.0)],
)
def test_upper_limits_of_rates(count: int, total: int, limit: float) -> None:
    assert upper_limit(count, total) == pytest.approx(limit, rel=0.01)
