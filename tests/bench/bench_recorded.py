"""Verdicts on all pairs of short windows of real recordings, whose truth is known: one kernel was made slower.

    python tests/bench/bench_recorded.py [--step 2.5]

tests/data/h200-serving: windows of 10, 15 and 20 s that begin `step` seconds apart. Two of the phases A and B, the same
program, that share no time; one of them before and one of C, with the slower fused_gelu, after; the same way back. By
kernel, and each shape as if it were a kernel. A p99 needs 2,000 launches, a p90 200: of the largest shape no window has
enough for a p99. Whole ticks: durations are multiples of 32 ns; no ties: they are moved inside their tick at random.
tests/data/device-swap: its captures, and their halves.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from executions import SERVING, SWAP, SWAPPED, Executions, Key, apart, judged, judged_by_mix, phases, slices

from kdiff.analysis.sample import Sample
from kdiff.analysis.verdict import Policy, Verdict
from kdiff.analysis.window import Window

Judge = Callable[[dict[Key, Sample], dict[Key, Sample], Policy], dict[Key, Verdict]]

SHOWN: Final = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.NOT_ENOUGH_DATA)


@dataclass
class Verdicts:
    """Those of many pairs: of the swapped kernel, by its shape where these are apart, and of all others together."""

    pairs: int = 0
    swapped: dict[Key, Counter[Verdict]] = field(default_factory=dict)
    others: Counter[Verdict] = field(default_factory=Counter)

    def add(self, verdicts: dict[Key, Verdict]) -> None:
        """One pair."""
        self.pairs += 1
        for key, verdict in verdicts.items():
            of = self.swapped.setdefault(key, Counter()) if key[0] == SWAPPED else self.others
            of[verdict] += 1

    def show(self, name: str) -> None:
        """Prints a line for the swapped kernel, or for each of its shapes, and one for the others."""
        for key, counts in [*sorted(self.swapped.items()), ("others", self.others)]:
            who = key if isinstance(key, str) else f"{SWAPPED} {key[1]}" if key[1] else SWAPPED
            print(f"{name:<34}{self.pairs:>7,}  {who:<18}" + "".join(f"{counts[v]:>10,}" for v in SHOWN), flush=True)
            name = ""


def sweep(
    before: Executions,
    after: Executions,
    pairs: Iterable[tuple[Window, Window]],
    policy: Policy | None = None,
    judge: Judge = judged,
) -> Verdicts:
    """The verdicts on these pairs of windows; each window is cut once."""
    cut = {}
    seen = Verdicts()
    for windows in pairs:
        samples = []
        for source, window in zip((before, after), windows, strict=True):
            if (id(source), window) not in cut:
                cut[id(source), window] = source.samples(window)
            samples.append(cut[id(source), window])
        seen.add(judge(samples[0], samples[1], policy or Policy()))
    return seen


def head(title: str) -> None:
    """Print the header of a table."""
    print(f"\n{title}\n{'':<34}{'pairs':>7}  {'verdicts on':<18}", end="")
    print("".join(f"{name:>10}" for name in ("REGRESSED", "IMPROVED", "PASS", "INCONC", "N.E.D.")))


def serving(step: float) -> None:
    """All pairs of windows of the serving loop."""
    found = phases()
    kernels, of_shapes = (Executions.read(SERVING / "device.parquet", by_shape) for by_shape in (False, True))
    for recorded, quantile, judge, title in (
        (of_shapes, 0.99, judged_by_mix, "p99 by kernel, at one mix of its shapes and by shape, as kdiff does"),
        (kernels, 0.99, judged, "p99 by kernel, all launches together (--no-strata)"),
        (of_shapes, 0.99, judged, "p99, each shape as if it were a kernel"),
        (of_shapes, 0.9, judged, "p90, each shape as if it were a kernel"),
    ):
        head(f"h200-serving, {title}")
        for seconds in (10, 15, 20):
            cut = {phase: slices(window, seconds, step) for phase, window in found.items()}
            same, slower = cut["A"] + cut["B"], cut["C"]
            for what, pairs in (
                ("A, B: the same", apart(same, same)),
                ("then C", apart(same, slower)),
                ("back from C", apart(slower, same)),
            ):
                sweep(recorded, recorded, pairs, Policy(quantile=quantile), judge).show(f"{seconds} s, {what}")
    head("h200-serving, p99 by kernel, 15 s, other ties")
    cut = {phase: slices(window, 15, step) for phase, window in found.items()}
    same, slower = cut["A"] + cut["B"], cut["C"]
    for name, other in (
        ("as recorded", kernels),
        ("whole ticks", kernels.rounded()),
        ("no ties", kernels.spread(np.random.default_rng(1))),
    ):
        sweep(other, other, apart(same, same)).show(f"{name}: the same")
        sweep(other, other, apart(same, slower)).show(f"{name}: then C")


def swap() -> None:
    """The captures with device windows."""
    head("device-swap, p99")
    read = {side: Executions.read(SWAP / side / "kernel_executions") for side in ("before", "again", "after", "faster")}
    for before, after in (
        ("before", "again"), ("again", "before"), ("before", "after"), ("again", "after"), ("after", "before"),
        ("before", "faster"), ("faster", "before"), ("after", "faster"), ("faster", "after"),
    ):  # fmt: skip
        sides = read[before], read[after]
        sweep(*sides, [(sides[0].whole, sides[1].whole)]).show(f"{before}, then {after}")
        halves = [side.whole.length_ns / 2e9 for side in sides]
        parts = [
            slices(side.whole, half * (1 - 1e-6), half * (1 - 1e-6)) for side, half in zip(sides, halves, strict=True)
        ]
        policy = Policy(quantile=0.9)
        sweep(*sides, [(b, a) for b in parts[0] for a in parts[1]], policy).show("  halves, p90")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", type=float, default=2.5, help="seconds from window to window (default 2.5)")
    given = parser.parse_args()
    began = time.perf_counter()
    serving(given.step)
    swap()
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
