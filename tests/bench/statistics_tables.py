"""Tables of verdicts: rows of pairs of windows, each judged by kdiff and by the rules of others."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from statistics_loads import Loads
from statistics_peers import Peers, Said, at_most

from kdiff.analysis.judging import judge
from kdiff.analysis.sample import Sample
from kdiff.analysis.verdict import Policy, Verdict

POLICY = Policy()
PEERS = Peers(POLICY.quantile, POLICY.tolerance)

Pair = Callable[[Loads], tuple[Sample, Sample]]


@dataclass
class Tally:
    """Verdicts of kdiff, and what the other rules say, over the runs of a row."""

    runs: int = 0
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    above: int = 0
    peers: Counter[str] = field(default_factory=Counter)

    def add(self, before: Sample, after: Sample, peers: bool) -> None:
        """Judges one pair."""
        self.runs += 1
        judged = judge(before, after, POLICY)
        self.verdicts[judged.verdict] += 1
        self.above += judged.ci is not None and judged.ci[0] > 1.0
        if peers:
            self.peers.update(name for name, said in PEERS.say(before, after)._asdict().items() if said)

    def shown(self, peers: bool) -> str:
        """The columns of `head`."""
        seen = self.verdicts
        counts = (seen[Verdict.PASS] + seen[Verdict.IMPROVED], seen[Verdict.INCONCLUSIVE])
        counts += (seen[Verdict.NOT_ENOUGH_DATA], self.above)
        counts += tuple(self.peers[name] for name in Said._fields) if peers else ()
        wrong = seen[Verdict.REGRESSED]
        first = f"{100 * wrong / self.runs:>10.1f}{100 * at_most(wrong, self.runs):>9.2f}"
        return first + "".join(f"{100 * count / self.runs:>8.1f}" for count in counts)


@dataclass(frozen=True)
class Run:
    """What was asked for on the command line."""

    repetitions: int
    seed: int
    buckets: int
    row: str = ""

    def asked(self, name: str) -> bool:
        """Whether the row of this name is asked for."""
        return self.row in name

    def loads(self, name: str) -> Loads:
        """A source of chance for what has this name."""
        return Loads(np.random.default_rng([self.seed, zlib.crc32(name.encode())]), self.buckets)

    def table(self, title: str, rows: dict[str, Pair], repetitions: int, peers: bool = True) -> None:
        """Print a table of verdicts: a line for each row of `rows`, each of this many pairs."""
        print(f"\n{title}, {repetitions:,} runs a line, %")
        print(f"{'':<44}{'REGRESSED':>10}{'at most':>9}{'PASS':>8}{'INCONC':>8}{'N.E.D.':>8}{'L>1':>8}", end="")
        print("".join(f"{name:>8}" for name in ("iid L>1", "slower", "passes", "M-W", "ratio")) if peers else "")
        for name, pair in rows.items():
            if not self.asked(name):
                continue
            loads, tally = self.loads(f"{title}: {name}"), Tally()
            for _ in range(repetitions):
                tally.add(*pair(loads), peers)
            print(f"{name:<44}{tally.shown(peers)}", flush=True)
