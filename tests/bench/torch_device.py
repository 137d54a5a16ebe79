"""Device time on a real GPU: what windows cost, whether they tell the truth, and whether they harm a profiler.

    python tests/bench/torch_device.py [--agent kdiff-agent] [--quick] [--only throughput,accuracy,...]

Needs root, a GPU, PyTorch and Triton. The loads are torch_device_load.py's.

- throughput: one process a load, recorded in turns with windows and without, with the same probes.
- accuracy: p50 and p99 of each kernel from windows of 10% against torch.profiler in the same process right after.
- profiler: programs that start PyTorch's or JAX's profiler at a random moment, with windows 40% of the time and without
  kdiff: the launches that it saw.
- swap: the captures of tests/data/device-swap.
- resume: whether windows stop while another user of CUPTI has it, and begin again after.
- memory: GPU and resident memory of a serving loop with windows of 100 ms a second, ten times as dense as the default.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

LOAD = Path(__file__).with_name("torch_device_load.py")
JAX_LOAD = Path(__file__).with_name("jax_device_load.py")


class Bench:
    def __init__(self, agent: str, work: Path) -> None:
        self.agent = agent
        self.work = work
        from kdiff.probes.device_library import library

        self.library = library(work / "library")

    def load(
        self, *arguments: str | float, device: str | None = "200/2000", wait: bool = True
    ) -> subprocess.Popen[str]:
        """A load, started and warm unless `wait` is false; `device`: its windows, None for no library at all."""
        environment = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "PYTHONPATH")}
        if device:
            environment |= {"CUDA_INJECTION64_PATH": str(self.library), "KDIFF_DEVICE_TIME": device}
        script = (
            [str(JAX_LOAD), *map(str, arguments[1:])] if arguments[0] == "jax" else [str(LOAD), *map(str, arguments)]
        )
        command = [sys.executable, *script]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if wait:
            wait_until_ready(process)
        return process

    def record(self, name: str, *arguments: str | float) -> subprocess.Popen[str]:
        """The agent, recording to a directory of that name."""
        state = ["--state", str(self.work / "drivers.json")]
        command = [self.agent, "record", "-o", str(self.work / name), *state, *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def rows(self, name: str, table: str) -> Any:
        """A table of a capture, as pandas has it."""
        folder = self.work / name / table
        return pq.read_table(folder).to_pandas() if folder.is_dir() else None


def wait_until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    if line != "ready\n":
        raise SystemExit(f"{process.args} printed {line!r}: {process.communicate()[1]}")


def end(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a load printed. It must have ended well and written nothing to stderr that a user would take for harm."""
    out, err = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args} ended with {process.returncode}: {err}")
    return {**json.loads(out.splitlines()[-1]), "stderr": err}


def throughput(bench: Bench, quick: bool, seconds: float = 7.5) -> None:
    for load in ("launch", "graph", "gpu"):
        for windows in ("200/2000",) if quick else ("200/2000", "always"):
            count = 2 if quick or windows == "always" else 4
            stretches: dict[str, list[tuple[float, float]]] = {"on": [], "off": []}
            process = bench.load(load, "--seconds", count * 2 * (seconds + 1.5) + 2, device=windows)
            order = [way for pair in range(count) for way in (("off", "on") if pair % 2 == 0 else ("on", "off"))]
            for turn, way in enumerate(order):
                agent = bench.record(
                    f"{load}-{windows[:3]}-{turn}", "--pid", process.pid, "--duration", seconds, "--device-time", way
                )
                time.sleep(1.5)  # until the agent is there
                stretches[way].append((time.time(), time.time() + seconds - 1.5))
                agent.wait()
            rates = np.array(end(process)["rates"])
            means = {
                way: [rates[(rates[:, 0] > a) & (rates[:, 0] < b), 1].mean() for a, b in spans]
                for way, spans in stretches.items()
            }
            ratios = [on / off for on, off in zip(means["on"], means["off"], strict=True)]
            print(
                f"throughput {load:6} windows {windows:8}: on / off {statistics.mean(ratios):.4f} "
                f"(each pair {', '.join(f'{r:.4f}' for r in ratios)})",
                flush=True,
            )
        if quick:
            continue
        iterations = {"launch": 300, "graph": 500, "gpu": 50}[load]
        result = end(bench.load(load, "--seconds", 4, "--profile-at", 2, "--profile", iterations, device=None))
        usual = statistics.median(rate for _, rate in result["rates"])
        print(f"throughput {load:6} torch.profiler on / off {result['profiled'][0][1] / usual:.4f}", flush=True)


def accuracy(bench: Bench, quick: bool) -> None:
    truth = bench.work / "truth.json"
    process = bench.load("serving", "--seconds", 60, "--truth", truth, "--profile", 6000, device="100/1000")
    agent = bench.record("accuracy", "--pid", process.pid, "--duration", 60, "--device-time", "on")
    end(process)
    agent.wait()
    from kdiff.agent.demangle import demangle

    rows = bench.rows("accuracy", "kernel_executions")
    windows = bench.rows("accuracy", "device_windows")
    events = bench.rows("accuracy", "cuda_events")
    covered = (windows["to_ns"] - windows["from_ns"]).sum() / (windows["to_ns"].max() - windows["from_ns"].min())
    graphs, queued = rows["graph_id"] > 0, rows["queue_ns"] > 0
    missing = {name: int(windows[name].sum()) for name in ("uncollected", "dropped", "lost")}
    print(
        f"accuracy: {len(windows)} windows, {covered:.1%} of the time, {len(rows)} executions, {graphs.mean():.1%} "
        f"from graphs, queue time known for {queued.sum()} of {(~graphs).sum()}, {missing}, "
        f"{(events['kind'] == 'launch').sum()} launches"
    )
    profiled: dict[str, list[int]] = {}
    for name, durations in json.loads(truth.read_text()).items():
        profiled.setdefault(demangle(name) if name.startswith("_Z") else name, []).extend(durations)
    for name, group in sorted(rows.groupby(rows["kernel_name"].astype(str)), key=lambda item: -len(item[1])):
        full = profiled.get(name)
        if not full or len(group) < 1000:
            continue
        line = []
        for quantile in (0.5, 0.99):
            ours, theirs = (int(np.quantile(v, quantile, method="inverted_cdf")) for v in (group["duration_ns"], full))
            line.append(f"p{100 * quantile:g} {ours} / {theirs} = {ours / theirs:.4f}")
        print(f"  {len(group):7} / {len(full):7}  {'  '.join(line)}  {name[:60]}", flush=True)


