"""What recording takes from the throughput of PyTorch loops on a real GPU, in pairs within one process a loop.

    python tests/bench/torch_loop.py [--turns 3] [--seconds 6] [--agent kdiff-agent]

Needs root, a GPU, PyTorch and Triton, and eight cores or more: a loop runs on cores 2 to 5, the agent anywhere.
An agent comes and goes while the loop runs: its rate while it is recorded over the mean of its rates right before and
after, for each way to record. Beside them the rate under torch.profiler. The loops are torch_device_load.py's.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from torch_device import LOAD_CORES, Bench, between, end

WAYS = {
    "both layers (default)": (),
    "--no-return": ("--no-return",),
    "--layer driver": ("--layer", "driver"),
    "--layer driver --no-return": ("--layer", "driver", "--no-return"),
    "--layer runtime": ("--layer", "runtime"),
    "--scheduling on": ("--scheduling", "on"),
}
OF_LOADS = {
    "launch": tuple(WAYS),
    "graph": ("both layers (default)",),
    "gpu": ("both layers (default)", "--scheduling on"),
}
ATTACHING_S = 3  # in which the agent looks at the process, of the recording
LEFT_S = 0.3  # after which an agent that ended is surely gone
PROFILED = {"launch": 300, "graph": 500, "gpu": 50}  # iterations


def record(bench: Bench, name: str, pid: int, seconds: float, options: tuple[str, ...]) -> tuple[float, float]:
    """Records a process. Returns from when to when it surely was, as Unix time."""
    duration = seconds + ATTACHING_S
    agent = bench.record(name, "--pid", pid, "--duration", duration, "--device-time", "off", *options)
    error = agent.communicate()[1]
    if agent.returncode:
        raise SystemExit(f"{subprocess.list2cmdline(options)}: {error}")
    times = bench.rows(name, "cuda_events")["timestamp_ns"]
    return times.min() / 1e9 + ATTACHING_S, times.max() / 1e9 - LEFT_S


def ratios(bench: Bench, load: str, turns: int, seconds: float) -> dict[str, list[float]]:
    """Of each way, each time that it recorded: the load's rate over its rate right before and after."""
    order = list(OF_LOADS[load]) * turns
    total = len(order) * (2 * seconds + ATTACHING_S + 4) + seconds
    process = bench.load(load, "--seconds", total, device=None, cores=LOAD_CORES)
    spans, quiet = [], []
    for at, way in enumerate(order):
        began = time.time() + LEFT_S
        time.sleep(seconds + LEFT_S)
        quiet.append((began, time.time()))
        spans.append(record(bench, f"{load}-{at}", process.pid, seconds, WAYS[way]))
    began = time.time() + LEFT_S
    time.sleep(seconds + LEFT_S)
    quiet.append((began, time.time()))
    rates = np.array(end(process)["rates"])
    found: dict[str, list[float]] = {way: [] for way in OF_LOADS[load]}
    for at, way in enumerate(order):
        around = [mean(rates, quiet[side]) for side in (at, at + 1)]
        found[way].append(mean(rates, spans[at]) / statistics.mean(around))
    found["no agent, the next one later"] = [
        2 * mean(rates, quiet[at]) / (mean(rates, quiet[at - 1]) + mean(rates, quiet[at + 1]))
        for at in range(1, len(quiet) - 1)
    ]
    return found


def mean(rates: Any, span: tuple[float, float]) -> float:
    inside = between(rates, *span)
    if not len(inside):
        raise SystemExit("the loop had ended: this machine is slower than the benchmark knows")
    return float(inside.mean())


def under_profiler(bench: Bench, load: str) -> float:
    """The load's rate under torch.profiler over its usual one."""
    options = ("--seconds", 4, "--profile-at", 2, "--profile", PROFILED[load])
    result = end(bench.load(load, *options, device=None, cores=LOAD_CORES))
    return float(result["profiled"][0][1] / statistics.median(rate for _, rate in result["rates"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--agent", default="kdiff-agent", help="the command")
    parser.add_argument("--only", default=",".join(OF_LOADS), help="the loads")
    args = parser.parse_args()
    print(f"{'rate with / without':38} {'mean':>6}  each")
    with tempfile.TemporaryDirectory(prefix="kdiff-bench-") as work:
        bench = Bench(args.agent, Path(work))
        for load in args.only.split(","):
            for way, found in ratios(bench, load, args.turns, args.seconds).items():
                each = " ".join(f"{ratio:.3f}" for ratio in found)
                print(f"{load:7} {way:30} {statistics.mean(found):6.3f}  {each}", flush=True)
            print(f"{load:7} {'torch.profiler':30} {under_profiler(bench, load):6.3f}", flush=True)


if __name__ == "__main__":
    main()
