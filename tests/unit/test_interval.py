"""The interval on cases worked out by hand, and what must hold for any durations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdiff.analysis.interval import TailEstimate, degrees_of_freedom, ratio_interval, student_quantile, tail_estimate
from kdiff.analysis.sample import Sample

ALPHAS = (1e-9, 1e-4, 0.01, 0.05, 0.3, 0.5)


def sample(durations: NDArray[np.int64] | list[int], buckets: int = 60) -> Sample:
    """The durations dealt in turn to the buckets."""
    values = np.asarray(durations, dtype=np.int64)
    return Sample(values, (np.arange(values.size) % buckets).astype(np.int32), buckets)


@st.composite
def samples(draw: st.DrawFn, largest: int = 2**62) -> Sample:
    """Anything: ties or none, idle stretches, one launch."""
    buckets = draw(st.integers(1, 80))
    n = draw(st.integers(1, 300))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    top = draw(st.integers(0, largest))
    levels = draw(st.integers(1, 400))
    values = rng.integers(0, top, levels, endpoint=True, dtype=np.int64)[rng.integers(0, levels, n)]
    busy = rng.integers(0, buckets, draw(st.integers(1, buckets)))
    return Sample(values, rng.choice(busy, n).astype(np.int32), buckets)


def test_a_spread_tail_has_binomial_variance() -> None:
    # The 100 slowest of 10,000 launches come evenly, so the serial part of V is below its floor.
    estimate = tail_estimate(sample([1000 + (k * 37) % 10_000 for k in range(10_000)], 40), 0.99)
    assert estimate.value == 10_899
    assert estimate.variance == pytest.approx(99.0)
    assert estimate.se == pytest.approx(math.sqrt(99.0) / 10_000)
    assert estimate.n_eff == pytest.approx(10_000)
    assert (estimate.nu, estimate.filled) == (4, 40)
    assert estimate.even == pytest.approx(40.0)


def test_woodruff_and_step_limits_by_hand() -> None:
    estimate = tail_estimate(sample([1000 + (k * 37) % 10_000 for k in range(10_000)], 40), 0.99)
    # t_4(0.95) = 2.13185; 0.99 - 2.13185 * 0.000994987 = 0.98787884 is rank 9,879.
    # Above: (100 - k) / sqrt(99) >= 2.13185 first at k = 78, so the step is rank 9,922.
    assert estimate.limits(0.05) == (1000 + 9878, 1000 + 9921)


def test_variance_of_a_step_by_hand() -> None:
    # Two levels; in bucket t of 4 the slow ones number 0, 0, 1, 1 of 50: r = (-.5, -.5, .5, .5) at the share 2 of 200.
    values = np.full(200, 100, dtype=np.int64)
    values[[100, 150]] = 200
    estimate = tail_estimate(Sample(values, np.repeat(np.arange(4, dtype=np.int32), 50), 4), 0.99)
    angles = [[math.cos(math.pi * j * (t + 0.5) / 4) for t in range(4)] for j in range(1, 5)]
    weights = [math.sqrt(2 / 4) * sum(c * r for c, r in zip(a, (-0.5, -0.5, 0.5, 0.5), strict=True)) for a in angles]
    serial = 4 / 4 * sum(w * w for w in weights)
    assert estimate.value == 100
    assert estimate.variance == pytest.approx(max(serial, 200 * 0.99 * 0.01))


def test_a_slow_wave_is_not_averaged_away_by_the_faster_cosines() -> None:
    # Bucket t holds 100 launches, of which the slow ones follow one half-wave: the first cosine alone.
    buckets, per = 200, 100
    wave = np.cos(np.pi * (np.arange(buckets) + 0.5) / buckets)
    slow = np.rint(1.0 + wave).astype(int)
    values = np.full((buckets, per), 1000, dtype=np.int64)
    for t in range(buckets):
        values[t, : slow[t]] = 2000
    estimate = tail_estimate(
        Sample(values.ravel(), np.repeat(np.arange(buckets, dtype=np.int32), per), buckets), 1.0 - slow.mean() / per
    )
    first = math.sqrt(2.0 / buckets) * float(wave @ (slow - slow.mean()))
    assert estimate.nu == 13
    assert estimate.variance == pytest.approx(buckets / 4 * first**2, rel=0.05)


def test_quantiles_of_many_levels_are_not_kept_for_ever() -> None:
    assert [student_quantile(1, 0.5 / n) < 0.0 for n in range(2, 6000)].count(True) == 5998
    assert student_quantile.cache_info().currsize == 4096


def test_bursts_cost_effective_launches() -> None:
    values = np.full(6000, 1000, dtype=np.int64)
    values[:60] = np.arange(2000, 2060)  # All of the slowest 1% in the first stretch.
    bursty = tail_estimate(Sample(values, np.repeat(np.arange(60, dtype=np.int32), 100), 60), 0.99)
    even = tail_estimate(sample(values[np.random.default_rng(3).permutation(6000)]), 0.99)
    assert bursty.n_eff < 300
    assert even.n_eff > 2500


def test_an_atom_across_the_quantile_bounds_itself() -> None:
    # 0.5% of the launches lie above an atom that holds 80%: no limit leaves it.
    values = np.repeat(np.array([900, 1000, 1032], dtype=np.int64), [1950, 8000, 50])
    values = values[np.random.default_rng(4).permutation(values.size)]
    estimate = tail_estimate(sample(values), 0.99)
    assert estimate.value == 1000
    assert estimate.limits(0.05) == (1000.0, 1000.0)


def test_all_equal_is_known_exactly() -> None:
    estimate = tail_estimate(sample([2048] * 3000), 0.99)
    assert estimate.limits(0.01) == (2048.0, 2048.0)
    assert ratio_interval(estimate, estimate, 0.01) == (0.0, 0.0, 0.0)
    assert estimate.n_eff == pytest.approx(3000)


def test_few_launches_have_no_upper_limit() -> None:
    estimate = tail_estimate(sample(list(range(1000, 1200))), 0.99)
    assert estimate.limits(0.01)[1] == math.inf
    assert ratio_interval(estimate, estimate, 0.01).low == -math.inf
    assert ratio_interval(estimate, estimate, 0.01).high == math.inf


def test_zeros_read_as_one_tick() -> None:
    zero = tail_estimate(sample([0] * 3000), 0.99)
    slow = tail_estimate(sample([64] * 3000), 0.99)
    assert ratio_interval(zero, zero, 0.05) == (0.0, 0.0, 0.0)
    assert ratio_interval(zero, slow, 0.05).log_ratio == pytest.approx(math.log(64))


def test_idle_stretches_change_nothing() -> None:
    rng = np.random.default_rng(5)
    values = rng.lognormal(10, 0.2, 4000).astype(np.int64)
    bucket = np.sort(rng.integers(0, 40, 4000)).astype(np.int32)
    busy = tail_estimate(Sample(values, bucket, 40), 0.99)
    idle = tail_estimate(Sample(values, (bucket + 30 * (bucket >= 20)).astype(np.int32), 100), 0.99)
    assert idle.variance == pytest.approx(busy.variance)
    assert (idle.nu, idle.filled) == (busy.nu, busy.filled)
    assert idle.even == pytest.approx(busy.even)


def test_one_stretch_that_holds_everything_is_worth_one() -> None:
    estimate = tail_estimate(Sample(np.arange(5000, dtype=np.int64), np.zeros(5000, dtype=np.int32), 60), 0.99)
    assert estimate.filled == 1
    assert estimate.even == pytest.approx(1.0)


@pytest.mark.parametrize(("filled", "nu"), [(1, 4), (30, 4), (40, 4), (60, 6), (120, 9), (900, 37)])
def test_degrees_of_freedom(filled: int, nu: int) -> None:
    assert degrees_of_freedom(filled) == nu


@pytest.mark.parametrize(
    ("durations", "bucket", "buckets"),
    [
        (np.array([1, 2]), np.array([0]), 1),
        (np.array([-1]), np.array([0]), 1),
        (np.array([1]), np.array([1]), 1),
        (np.array([1]), np.array([-1]), 1),
        (np.array([], dtype=np.int64), np.array([], dtype=np.int64), 0),
        (np.array([1.5]), np.array([0]), 1),
        (np.array([1]), np.array([0.0]), 1),
    ],
)
def test_a_sample_refuses_what_it_cannot_hold(durations: np.ndarray, bucket: np.ndarray, buckets: int) -> None:
    with pytest.raises(ValueError, match=r"bucket|duration"):
        Sample(durations, bucket, buckets)


@pytest.mark.parametrize("q", [0.0, 1.0, -1.0, math.nan])
def test_a_quantile_outside_the_unit_interval_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="quantile"):
        tail_estimate(sample([1, 2]), q)


def test_an_empty_sample_and_a_useless_level_are_refused() -> None:
    with pytest.raises(ValueError, match="value"):
        tail_estimate(sample([]), 0.99)
    with pytest.raises(ValueError, match="error rate"):
        tail_estimate(sample([1]), 0.99).limits(0.6)


@given(samples(), samples(), st.sampled_from([0.5, 0.9, 0.99]))
@settings(max_examples=150, deadline=None)
def test_limits_hold_the_quantile_nest_and_are_numbers(before: Sample, after: Sample, q: float) -> None:
    estimates = tail_estimate(before, q), tail_estimate(after, q)
    for estimate in estimates:
        assert math.isfinite(estimate.variance)
        assert estimate.variance > 0.0
        assert 0.0 < estimate.n_eff <= estimate.n * (1 + 1e-12)
        assert 1.0 - 1e-9 <= estimate.even <= estimate.filled + 1e-9
    last = (-math.inf, math.inf)
    for alpha in ALPHAS:
        theta, low, high = ratio_interval(*estimates, alpha)
        assert low <= theta <= high
        assert last[0] <= low
        assert high <= last[1]
        last = low, high


@given(samples(), samples())
@settings(max_examples=60, deadline=None)
def test_swapping_the_windows_mirrors_the_interval(before: Sample, after: Sample) -> None:
    b, a = tail_estimate(before, 0.9), tail_estimate(after, 0.9)
    for alpha in ALPHAS:
        theta, low, high = ratio_interval(b, a, alpha)
        assert ratio_interval(a, b, alpha) == (-theta, -high, -low)


def _same_evidence(one: TailEstimate, other: TailEstimate) -> None:
    assert one.variance == pytest.approx(other.variance)
    assert one.evidence == pytest.approx(other.evidence)


@given(samples(largest=2**40), st.integers(1, 1000))
@settings(max_examples=60, deadline=None)
def test_scaling_scales_the_limits(one: Sample, factor: int) -> None:
    plain = tail_estimate(one, 0.9)
    scaled = tail_estimate(Sample(one.durations_ns * factor, one.bucket, one.buckets), 0.9)
    assert scaled.value == factor * plain.value
    _same_evidence(plain, scaled)
    assert scaled.limits(0.05) == tuple(factor * x for x in plain.limits(0.05))


@given(samples(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_order_does_not_matter(one: Sample, random: object) -> None:
    order = np.random.default_rng(random.getrandbits(32)).permutation(one.bucket.size)  # type: ignore[attr-defined]
    shuffled = tail_estimate(Sample(one.durations_ns[order], one.bucket[order], one.buckets), 0.99)
    plain = tail_estimate(one, 0.99)
    assert shuffled.value == plain.value
    _same_evidence(plain, shuffled)


def test_a_known_factor_is_found() -> None:
    rng = np.random.default_rng(6)
    values = rng.lognormal(11, 0.15, 30_000).astype(np.int64)
    before, after = tail_estimate(sample(values), 0.99), tail_estimate(sample(values * 2), 0.99)
    theta, low, high = ratio_interval(before, after, 0.01)
    assert theta == pytest.approx(math.log(2))
    assert math.log(1.9) < low < math.log(2) < high < math.log(2.1)


def test_limits_of_a_tied_quantile_are_wrong_no_more_often_than_said() -> None:
    # An atom that ends just past p99: the share above is 1.1%, so p99 is the upper value.
    rng = np.random.default_rng(7)
    wrong = np.zeros(2)
    for _ in range(300):
        values = np.where(rng.random(8000) < 0.011, 2080, 2048).astype(np.int64)
        low, high = tail_estimate(sample(values), 0.99).limits(0.05)
        wrong += (low > 2080, high < 2080)
    assert (wrong <= 25).all()  # 5% of 300 is 15; 25 has probability 0.5%.


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 6), st.integers(1, 40)), min_size=1, max_size=60),
    st.sampled_from([0.5, 0.9, 0.99]),
)
def test_counted_durations_are_as_good_as_each_written_out(entries: list[tuple[int, int, int]], q: float) -> None:
    values, bucket, counts = (np.array(column) for column in zip(*entries, strict=True))
    counted = tail_estimate(Sample(values.astype(np.int64), bucket.astype(np.int32), 7, counts.astype(np.int64)), q)
    expanded = Sample(np.repeat(values, counts).astype(np.int64), np.repeat(bucket, counts).astype(np.int32), 7)
    written = tail_estimate(expanded, q)
    for name in ("value", "n", "nu", "filled", "quantum"):
        assert getattr(counted, name) == getattr(written, name), name
    assert counted.variance == pytest.approx(written.variance, rel=1e-9)
    assert counted.even == pytest.approx(written.even, rel=1e-12)
    assert (counted.steps == written.steps).all()
    assert counted.evidence == pytest.approx(written.evidence, rel=1e-6, abs=1e-9)


def test_the_order_of_rows_changes_no_bit() -> None:
    rng = np.random.default_rng(4)
    durations, bucket = rng.integers(1_000, 1_040, 5_000), rng.integers(0, 120, 5_000).astype(np.int32)
    found = set()
    for order in (np.arange(5_000), rng.permutation(5_000), rng.permutation(5_000)):
        estimate = tail_estimate(Sample(durations[order], bucket[order], 120), 0.9)
        found.add((estimate.value, estimate.variance, estimate.evidence.tobytes()))
    assert len(found) == 1
