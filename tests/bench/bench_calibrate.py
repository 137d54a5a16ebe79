"""What a calibration by history does to false alarms and to power, on synthetic histories whose truth is known.

    python tests/bench/bench_calibrate.py [--runs 500] [--pairs 20] [--launches 20000] [--seed 1] [--only TEXT]

Each run is a service of its own: a history of `pairs` + 1 windows of 60 minutes, from which the factor comes as
`kdiff calibrate` measures it, and the two windows that follow, which are compared without and with it. Launches are
lognormal (sigma 0.15), 3% of them slowed by contention; their levels follow an AR(1) of minutes that goes on from
window to window, and each window has a level of its own (drift) on top. A rate of r from n runs has a standard error
of sqrt(r (1 - r) / n).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from statistics_loads import MINUTES, Loads, Rng, autoregressive

from kdiff.analysis.history_calibration import History
from kdiff.analysis.interval import RECOMMENDED_BUCKETS, TailEstimate, ratio_interval, tail_estimate
from kdiff.analysis.judging import judge_all
from kdiff.analysis.sample import Sample
from kdiff.analysis.verdict import Policy, Verdict

POLICY = Policy()
KERNEL = ("kernel", "device")


@dataclass(frozen=True)
class Design:
    """A service. `sd` and `rho` of the minutes, `drift` the sd of whole windows; `slower`: what the last window is.

    `swap`: the kernel was swapped, by this factor, in the middle of the history.
    """

    name: str
    sd: float = 0.03
    rho: float = 0.8
    drift: float = 0.0
    slower: float = 1.0
    swap: float = 1.0

    def windows(self, rng: Rng, count: int, launches: int) -> Iterator[Sample]:
        """`count` windows, one behind the other."""
        loads = Loads(rng, RECOMMENDED_BUCKETS)
        levels = autoregressive(rng, self.sd, count * MINUTES, self.rho)
        for place in range(count):
            own = levels[place * MINUTES : (place + 1) * MINUTES] + rng.normal(0.0, self.drift)
            factor = (self.swap if place >= count // 2 else 1.0) * (self.slower if place == count - 1 else 1.0)
            yield loads.at(launches, own, factor)


DESIGNS = (
    Design("independent launches", sd=0.0),
    Design("minutes 3%, rho 0.8"),
    Design("minutes 3%, rho 0.95", rho=0.95),
    Design("minutes 6%, rho 0.95", sd=0.06, rho=0.95),
    Design("window drift 3%", drift=0.03),
    Design("window drift 6%", drift=0.06),
    Design("swap x1.5 in the history", swap=1.5),
    Design("+20%, minutes 3%, rho 0.8", slower=1.2),
    Design("+20%, minutes 3%, rho 0.95", rho=0.95, slower=1.2),
    Design("+20%, window drift 3%", drift=0.03, slower=1.2),
    Design("+50%, window drift 3%", drift=0.03, slower=1.5),
)


def run(design: Design, rng: Rng, pairs: int, launches: int) -> tuple[float, list[tuple[Verdict, bool]]]:
    """The factor, and of the two windows behind the history the verdict and whether L(5%) > 1, without it and with."""
    history, before = History(POLICY), None
    last: list[Sample] = []
    estimate: TailEstimate | None = None
    for place, sample in enumerate(design.windows(rng, pairs + 3, launches)):
        if place > pairs:
            last.append(sample)
            continue
        before, estimate = estimate, tail_estimate(sample, POLICY.quantile)
        if before is not None:
            history.add(place - 1, KERNEL, before, estimate)
    factor = history.measure().pooled if history.pairs else 1.0
    found = []
    for by in (1.0, factor):
        verdict = judge_all({0: (last[0], last[1])}, POLICY, inflation={0: by})[0].verdict
        estimates = [tail_estimate(sample, POLICY.quantile, by) for sample in last]
        found.append((verdict, ratio_interval(estimates[0], estimates[1], POLICY.alpha_pass).low > 0.0))
    return factor, found


def line(design: Design, rng: Rng, runs: int, pairs: int, launches: int) -> str:
    """One design's rates in % of its runs, each without and with the factor."""
    factors, seen = [], (Counter[str](), Counter[str]())
    for _ in range(runs):
        factor, found = run(design, rng, pairs, launches)
        factors.append(factor)
        for counts, (verdict, above) in zip(seen, found, strict=True):
            counts["REGRESSED"] += verdict is Verdict.REGRESSED
            counts["PASS"] += verdict in (Verdict.PASS, Verdict.IMPROVED)
            counts["above"] += above

    def both(what: str) -> str:
        return " -> ".join(f"{100 * counts[what] / runs:5.1f}" for counts in seen)

    median, most = np.median(factors), np.quantile(factors, 0.9)
    rates = "".join(f"{both(what):>18}" for what in ("above", "REGRESSED", "PASS"))
    return f"{design.name:<28}{median:>8.2f}{most:>8.2f}{rates}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500, help="services a line (default 500)")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of windows in each history (default 20)")
    parser.add_argument("--launches", type=int, default=20_000, help="launches a window (default 20,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only designs whose name holds it")
    options = parser.parse_args()
    began = time.perf_counter()
    print(f"% of {options.runs} runs, {options.pairs} pairs of history, {options.launches:,} launches a window")
    head = "".join(f"{title:>18}" for title in ("L(5%) > 1", "REGRESSED", "PASS"))
    print(f"{'':<28}{'factor':>8}{'of 10%':>8}{head}")
    for place, design in enumerate(DESIGNS):
        if options.only in design.name:
            rng = np.random.default_rng([options.seed, place])
            print(line(design, rng, options.runs, options.pairs, options.launches), flush=True)
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
