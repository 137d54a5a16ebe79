"""Device time on a real GPU: what windows cost, whether they tell the truth, and whether they harm a profiler.

    python tests/bench/torch_device.py [--agent kdiff-agent] [--quick] [--only throughput,accuracy,...]

Needs root, a GPU, PyTorch and Triton. The loads are torch_device_load.py's.

- throughput: one process a load, recorded with the same probes all the time: inside periods with a window, far from
  windows, and while no window opens.
- accuracy: p50 and p99 of each kernel from windows of 10% against torch.profiler in the same process right after.
- profiler: programs that start PyTorch's or JAX's profiler at a random moment, with windows 40% of the time and without
  kdiff: the launches that it saw.
- starts: many programs that start at once, with windows and without: how they ended.
- first: programs that make streams, modules or contexts all the time, with windows 50 times a second: how they ended.
- swap: the captures of tests/data/device-swap.
- counts: launches by kernel against torch.profiler's, two processes at once.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

LOAD = Path(__file__).with_name("torch_device_load.py")
JAX_LOAD = Path(__file__).with_name("jax_device_load.py")
FIRST_USES = Path(__file__).with_name("device_first_uses.py")
BUCKET_S = 0.1  # torch_device_load.py's
LOAD_CORES = "2-5"  # where a loop is to keep its rate


class Bench:
    def __init__(self, agent: str, work: Path) -> None:
        self.agent = agent
        self.work = work
        from kdiff.probes.device_library import library

        self.library = library(work / "library")

    def load(
        self,
        *arguments: str | float,
        device: str | None = "200/2000",
        wait: bool = True,
        cores: str = "",
        settings: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """A load, started and warm unless `wait` is false; `device`: its windows, None for no library at all."""
        environment = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "PYTHONPATH")}
        if device:
            environment |= {"CUDA_INJECTION64_PATH": str(self.library), "KDIFF_DEVICE_TIME": device}
        environment |= settings or {}
        others = {"jax": JAX_LOAD, "first": FIRST_USES}
        its = arguments[1:] if arguments[0] in others else arguments
        script = [str(others.get(str(arguments[0]), LOAD)), *map(str, its)]
        command = [*(["taskset", "-c", cores] if cores else []), sys.executable, *script]
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


def throughput(bench: Bench, quick: bool) -> None:
    for load in ("launch", "graph", "gpu"):
        windowed(bench, load, 14 if quick else 27)
        if quick:
            continue
        always(bench, load)
        iterations = {"launch": 300, "graph": 500, "gpu": 50}[load]
        result = end(bench.load(load, "--seconds", 4, "--profile-at", 2, "--profile", iterations, device=None))
        usual = statistics.median(rate for _, rate in result["rates"])
        print(f"throughput {load:6} torch.profiler on / off {result['profiled'][0][1] / usual:.4f}", flush=True)


def windowed(bench: Bench, load: str, seconds: float) -> None:
    """Each period from 0.2 s before a window to 0.2 s before the next, against its own part that is far from windows.

    Beside it that part against recordings as long, before and after, of the same process without any window.
    """
    process = bench.load(load, "--seconds", 3 * (seconds + 9), device="200/2000", cores=LOAD_CORES)
    spans, windows = [], None
    for turn, way in enumerate(("off", "on", "off")):
        name = f"{load}-windows-{turn}"
        spans.append(recorded(bench, name, process.pid, way, seconds))
        if way == "on":
            windows = bench.rows(name, "device_windows")
    rates = np.array(end(process)["rates"])
    starts, ends = windows["from_ns"].to_numpy() / 1e9, windows["to_ns"].to_numpy() / 1e9
    ratios, quiet_rates = [], []
    for begun, over, following in zip(starts[:-1], ends[:-1], starts[1:], strict=True):
        whole = between(rates, begun - 0.2, following - 0.2)
        quiet = between(rates, over + 0.4, following - 0.2)
        if following - over > 0.9 and len(quiet) >= 3:
            ratios.append(whole.mean() / quiet.mean())
            quiet_rates.append(quiet.mean())
    before, after = (between(rates, *spans[turn]).mean() for turn in (0, 2))
    error = 2 * np.std(ratios, ddof=1) / len(ratios) ** 0.5
    print(
        f"throughput {load:6} windows 200/2000: on / off {np.mean(ratios):.4f} +- {error:.4f} ({len(ratios)} periods, "
        f"executions {windows['executions'].sum()}, ended {windows['ended'].astype(str).value_counts().to_dict()}); "
        f"far from windows / before {np.mean(quiet_rates) / before:.4f}, / after {np.mean(quiet_rates) / after:.4f}",
        flush=True,
    )


def always(bench: Bench, load: str, seconds: float = 9) -> None:
    """Windows without a gap against none, in pairs."""
    order = ("off", "on", "on", "off")
    process = bench.load(load, "--seconds", len(order) * (seconds + 9), device="always", cores=LOAD_CORES)
    spans = [recorded(bench, f"{load}-always-{at}", process.pid, way, seconds) for at, way in enumerate(order)]
    rates = np.array(end(process)["rates"])
    off, on, second_on, second_off = (between(rates, *span).mean() for span in spans)
    print(
        f"throughput {load:6} windows always: on / off {(on / off + second_on / second_off) / 2:.4f} "
        f"({on / off:.4f}, {second_on / second_off:.4f})",
        flush=True,
    )


def recorded(bench: Bench, name: str, pid: int, way: str, seconds: float) -> tuple[float, float]:
    """Records a process. Returns when it surely was recorded, as Unix time."""
    bench.record(name, "--pid", pid, "--duration", seconds, "--device-time", way).communicate()
    times = bench.rows(name, "cuda_events")["timestamp_ns"]
    return times.min() / 1e9 + 3, times.max() / 1e9 - 0.3  # until then the agent looks at the process


def between(rates: Any, begin: float, end: float) -> Any:
    """The rates of the stretches that lie inside, each stamped with its end."""
    return rates[(rates[:, 0] - BUCKET_S > begin) & (rates[:, 0] < end), 1]


def accuracy(bench: Bench, quick: bool) -> None:
    truth = bench.work / "truth.json"
    process = bench.load("serving", "--seconds", 60, "--truth", truth, "--profile", 6000, device="100/1000")
    agent = bench.record("accuracy", "--pid", process.pid, "--duration", 60, "--device-time", "on")
    end(process)
    agent.wait()
    from kdiff.queries.kernel_names import demangle

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


def starts(bench: Bench, quick: bool, at_once: int = 16) -> None:
    agent = bench.record("starts", "--device-time", "on")
    ways = {"with windows": "200/500", "without kdiff": None}
    ended: dict[str, Counter[str]] = {way: Counter() for way in ways}
    for round_of in range(2 if quick else 12):
        way = list(ways)[round_of % 4 == 3]
        running = [bench.load("threads", "--seconds", 1, device=ways[way], wait=False) for _ in range(at_once)]
        ended[way].update(outcome(process) for process in running)
    agent.terminate()
    agent.communicate()
    print(f"starts: { ({way: dict(counts) for way, counts in ended.items()}) }", flush=True)


def first(bench: Bench, quick: bool, at_once: int = 8) -> None:
    """Whether a window may open beside what a program does once: the library's own caution is off."""
    agent = bench.record("first", "--device-time", "on")
    settings = {"KDIFF_DEVICE_SETTLE": "1", "KDIFF_DEVICE_BUDGET": "none"}
    for what in ("streams", "modules", "contexts"):
        ended: Counter[str] = Counter()
        for _ in range(1 if quick else 3):
            running = [
                bench.load("first", what, "--seconds", 8, device="10/20", wait=False, settings=settings)
                for _ in range(at_once)
            ]
            ended.update(outcome(process) for process in running)
        print(f"first {what}: {dict(ended)}", flush=True)
    agent.terminate()
    agent.communicate()
    windows = bench.rows("first", "device_windows")
    print(f"  {len(windows)} windows", flush=True)


