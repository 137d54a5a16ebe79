"""How often a watch stops, and when, on synthetic latencies whose truth is known.

    python tests/bench/bench_watch.py [--repetitions 1000] [--seed 1]

A baseline and a watch of 60 minutes each, one kernel, lognormal launches (sigma 0.15), 3% of them slowed by contention,
levels that follow an AR(1) from minute to minute, a look a minute. Beside the watch: who looks each minute whether the
p99 so far is 5% above the baseline's, and whether this minute's is.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field

import numpy as np
from statistics_loads import MINUTES, RHO, Rng, autoregressive

from kdiff.analysis.interval import RECOMMENDED_BUCKETS, tail_estimate
from kdiff.analysis.sample import Sample
from kdiff.analysis.sequential import EProcess
from kdiff.analysis.verdict import Policy

POLICY = Policy()
SLOW_RUNS = 10  # a tenth of the runs tells when a slower kernel is found


@dataclass(frozen=True)
class Load:
    """A kernel's launches a minute, and how its level moves from minute to minute."""

    rate: int
    sd: float
    rho: float

    def minutes(self, rng: Rng, factor: float = 1.0) -> list[np.ndarray]:
        """The durations of each minute."""
        found = []
        for level in autoregressive(rng, self.sd, MINUTES, self.rho):
            n = int(rng.poisson(self.rate))
            slowed = np.where(rng.random(n) < 0.03, 1.0 + rng.exponential(0.3, n), 1.0)
            found.append(50_000.0 * factor * slowed * np.exp(rng.normal(0.0, 0.15, n) + level))
        return found


@dataclass
class Stops:
    """When runs stopped, in minutes."""

    runs: int = 0
    minutes: dict[str, list[int]] = field(default_factory=lambda: {"watch": [], "so far": [], "minute": []})

    def text(self, way: str) -> str:
        """Share of runs that stopped, and the median minute."""
        stopped = self.minutes[way]
        when = f"{np.median(stopped):.0f} min" if stopped else "-"
        return f"{len(stopped) / self.runs:6.1%} {when:>7}"


def run(rng: Rng, load: Load, factor: float, stops: Stops) -> None:
    """One baseline and one watch."""
    minutes = load.minutes(rng)
    values = np.rint(np.concatenate(minutes)).astype(np.int64)
    sizes = [len(minute) for minute in minutes]
    bucket = np.repeat(np.arange(MINUTES), sizes) * (RECOMMENDED_BUCKETS // MINUTES)
    half = np.concatenate([np.arange(n) * 2 // max(n, 1) for n in sizes])
    estimate = tail_estimate(Sample(values, (bucket + half).astype(np.int32), RECOMMENDED_BUCKETS), POLICY.quantile)
    threshold = (1.0 + POLICY.tolerance) * estimate.limits(POLICY.alpha_regressed)[1]
    bar = (1.0 + POLICY.tolerance) * estimate.value
    process, seen, first = EProcess(POLICY.quantile), [], {}
    for number, minute in enumerate(load.minutes(rng, factor), 1):
        seen.append(minute)
        found = {
            "watch": process.see(int((minute > threshold).sum()), minute.size) >= 1.0 / POLICY.alpha_regressed,
            "so far": "so far" not in first and np.quantile(np.concatenate(seen), POLICY.quantile) > bar,
            "minute": np.quantile(minute, POLICY.quantile) > bar,
        }
        for way in (way for way, stop in found.items() if stop):
            first.setdefault(way, number)
        if len(first) == len(found):
            break
    stops.runs += 1
    for way, number in first.items():
        stops.minutes[way].append(number)


def main() -> None:
    """Run all scenarios and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    print(f"{'stopped within 60 min, and when':44} {'watch':>14} {'p99 so far +5%':>14} {'of a minute':>14}")
    for load in (Load(1_000, 0.03, RHO), Load(3_000, 0.03, RHO), Load(3_000, 0.06, RHO), Load(3_000, 0.03, 0.95)):
        for factor in (1.0, 1.05, 1.1, 1.2, 1.5, 2.0):
            stops = Stops()
            for _ in range(options.repetitions if factor == 1.0 else math.ceil(options.repetitions / SLOW_RUNS)):
                run(rng, load, factor, stops)
            what = f"{load.rate:,}/min, sd {load.sd:.0%}, rho {load.rho:g}, {factor:.2f}x ({stops.runs})"
            print(f"{what:44} {stops.text('watch')} {stops.text('so far')} {stops.text('minute')}", flush=True)


if __name__ == "__main__":
    main()
