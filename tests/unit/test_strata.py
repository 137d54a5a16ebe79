"""Like with like: which strata two windows have in common, and quantiles at one mix, on cases worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiff.analysis.controls import Roles
from kdiff.analysis.interval import TailEstimate, tail_estimate
from kdiff.analysis.judging import judge_all
from kdiff.analysis.mix import Mix
from kdiff.analysis.mix_words import names, why_not_comparable
from kdiff.analysis.quantiles import Ordered
from kdiff.analysis.sample import Sample
from kdiff.analysis.strata import REST, Likeness, Stratum, find_support, standardise, together
from kdiff.analysis.verdict import Judgement, Policy, Verdict
from kdiff.analysis.weighted import one_by_one

POLICY = Policy()
BUCKETS = 60


def shape(grid: int, block: int = 8, model: str = "", in_graph: bool = False) -> Stratum:
    return Stratum(grid, block, model, in_graph)


SMALL, LARGE = shape(5), shape(9)


def dealt(durations: list[int] | np.ndarray, buckets: int = BUCKETS) -> Sample:
    """The durations dealt in turn to the buckets."""
    values = np.asarray(durations, np.int64)
    return Sample(values, (np.arange(values.size) % buckets).astype(np.int32), buckets)


def lognormal(seed: int, n: int, median: float, sigma: float = 0.1) -> Sample:
    rng = np.random.default_rng(seed)
    values = np.rint(median * rng.lognormal(0.0, sigma, n)).astype(np.int64)
    return Sample(values, rng.integers(0, BUCKETS, n).astype(np.int32), BUCKETS)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """Anything: ties or none, counts or none, idle stretches."""
    buckets, n = draw(st.integers(1, 80)), draw(st.integers(1, 400))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    levels = draw(st.integers(1, 400))
    values = rng.integers(0, 10**6, levels)[rng.integers(0, levels, n)].astype(np.int64)
    counts = rng.integers(1, 5, n) if draw(st.booleans()) else None
    return Sample(values, rng.integers(0, buckets, n).astype(np.int32), buckets, counts)


def alike(one: TailEstimate, other: TailEstimate) -> None:
    assert (one.value, one.nu, one.filled, one.n) == (other.value, other.nu, other.filled, other.n)
    assert one.even == pytest.approx(other.even)
    assert one.variance == pytest.approx(other.variance)
    np.testing.assert_array_equal(one.steps, other.steps)
    np.testing.assert_allclose(one.evidence, other.evidence, rtol=1e-7, atol=1e-9)


def weighted(sample: Sample, weight: float = 1.0) -> Sample:
    return replace(sample, weights=np.full(sample.bucket.size, weight))


@given(samples(), st.sampled_from([0.07, 0.5, 0.9, 0.99]), st.sampled_from([1.0, 3.7, 1e-9, 1e12]))
@settings(deadline=None)
def test_weights_all_alike_are_none(sample: Sample, q: float, weight: float) -> None:
    plain, told = tail_estimate(sample, q), tail_estimate(weighted(sample, weight), q)
    alike(plain, told)
    assert told.informative == pytest.approx(plain.n, rel=1e-6)


@given(samples(), st.integers(0, 2**32), st.sampled_from([0.5, 0.99]))
@settings(deadline=None)
def test_rows_in_any_order_and_weights_of_any_scale(sample: Sample, seed: int, q: float) -> None:
    rng = np.random.default_rng(seed)
    n = sample.bucket.size
    strata = rng.integers(0, 4, n).astype(np.int32)
    weights = rng.choice([0.25, 1.0, 3.0, 8.0], 4)[strata]
    one = tail_estimate(replace(sample, weights=weights, strata=strata), q)
    order = rng.permutation(n)
    shuffled = Sample(
        sample.durations_ns[order],
        sample.bucket[order],
        sample.buckets,
        None if sample.counts is None else sample.counts[order],
        weights=1024.0 * weights[order],
        strata=7 * strata[order] + 3,
    )
    other = tail_estimate(shuffled, q)
    alike(one, other)
    assert one.limits(0.05) == other.limits(0.05)


def test_the_standardised_quantile_by_hand() -> None:
    # Before: 1,000 small ones of 1..1000 and 1,000 large ones of 10,001..11,000. After: 4 small ones a large one.
    before = {SMALL: dealt(np.arange(1, 1001)), LARGE: dealt(np.arange(10_001, 11_001))}
    after = {SMALL: dealt(np.arange(1, 4001)), LARGE: dealt(np.arange(10_001, 11_001))}
    one, other = standardise(before, after, [SMALL, LARGE])
    assert set(one.weights) == {1.0}  # type: ignore[arg-type]
    # pi = 1/2 each; after n = 5,000: 2,500 / 4,000 and 2,500 / 1,000.
    assert sorted(set(other.weights)) == [0.625, 2.5]  # type: ignore[arg-type]
    # The 0.9-quantile lies where a fifth of the large ones exceed it, in both windows.
    assert tail_estimate(one, 0.9).value == tail_estimate(other, 0.9).value == 10_800
    assert tail_estimate(together([after[SMALL], after[LARGE]]), 0.9).value == 10_500


def test_the_binomial_floor_is_by_strata() -> None:
    # In one stretch the serial part is 0. Only large ones exceed the 0.9-quantile, a fifth of them.
    rng = np.random.default_rng(1)
    before = {s: dealt(rng.permutation(np.arange(a, a + 1000))) for s, a in ((SMALL, 1), (LARGE, 10_001))}
    after = {SMALL: dealt(rng.permutation(np.arange(1, 4001))), LARGE: before[LARGE]}
    _, standardised = standardise(before, after, [SMALL, LARGE])
    estimate = tail_estimate(standardised, 0.9)
    floor = 2.5**2 * 1000 * 0.2 * 0.8
    assert estimate.variance >= floor
    assert tail_estimate(
        replace(standardised, bucket=np.zeros_like(standardised.bucket)), 0.9
    ).variance == pytest.approx(floor)
    # 200 launches of weight 2.5 exceed it; all of them are worth 5,000^2 / (0.625^2 4,000 + 2.5^2 1,000).
    assert estimate.informative == pytest.approx(min(200 / 0.1, 5000**2 / (0.625**2 * 4000 + 2.5**2 * 1000)), rel=1e-6)


def test_a_quantile_between_two_strata_is_not_known_exactly() -> None:
    # The large shape is 1% of the launches, and every one of it above all of the small one.
    before = {SMALL: dealt(np.arange(1, 9901)), LARGE: dealt(np.arange(50_001, 50_101))}
    one, _ = standardise(before, before, [SMALL, LARGE])
    estimate = tail_estimate(one, 0.99)
    assert estimate.value == 9900
    assert estimate.variance == 1.0
    # t_6(0.95) = 1.943 launches.
    lower, upper = estimate.limits(0.05)
    assert lower == 9899.0
    assert 50_000 < upper < 50_100


def test_a_mix_that_moves_inside_the_window_adds_no_variance() -> None:
    # The large shape runs in the second half only; every stretch has its share of slow ones of each shape.
    n = 6000
    bucket = np.repeat(np.arange(BUCKETS, dtype=np.int32), n // BUCKETS)
    large = bucket >= BUCKETS // 2
    values = np.where(large, 2000, 1000) + np.arange(n) % 100
    pooled = tail_estimate(Sample(values.astype(np.int64), bucket, BUCKETS), 0.9)
    strata = tail_estimate(
        Sample(values.astype(np.int64), bucket, BUCKETS, weights=np.ones(n), strata=large.astype(np.int32)), 0.9
    )
    assert pooled.value == strata.value
    assert strata.variance == pytest.approx(3000 * 0.2 * 0.8)
    assert pooled.variance > 100 * strata.variance


def test_hosts_by_hand() -> None:
    # Of 50 launches each on 4 hosts 0, 0, 1, 1 are slow: r = (-.5, -.5, .5, .5), V = 4/3 * 1.
    values = np.full(200, 100, np.int64)
    values[[100, 150]] = 200
    bucket = np.repeat(np.arange(4, dtype=np.int32), 50)
    estimate = tail_estimate(Sample(values, bucket, 4, clustered=True), 0.99)
    assert (estimate.nu, estimate.filled, estimate.value) == (3, 4, 100)
    assert estimate.variance == pytest.approx(200 * 0.99 * 0.01)  # the binomial floor
    values[150:165] = 200
    values[[100]] = 100
    estimate = tail_estimate(Sample(values, bucket, 4, clustered=True), 1 - 15 / 200)
    residuals = np.array([0, 0, 0, 15]) - 15 / 4
    assert estimate.variance == pytest.approx(4 / 3 * residuals @ residuals)


@given(samples(), st.integers(0, 10**6))
@settings(deadline=None)
def test_durations_told_as_a_whole_are_dealt_with_both_totals_right(sample: Sample, cut: int) -> None:
    high = sample.durations_ns > cut
    if high.all() or not high.any():
        return
    counts = np.ones(high.size, np.int64) if sample.counts is None else sample.counts
    below = Ordered.of(sample.durations_ns[~high], counts[~high])
    per_bucket = np.bincount(sample.bucket, counts, sample.buckets).astype(np.float64)
    told = one_by_one(
        Sample(
            sample.durations_ns[high],
            sample.bucket[high],
            sample.buckets,
            counts[high],
            below=below,
            per_bucket=per_bucket,
        )
    )
    ordered = told.ordered
    np.testing.assert_array_equal(np.bincount(told.bucket, told.counts, told.buckets), per_bucket)
    np.testing.assert_array_equal(ordered.values, sample.ordered.values)
    np.testing.assert_array_equal(ordered.counts, sample.ordered.counts)
    q = round(0.5 * (1.0 + below.size / ordered.size), 4)  # as a quantile is given
    alike(tail_estimate(weighted(told), q), tail_estimate(sample, q))
    with pytest.raises(ValueError, match="told as a whole"):
        tail_estimate(weighted(told), round(0.5 * below.size / ordered.size, 4))


@pytest.mark.parametrize(
    "parts",
    [
        {"weights": np.zeros(3)},
        {"weights": np.array([1.0, math.inf, 1.0])},
        {"weights": np.ones(2)},
        {"strata": np.zeros(3, np.int32)},
        {"weights": np.ones(3), "strata": np.zeros(2, np.int32)},
    ],
)
def test_weights_and_strata_that_are_none(parts: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match=r"weights|strata"):
        Sample(np.arange(3, dtype=np.int64), np.zeros(3, np.int32), 1, **parts)


def test_what_is_in_common() -> None:
    support = find_support({SMALL: 900, LARGE: 299}, {SMALL: 800, shape(12): 90})
    assert support.common == (SMALL,)
    assert support.apart == (LARGE, shape(12))
    assert support.shares == (pytest.approx(900 / 1199), pytest.approx(800 / 890))
    assert not support.comparable
    assert why_not_comparable(support) == (
        "Of the launches 75% before and 89% after are of shapes that both windows have 300 launches of; 90% are "
        "needed. Others: grid 2^9 blocks of 2^8 threads (24.9% before, 0.0% after); grid 2^12 blocks of 2^8 threads "
        "(0.0% before, 10.1% after) (--no-strata judges all launches together)."
    )


@pytest.mark.parametrize(("after", "comparable"), [(1000, True), (999, False)])
def test_nine_tenths_are_enough(after: int, comparable: bool) -> None:
    assert find_support({SMALL: 9000, LARGE: 1000}, {SMALL: 9 * after, shape(12): 1000}).comparable is comparable


def test_rare_shapes_whose_shares_did_not_move_are_one() -> None:
    rare = [shape(grid) for grid in range(10, 20)]
    before = {SMALL: 1000} | dict.fromkeys(rare, 100)
    support = find_support(before, {SMALL: 2000} | dict.fromkeys(rare, 190))
    assert support.common == (SMALL, REST)
    assert (support.size(REST), support.comparable, support.apart) == ((1000, 1900), True, ())
    moved = find_support(before, {SMALL: 2000} | dict.fromkeys(rare, 190) | {rare[0]: 20})
    assert moved.apart == (rare[0],)
    assert moved.size(REST) == (900, 1710)
    few = find_support({SMALL: 3000, LARGE: 20}, {SMALL: 3000, LARGE: 21})
    assert (few.common, few.apart) == ((SMALL,), (LARGE,))


def test_what_is_not_known_of_a_window_makes_no_strata() -> None:
    known = {shape(5, model="H100"): 5000, shape(9, model="H100"): 5000}
    support = find_support(known, {SMALL: 5000, LARGE: 5000})
    assert (support.common, support.shares) == ((SMALL, LARGE), (1.0, 1.0))
    support = find_support(known, {Stratum(-1, -1, "H100", False): 10_000})
    assert support.likeness is Likeness.ONE


def test_one_shape_in_each_window_is_how_it_is_launched_and_no_mix() -> None:
    assert find_support({SMALL: 5000}, {LARGE: 5000}).likeness is Likeness.RESHAPED
    assert find_support({SMALL: 5000}, {SMALL: 5000}).likeness is Likeness.ONE
    assert find_support({SMALL: 5000}, {shape(5, model="H200"): 5000}).likeness is Likeness.ONE
    models = find_support({shape(5, model="H100"): 5000}, {shape(5, model="H200"): 5000})
    assert models.likeness is Likeness.SEVERAL
    assert why_not_comparable(models) == (
        "In the before window it ran on H100, in the after window H200: no launch of one is like one of the other "
        "(--no-strata judges all launches together)."
    )
    graphs = find_support({SMALL: 5000}, {shape(5, in_graph=True): 5000})
    assert why_not_comparable(graphs).startswith(
        "In the before window it was launched outside graphs, in the after window by graphs: no launch"
    )


def test_names_tell_no_more_than_apart() -> None:
    assert names([SMALL, REST]) == {SMALL: "grid 2^5 blocks of 2^8 threads", REST: "the rarer shapes"}
    two = [shape(5, model="H100"), shape(5, model="H200", in_graph=True)]
    assert list(names(two).values()) == ["H100, outside graphs", "H200, in a graph"]


def judged(before: dict[Stratum, Sample], after: dict[Stratum, Sample]) -> Judgement:
    sizes = [{stratum: sample.size for stratum, sample in side.items()} for side in (before, after)]
    support = find_support(*sizes)
    raw = together(list(before.values())), together(list(after.values()))
    mix = Mix.of(support, before, after, why_not_comparable(support))
    return judge_all({0: raw}, POLICY, mixes={0: mix})[0]


def test_simpson() -> None:
    before = {SMALL: lognormal(1, 30_000, 20_000), LARGE: lognormal(2, 30_000, 80_000)}
    after = {SMALL: lognormal(3, 55_000, 26_000), LARGE: lognormal(4, 5_000, 104_000)}
    found = judged(before, after)
    assert found.verdict is Verdict.REGRESSED
    assert found.mix is not None
    assert found.ratio == found.mix.kernel_effect == pytest.approx(1.3, rel=0.02)
    # Each got slower by 30%, and all together faster at p90.
    assert found.quantiles_before is not None
    assert found.quantiles_after is not None
    assert found.quantiles_after.p90 < 0.5 * found.quantiles_before.p90
    assert found.mix.raw_ratio == pytest.approx(found.mix.kernel_effect * (found.mix.mix_effect or 0.0))
    assert (found.n_before, found.n_after) == (60_000, 60_000)


def test_a_kernel_is_not_named_falsely_more_often_for_having_shapes() -> None:
    # 8 shapes, no change: what each test has of the error rate is a share of it.
    seen = set()
    for seed in range(0, 200, 2):
        windows = [
            {shape(5 + k): lognormal(100 * (seed + side) + k, 2500, 1000.0 * 2**k, 0.3) for k in range(8)}
            for side in (0, 1)
        ]
        seen.add(judged(*windows).verdict)
    assert Verdict.REGRESSED not in seen


def test_what_is_in_common_may_be_regressed_though_much_is_not() -> None:
    before = {SMALL: lognormal(1, 20_000, 20_000), LARGE: lognormal(2, 8_000, 80_000)}
    same = {SMALL: lognormal(3, 20_000, 20_000), shape(12): lognormal(4, 8_000, 80_000)}
    found = judged(before, same)
    assert found.verdict is Verdict.MIX_NOT_COMPARABLE
    assert "In the common shapes p99 moved by" in found.reasons[0]
    assert "grid 2^9 blocks of 2^8 threads (28.6% before, 0.0% after)" in found.reasons[0]
    slower = {SMALL: lognormal(3, 20_000, 26_000), shape(12): lognormal(4, 8_000, 80_000)}
    assert judged(before, slower).verdict is Verdict.REGRESSED


def test_nothing_in_common_has_no_kernel_effect() -> None:
    found = judged(
        {SMALL: lognormal(1, 5_000, 20_000), LARGE: lognormal(2, 5_000, 80_000)},
        {shape(11): lognormal(3, 5_000, 20_000), shape(12): lognormal(4, 5_000, 80_000)},
    )
    assert found.verdict is Verdict.MIX_NOT_COMPARABLE
    assert found.mix is not None
    assert (found.mix.kernel_effect, found.mix.mix_effect, found.mix.support_before) == (None, None, 0.0)
    assert found.p_regressed is None


def test_a_large_shape_that_is_slower_bars_a_pass() -> None:
    # +7% on half of the launches, which the tail of all does not show.
    before = {SMALL: lognormal(1, 5_000, 20_000), LARGE: lognormal(2, 5_000, 80_000, 0.02)}
    after = {SMALL: lognormal(13, 5_000, 22_000), LARGE: lognormal(4, 5_000, 80_000, 0.02)}
    found = judged(before, after)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reasons[-1].startswith(
        "All shapes together are within the margin, but grid 2^5 blocks of 2^8 threads is at +"
    )


def test_what_is_common_to_all_kernels_is_taken_from_each_shape() -> None:
    # 12 control kernels and all shapes of two kernels are 8% slower, one shape of the second 30% more.
    samples = {k: (lognormal(k, 6000, 50_000), lognormal(100 + k, 6000, 54_000)) for k in range(12)}
    mixes = {}
    for key, factor in ((12, 1.08), (13, 1.08 * 1.3)):
        before = {SMALL: lognormal(key, 9000, 20_000), LARGE: lognormal(50 + key, 9000, 80_000)}
        after = {SMALL: lognormal(200 + key, 9000, 20_000 * factor), LARGE: lognormal(250 + key, 9000, 86_400)}
        support = find_support({SMALL: 9000, LARGE: 9000}, {SMALL: 9000, LARGE: 9000})
        mixes[key] = Mix.of(support, before, after, "")
        samples[key] = together(list(before.values())), together(list(after.values()))
    roles = Roles(measures=dict.fromkeys(samples, "device"), swapped={12, 13}, known=True)
    found = judge_all(samples, POLICY, mixes=mixes, roles=roles)
    assert found[12].verdict is not Verdict.REGRESSED
    assert found[13].verdict is Verdict.REGRESSED
    shapes = found[13].mix
    assert shapes is not None
    assert shapes.decides
    # What is shown of a shape is what was measured.
    assert shapes.worst is not None
    assert shapes.worst.ratio == pytest.approx(1.08 * 1.3, rel=0.02)


def test_a_share_that_is_too_small_does_not_look_large_enough() -> None:
    """89.9% and 90% are needed."""
    support = find_support({SMALL: 9_800, LARGE: 200}, {SMALL: 8_990, LARGE: 1_010})
    assert not support.comparable
    assert why_not_comparable(support).startswith("Of the launches 98% before and 89% after are of shapes that both ")
    nothing = find_support({SMALL: 10_000, shape(6): 9}, {LARGE: 10_000, shape(7): 9})
    assert why_not_comparable(nothing) == (
        "No shape has 300 launches in both windows: grid 2^5 blocks of 2^8 threads (99.9% before, 0.0% after); grid "
        "2^9 blocks of 2^8 threads (0.0% before, 99.9% after); grid 2^6 blocks of 2^8 threads (0.09% before, 0.0% "
        "after) and 1 more (--no-strata judges all launches together)."
    )
