"""A minute of all that one core can launch: every launch a row or counted as lost, and what memory the agent takes.

    bench_minute.py [--seconds 60] [--layers both,driver]

As root, with two cores: the program runs on the last one, the agent on the first. `driver` is with `--no-return`, one
trap a launch, where most launches a second are. Exits 1 if launches made are not rows plus counted losses, or if the
accounts and the summary differ.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from bench_agent import AGENT_CORE, LAUNCH_BOUND, environment, machine, pinned, workload_command
from recording import agent_command

MOMENTS = 10


def resident_mb(pid: int, which: str = "VmRSS") -> float:
    """Memory of a process now; 0.0 when it has ended. RssAnon is its own: the rest is files, and rings mapped twice."""
    try:
        found = re.search(rf"{which}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


@dataclass
class Counted:
    """What a capture holds of launches and syncs: rows, and losses by its accounts."""

    launches: int
    syncs: int
    lost_launches: int
    lost_syncs: int
    drain_lag_s: float

    @classmethod
    def of(cls, capture: Path) -> Counted:
        kinds = {"launch": 0, "sync": 0}
        for path in (capture / "cuda_events").glob("*.parquet"):
            column = pq.read_table(path, columns=["kind"])["kind"]
            for entry in pc.value_counts(column).to_pylist():
                kinds[entry["values"]] += entry["counts"]
        health = pq.read_table(capture / "agent_health")
        lost = [pc.sum(health[f"lost_{kind}"]).as_py() for kind in ("launches", "syncs")]
        return cls(kinds["launch"], kinds["sync"], lost[0], lost[1], pc.max(health["drain_lag_ns"]).as_py() / 1e9)


def minute(seconds: float, options: list[str]) -> bool:
    """Records it, prints what came of it; whether the equation holds."""
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "capture"
        load = workload_command(*LAUNCH_BOUND[:2], "--sync-every", 100_000, "--duration", str(seconds))
        command = [*pinned(AGENT_CORE), *agent_command(capture, *options, command=load)]
        agent = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        began, sizes = time.monotonic(), []
        for moment in range(MOMENTS):
            time.sleep(max(0.0, began + 1.5 + moment * (seconds - 2) / (MOMENTS - 1) - time.monotonic()))
            sizes.append(resident_mb(agent.pid))
        printed, said = agent.communicate(timeout=300)
        summary = re.search(r"([\d,]+) events .* ([\d,]+) lost · agent CPU ([\d.]+) s \(([\d.]+%)\)", said)
        assert agent.returncode == 0, said
        assert summary, said
        made = json.loads(printed)
        counted = Counted.of(capture)
        size = sum(path.stat().st_size for path in (capture / "cuda_events").iterdir())
    lost = counted.lost_launches + counted.lost_syncs
    right = (
        counted.launches + counted.lost_launches == made["launches"]
        and counted.syncs + counted.lost_syncs == made["syncs"]
        and int(summary[2].replace(",", "")) == lost
        and int(summary[1].replace(",", "")) == counted.launches + counted.syncs
    )
    print(f"\n{' '.join(options) or '(default)'}: {made['launches'] / made['seconds']:,.0f} launches/s")
    print(f"{made['launches']:,} launches made = {counted.launches:,} rows + {counted.lost_launches:,} counted as lost")
    print(f"{made['syncs']:,} syncs made = {counted.syncs:,} rows + {counted.lost_syncs:,} counted as lost")
    print(f"agent CPU {summary[3]} s ({summary[4]}), at most {counted.drain_lag_s:.2f} s between two reads of the ring")
    print(f"RSS in MB over the time: {' '.join(f'{size:.0f}' for size in sizes)}; {size / 1e6:.0f} MB on the disk")
    print("ok" if right else "WRONG")
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--layers", default="both,driver")
    given = parser.parse_args()
    place = machine()
    print(
        f"{place['date']}, {place['cores']} cores of {place['cpu']}, Linux {place['linux']}, load {place['load']:.1f}"
    )
    ways = {"both": [], "driver": ["--layer", "driver", "--no-return"]}
    right = [minute(given.seconds, ways[layer]) for layer in given.layers.split(",")]
    sys.exit(not all(right))


if __name__ == "__main__":
    main()
