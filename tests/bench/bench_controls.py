"""Verdicts with control kernels and without, where something moves all kernels and where nothing does.

    python tests/bench/bench_controls.py [--repetitions 300] [--seed 1] [--launches 10000]

Twenty kernels in two windows of 60 minutes: lognormal launches (sigma 0.15), 3% of them slowed by contention; levels
follow an AR(1) with rho 0.8 (log scale), one of the sd given that all kernels share and one of 1% of each kernel's own.
A drop of clocks makes all of the after window slower, each kernel by its share of it. The first kernel is the swapped
one. Without: each run judged by Holm over all kernels, as where there are too few controls. A rate from r repetitions
has a standard error of sqrt(rate (1 - rate) / r).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis.controls import Roles
from kdiff.analysis.interval import RECOMMENDED_BUCKETS
from kdiff.analysis.judging import judge_all
from kdiff.analysis.sample import Sample
from kdiff.analysis.verdict import Judgement, Policy, Verdict

MINUTES = 60
RHO = 0.8
KERNELS = 20
OWN_SD = 0.01
POLICY = Policy()

Rng = np.random.Generator


@dataclass(frozen=True)
class Scenario:
    """What happens to the kernels.

    Attributes:
        common_sd: of the levels that all kernels share.
        drop: by how much all become slower (0.06 is 6%).
        answers: lowest and highest share of the drop that a kernel answers with; drawn for each kernel.
        swapped: by how much the first kernel becomes slower besides.
        moved: how many others become slower by 25%.
        kernels: how many there are.
    """

    name: str
    common_sd: float = 0.03
    drop: float = 0.0
    answers: tuple[float, float] = (1.0, 1.0)
    swapped: float = 0.0
    moved: int = 0
    kernels: int = KERNELS


def levels(rng: Rng, sd: float) -> NDArray[np.float64]:
    """A stationary AR(1) path of shape (MINUTES,)."""
    path = rng.normal(0.0, sd, MINUTES)
    for t in range(1, MINUTES):
        path[t] = RHO * path[t - 1] + np.sqrt(1.0 - RHO * RHO) * path[t]
    return path


def sample(rng: Rng, n: int, shared: NDArray[np.float64], shift: float) -> Sample:
    """One kernel in one window, slower by exp(shift)."""
    at = rng.random(n)
    level = shift + shared + levels(rng, OWN_SD)
    logs = rng.normal(0.0, 0.15, n) + level[(at * MINUTES).astype(np.int64)]
    slowed = np.where(rng.random(n) < 0.03, 1.0 + rng.exponential(0.3, n), 1.0)
    durations = np.rint(50_000.0 * slowed * np.exp(logs)).astype(np.int64)
    return Sample(durations, (at * RECOMMENDED_BUCKETS).astype(np.int32), RECOMMENDED_BUCKETS)


def run(rng: Rng, scenario: Scenario, sizes: Sequence[int]) -> dict[int, tuple[Sample, Sample]]:
    """Both windows of each kernel."""
    shared = levels(rng, scenario.common_sd), levels(rng, scenario.common_sd)
    found = {}
    for kernel in range(scenario.kernels):
        shift = np.log1p(scenario.drop) * rng.uniform(*scenario.answers)
        if kernel == 0:
            shift += np.log1p(scenario.swapped)
        elif kernel <= scenario.moved:
            shift += np.log1p(0.25)
        n = sizes[kernel % len(sizes)]
        found[kernel] = sample(rng, n, shared[0], 0.0), sample(rng, n, shared[1], shift)
    return found


def show(name: str, repetitions: int, scenario: Scenario, seen: Sequence[dict[int, Judgement]]) -> None:
    """A line: the swapped kernel's verdicts, runs with a false REGRESSED, the other kernels' verdicts."""
    own = Counter(judged[0].verdict for judged in seen)
    still = range(1 + scenario.moved, scenario.kernels)
    others = Counter(judged[k].verdict for judged in seen for k in still)
    false = sum(any(judged[k].verdict is Verdict.REGRESSED for k in still) for judged in seen)
    found = sum(judged[k].verdict is Verdict.REGRESSED for judged in seen for k in range(1, 1 + scenario.moved))

    def rates(counts: Counter[Verdict], total: int) -> str:
        passed = counts[Verdict.PASS] + counts[Verdict.IMPROVED]
        shown = (counts[Verdict.REGRESSED], passed, counts[Verdict.CONFOUNDED])
        return " / ".join(f"{100 * count / total:.1f}" for count in shown)

    power = f"  moved found {100 * found / (repetitions * scenario.moved):.0f}" if scenario.moved else ""
    adjusted = sum(c.adjusted for j in seen if (c := j[0].common) is not None)
    print(
        f"{scenario.name:<44}{name:<10}{rates(own, repetitions):>20}{100 * false / repetitions:>8.1f}"
        f"{rates(others, repetitions * len(still)):>22}{100 * adjusted / repetitions:>8.0f}{power}",
        flush=True,
    )


def main() -> None:
    """Print a line for each scenario and way to judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=300, help="runs a line (default 300)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--launches", type=int, default=10_000)
    options = parser.parse_args()
    began = time.perf_counter()
    print(f"{'':<54}{'swapped R/P/C':>20}{'false R':>8}{'others R/P/C':>22}{'adj.':>8}")
    scenarios = (
        Scenario("no change"),
        Scenario("no change, common sd 6%", common_sd=0.06),
        Scenario("all slower by 6%", drop=0.06),
        Scenario("one +15%", swapped=0.15),
        Scenario("one +20%, all slower by 6%", swapped=0.20, drop=0.06),
        Scenario("one exactly +5%, common sd 6%", swapped=0.05, common_sd=0.06),
        Scenario("one +15%, common sd 6%", swapped=0.15, common_sd=0.06),
        Scenario("all slower by 15%", drop=0.15),
        Scenario("by 0 to 15%, each kernel otherwise", drop=0.15, answers=(0.0, 1.0)),
        Scenario("one +20%, all faster by 6%", swapped=0.20, drop=-0.0566),
        Scenario("all slower by 3%", drop=0.03),
        Scenario("6 others +25%", moved=6),
        Scenario("12 kernels, all slower by 6%", kernels=12, drop=0.06),
        Scenario("no change, nothing in common", common_sd=0.0),
    )
    for scenario in scenarios:
        rng = np.random.default_rng(options.seed)
        # Where no kernel is slower by itself, whether it is known which was swapped makes no difference.
        names = ["without", "with", *(["--swapped"] if scenario.swapped or scenario.moved else [])]
        ways: dict[str, list[dict[int, Judgement]]] = {name: [] for name in names}
        measures = dict.fromkeys(range(scenario.kernels), "device")
        for _ in range(options.repetitions):
            samples = run(rng, scenario, [options.launches])
            ways["without"].append(judge_all(samples, POLICY))
            ways["with"].append(judge_all(samples, POLICY, roles=Roles(measures)))
            if "--swapped" in ways:
                ways["--swapped"].append(judge_all(samples, POLICY, roles=Roles(measures, frozenset({0}), True)))
        for name, seen in ways.items():
            show(name, options.repetitions, scenario, seen)
    many(np.random.default_rng(options.seed), max(options.repetitions // 30, 5))
    print(f"\n{time.perf_counter() - began:.0f} s")


def many(rng: Rng, repetitions: int) -> None:
    """300 kernels of 2,400 to 60,000 launches, a tenth of them slower by 25%: Holm over all, and bystanders by BH."""
    scenario = Scenario("300 kernels, 30 of them +25%", moved=30, kernels=301)
    sizes = [2_400, 6_000, 12_000, 24_000, 60_000]
    measures = dict.fromkeys(range(scenario.kernels), "device")
    holm, bh = [], []
    for _ in range(repetitions):
        samples = run(rng, scenario, sizes)
        holm.append(judge_all(samples, POLICY, roles=Roles(measures)))
        bh.append(judge_all(samples, POLICY, roles=Roles(measures, frozenset({0}), True)))
    show("with", repetitions, scenario, holm)
    show("--swapped", repetitions, scenario, bh)


if __name__ == "__main__":
    main()
