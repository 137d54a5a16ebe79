"""What recording adds to a launch-bound PyTorch loop on a real GPU.

    python tests/bench/torch_loop.py [--repetitions 3] [--agent kdiff-agent]

Needs root, a GPU and PyTorch, and four cores or more: the loop runs on core 1 alone, the agent on the others.
Wall time of `torch.relu_` on 64 floats, 30,000 launches nine times a run, its median; without recording and with, in
turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

WAYS = {
    "without": None,
    "both layers (default)": [],
    "--no-return": ["--no-return"],
    "--layer driver": ["--layer", "driver"],
    "--layer driver --no-return": ["--layer", "driver", "--no-return"],
    "--layer runtime": ["--layer", "runtime"],
}


def loop(launches: int = 30_000, times: int = 9) -> float:
    """Median microseconds a launch."""
    import torch

    x = torch.ones(64, device="cuda")
    for _ in range(2_000):
        torch.relu_(x)
    torch.cuda.synchronize()
    time.sleep(3)  # the agent has looked at every library by then
    took = []
    for _ in range(times):
        began = time.perf_counter()
        for _ in range(launches):
            torch.relu_(x)
        torch.cuda.synchronize()
        took.append((time.perf_counter() - began) / launches * 1e6)
    return statistics.median(took)


def run(options: list[str] | None, agent: str, directory: Path) -> float:
    program = ["taskset", "-c", "1", "env", "-u", "LD_LIBRARY_PATH", sys.executable, __file__, "--loop"]
    if options is not None:
        others = f"2-{(os.cpu_count() or 4) - 1}"
        program = ["taskset", "-c", others, agent, "record", "-o", str(directory), *options, "--", *program]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(program)}: {done.stderr}")
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--agent", default="kdiff-agent", help="the command")
    parser.add_argument("--loop", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.loop:
        print(loop())
        return
    took: dict[str, list[float]] = defaultdict(list)
    for repetition in range(args.repetitions):
        for way, options in WAYS.items():
            with tempfile.TemporaryDirectory() as directory:
                took[way].append(run(options, args.agent, Path(directory) / "capture"))
        print(f"{repetition + 1} of {args.repetitions}", file=sys.stderr)
    print(f"{'us a launch':30} {'median':>7} {'min':>7} {'max':>7} {'added':>7}")
    base = statistics.median(took["without"])
    for way, values in took.items():
        middle = statistics.median(values)
        print(f"{way:30} {middle:7.2f} {min(values):7.2f} {max(values):7.2f} {middle - base:+7.2f}")


if __name__ == "__main__":
    main()
