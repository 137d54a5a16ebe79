"""Calibration and power of the verdicts on synthetic latencies whose truth is known.

    python tests/bench/bench_statistics.py [--repetitions 200] [--seed 1] [--buckets 120] [--only device-windows|groups]

Serving: lognormal launches (sigma 0.15), 3% of them slowed by contention, in a window of 60 minutes whose levels follow
an AR(1) with rho 0.8; the analysis cuts it into `buckets`. Ticks: a nearly deterministic kernel on a 32 ns timer, whose
slow values come in bursts. Device windows: executions of short device windows only, each with a level of its own, or
with a share of slow executions of its own. Groups: two kernels of as many launches each against one of twice their
time, by their mean. A rate from r repetitions has a standard error of sqrt(rate (1 - rate) / r).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis.interval import RECOMMENDED_BUCKETS, Sample, ratio_interval, tail_estimate
from kdiff.analysis.judging import judge, judge_all
from kdiff.analysis.overlap import sweep
from kdiff.analysis.totals import Total, Totals
from kdiff.analysis.verdict import Policy, Verdict
from kdiff.analysis.window import NS, Window

MINUTES = 60
RHO = 0.8
TICK = 32
POLICY = Policy()

Rng = np.random.Generator


def autoregressive(rng: Rng, sd: float, size: int = MINUTES, rho: float = RHO) -> NDArray[np.float64]:
    """A stationary AR(1) path of shape (size,) with standard deviation `sd`."""
    path = rng.normal(0.0, sd, size)
    for t in range(1, size):
        path[t] = rho * path[t - 1] + np.sqrt(1.0 - rho * rho) * path[t]
    return path


@dataclass(frozen=True)
class Bench:
    """The source of chance, and how the analysis cuts a window."""

    rng: Rng
    buckets: int

    def times(self, n: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The minute and the bucket of each of n launches at random times; both of shape (n,)."""
        at = self.rng.random(n)
        return (at * MINUTES).astype(np.int64), (at * self.buckets).astype(np.int32)

    def serving(self, n: int, sd: float, factor: float = 1.0) -> Sample:
        """Launches whose level moves by `sd` (log scale) from minute to minute."""
        rng = self.rng
        minute, bucket = self.times(n)
        logs = rng.normal(0.0, 0.15, n) + autoregressive(rng, sd)[minute]
        slowed = np.where(rng.random(n) < 0.03, 1.0 + rng.exponential(0.3, n), 1.0)
        durations = np.rint(50_000.0 * factor * slowed * np.exp(logs)).astype(np.int64)
        return Sample(durations, bucket, self.buckets)

    def ticks(self, n: int, share: float, burst: float, factor: float = 1.0, base: int = 64) -> Sample:
        """`base` ticks, or one more for a share of the launches, or two more for a fifth of those.

        The share varies over the minutes by a factor of lognormal(burst), so that the slow values come in bursts.
        """
        rng = self.rng
        minute, bucket = self.times(n)
        level = np.exp(autoregressive(rng, burst) - 0.5 * burst * burst)
        slow = rng.random(n) < np.minimum(1.0, share * level)[minute]
        extra = slow.astype(np.int64) * (1 + (rng.random(n) < 0.2))
        return Sample(TICK * (np.int64(round(base * factor)) + extra), bucket, self.buckets)

    def bursty(self, n: int, share: float, burst: float) -> Sample:
        """As `ticks`, but without ties, and the slow launches have a long tail."""
        tied = self.ticks(n, share, burst)
        slow = tied.durations_ns > TICK * 64
        body = 2_000_000 + 40_000 * self.rng.random(n)
        tail = 2_100_000 * np.exp(self.rng.exponential(0.2, n))
        return Sample(np.where(slow, tail, body).astype(np.int64), tied.bucket, self.buckets)


