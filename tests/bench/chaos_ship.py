"""Ships 1,000,003 rows among 50 faults, says what was done and whether each row arrived once.

    chaos_ship.py [--rows N] [--faults N] [--seed N]

Server killed with -9 and restarted on its data, connections cut in mid-insert, answers lost after the insert took
effect, the shippers themselves killed and restarted; two of them ship the same directory while it grows. Exits 1 if any
count, histogram count or checksum differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos import Chaos

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--rows", type=int, default=1_000_003)
parser.add_argument("--faults", type=int, default=50)
parser.add_argument("--seed", type=int, default=int(time.time()))
given = parser.parse_args()

print(f"seed {given.seed}")
began = time.monotonic()
with tempfile.TemporaryDirectory() as tmp:
    chaos = Chaos(Path(tmp), given.seed, lambda line: print(f"{time.monotonic() - began:7.1f} s  {line}", flush=True))
    try:
        outcome = chaos.run(given.rows, given.faults)
    finally:
        chaos.close()
for name, count in sorted(outcome.faults.items()):
    print(f"{count:4d} x {name}")
right = {
    "rows": outcome.of_server[0] == given.rows,
    "checksums of all columns": outcome.of_server == outcome.of_files,
    "counts, sums and histogram counts of kernel_minutes": outcome.of_minutes == outcome.of_rows,
    "accounts": outcome.accounts == chaos.accounts,
    "a copy shipped once more adds nothing": "shipped 0 segments" in outcome.again,
}
for what, good in right.items():
    print(f"{'ok   ' if good else 'WRONG'} {what}")
print(f"{given.rows:,} rows in {outcome.segments} segments, {outcome.of_server[0]:,} in the store")
sys.exit(not all(right.values()))