def profiler(bench: Bench, quick: bool, at_once: int = 14) -> None:
    loads = ("launch", "threads", "waiting", "jax")
    agent = bench.record("profiler", "--device-time", "on")
    for load in loads:
        for way, device in (("with windows", "200/500"), ("without kdiff", None)):
            draw = random.Random(11)
            outcomes: Counter[str] = Counter()
            for _ in range(1 if quick or not device else 3):
                running = [
                    bench.load(
                        *(load, "--seconds", 3, "--profile-at", round(draw.uniform(0.1, 2.5), 3)),
                        device=device,
                        wait=False,
                    )
                    for _ in range(at_once)
                ]
                for process in running:
                    outcomes[outcome(process)] += 1
            print(f"profiler {load:7} {way}: of 2,000 launches it saw {dict(outcomes)}", flush=True)
    agent.terminate()
    report = agent.communicate()[1]
    windows = bench.rows("profiler", "device_windows")
    ended = windows["ended"].astype(str).value_counts().to_dict()
    print(f"  windows ended {ended}; the agent said: {report.splitlines()[-3:]}", flush=True)


def outcome(process: subprocess.Popen[str], patience_s: float = 60) -> str:
    """What became of a load that profiles once: the launches that it saw, or how it failed."""
    try:
        out, err = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "hung"
    if process.returncode:
        print(f"  ended with status {process.returncode}: {err[-2000:]}", flush=True)
        return f"status {process.returncode}"
    said = [line for line in err.splitlines() if "kdiff" in line or "rror" in line]
    (seen, _), *_ = json.loads(out.splitlines()[-1])["profiled"]
    return f"{seen}" + (f", and said {said[:2]}" if said else "")


def swap(bench: Bench, quick: bool) -> None:
    """A kernel swap behind a deep queue: what tests/data/device-swap holds, and beside it windows without a gap."""
    script = Path(__file__).parents[2] / "deploy" / "demo" / "triton_swap.py"
    launches = 2_000 if quick else 12_000
    for name, rounds in (("before", 100), ("again", 100), ("after", 112), ("faster", 80)):
        for kind, windows in (("", "30ms/100ms"), ("-always", "always")):
            command = [sys.executable, str(script), "--sync-every", "200", f"--rounds={rounds}"]
            process = bench.record(
                *(name + kind, "--service", "triton_swap", "--device-time", windows),
                *("--", *command, f"--launches={launches}"),
            )
            print(f"swap {name}{kind}: {process.communicate()[1].splitlines()[-3:]}", flush=True)


def resume(bench: Bench, quick: bool) -> None:
    process = bench.load("launch", "--seconds", 12, "--hold", "4:8", device="100/300")
    agent = bench.record("resume", "--pid", process.pid, "--device-time", "on")
    held = end(process)["held"]
    agent.wait()
    windows = bench.rows("resume", "device_windows")
    (taken, first), (given, second) = held
    inside = ((windows["to_ns"] > taken) & (windows["from_ns"] < given)).sum()
    print(
        f"resume: another user held CUPTI for {(given - taken) / 1e9:.1f} s (its calls returned {first} and {second}): "
        f"{(windows['to_ns'] <= taken).sum()} windows before, {inside} meanwhile, "
        f"{(windows['from_ns'] >= given).sum()} after, {windows['skipped'].sum()} skipped",
        flush=True,
    )


def memory(bench: Bench, quick: bool) -> None:
    seconds = 60 if quick else 480
    process = bench.load("serving", "--seconds", seconds, device="100/1000")
    agent = bench.record("memory", "--pid", process.pid, "--device-time", "on")
    result = end(process)
    agent.wait()
    windows = bench.rows("memory", "device_windows")
    used = np.array(result["memory"])
    half = len(used) // 2
    gpu, resident = (" -> ".join(str(used[at, column]) for at in (1, half, -1)) for column in (1, 2))
    print(f"memory: {len(windows)} windows in {seconds:.0f} s, GPU MB {gpu}, resident MB {resident}", flush=True)


PARTS = {f.__name__: f for f in (swap, profiler, throughput, accuracy, resume, memory)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Device time on a real GPU.")
    parser.add_argument("--agent", default="kdiff-agent")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--keep", type=Path, help="keep the captures in this directory")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter: a look, not a figure for the docs")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kdiff-bench-") as work:
        if args.keep:
            args.keep.mkdir(parents=True, exist_ok=True)
        bench = Bench(args.agent, args.keep or Path(work))
        for name in args.only.split(","):
            PARTS[name](bench, args.quick)


if __name__ == "__main__":
    main()
