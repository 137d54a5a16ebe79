"""Control kernels: what moved all of them is no regression, what moved one of them is."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiff.analysis import bystanders
from kdiff.analysis.controls import MIN_CONTROLS, Adjusted, Controls, Roles, Shift, deviation
from kdiff.analysis.counts import Counts
from kdiff.analysis.decision import Decidable
from kdiff.analysis.interval import RatioLimits, student_quantile
from kdiff.analysis.judging import judge_all
from kdiff.analysis.measure import Plan
from kdiff.analysis.multiple import benjamini_hochberg, holm, regressed
from kdiff.analysis.pairing import Pair, PairingError
from kdiff.analysis.sample import Sample
from kdiff.analysis.verdict import Judgement, Policy, Verdict, overall

POLICY = Policy()
BUCKETS = 60
MOVED = (Verdict.CONFOUNDED, Verdict.PASS)
Samples = dict[int, tuple[Sample | None, Sample | None]]


def traffic(rng: np.random.Generator, factor: float = 1.0, n: int = 6_000) -> Sample:
    values = np.rint(50_000 * factor * rng.lognormal(0.0, 0.05, n)).astype(np.int64)
    return Sample(values, (np.arange(n) % BUCKETS).astype(np.int32), BUCKETS)


def run(seed: int, common: float, own: dict[int, float] | None = None, kernels: int = 20) -> Samples:
    """`kernels` kernels that all get slower by a factor, some by one of their own besides."""
    rng = np.random.default_rng(seed)
    return {k: (traffic(rng), traffic(rng, common * (own or {}).get(k, 1.0))) for k in range(kernels)}


def judged(samples: Samples, swapped: frozenset[int] | None = None, policy: Policy = POLICY) -> dict[int, Judgement]:
    measures = dict.fromkeys(samples, "device")
    return judge_all(samples, policy, roles=Roles(measures, swapped or frozenset(), swapped is not None))


@dataclass
class Known(Decidable):
    """A ratio that is known with a normal error."""

    value: float
    error: float
    margin: float = 0.05
    lack: tuple[str, ...] = ()

    def limits(self, level: float) -> RatioLimits:
        reach = -student_quantile(1000, level) * self.error
        return RatioLimits(self.value, self.value - reach, self.value + reach)


@pytest.mark.parametrize("seed", range(5))
def test_a_drop_of_all_clocks_is_no_regression(seed: int) -> None:
    alone = Counter(one.verdict for one in judge_all(run(seed, 1.08), POLICY).values())
    assert alone[Verdict.REGRESSED] >= 10
    found = judged(run(seed, 1.08))
    assert {one.verdict for one in found.values()} == {Verdict.CONFOUNDED}
    assert overall(one.verdict for one in found.values()) is Verdict.CONFOUNDED
    one = found[3]
    assert one.ratio is not None
    assert one.adjusted_ratio is not None
    assert one.adjusted_ci is not None
    assert one.common is not None
    assert one.ratio == pytest.approx(1.08, rel=0.03)
    assert one.adjusted_ratio == pytest.approx(1.0, abs=0.03)
    assert one.adjusted_ci[0] < 1.0 < one.adjusted_ci[1]
    assert (one.common.n, one.common.adjusted, one.common.apart) == (20, True, 0)
    assert one.common.ratio == pytest.approx(1.08, rel=0.005)
    assert one.common.ci[0] < one.common.ratio < one.common.ci[1]
    assert one.reasons[0].startswith("19 control kernels moved together by +")
    assert one.reasons[0].endswith(": what is above the margin is common to all.")


def test_six_percent_is_confounded_or_passes_by_the_rules() -> None:
    verdicts = Counter(one.verdict for seed in range(5) for one in judged(run(seed, 1.06)).values())
    assert set(verdicts) <= {Verdict.CONFOUNDED, Verdict.INCONCLUSIVE}
    assert verdicts[Verdict.CONFOUNDED] >= 95


@pytest.mark.parametrize("seed", range(5))
def test_one_that_got_slower_besides_is_found(seed: int) -> None:
    found = judged(run(seed, 1.06, {7: 1.2}))
    assert [k for k, one in found.items() if one.verdict is Verdict.REGRESSED] == [7]
    assert found[7].adjusted_ratio == pytest.approx(1.2, rel=0.03)
    assert found[7].reasons[0].startswith("19 control kernels moved together by +")
    assert "beyond that this one moved by +" in found[7].reasons[0]


def test_what_leaves_a_kernel_undecided_is_told_first() -> None:
    samples = run(1, 1.06, {7: 1.3}, kernels=60)
    small = {
        k: tuple(replace(s, durations_ns=s.durations_ns[:2_400], bucket=s.bucket[:2_400]) for s in pair if s)
        for k, pair in samples.items()
    }
    found = judged({k: (pair[0], pair[1]) for k, pair in small.items()})
    one = found[7]
    assert one.verdict is Verdict.INCONCLUSIVE
    assert one.reasons[0].startswith("Alone this kernel would be REGRESSED, but among 59 kernels")
    assert one.reasons[0].endswith("if it is what was swapped, name it (--swapped), or take longer windows.")
    assert one.reasons[1].startswith("58 control kernels moved together by +")
    assert judged({k: (pair[0], pair[1]) for k, pair in small.items()}, frozenset({7}))[7].verdict is Verdict.REGRESSED


def test_a_small_shift_of_all_is_allowed_for() -> None:
    before = Counter(one.verdict for seed in range(3) for one in judge_all(run(seed, 1.045), POLICY).values())
    after = Counter(one.verdict for seed in range(3) for one in judged(run(seed, 1.045)).values())
    assert before[Verdict.PASS] <= 25
    assert after[Verdict.PASS] >= 50
    assert after[Verdict.REGRESSED] == 0


@pytest.mark.parametrize("seed", range(5))
def test_without_a_common_shift_the_verdicts_are_as_without_controls(seed: int) -> None:
    samples = run(seed, 1.0, {2: 1.2, 5: 0.8})
    alone, found = judge_all(samples, POLICY), judged(samples)
    for key, one in found.items():
        assert one.common is not None
        assert not one.common.adjusted
        assert (one.verdict, one.reasons, one.p_regressed) == (
            alone[key].verdict,
            alone[key].reasons,
            alone[key].p_regressed,
        )
        assert one.adjusted_ratio is None
    assert (found[2].verdict, found[5].verdict) == (Verdict.REGRESSED, Verdict.IMPROVED)


def test_one_that_others_hide_does_not_pass() -> None:
    found = judged(run(1, 0.9, {4: 1.0 / 0.9}))
    assert found[4].ratio == pytest.approx(1.0, abs=0.03)
    assert found[4].verdict is Verdict.CONFOUNDED
    assert (
        found[4]
        .reasons[0]
        .endswith(": it is slower than the others by more than the margin, which what is common to all hides.")
    )
    others = {one.verdict for key, one in found.items() if key != 4}
    assert others == {Verdict.PASS}  # faster by what is common, which is no improvement


def test_an_improvement_survives() -> None:
    assert judged(run(1, 1.03, {4: 0.8}))[4].verdict is Verdict.IMPROVED


def test_fewer_than_ten_controls_adjust_nothing() -> None:
    samples = run(1, 1.08, kernels=MIN_CONTROLS)
    for swapped in (None, frozenset({0})):
        found = judged(samples, swapped)
        assert {one.common is None for one in found.values()} == {True}
        assert found[0].verdict is Verdict.REGRESSED
    samples = run(1, 1.08, kernels=MIN_CONTROLS + 1)
    for swapped, n in ((None, 11), (frozenset({0}), 10)):
        found = judged(samples, swapped)
        assert {one.verdict for one in found.values()} == {Verdict.CONFOUNDED}
        assert {one.common.n for one in found.values() if one.common} == {n}


def test_where_many_moved_apart_nothing_is_common() -> None:
    own = dict.fromkeys(range(8), 1.3)
    found = judged(run(1, 1.08, own))
    assert found[0].common is not None
    assert found[0].common.apart == 8
    assert not found[0].common.adjusted
    assert found[0].verdict is Verdict.REGRESSED
    told = bystanders.notes(bystanders.reports(found), Roles())
    assert told == [
        "The 20 control kernels did not move together (device): 8 of them are away from their median by more than "
        "their margin. Nothing common to all can be told, and verdicts are not adjusted."
    ]


def test_kernels_of_another_measure_and_without_enough_data_are_no_controls() -> None:
    samples = run(1, 1.08)
    rng = np.random.default_rng(9)
    samples[20] = traffic(rng, n=500), traffic(rng, 1.08, 500)
    measures = {k: "device" if k < 12 else "completion" for k in samples}
    found = judge_all(samples, POLICY, roles=Roles(measures))
    assert found[0].common is not None
    assert found[0].common.n == 12
    assert found[12].common is None
    assert found[20].verdict is Verdict.NOT_ENOUGH_DATA
    assert judge_all(samples, POLICY)[0].common is None


@settings(max_examples=25, deadline=None)
@given(shift=st.floats(-0.3, 0.3), seed=st.integers(0, 7))
def test_a_shift_of_all_never_makes_a_regression(shift: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernels = {k: Known(shift + rng.normal(0.0, 0.01), 0.01) for k in range(20)}
    controls = Controls(kernels, Roles(dict.fromkeys(kernels, "device")), POLICY)
    for key, kernel in kernels.items():
        asked = controls.of(key) or kernel
        assert not asked.regressed_at(0.01)
        if kernel.value > math.log(1.05) and isinstance(asked, Adjusted):
            assert not asked.passes_at(0.05)
            assert asked.confounded(0.05) == "what is above the margin is common to all"


@settings(max_examples=50, deadline=None)
@given(value=st.floats(-0.3, 0.3), center=st.floats(-0.3, 0.3), error=st.floats(0.001, 0.05))
def test_an_adjusted_kernel_is_regressed_by_both_ratios_and_says_one_thing(
    value: float, center: float, error: float
) -> None:
    raw = Known(value, error)
    both = Adjusted(raw, Shift(center, 0.2 * error, 0.0, 12), 19)
    found = both.regressed_at(0.01), both.passes_at(0.05)
    assert found != (True, True)
    if found[0]:
        assert value > math.log(1.05)
        assert both.limits(0.01).low > math.log(1.05)
        assert not both.confounded(0.05)
    if found[1]:
        assert value <= math.log(1.05) + 1e-6
        assert both.limits(0.05).high <= math.log(1.05) + 1e-6
    if value <= math.log(1.05):
        assert both.p_regressed() >= raw.p_regressed() >= 0.4
    low, high = both.limits(0.05)[1:]
    assert high - low >= raw.limits(0.05).high - raw.limits(0.05).low


def test_what_answers_otherwise_widens_what_is_beyond() -> None:
    rng = np.random.default_rng(3)
    kernels = {k: Known(0.15 * rng.random(), 0.005) for k in range(30)}
    kernels[30] = Known(0.15, 0.005)
    controls = Controls(kernels, Roles(dict.fromkeys(kernels, "device")), POLICY)
    common = controls.common(30)
    assert common is not None
    assert common.shift.spread == pytest.approx(0.15 / math.sqrt(12), rel=0.4)
    found = controls.of(30)
    # A third and more apart: nothing is adjusted; else the spread bars REGRESSED.
    assert found is None or not found.regressed_at(0.01)


def test_the_deviation_is_that_of_most() -> None:
    rng = np.random.default_rng(1)
    for n in (10, 11, 25, 400, 3_000):
        found = np.mean([deviation(rng.normal(5.0, 2.0, n)) for _ in range(40)])
        assert found == pytest.approx(2.0, rel=0.12), n
    values = rng.normal(0.0, 1.0, 100)
    values[:40] = 1000.0
    assert deviation(values) < 4.0
    assert deviation(np.zeros(12)) == 0.0


def test_benjamini_hochberg_is_a_step_up() -> None:
    # The example of their paper: 15 p-values; at 5% Bonferroni's way rejects three, theirs four.
    p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590]
    p_values = {str(i): value for i, value in enumerate([*p, 1.0])}

    def decide(key: str, level: float) -> bool:
        return p_values[key] <= level

    assert holm(p_values, decide, 0.05) == {"0", "1", "2"}
    assert benjamini_hochberg(p_values, decide, 0.05) == {"0", "1", "2", "3"}
    assert benjamini_hochberg(p_values, decide, 0.05, most=0.001) == {"0", "1"}
    # A larger one that reaches its level takes the smaller ones with it.
    assert benjamini_hochberg({"a": 0.04, "b": 0.045}, lambda k, q: {"a": 0.04, "b": 0.045}[k] <= q, 0.05) == {"a", "b"}
    assert benjamini_hochberg({}, decide, 0.05) == set()


def test_where_it_is_known_what_was_swapped_others_do_not_count() -> None:
    p_values = {"swapped": 0.009, "a": 0.004, "b": 0.004} | {str(i): 0.9 for i in range(8)}

    def decide(key: str, level: float) -> bool:
        return p_values[key] <= level

    assert regressed(p_values, decide, 0.01) == set()
    assert regressed(p_values, decide, 0.01, {"swapped"}, known=True) == {"swapped", "a", "b"}
    assert regressed(p_values, decide, 0.001, {"swapped"}, known=True) == set()


def plan(name: str, metric: str | None = "device", old: tuple[str, ...] = (), by: str = "name") -> Plan:
    counts = Counts(launches=10_000, executions=10_000)
    return Plan(Pair(name, counts, counts, old, by), metric)  # type: ignore[arg-type]


def test_roles_of_kernels() -> None:
    plans = [plan("gelu_v2", old=("gelu",), by="map"), plan("norm"), plan("call", "launch"), plan("(graph a)", "graph")]
    plans += [plan("add", "completion"), plan("c", None, by="group")]
    pairs = [one.pair for one in plans]
    found = bystanders.roles(plans, (), {4}, pairs)
    assert found == Roles({0: "device", 1: "device", 4: "completion (calibrated)"})
    found = bystanders.roles(plans, ("nor*",), (), pairs)
    assert (found.swapped, found.known) == (frozenset({0, 1, 5}), True)
    assert bystanders.roles(plans, ("gelu",), (), pairs).swapped == frozenset({0, 5})
    with pytest.raises(PairingError, match="--swapped 'glue': no kernel of either window matches it"):
        bystanders.roles(plans, ("glue",), (), pairs)
    told = bystanders.notes((), bystanders.roles(plans, ("norm",), (), pairs))
    assert told == [
        "Fewer than 10 kernels with enough data were not swapped (1 were compared): what moved all of them cannot be "
        "told from the swap."
    ]


@pytest.mark.parametrize("errors", [(0.0,), (0.0, 0.01), (math.inf,), (math.inf, 0.01), (1e-300, 0.3)])
@pytest.mark.parametrize("values", [(0.0,), (0.08,), (0.0, 0.08), (-0.3, 0.3, 0.0), (math.nan, 0.08), (math.inf, 0.08)])
def test_no_number_breaks_it(values: tuple[float, ...], errors: tuple[float, ...]) -> None:
    kernels = {k: Known(values[k % len(values)], errors[k % len(errors)]) for k in range(24)}
    controls = Controls(kernels, Roles(dict.fromkeys(kernels, "device")), POLICY)
    for key in kernels:
        common, found = controls.common(key), controls.of(key)
        if common is not None:
            assert math.isfinite(common.ratio)
            assert not any(math.isnan(limit) for limit in common.ci)
        if found is not None and math.isfinite(kernels[key].value):
            limits = found.limits(0.05)
            assert limits.low <= limits.log_ratio <= limits.high
            assert 0.0 < found.p_regressed() <= 1.0
            assert not (found.regressed_at(0.01) and found.passes_at(0.05))