@dataclass(frozen=True)
class DeviceWindows:
    """A window of `minutes` in which the device is timed for `open_s` of every `period_s`, at a random moment of it."""

    minutes: int
    open_s: float
    period_s: float
    rate: int  # executions a second

    def sample(self, rng: Rng, level: float, burst: float, factor: float = 1.0) -> Sample:
        """Executions whose level moves by `level`, and whose share of slow ones by `burst`, from window to window."""
        window = Window(0, self.minutes * 60 * NS)
        buckets, width = window.buckets()
        count = int(self.minutes * 60 / self.period_s)
        starts = self.period_s * np.arange(count) + (self.period_s - self.open_s) * rng.random(count)
        each = rng.poisson(self.rate * self.open_s, count)
        which = np.repeat(np.arange(count), each)
        times = starts[which] + self.open_s * rng.random(which.size)
        logs = rng.normal(0.0, 0.15, which.size) + rng.normal(0.0, level, count)[which]
        share = np.minimum(1.0, 0.03 * np.exp(rng.normal(0.0, burst, count) - 0.5 * burst * burst))
        slowed = np.where(rng.random(which.size) < share[which], 1.0 + rng.exponential(0.3, which.size), 1.0)
        durations = np.rint(50_000.0 * factor * slowed * np.exp(logs)).astype(np.int64)
        return Sample(durations, (times * NS // width).astype(np.int32), buckets)


def device_windows(rng: Rng, repetitions: int) -> None:
    """Verdicts where all executions of a device window share its level."""
    head(f"Device windows, no change ({repetitions} runs each)")
    designs = (
        ("5 min, 1 s in 10", DeviceWindows(5, 1.0, 10.0, 200)),
        ("15 min, 1 s in 10", DeviceWindows(15, 1.0, 10.0, 100)),
        ("60 min, 1 s in 10", DeviceWindows(60, 1.0, 10.0, 50)),
        ("15 min, 10 s in 50", DeviceWindows(15, 10.0, 50.0, 50)),
        ("2 min, 0.2 s in 2", DeviceWindows(2, 0.2, 2.0, 1000)),
    )
    for name, design in designs:
        for level, burst in ((0.05, 0.0), (0.1, 0.0), (0.2, 0.0), (0.05, 1.0)):
            row(
                f"{name}, sd {level:.0%}, bursts {burst}",
                repetitions,
                lambda d=design, s=level, b=burst: (d.sample(rng, s, b), d.sample(rng, s, b)),
            )
    head("The same, slower by 20%")
    for name, design in designs:
        row(
            f"{name}, sd 5%, bursts 0.0",
            repetitions,
            lambda d=design: (d.sample(rng, 0.05, 0.0), d.sample(rng, 0.05, 0.0, 1.2)),
        )


def groups(bench: Bench, repetitions: int) -> None:
    """Verdicts on a fusion of two kernels into one, by the mean of their time a launch."""
    print(f"\nTwo kernels fused into one, % of {repetitions} runs each: REGRESSED, PASS or IMPROVED, L(5%) > 1")
    for n, sd in ((2_000, 0.03), (60_000, 0.03), (60_000, 0.06)):
        for factor in (1.0, 1.05, 1.1, 1.2):
            seen: Counter[Verdict] = Counter()
            above = 0
            for _ in range(repetitions):
                before = Total.of([bench.serving(n, sd), bench.serving(n, sd)])
                pair = Totals(before, Total.of([bench.serving(n, sd, 2.0 * factor)]), POLICY.tolerance, ())
                judged = judge_all({}, POLICY, totals={0: pair})[0]
                seen[judged.verdict] += 1
                above += judged.ci is not None and judged.ci[0] > 1.0
            rates = [seen[Verdict.REGRESSED], seen[Verdict.PASS] + seen[Verdict.IMPROVED], above]
            shown = " / ".join(f"{100 * count / repetitions:.1f}" for count in rates)
            print(f"  {n:,} launches, sd {sd:.0%}, x{factor:g}: {shown}")


def sweep_cost(rng: Rng, size: int = 1_000_000, rounds: int = 5) -> None:
    """How long the sweep over executions takes, beside a sort of their starts and ends."""
    start = rng.integers(0, 900 * NS, size)
    end = start + rng.integers(1_000, 100_000, size)
    group = rng.integers(0, 4, size)
    costs = []
    for _ in range(rounds):
        began = time.perf_counter()
        sweep(group, start, end, 4)
        swept = time.perf_counter()
        np.sort(np.concatenate([start, end]))
        costs.append((swept - began, time.perf_counter() - swept))
    swept, ordered = np.median(np.array(costs), axis=0)
    print(f"\nSweep over {size:,} executions: {swept:.2f} s, {swept / ordered:.1f} times a sort of their ends")


def verdicts(repetitions: int, pair: Callable[[], tuple[Sample, Sample]]) -> tuple[Counter[Verdict], float]:
    """Verdict counts, and how often the lower 95% limit of the ratio exceeds 1."""
    seen: Counter[Verdict] = Counter()
    above = 0
    for _ in range(repetitions):
        before, after = pair()
        seen[judge(before, after, POLICY).verdict] += 1
        estimates = [tail_estimate(s, POLICY.quantile) for s in (before, after)]
        above += ratio_interval(estimates[0], estimates[1], 0.05).low > 0.0
    return seen, above / repetitions


def row(name: str, repetitions: int, pair: Callable[[], tuple[Sample, Sample]]) -> None:
    """Print one line of the table of verdicts."""
    seen, above = verdicts(repetitions, pair)
    share = {v: 100.0 * seen[v] / repetitions for v in Verdict}
    passed = share[Verdict.PASS] + share[Verdict.IMPROVED]
    print(
        f"{name:<44}{share[Verdict.REGRESSED]:>10.1f}{passed:>8.1f}{share[Verdict.INCONCLUSIVE]:>8.1f}"
        f"{share[Verdict.NOT_ENOUGH_DATA]:>8.1f}{100.0 * above:>12.1f}",
        flush=True,
    )


def head(title: str) -> None:
    """Print the header of a table of verdicts."""
    print(f"\n{title}")
    print(f"{'% of runs':<44}{'REGRESSED':>10}{'PASS':>8}{'INCONC':>8}{'N.E.D.':>8}{'L(5%)>1':>12}")


def limits(
    name: str, repetitions: int, truth: float, sample: Callable[[], Sample], alphas: Iterable[float] = (0.01, 0.05)
) -> None:
    """Print how often a one-sided limit of the quantile lies on the wrong side of its true value."""
    alphas = tuple(alphas)
    wrong = np.zeros((len(alphas), 2))
    for _ in range(repetitions):
        estimate = tail_estimate(sample(), POLICY.quantile)
        for i, alpha in enumerate(alphas):
            low, high = estimate.limits(alpha)
            wrong[i] += (low > truth, high < truth)
    rates = "".join(f"{100 * w:>12.2f}" for w in (wrong / repetitions).ravel())
    print(f"{name:<44}{rates}", flush=True)


def family(bench: Bench, repetitions: int, kernels: int, factor: float) -> float:
    """How often a run of `kernels` equal kernels, all slower by `factor`, has any REGRESSED."""
    any_regressed = 0
    for _ in range(repetitions):
        samples = {k: (bench.serving(6_000, 0.03), bench.serving(6_000, 0.03, factor)) for k in range(kernels)}
        judged = judge_all(samples, POLICY).values()
        any_regressed += any(j.verdict is Verdict.REGRESSED for j in judged)
    return any_regressed / repetitions


def main() -> None:
    """Run all scenarios and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=200, help="runs a scenario (default 200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--buckets", type=int, default=RECOMMENDED_BUCKETS)
    parser.add_argument("--only", choices=["device-windows", "groups"], help="leave out the rest")
    options = parser.parse_args()
    if options.only == "groups":
        groups(Bench(np.random.default_rng(options.seed), options.buckets), 5 * options.repetitions)
        return
    if options.only:
        device_windows(np.random.default_rng(options.seed), 5 * options.repetitions)
        sweep_cost(np.random.default_rng(options.seed))
        return
    bench, reps = Bench(np.random.default_rng(options.seed), options.buckets), options.repetitions
    started = time.perf_counter()

    head(f"No change ({reps} runs each)")
    for n in (60_000, 180_000):
        for sd in (0.03, 0.06):
            row(f"{n:,} launches, sd {sd:.0%}", reps, lambda n=n, sd=sd: (bench.serving(n, sd), bench.serving(n, sd)))
    head("Slower than the tolerance of 5%, sd 3%")
    for n, slower in (
        (12_000, 0.15), (12_000, 0.20), (12_000, 0.30), (60_000, 0.15), (60_000, 0.20),
        (180_000, 0.10), (180_000, 0.15), (180_000, 0.20),
    ):  # fmt: skip
        row(
            f"{n:,} launches, +{slower:.0%}",
            reps,
            lambda n=n, slower=slower: (bench.serving(n, 0.03), bench.serving(n, 0.03, 1.0 + slower)),
        )
    head("At the tolerance: true ratio 1.05, sd 3%")
    for n in (12_000, 60_000):
        row(f"{n:,} launches", reps, lambda n=n: (bench.serving(n, 0.03), bench.serving(n, 0.03, 1.05)))
    head("Few independent launches, no change")
    for n in (200, 600, 1_200, 2_400, 4_800):
        row(f"{n:,} launches, sd 0", reps, lambda n=n: (bench.serving(n, 0.0), bench.serving(n, 0.0)))

    head("Slow launches in bursts, long tail, no change, 20,000 launches")
    for share, burst in ((0.01, 0.5), (0.01, 1.0), (0.03, 1.0)):
        row(
            f"slow share {share:.1%}, bursts {burst}",
            reps,
            lambda s=share, b=burst: (bench.bursty(20_000, s, b), bench.bursty(20_000, s, b)),
        )

    head("Ticks of 32 ns on a 2,048 ns kernel, 20,000 launches")
    for share, burst in ((0.0, 0.0), (0.009, 0.0), (0.010, 0.0), (0.010, 0.5), (0.010, 1.0), (0.05, 1.0), (0.5, 0.5)):
        row(
            f"slow share {share:.1%}, bursts {burst}",
            reps,
            lambda s=share, b=burst: (bench.ticks(20_000, s, b), bench.ticks(20_000, s, b)),
        )
    row("slow share 1.0%, bursts 1.0, +20%", reps,
        lambda: (bench.ticks(20_000, 0.01, 1.0), bench.ticks(20_000, 0.01, 1.0, 1.2)))  # fmt: skip
    row("640 ns kernel, one tick (5%) slower", reps,
        lambda: (bench.ticks(20_000, 0.0, 0.0, base=20), bench.ticks(20_000, 0.0, 0.0, base=21)))  # fmt: skip

    print(f"\nLimits of p99 itself on ticks: % of {5 * reps} runs on the wrong side")
    print(f"{'':<44}{'L(1%) > Q':>12}{'U(1%) < Q':>12}{'L(5%) > Q':>12}{'U(5%) < Q':>12}")
    for share in (0.007, 0.0099, 0.0101, 0.013, 0.0495, 0.0505):
        for burst in (0.0, 0.5, 1.0):
            true = TICK * (64 + (share > 0.01) + (0.2 * share > 0.01))
            limits(
                f"slow share {share:.2%}, bursts {burst}",
                5 * reps,
                true,
                lambda s=share, b=burst: bench.ticks(20_000, s, b),
            )

    runs = max(20, reps // 4)
    print(f"\nRuns of 20 kernels, 6,000 launches each, any REGRESSED, % of {runs} runs")
    print(f"{'no change':<44}{100 * family(bench, runs, 20, 1.0):>10.1f}")
    print(f"{'all at the tolerance (ratio 1.05)':<44}{100 * family(bench, runs, 20, 1.05):>10.1f}")
    device_windows(bench.rng, 5 * reps)
    sweep_cost(bench.rng)
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
