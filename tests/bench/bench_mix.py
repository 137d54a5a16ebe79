"""How often verdicts at one mix of shapes are right, beside those on all launches together.

    python tests/bench/bench_mix.py [--repetitions 500] [--seed 1] [--only same|moved|slower]

A window of 60 minutes in 120 stretches; the level of all launches follows an AR(1) from minute to minute (sd given, rho
0.8), and so does the logarithm of each shape's rate (sd `drift`), so that the mix moves inside a window. Launches of a
shape are lognormal (sigma 0.15), 3% of them slowed by contention. A rate from r repetitions has a standard error of
sqrt(rate (1 - rate) / r).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from statistics_loads import MINUTES, Rng, autoregressive

from kdiff.analysis.interval import RECOMMENDED_BUCKETS
from kdiff.analysis.judging import judge_all
from kdiff.analysis.mix import Mix
from kdiff.analysis.mix_words import why_not_comparable
from kdiff.analysis.sample import Sample
from kdiff.analysis.strata import Stratum, find_support, together
from kdiff.analysis.verdict import Policy, Verdict

POLICY = Policy()
EIGHT = (0.5, 0.2, 0.12, 0.08, 0.05, 0.03, 0.015, 0.005)
EIGHT_TIMES = (1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0, 6.0)
EVEN, EVEN_TIMES = (1 / 8,) * 8, tuple(2 ** (i / 2) for i in range(8))
THREE, THREE_TIMES = (0.5, 0.4, 0.1), (1.0, 2.0, 4.0)
TIMES = (1.0, 1.3, 6.0)
"""Of a kernel with one big shape."""


@dataclass(frozen=True)
class Traffic:
    """One window of a kernel: of each shape its share of the launches, its time, and by how much it is slower."""

    n: int
    shares: Sequence[float]
    times: Sequence[float]
    factors: Sequence[float] | float = 1.0
    sd: float = 0.03
    drift: float = 0.0

    def window(self, rng: Rng) -> dict[Stratum, Sample]:
        """The launches by shape."""
        at = rng.random(self.n)
        minute, bucket = (at * MINUTES).astype(np.int64), (at * RECOMMENDED_BUCKETS).astype(np.int32)
        rates = np.log(np.array(self.shares))[:, None]
        rates = np.exp(rates + np.array([autoregressive(rng, self.drift) for _ in self.shares]))
        until = (rates / rates.sum(axis=0)).cumsum(axis=0)[:, minute]
        shape = np.minimum((rng.random(self.n) > until).sum(axis=0), len(self.shares) - 1)
        typical = np.array(self.times) * np.broadcast_to(self.factors, len(self.times))
        logs = rng.normal(0.0, 0.15, self.n) + autoregressive(rng, self.sd)[minute]
        slowed = np.where(rng.random(self.n) < 0.03, 1.0 + rng.exponential(0.3, self.n), 1.0)
        durations = np.rint(50_000.0 * typical[shape] * slowed * np.exp(logs)).astype(np.int64)
        masks = {Stratum(place, 8, "", False): shape == place for place in range(len(self.shares))}
        return {
            s: Sample(durations[mask], bucket[mask], RECOMMENDED_BUCKETS) for s, mask in masks.items() if mask.any()
        }


def row(name: str, repetitions: int, rng: Rng, before: Traffic, after: Traffic) -> None:
    """Print how often each verdict is given at one mix, and on all launches together."""
    seen: dict[bool, Counter[Verdict]] = {True: Counter(), False: Counter()}
    barred = 0
    for _ in range(repetitions):
        one, other = before.window(rng), after.window(rng)
        support = find_support({s: v.size for s, v in one.items()}, {s: v.size for s, v in other.items()})
        mixes = {0: Mix.of(support, one, other, why_not_comparable(support))}
        samples = {0: (together(list(one.values())), together(list(other.values())))}
        for at_one_mix in (True, False):
            judged = judge_all(samples, POLICY, mixes=mixes if at_one_mix else None)[0]
            seen[at_one_mix][judged.verdict] += 1
            barred += at_one_mix and any("too much for PASS" in reason for reason in judged.reasons)
    cells = []
    for counted in seen.values():
        fine = counted[Verdict.PASS] + counted[Verdict.IMPROVED]
        rates = [100.0 * number / repetitions for number in (counted[Verdict.REGRESSED], fine)]
        cells.append(" / ".join(f"{rate:5.1f}" for rate in rates))
    print(f"{name:58s} {cells[0]}   {100.0 * barred / repetitions:5.1f}   {cells[1]}", flush=True)


def head(title: str, repetitions: int) -> None:
    """Print what the columns are."""
    print(f"\n{title} ({repetitions} runs a line), % of runs")
    print(f"{'':58s} at one mix: REGRESSED / PASS, barred by a shape; all together: REGRESSED / PASS")


def same(rng: Rng, repetitions: int) -> None:
    """No change: false alarms and what passes."""
    head("No change of the kernel, nor of the mix", repetitions)
    for n, sd, drift in ((12_000, 0.03, 0.0), (60_000, 0.03, 0.0), (60_000, 0.06, 0.0), (60_000, 0.03, 0.5)):
        traffic = Traffic(n, EIGHT, EIGHT_TIMES, sd=sd, drift=drift)
        row(f"8 shapes, {n:,} launches, sd {sd:.0%}, drift {drift}", repetitions, rng, traffic, traffic)
    even = Traffic(60_000, EVEN, EVEN_TIMES)
    row("8 even shapes, 60,000 launches, sd 3%", repetitions, rng, even, even)
    three = Traffic(50_000, THREE, THREE_TIMES)
    row("3 shapes, 50,000 launches, sd 3%", repetitions, rng, three, three)


def moved(rng: Rng, repetitions: int) -> None:
    """The mix changes between the windows."""
    head("The mix moves, 50,000 launches, sd 3%", repetitions)
    small, larger, large = (0.6, 0.392, 0.008), (0.6, 0.387, 0.013), (0.6, 0.37, 0.03)
    for name, before, after, factor in (
        ("big shape 0.8% -> 1.3%", small, larger, 1.0),
        ("big shape 0.8% -> 3%", small, large, 1.0),
        ("big shape 3% -> 0.8%", large, small, 1.0),
        ("big shape 3% -> 0.8%, exactly +5% everywhere", large, small, 1.05),
        ("big shape 3% -> 0.8%, +15% everywhere", large, small, 1.15),
    ):
        row(name, repetitions, rng, Traffic(50_000, before, TIMES), Traffic(50_000, after, TIMES, factor))


def slower(rng: Rng, repetitions: int) -> None:
    """The kernel changes, the mix does not."""
    head("The kernel is slower, the same mix, sd 3%", repetitions)
    for n in (12_000, 60_000):
        for factor in (1.05, 1.1, 1.15, 1.2):
            before, after = Traffic(n, EVEN, EVEN_TIMES), Traffic(n, EVEN, EVEN_TIMES, factor)
            row(f"8 even shapes, {n:,} launches, all +{factor - 1:.0%}", repetitions, rng, before, after)
    for factor in (1.1, 1.15, 1.3):
        before, after = Traffic(50_000, THREE, THREE_TIMES), Traffic(50_000, THREE, THREE_TIMES, (factor, 1.0, 1.0))
        row(f"the smallest of 3 shapes, 50% of 50,000, +{factor - 1:.0%}", repetitions, rng, before, after)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("same", "moved", "slower"))
    arguments = parser.parse_args()
    start = time.monotonic()
    for name, part in (("same", same), ("moved", moved), ("slower", slower)):
        if arguments.only in (None, name):
            part(np.random.default_rng(arguments.seed), arguments.repetitions)
    print(f"\n{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
