"""How often verdicts are right and wrong on synthetic launches whose truth is known, beside the rules of others.

    python tests/bench/bench_statistics.py [--repetitions 1000] [--seed 1] [--only TABLE ...] [--row TEXT]

The loads are described in statistics_loads.py, the other rules in statistics_peers.py. A rate from r runs has a
standard error of sqrt(rate (1 - rate) / r); "at most" is the upper 95% limit of the rate of REGRESSED. Every row has a
source of chance of its own, so that a table is the same whatever else is printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from statistics_loads import TICK, DeviceWindows, Loads, Rng
from statistics_runs import clock, groups, many, mix
from statistics_tables import POLICY, Pair, Run

from kdiff.analysis.interval import RECOMMENDED_BUCKETS, tail_estimate
from kdiff.analysis.overlap import sweep
from kdiff.analysis.sample import Sample
from kdiff.analysis.window import NS


def null(run: Run) -> None:
    """No change."""
    rows: dict[str, Pair] = {
        "60,000 independent launches": lambda x: (x.serving(60_000, 0.0), x.serving(60_000, 0.0)),
    }
    for n, sd, rho in (
        (60_000, 0.03, 0.8), (60_000, 0.06, 0.8), (180_000, 0.03, 0.8), (180_000, 0.06, 0.8), (60_000, 0.03, 0.95)
    ):  # fmt: skip
        rows[f"{n:,} launches, sd {sd:.0%}, rho {rho:g}"] = lambda x, n=n, sd=sd, rho=rho: (
            x.serving(n, sd, rho=rho),
            x.serving(n, sd, rho=rho),
        )
    for share, burst in ((0.3, 0.5), (0.02, 0.5), (0.01, 0.0), (0.01, 0.5)):
        rows[f"two modes, {share:.0%} slow, bursts {burst:g}, sd 3%"] = lambda x, s=share, b=burst: (
            x.bimodal(60_000, s, 0.03, b),
            x.bimodal(60_000, s, 0.03, b),
        )
    for factor in (1.0, 0.1):
        rows[f"timer of 1 us, kernel of {50 * factor:g} us, sd 3%"] = lambda x, f=factor: (
            x.serving(60_000, 0.03, f, tick=1_000),
            x.serving(60_000, 0.03, f, tick=1_000),
        )
    for swing in (0.05, 0.1, 0.3):
        rows[f"hours of a day that swings by {swing:.0%}, sd 3%"] = lambda x, s=swing: day(x, s)
    run.table("No change", rows, run.repetitions)


def day(loads: Loads, swing: float) -> tuple[Sample, Sample]:
    """Two hours of a day, one behind the other."""
    before, after = loads.day(swing)
    return loads.at(60_000, before + loads.path(0.03)), loads.at(60_000, after + loads.path(0.03))


def power(run: Run) -> None:
    """Truly slower, at the tolerance and beyond it."""
    for title, slower, repetitions in (
        ("At the tolerance: true ratio 1.05, sd 3%", (0.05,), run.repetitions),
        ("Slower than the tolerance of 5%, sd 3%", (0.1, 0.15, 0.2, 0.3), max(1, run.repetitions * 2 // 5)),
    ):
        rows: dict[str, Pair] = {}
        for n in (12_000, 60_000, 180_000):
            for share in slower:
                rows[f"{n:,} launches, +{share:.0%}"] = lambda x, n=n, s=share: (
                    x.serving(n, 0.03),
                    x.serving(n, 0.03, 1.0 + s),
                )
        run.table(title, rows, repetitions)


def hard(run: Run) -> None:
    """Few launches, bursts and ticks."""
    reps = max(1, run.repetitions // 5)
    few: dict[str, Pair] = {
        f"{n:,} launches, sd 0": lambda x, n=n: (x.serving(n, 0.0), x.serving(n, 0.0))
        for n in (200, 600, 1_200, 2_400, 4_800)
    }
    run.table("Few independent launches, no change", few, reps)
    bursts: dict[str, Pair] = {
        f"slow share {share:.1%}, bursts {burst}": lambda x, s=share, b=burst: (
            x.bursty(20_000, s, b),
            x.bursty(20_000, s, b),
        )
        for share, burst in ((0.01, 0.5), (0.01, 1.0), (0.03, 1.0))
    }
    run.table("Slow launches in bursts, long tail, no change, 20,000 launches", bursts, reps)
    ticks: dict[str, Pair] = {
        f"slow share {share:.1%}, bursts {burst}": lambda x, s=share, b=burst: (
            x.ticks(20_000, s, b),
            x.ticks(20_000, s, b),
        )
        for share, burst in (
            (0.0, 0.0), (0.009, 0.0), (0.010, 0.0), (0.010, 0.5), (0.010, 1.0), (0.05, 1.0), (0.5, 0.5)
        )
    }  # fmt: skip
    ticks["slow share 1.0%, bursts 1.0, +20%"] = lambda x: (
        x.ticks(20_000, 0.01, 1.0),
        x.ticks(20_000, 0.01, 1.0, 1.2),
    )
    ticks["640 ns kernel, one tick (5%) slower"] = lambda x: (
        x.ticks(20_000, 0.0, 0.0, base=20),
        x.ticks(20_000, 0.0, 0.0, base=21),
    )
    run.table("Ticks of 32 ns on a 2,048 ns kernel, 20,000 launches", ticks, reps)
    limits(run)


def limits(run: Run, alphas: Iterable[float] = (0.01, 0.05)) -> None:
    """How often a one-sided limit of the quantile itself lies on the wrong side of its true value, on ticks."""
    alphas = tuple(alphas)
    print(f"\nLimits of p99 itself on ticks: % of {run.repetitions:,} runs on the wrong side")
    print(f"{'':<44}{'L(1%) > Q':>12}{'U(1%) < Q':>12}{'L(5%) > Q':>12}{'U(5%) < Q':>12}")
    for share in (0.007, 0.0099, 0.0101, 0.013, 0.0495, 0.0505):
        for burst in (0.0, 0.5, 1.0):
            name = f"slow share {share:.2%}, bursts {burst}"
            truth = TICK * (64 + (share > 0.01) + (0.2 * share > 0.01))
            loads, wrong = run.loads(f"limits: {name}"), np.zeros((len(alphas), 2))
            for _ in range(run.repetitions):
                estimate = tail_estimate(loads.ticks(20_000, share, burst), POLICY.quantile)
                for i, alpha in enumerate(alphas):
                    low, high = estimate.limits(alpha)
                    wrong[i] += (low > truth, high < truth)
            rates = "".join(f"{100 * w:>12.2f}" for w in (wrong / run.repetitions).ravel())
            print(f"{name:<44}{rates}", flush=True)


def device_windows(run: Run) -> None:
    """Verdicts where all executions of a device window share its level."""
    designs = (
        ("5 min, 1 s in 10", DeviceWindows(5, 1.0, 10.0, 200)),
        ("15 min, 1 s in 10", DeviceWindows(15, 1.0, 10.0, 100)),
        ("60 min, 1 s in 10", DeviceWindows(60, 1.0, 10.0, 50)),
        ("15 min, 10 s in 50", DeviceWindows(15, 10.0, 50.0, 50)),
        ("2 min, 0.2 s in 2", DeviceWindows(2, 0.2, 2.0, 1000)),
    )
    rows: dict[str, Pair] = {
        f"{name}, sd {level:.0%}, bursts {burst}": lambda x, d=design, s=level, b=burst: (
            d.sample(x.rng, s, b),
            d.sample(x.rng, s, b),
        )
        for name, design in designs
        for level, burst in ((0.05, 0.0), (0.1, 0.0), (0.2, 0.0), (0.05, 1.0))
    }
    run.table("Device windows, no change", rows, max(1, run.repetitions // 2), peers=False)
    slower: dict[str, Pair] = {
        f"{name}, sd 5%, bursts 0.0": lambda x, d=design: (d.sample(x.rng, 0.05, 0.0), d.sample(x.rng, 0.05, 0.0, 1.2))
        for name, design in designs
    }
    run.table("Device windows, slower by 20%", slower, max(1, run.repetitions // 5), peers=False)
    sweep_cost(run.loads("sweep").rng)


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


TABLES: dict[str, Callable[[Run], None]] = {
    "null": null,
    "power": power,
    "hard": hard,
    "mix": mix,
    "clock": clock,
    "many": many,
    "device-windows": device_windows,
    "groups": groups,
}


def main() -> None:
    """Print the tables asked for, and how long each took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--repetitions", type=int, default=1000, help="runs a line (default 1000; of some a part of it)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--buckets", type=int, default=RECOMMENDED_BUCKETS)
    parser.add_argument("--only", choices=list(TABLES), nargs="+", default=list(TABLES), help="leave out the rest")
    parser.add_argument("--row", default="", metavar="TEXT", help="only rows of pairs whose name holds it")
    given = parser.parse_args()
    run = Run(given.repetitions, given.seed, given.buckets, given.row)
    began = time.perf_counter()
    for name in given.only:
        started = time.perf_counter()
        TABLES[name](run)
        print(f"\n{name}: {time.perf_counter() - started:.0f} s", flush=True)
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
