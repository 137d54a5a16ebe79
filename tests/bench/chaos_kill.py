"""Kills agents with -9 at any moment while programs launch, and says whether anything was harmed or left behind.

    chaos_kill.py [--kills N] [--lanes N] [--seed N] [--flush SECONDS]

As root. Each lane is a spool with one `kdiff-agent run` after another, killed while it starts, records, writes a
segment or ends. Exits 1 unless every target ended with 0 after all of its launches, every closed segment is there
unchanged, no row twice, every account true, every start clean, and no probe, BPF program, map or temporary file left.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kills import LAUNCHES, SYNCS, killed

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--kills", type=int, default=200)
parser.add_argument("--lanes", type=int, default=4)
parser.add_argument("--seed", type=int, default=int(time.time()))
parser.add_argument("--flush", type=float, default=0.2, help="seconds between segments; 10 outside of tests")
given = parser.parse_args()

print(f"seed {given.seed}")
with tempfile.TemporaryDirectory() as tmp:
    outcome = killed(Path(tmp), given.kills, lanes=given.lanes, seed=given.seed, flush_s=given.flush)
for doing, count in sorted(outcome.kills.items()):
    print(f"{count:4d} killed while {doing}")
for what in outcome.wrong:
    print(f"WRONG {what}")
right = {
    f"{len(outcome.targets)} targets ended well": set(outcome.targets) == {(0, LAUNCHES, SYNCS)},
    f"{outcome.segments:,} closed segments with {outcome.rows:,} rows, accounts and starts": not outcome.wrong,
    f"{outcome.torn} half written segments are gone": not outcome.left_files,
    f"nothing left in the kernel {dict(outcome.left_bpf) or ''}": not outcome.left_bpf,
}
for what, good in right.items():
    print(f"{'ok   ' if good else 'WRONG'} {what}")
print(f"{given.kills} kills in {outcome.seconds:.0f} s")
sys.exit(not all(right.values()))
