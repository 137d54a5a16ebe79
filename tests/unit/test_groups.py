"""Fusions and splits: totals with known means, and what a comparison says of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import captures
from captures import AFTER, BEFORE, TwoWindows, only
from kdiff.analysis.counts import Counts
from kdiff.analysis.groups import plan_groups
from kdiff.analysis.judging import judge_all
from kdiff.analysis.output import output_format
from kdiff.analysis.pairing import pair_kernels
from kdiff.analysis.report import KernelReport
from kdiff.analysis.sample import Sample
from kdiff.analysis.totals import Total, Totals
from kdiff.analysis.verdict import Policy, Verdict
from kdiff.analysis.window import Window

N = 6_007


def sample(durations: list[int] | np.ndarray, bucket: list[int] | np.ndarray, buckets: int) -> Sample:
    return Sample(np.asarray(durations, np.int64), np.asarray(bucket, np.int32), buckets)


def test_a_total_is_the_time_of_all_for_each_launch_of_the_first() -> None:
    total = Total.of([sample([100, 200, 300], [0, 0, 2], 4), sample([10, 20, 30, 40], [0, 1, 2, 2], 4)])
    assert total.spent.tolist() == [310.0, 20.0, 370.0, 0.0]
    assert total.launches.tolist() == [2.0, 0.0, 1.0, 0.0]
    assert (total.n, total.mean, total.filled, total.even) == (3, 700 / 3, 3, 9 / 5)
    assert total.tick == 1 + 10  # of few values a step above 32 ns is no tick


def test_a_total_without_noise_has_no_error() -> None:
    bucket = np.repeat(np.arange(40), 10)
    total = Total.of([sample(np.full(400, 1_000), bucket, 40), sample(np.full(400, 500), bucket, 40)])
    assert total.error == (0.0, 4)
    assert total.limits(0.01) == (math.log(1_500),) * 3


def test_independent_noise_gives_the_error_of_a_mean() -> None:
    rng = np.random.default_rng(1)
    n, sd = 60_000, 0.2
    durations = (10_000 * np.exp(rng.normal(0.0, sd, n))).astype(np.int64)
    total = Total.of([sample(durations, rng.integers(0, 120, n), 120)])
    error, nu = total.error
    expected = math.sqrt(math.expm1(sd**2) / n)
    assert nu == 9
    assert 0.8 * expected < error < 2.0 * expected


@pytest.mark.parametrize(("ratio", "limit"), [(1.0, 0.0), (1.05, 0.06)])
def test_false_regressions_are_rare(ratio: float, limit: float) -> None:
    """Levels of stretches that follow an AR(1), as in bench_statistics.py."""
    rng = np.random.default_rng(5)
    said = []
    for _ in range(200):
        totals = [_drifting(rng, scale) for scale in (1.0, ratio)]
        found = judge_all({}, Policy(), totals={0: Totals(totals[0], totals[1], 0.05, ())})[0]
        said.append(found.verdict)
    assert said.count(Verdict.REGRESSED) <= limit * len(said)
    assert said.count(Verdict.PASS) >= 100 if ratio == 1.0 else said.count(Verdict.PASS) <= 25


def _drifting(rng: np.random.Generator, scale: float) -> Total:
    level = np.zeros(120)
    for t in range(1, 120):
        level[t] = 0.8 * level[t - 1] + rng.normal(0.0, 0.03 * 0.6)
    launches = rng.poisson(500, 120).astype(np.float64)
    return Total(50_000 * scale * launches * np.exp(level), launches, 1)


def test_a_group_counts_among_the_kernels_of_a_run() -> None:
    rng = np.random.default_rng(2)
    launches = np.full(120, 50.0)

    def noisy(scale: float) -> Total:
        return Total(launches * 50_000 * scale * (1 + rng.normal(0, 0.05, 120)), launches, 1)

    alone = Totals(noisy(1.0), noisy(1.075), 0.05, ())
    p = alone.p_regressed()
    assert 0.0001 < p < 0.01
    assert judge_all({}, Policy(), totals={"g": alone})["g"].verdict is Verdict.REGRESSED
    others = {i: Totals(noisy(1.0), noisy(1.0), 0.05, ()) for i in range(round(0.02 / p))}
    found = judge_all({}, Policy(), totals={"g": alone, **others})["g"]
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reasons[0].startswith("Alone this kernel would be REGRESSED")


class Loop(TwoWindows):
    """The same kernels in the same order, N times in each window."""

    def window(self, window: Window, kernels: dict[str, int], skip: dict[str, int] | None = None) -> None:
        """Each kernel with its mean duration; of one in `skip` only each n-th execution."""
        times = captures.spread(window.from_ns, window.to_ns, N)
        for place, (name, duration) in enumerate(kernels.items()):
            rng = np.random.default_rng(place)
            at = times[:: (skip or {}).get(name, 1)] + 100_000 * place
            durations = (duration * rng.lognormal(0.0, 0.1, len(at))).astype(np.int64)
            self.add("kernel_executions", captures.executions(name, at, durations))
            self.add("cuda_events", captures.launches(name, at, batch_launches=24))


@pytest.fixture
def loop(tmp_path: Path, engine: object) -> Loop:
    capture = Loop(tmp_path / "capture")
    capture.window(BEFORE, {"norm": 9_000, "matmul": 40_000, "bias": 10_000})
    return capture


def fused(row: KernelReport) -> tuple[Verdict, str, str, tuple[str, ...], int, int]:
    return row.verdict, row.metric, row.paired_by, row.before_names, row.n_before, row.n_after


@pytest.mark.parametrize(
    ("duration", "verdict", "code"),
    [(60_000, Verdict.REGRESSED, 1), (50_000, Verdict.PASS, 0), (40_000, Verdict.IMPROVED, 0)],
)
def test_a_fusion_is_judged_by_the_total(loop: Loop, duration: int, verdict: Verdict, code: int) -> None:
    loop.window(AFTER, {"norm": 9_000, "fused": duration})
    report = loop.compare(renames=["matmul+bias=fused"])
    row = only(report, "fused")
    assert fused(row) == (verdict, "device_total", "group", ("matmul + bias",), N, N)
    assert report.exit_code == code
    assert report.metric == "mixed"
    assert row.ratio == pytest.approx(duration / 50_000, rel=0.01)
    assert row.ci is not None
    assert row.ci[0] < row.ratio < row.ci[1] < 1.01 * row.ratio
    assert row.quantiles_before is None
    assert row.reasons[0] == (
        "Judged by the mean device time of 'matmul' + 'bias' for each launch of 'matmul' before, of 'fused' for each "
        "launch of 'fused' after: the quantiles of a group are not known."
    )
    assert {r.kernel for r in report.kernels} == {"norm", "fused"}


def test_the_mean_is_exact(loop: Loop) -> None:
    loop.window(AFTER, {"norm": 9_000, "fused": 60_000})
    row = only(loop.compare(renames=["matmul+bias=fused"]), "fused")
    drawn = [
        (duration * np.random.default_rng(place).lognormal(0.0, 0.1, N)).astype(np.int64)
        for place, duration in ((1, 40_000), (2, 10_000), (1, 60_000))
    ]
    assert row.value_before == round((drawn[0].sum() + drawn[1].sum()) / N)
    assert row.value_after == round(drawn[2].sum() / N)


def test_a_split_is_judged_by_the_total(tmp_path: Path, engine: object) -> None:
    capture = Loop(tmp_path / "capture")
    capture.window(BEFORE, {"norm": 9_000, "fused": 50_000})
    capture.window(AFTER, {"norm": 9_000, "matmul": 40_000, "bias": 20_000})
    report = capture.compare(renames=["fused=matmul+bias"])
    row = only(report, "matmul + bias")
    assert fused(row) == (Verdict.REGRESSED, "device_total", "group", ("fused",), N, N)
    assert report.exit_code == 1
    assert (
        output_format("table")
        .render(report, 140, False)
        .splitlines()[-1]
        .startswith("REGRESSED: matmul + bias mean +20.")
    )


def test_a_launch_that_is_another_unit_of_work_is_not_judged(tmp_path: Path, engine: object) -> None:
    capture = Loop(tmp_path / "capture")
    capture.window(BEFORE, {"norm": 9_000, "matmul": 40_000, "bias": 10_000})
    capture.window(AFTER, {"norm": 9_000, "fused": 100_000}, {"fused": 2})
    report = capture.compare(renames=["matmul+bias=fused"])
    row = only(report, "fused")
    assert (row.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert row.reasons[0].startswith(
        "'matmul' ran 1 times before, 'fused' 0.5 times after, for each run of the kernels"
    )


def test_a_group_without_device_time_is_not_judged(tmp_path: Path, engine: object) -> None:
    capture = Loop(tmp_path / "capture")
    capture.window(BEFORE, {"norm": 9_000, "matmul": 40_000, "bias": 10_000})
    times = captures.spread(AFTER.from_ns, AFTER.to_ns, N)
    capture.add("cuda_events", captures.launches("fused", times, completion_ns=50_000))
    capture.add("kernel_executions", captures.executions("norm", times, 9_000))
    row = only(capture.compare(renames=["matmul+bias=fused"]), "fused")
    assert row.verdict is Verdict.INCONCLUSIVE
    assert (
        row.reasons[0] == "Device time not recorded of 'fused' in the after window: the time of its group is not known."
    )
    row = only(capture.compare(renames=["matmul+bias=fused"], metric="launch"), "fused")
    assert row.reasons[0].startswith("A group of --map is judged by device time only")


def test_few_launches_are_not_enough(tmp_path: Path, engine: object) -> None:
    capture = Loop(tmp_path / "capture")
    names = {"norm": 9_000, "matmul": 40_000, "bias": 10_000}
    capture.window(BEFORE, names, dict.fromkeys(names, 30))
    capture.window(AFTER, {"norm": 9_000, "fused": 50_000}, {"norm": 30, "fused": 30})
    row = only(capture.compare(renames=["matmul+bias=fused"]), "fused")
    assert row.verdict is Verdict.NOT_ENOUGH_DATA
    assert row.reasons[1] == "The before window has 201 launches of the group's first kernel; its mean needs 300."


def test_roll_ups_do_not_tell_a_group() -> None:
    counts = Counts((1,), launches=N, executions=N)
    pairing = pair_kernels({"a": counts, "b": counts, "n": counts}, {"c": counts, "n": counts}, ["a+b=c"])
    (plan,) = plan_groups(pairing.groups, pairing.beside, "auto", rolled=False)
    assert (plan.metric, plan.why) == (None, "")
    (plan,) = plan_groups(pairing.groups, pairing.beside, "auto", rolled=True)
    assert plan.why == (
        "A group of --map is judged from rows, and roll-ups do not tell its time: choose windows of under two hours, "
        "or add --exact."
    )


def test_a_group_that_nothing_else_ran_beside_is_counted_by_the_time(tmp_path: Path, engine: object) -> None:
    """Two launches that do half of the work each are no faster kernel."""
    capture = Loop(tmp_path / "capture")
    capture.window(BEFORE, {"fused": 50_000}, {"fused": 2})
    capture.window(AFTER, {"matmul": 30_000, "bias": 5_000})
    report = capture.compare(renames=["fused=matmul+bias"])
    row = only(report, "matmul + bias")
    assert (row.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert row.reasons[0].startswith("'fused' ran 5.01 times before, 'matmul' 10 times after, for each second that was")
    capture = Loop(tmp_path / "steady")
    capture.window(BEFORE, {"fused": 50_000})
    capture.window(AFTER, {"matmul": 30_000, "bias": 5_000})
    assert only(capture.compare(renames=["fused=matmul+bias"]), "matmul + bias").verdict is Verdict.IMPROVED