def outcome(process: subprocess.Popen[str], patience_s: float = 60) -> str:
    """What became of a load that profiles once or never: the launches that it saw, or how it failed."""
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
    profiled = json.loads(out.splitlines()[-1]).get("profiled")
    return (f"{profiled[0][0]}" if profiled else "well") + (f", and said {said[:2]}" if said else "")


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


def counts(bench: Bench, quick: bool) -> None:
    """Two serving loops at once, found by an agent for the whole host: launches by kernel against torch.profiler's."""
    agent = bench.record("counts", "--device-time", "off")
    time.sleep(8)
    loads = [bench.load("serving", "--seconds", 10, "--profile-at", 5, "--profile", 3000, device=None) for _ in "12"]
    results = {process.pid: end(process)["counts"][0] for process in loads}
    agent.terminate()
    agent.communicate()
    from kdiff.queries.kernel_names import demangle

    rows = bench.rows("counts", "cuda_events")
    for pid, (begin, over, launches, graphs) in results.items():
        inside = rows[(rows["pid"] == pid) & (rows["timestamp_ns"] >= begin) & (rows["timestamp_ns"] <= over)]
        single = inside[inside["kind"] == "launch"]
        seen = Counter(single["kernel_name"].astype(str))
        profiled: Counter[str] = Counter()
        for name, count in launches.items():
            profiled[demangle(name) if name.startswith("_Z") else name] += count
        of_graphs = inside[inside["kind"] == "graph_launch"]
        unnamed = sum(count for name, count in seen.items() if name.startswith("unresolved"))
        different = {name: (seen[name], profiled[name]) for name in seen | profiled if seen[name] != profiled[name]}
        print(
            f"counts: {len(single)} launches of {len(seen)} kernels and {len(of_graphs)} of graphs "
            f"{sorted(set(of_graphs['kernel_name'].astype(str)))}; torch.profiler has {profiled.total()} and {graphs}; "
            f"{unnamed} unnamed; different {different}",
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


PARTS = {f.__name__: f for f in (swap, starts, first, profiler, throughput, accuracy, counts, resume, memory)}


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
