"""Verdicts on known truths, the gate over many kernels, and the run."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdiff.analysis.interval import tail_estimate
from kdiff.analysis.judging import judge, judge_all
from kdiff.analysis.multiple import holm
from kdiff.analysis.sample import Sample
from kdiff.analysis.verdict import Policy, Verdict, overall

POLICY = Policy()
BUCKETS = 60


def sample(durations: NDArray[np.int64] | list[int], buckets: int = BUCKETS) -> Sample:
    values = np.asarray(durations, dtype=np.int64)
    return Sample(values, (np.arange(values.size) % buckets).astype(np.int32), buckets)


def traffic(seed: int, n: int = 12_000, factor: float = 1.0) -> Sample:
    """Independent lognormal launches."""
    rng = np.random.default_rng(seed)
    return sample(np.rint(50_000 * factor * rng.lognormal(0.0, 0.15, n)).astype(np.int64))


def test_a_slower_kernel_is_regressed_with_its_numbers() -> None:
    judged = judge(traffic(1), traffic(2, factor=1.3), POLICY)
    assert judged.verdict is Verdict.REGRESSED
    assert judged.ratio is not None
    assert judged.ci is not None
    assert judged.ratio == pytest.approx(1.3, rel=0.05)
    assert 1.05 < judged.ci[0] < judged.ratio < judged.ci[1]
    assert judged.p_regressed is not None
    assert judged.p_regressed < 0.01
    assert judged.quantiles_before is not None
    assert judged.quantiles_before.p50 == pytest.approx(50_000, rel=0.01)
    assert (judged.n_before, judged.n_after, judged.margin, judged.quantum_ns) == (12_000, 12_000, 0.05, 1)


def test_the_same_kernel_passes() -> None:
    judged = judge(traffic(1, 60_000), traffic(2, 60_000), POLICY)
    assert judged.verdict is Verdict.PASS
    assert judged.p_regressed is not None
    assert judged.p_regressed > 0.95
    assert judged.reasons == ()


def test_a_faster_kernel_is_improved() -> None:
    assert judge(traffic(1), traffic(2, factor=0.8), POLICY).verdict is Verdict.IMPROVED


def test_too_close_to_the_margin_is_inconclusive_and_says_how_much_more() -> None:
    judged = judge(traffic(1, 3_000), traffic(2, 3_000, factor=1.08), POLICY)
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "times as many launches" in judged.reasons[0] or "too close" in judged.reasons[0]


@pytest.mark.parametrize("base", [100_000, 100, 40, 20, 7_777_700])
def test_a_slowdown_of_exactly_the_tolerance_is_tolerated(base: int) -> None:
    slower = round(base * 1.05)
    assert judge(sample([base] * 3000), sample([slower] * 3000), POLICY).verdict is Verdict.PASS


def test_at_the_margin_no_window_is_promised() -> None:
    before = np.random.default_rng(1).lognormal(11, 0.15, 6000).astype(np.int64)
    judged = judge(sample(before * 20), sample(before * 21), POLICY)
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "too close to the margin" in judged.reasons[0]


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_200_launches_are_not_enough(factor: float) -> None:
    judged = judge(traffic(1, 200), traffic(2, 200, factor), POLICY)
    assert judged.verdict is Verdict.NOT_ENOUGH_DATA
    assert judged.reasons[0] == (
        "The before window has 200 launches; p99 needs 2,000: 1,800 more, or a window 10.0 times as long."
    )
    assert len(judged.reasons) == 2
    assert judged.p_regressed is None
    assert judged.ratio is not None


def test_2400_independent_launches_are_decided() -> None:
    undecided = 0
    for seed in range(40):
        before, after = traffic(2 * seed, 2400), traffic(2 * seed + 1, 2400, 1.6)
        undecided += judge(before, after, POLICY).verdict is not Verdict.REGRESSED
    assert undecided <= 3


def test_few_stretches_are_not_enough() -> None:
    values = np.random.default_rng(1).integers(1000, 2000, 9000)
    judged = judge(sample(values, 29), sample(values, 29), POLICY)
    assert judged.verdict is Verdict.NOT_ENOUGH_DATA
    assert "29 stretches" in judged.reasons[0]


def test_one_crowded_stretch_is_not_enough() -> None:
    values = np.random.default_rng(1).integers(1000, 2000, 9000)
    bucket = np.zeros(9000, dtype=np.int32)
    bucket[:60] = np.arange(60)
    crowded = Sample(values, bucket, 60)
    judged = judge(crowded, crowded, POLICY)
    assert judged.verdict is Verdict.NOT_ENOUGH_DATA
    assert "crowd" in judged.reasons[0]


def test_one_burst_is_not_enough() -> None:
    values = np.random.default_rng(1).integers(1000, 1100, 6000)
    bucket = np.sort(np.arange(6000) % 60).astype(np.int32)
    values[600:700] *= 3
    judged = judge(Sample(values, bucket, 60), Sample(values, bucket, 60), POLICY)
    assert judged.verdict is Verdict.NOT_ENOUGH_DATA
    assert "bursts" in judged.reasons[0]


def test_what_the_history_widened_is_not_told_of_bursts() -> None:
    """Of the reason for too little: the launches themselves, what `kdiff calibrate` found, or both."""
    judged = judge_all({"k": (traffic(1, 3_000), traffic(2, 3_000))}, POLICY)["k"]
    assert judged.verdict is Verdict.INCONCLUSIVE
    steady = judge_all({"k": (traffic(1, 3_000), traffic(2, 3_000))}, POLICY, inflation={"k": 4.0})["k"]
    assert steady.verdict is Verdict.NOT_ENOUGH_DATA
    told = [tail_estimate(traffic(seed, 3_000), 0.99, 4.0) for seed in (1, 2)]
    assert steady.reasons == tuple(
        f"The {name} window's 3,000 launches would do by themselves, but the history widens its interval x4.00, so "
        f"that they tell no more than {one.n_eff:,.0f} independent ones: take a window about {longer} times as long, "
        "and run `kdiff calibrate` for that length."
        for name, one, longer in zip(("before", "after"), told, ("9.3", "6.0"), strict=True)
    )
    bursts = [
        Sample(s.durations_ns * np.where((s.bucket >= 20) & (s.bucket < 23), 2, 1), s.bucket, s.buckets)
        for s in (traffic(1, 3_000), traffic(2, 3_000))
    ]
    both = judge_all({"k": (bursts[0], bursts[1])}, POLICY, inflation={"k": 1.5})["k"]
    own, widened = (tail_estimate(bursts[0], 0.99, by) for by in (1.0, 1.5))
    assert both.reasons[0].startswith(
        f"The before window's slow launches come in bursts, so that its 3,000 launches tell no more than "
        f"{own.n_eff:,.0f} independent ones, and {widened.n_eff:,.0f} where the history widens its interval x1.50: "
    )
    far = judge_all({"k": (traffic(1, 3_000), traffic(2, 3_000))}, POLICY, inflation={"k": 1e6})["k"]
    assert far.reasons[0].endswith("independent ones: that takes more than any window of practical length.")


def test_as_much_longer_as_it_says_bounds_the_quantile() -> None:
    one = tail_estimate(traffic(1, 3_000), 0.99, 4.0)
    assert one.limits(0.01)[1] == math.inf
    longer = one.longer_for(0.01)
    assert math.isfinite(tail_estimate(traffic(1, math.ceil(1.1 * longer * 3_000)), 0.99, 4.0).limits(0.01)[1])
    assert tail_estimate(traffic(1, 3_000), 0.99).longer_for(0.01) <= 1.0
    assert one.as_it_was.limits(0.01) == tail_estimate(traffic(1, 3_000), 0.99).limits(0.01)


def test_bursts_within_the_timer_s_reach_do_not_matter() -> None:
    values = np.full(6000, 2048, dtype=np.int64)
    values[600:700] += 64
    bucket = np.sort(np.arange(6000) % 60).astype(np.int32)
    one = Sample(values, bucket, 60)
    assert judge(one, one, POLICY).verdict is Verdict.PASS


@pytest.mark.parametrize("nothing", [None, sample([])])
def test_new_and_gone(nothing: Sample | None) -> None:
    new, gone = judge(nothing, traffic(1), POLICY), judge(traffic(1), nothing, POLICY)
    assert (new.verdict, new.n_before, new.quantiles_before) == (Verdict.NEW, 0, None)
    assert (gone.verdict, gone.n_after, gone.quantiles_after) == (Verdict.GONE, 0, None)
    assert new.quantiles_after == gone.quantiles_before
    assert [new.ratio, new.ci, new.p_regressed] == [None, None, None]
    assert judge(nothing, nothing, POLICY).verdict is Verdict.NOT_ENOUGH_DATA


@pytest.mark.parametrize(
    ("base", "ticks", "verdict"),
    [
        (20, 0, Verdict.PASS),
        (20, 1, Verdict.PASS),  # 640 to 672 ns is 5%: one tick, within the margin of two.
        (20, 2, Verdict.PASS),  # At the margin.
        (20, 3, Verdict.REGRESSED),
        (20, -1, Verdict.PASS),  # One tick may be the timer's.
        (20, -2, Verdict.IMPROVED),
        (400, 2, Verdict.PASS),
        (400, 21, Verdict.REGRESSED),
    ],
)
def test_ticks_of_a_deterministic_kernel(base: int, ticks: int, verdict: Verdict) -> None:
    judged = judge(sample([32 * base] * 3000), sample([32 * (base + ticks)] * 3000), POLICY)
    assert judged.verdict is verdict
    assert judged.quantum_ns == 32
    assert judged.margin == max(0.05, 64 / (32 * base))


def test_a_margin_of_ticks_is_explained() -> None:
    judged = judge(sample([640] * 3000), sample([672] * 3000), POLICY)
    assert judged.reasons == ("The timer ticks every 32 ns: the margin is 2 ticks, 10.0%.",)


def test_zeros_pass() -> None:
    assert judge(sample([0] * 3000), sample([0] * 3000), POLICY).verdict is Verdict.PASS


def test_a_slow_median_does_not_show_at_p99() -> None:
    # 5% of launches are a big shape and set p99; the others got twice as slow.
    big = np.random.default_rng(1).random(12_000) < 0.05
    before, after = np.where(big, 80_000, 2_000), np.where(big, 80_000, 4_000)
    judged = judge(sample(before), sample(after), POLICY)
    assert judged.verdict is Verdict.PASS
    assert judged.quantiles_before is not None
    assert judged.quantiles_after is not None
    assert (judged.quantiles_before.p50, judged.quantiles_after.p50) == (2_000, 4_000)


def test_the_shown_interval_is_the_one_that_passes() -> None:
    for seed in range(20):
        judged = judge(traffic(seed, 5_000), traffic(seed + 100, 5_000), POLICY)
        assert judged.ci is not None
        assert (judged.ci[1] < 1.05) == (judged.verdict in (Verdict.PASS, Verdict.IMPROVED))


def test_a_p_value_agrees_with_the_verdict() -> None:
    for seed in range(20):
        judged = judge(traffic(seed), traffic(seed + 100, factor=1.14), POLICY)
        assert judged.p_regressed is not None
        assert (judged.p_regressed <= POLICY.alpha_regressed) == (judged.verdict is Verdict.REGRESSED)


def test_multiplicity_turns_a_weak_regression_into_inconclusive_and_says_so() -> None:
    weak = next(
        pair
        for pair in ((traffic(s), traffic(s + 100, factor=1.11)) for s in range(80))
        if 0.001 < (judge(*pair, POLICY).p_regressed or 1.0) < 0.009
    )
    steady = sample([2048] * 3000)
    judged = judge_all({"weak": weak, **{f"k{i}": (steady, steady) for i in range(19)}}, POLICY)
    assert judged["weak"].verdict is Verdict.INCONCLUSIVE
    assert "among 20 kernels" in judged["weak"].reasons[0]
    assert list(judged) == ["weak", *(f"k{i}" for i in range(19))]


def test_kernels_that_cannot_be_judged_cost_no_power() -> None:
    weak = traffic(1), traffic(2, factor=1.3)
    few = traffic(3, 100), traffic(4, 100)
    judged = judge_all({0: weak, **dict.fromkeys(range(1, 2000), few), 2000: (None, few[0])}, POLICY)
    assert judged[0].verdict is Verdict.REGRESSED
    assert judged[0] == judge(*weak, POLICY)


def test_holm_by_hand() -> None:
    p = {"a": 0.04, "b": 0.001, "c": 0.013, "d": 0.016}
    # 0.001 <= .05/4, 0.013 <= .05/3, 0.016 <= .05/2, 0.04 <= .05.
    assert holm(p, lambda k, level: p[k] <= level, 0.05) == set("abcd")
    # 0.013 > .04/3 stops it, though 0.016 <= .04/2.
    p["c"] = 0.0135
    assert holm(p, lambda k, level: p[k] <= level, 0.04) == {"b"}
    assert holm({}, lambda k, level: True, 0.05) == set()


def test_an_infinite_limit_reads_as_one() -> None:
    judged = judge(traffic(1, 200), traffic(2, 200), POLICY)
    assert judged.ci == (0.0, math.inf)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["PASS", "IMPROVED", "NEW", "GONE"], "PASS"),
        (["IMPROVED"], "PASS"),
        (["PASS", "REGRESSED", "INCONCLUSIVE"], "REGRESSED"),
        (["PASS", "NOT_ENOUGH_DATA", "INCONCLUSIVE"], "INCONCLUSIVE"),
        (["PASS", "NOT_ENOUGH_DATA"], "NOT_ENOUGH_DATA"),
        (["NEW", "GONE"], "INCONCLUSIVE"),
        ([], "INCONCLUSIVE"),
    ],
)
def test_overall(verdicts: list[str], expected: str) -> None:
    assert overall(Verdict(v) for v in verdicts) is Verdict(expected)


@pytest.mark.parametrize(
    "bad",
    [
        {"tolerance": -0.1},
        {"tolerance": math.inf},
        {"tolerance": math.nan},
        {"quantile": 1.0},
        {"alpha_regressed": 0.0},
        {"alpha_pass": 0.5},
    ],
)
def test_a_policy_refuses_nonsense(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"tolerance|quantile|error rate"):
        Policy(**bad)


@st.composite
def any_sample(draw: st.DrawFn) -> Sample | None:
    n = draw(st.integers(0, 4000))
    if n == 0:
        return None
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    top = draw(st.sampled_from([0, 1, 3, 1000, 10**6, 2**62, 2**63 - 1]))
    values = rng.integers(0, top, n, endpoint=True, dtype=np.int64)
    if draw(st.booleans()):
        values[:] = values[0]
    buckets = draw(st.integers(1, 80))
    return Sample(values, rng.integers(0, buckets, n, dtype=np.int32), buckets)


@given(any_sample(), any_sample(), st.sampled_from([0.5, 0.9, 0.99, 0.999]), st.sampled_from([0.0, 0.05, 1.0]))
@settings(max_examples=120, deadline=None)
def test_any_durations_get_a_verdict_without_nan(
    before: Sample | None, after: Sample | None, quantile: float, tolerance: float
) -> None:
    judged = judge(before, after, Policy(tolerance=tolerance, quantile=quantile))
    assert judged.margin >= tolerance
    if before is not None and after is not None:
        assert judged.ratio is not None
        assert judged.ci is not None
        assert judged.ci[0] <= judged.ratio <= judged.ci[1]
        assert judged.p_regressed is None or 0.0 < judged.p_regressed <= 1.0
    assert all("nan" not in reason.split() and reason.endswith(".") for reason in judged.reasons)


def test_no_change_is_not_regressed_and_a_fifth_is_found() -> None:
    false = sum(judge(traffic(s), traffic(s + 500), POLICY).verdict is Verdict.REGRESSED for s in range(40))
    found = sum(judge(traffic(s), traffic(s + 500, factor=1.2), POLICY).verdict is Verdict.REGRESSED for s in range(40))
    assert false == 0
    assert found >= 36
