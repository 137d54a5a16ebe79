"""How often verdicts on canary against control, clustered by host, are right and wrong where the truth is known.

    python tests/bench/bench_canary.py [--repetitions 500] [--seed 1] [--launches 12000] [--only TABLE ...]

A host's launches are lognormal (sigma 0.15, or as said), 3% of them slowed by contention where sigma is 0.15; its level
differs from the others' by `sd` (log scale), in both arms alike, for as long as it runs: no longer window averages that
away. `mix` is by how much hosts differ in launches (coefficient of variation). A rate from r runs has a standard error
of sqrt(rate (1 - rate) / r). Every row has a source of chance of its own.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))

from statistics_peers import at_most

from kdiff.analysis.judging import judge
from kdiff.analysis.sample import Sample
from kdiff.analysis.verdict import Policy, Verdict

POLICY: Final = Policy()
LEVEL_NS: Final = 50_000.0
SERVING: Final = 0.15
HEAD: Final = f"{'hosts':>6}{'sd':>5}{'mix':>5}{'ratio':>7}{'REGRESSED':>11}{'at most':>9}{'PASS':>7}{'open':>7}"
HEAD_TAIL: Final = f"{'few':>7}"


@dataclass(frozen=True)
class Load:
    """Two arms.

    Attributes:
        hosts: of control and canary.
        sd: of the hosts' levels.
        ratio: canary to control, of every launch.
        mix: coefficient of variation of the hosts' launches.
        slow, slower: how many hosts of each arm are slower, and by what factor.
        sigma: of the launches of one host; contention only at SERVING.
    """

    hosts: tuple[int, int]
    sd: float
    ratio: float = 1.0
    mix: float = 0.0
    slow: tuple[int, int] = (0, 0)
    slower: float = 1.0
    sigma: float = SERVING

    def samples(self, rng: np.random.Generator, launches: int) -> tuple[Sample, Sample]:
        """Control and canary."""
        first, second = (
            self._arm(rng, launches, hosts, slow, ratio)
            for hosts, slow, ratio in zip(self.hosts, self.slow, (1.0, self.ratio), strict=True)
        )
        return first, second

    def _arm(self, rng: np.random.Generator, launches: int, hosts: int, slow: int, ratio: float) -> Sample:
        share = rng.gamma(1.0 / self.mix**2, self.mix**2, hosts) if self.mix else np.ones(hosts)
        each = np.maximum(1, np.rint(launches * share / share.sum())).astype(np.int64)
        host = np.repeat(np.arange(hosts, dtype=np.int32), each)
        level = rng.normal(0.0, self.sd, hosts)
        level[:slow] += np.log(self.slower)
        durations: NDArray[np.float64] = np.exp(rng.normal(0.0, self.sigma, host.size) + level[host])
        contended = rng.random(host.size) < (0.03 if self.sigma == SERVING else 0.0)
        durations[contended] *= 1.0 + rng.exponential(0.5, int(contended.sum()))
        return Sample((LEVEL_NS * ratio * durations).astype(np.int64), host, hosts, clustered=True)


TABLES: Final[dict[str, list[Load]]] = {
    "no change": [Load((h, h), sd) for h in (5, 8, 20) for sd in (0.02, 0.05)],
    "exactly the margin, +5%": [Load((h, h), sd, 1.05) for h in (5, 8, 20) for sd in (0.02, 0.05)],
    "launches nearly alike (sigma 0.01), hosts not": [
        Load((h, h), sd, ratio, sigma=0.01) for ratio in (1.0, 1.05, 1.15) for h in (5, 20) for sd in (0.02, 0.05)
    ],
    "one host 50% slower, of the canary, or of the control whose canary is 20% slower": [
        *(Load((h, h), sd, slow=(0, 1), slower=1.5) for h in (5, 12) for sd in (0.02, 0.05)),
        *(Load((h, h), 0.02, 1.2, slow=(1, 0), slower=1.5) for h in (5, 12)),
    ],
    "slower": [Load((h, h), sd, ratio) for ratio in (1.1, 1.15, 1.2) for h in (5, 8, 20) for sd in (0.02, 0.05)],
    "unequal arms and hosts": [
        *(Load((20, 5), 0.03, ratio) for ratio in (1.0, 1.05, 1.2)),
        *(Load((8, 8), 0.03, ratio, mix=0.5) for ratio in (1.0, 1.05, 1.2)),
    ],
}


@dataclass
class Tally:
    """Verdicts of the runs of a row."""

    seen: Counter[Verdict] = field(default_factory=Counter)

    def shown(self, load: Load, runs: int) -> str:
        """A row under the heads."""
        wrong = self.seen[Verdict.REGRESSED]
        passed = self.seen[Verdict.PASS] + self.seen[Verdict.IMPROVED]
        shares = (passed, self.seen[Verdict.INCONCLUSIVE], self.seen[Verdict.NOT_ENOUGH_DATA])
        hosts = f"{load.hosts[0]}" if load.hosts[0] == load.hosts[1] else "/".join(map(str, load.hosts))
        return (
            f"{hosts:>6}{load.sd:>5g}{load.mix:>5g}{load.ratio:>7g}{100 * wrong / runs:>11.1f}"
            f"{100 * at_most(wrong, runs):>9.2f}" + "".join(f"{100 * share / runs:>7.1f}" for share in shares)
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--launches", type=int, default=12_000, help="of an arm")
    parser.add_argument("--only", nargs="*", default=list(TABLES), metavar="TABLE", choices=list(TABLES))
    given = parser.parse_args()
    print(
        f"{given.repetitions} runs a row, {given.launches:,} launches an arm, seed {given.seed}, in percent of the runs"
    )
    for title in given.only:
        began = time.monotonic()
        print(f"\n{title}\n{HEAD}{HEAD_TAIL}")
        for load in TABLES[title]:
            rng = np.random.default_rng([given.seed, zlib.crc32(repr(load).encode())])
            tally = Tally()
            for _ in range(given.repetitions):
                judged = judge(*load.samples(rng, given.launches), POLICY)
                tally.seen[judged.verdict] += 1
            print(tally.shown(load, given.repetitions), flush=True)
        print(f"({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
