"""What recording costs: the traced program, the agent, the disk, and whether anything is lost.

    python tests/bench/bench_agent.py [--quick] [--only launch,stages,agent,disk,loss] [--json FILE]

Needs root and two cores: the traced program runs on the last one, the agent on the first. A launch's cost is CPU time
of the traced process beside two others, in turns: without probes, and with the floor (floor.py), a program that only
returns, attached in the same way at the same places. The stand-in's launch itself takes a fifth of a microsecond.
"""

from __future__ import annotations

import argparse
import atexit
import json
import mmap
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from recording import agent_command

from kdiff.agent.names import Kernel
from kdiff.agent.pairing import Pairing
from kdiff.agent.ring import Ring
from kdiff.agent.rows import Owner, RowMaker
from kdiff.agent.segments import SegmentWriter
from kdiff.agent.service_names import Services
from kdiff.probes.points import POINTS
from kdiff.probes.wire import EVENT, Kind, Sync
from standins.standins import Standins, build

HERE: Final = Path(__file__).resolve().parent
CORES: Final = sorted(os.sched_getaffinity(0))
AGENT_CORE, TRACED_CORE = CORES[0], CORES[-1]
WAYS: Final = [(layer, no_return) for layer in ("both", "runtime", "driver") for no_return in (False, True)]
# A launch that finds the device idle and never waits for room in a queue.
LAUNCH_BOUND: Final = ("--kernel", "k:0.05", "--syncs", "30")
REALISTIC: Final = {
    "isolated": ["--isolated"],
    "batches of 50 on 4 streams": ["--streams", "4", "--sync-every", "50"],
    "20,000/s, 2 threads, batches of 20": ["--threads", "2", "--rate", "20000", "--sync-every", "20"],
}
KERNELS: Final = [
    option
    for kernel in (
        "_ZN2at6native29vectorized_elementwise_kernelILi4EEEvi:4:0.1@108/128",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64:22:0.05@16x8/384",
        "triton_red_fused_add_mean_mul_pow_rsqrt_0:7:0.1:0.02:3@2048/256",
        "flash_fwd_kernel:31:0.1@64x16x2/128",
        "_Z9rms_normPfS_i:5:0.08@2048/512*2",
    )
    for option in ("--kernel", kernel)
]


@cache
def standins() -> Standins:
    """A copy of our own: probes belong to files, and other recordings on this machine may probe the original."""
    folder = tempfile.mkdtemp(prefix="bench-agent-")
    atexit.register(shutil.rmtree, folder)
    return Standins(Path(shutil.copytree(build().build, Path(folder) / "build")))


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(standins().driver.parent),
        "KDIFF_STANDIN_INIT_MS": "150",
        "KDIFF_STANDIN_QUEUE": "0",
        "KDIFF_DEBUG": "1",
    }


def pinned(core: int) -> list[str]:
    return ["taskset", "-c", str(core)]


def workload_command(*options: str | int) -> list[str]:
    program = [str(standins().workload), *map(str, options), "--print-rate"]
    return [*pinned(TRACED_CORE), sys.executable, str(HERE / "timed.py"), *program]


def run_json(command: list[str]) -> tuple[dict[str, Any], str]:
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@dataclass
class Recorded:
    """One recording by the real command."""

    workload: dict[str, Any]
    events: int
    lost: int
    agent_cpu_s: float
    drain_lag_s: float
    table: Any
    bytes: int


def record(*workload_options: str | int, layer: str = "both", no_return: bool = False) -> Recorded:
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "capture"
        options = ["--layer", layer, *(["--no-return"] if no_return else [])]
        command = agent_command(capture, *options, command=workload_command(*workload_options))
        printed, stderr = run_json([*pinned(AGENT_CORE), *command])
        found = re.search(r"recorded ([\d.]+) s · ([\d,]+) events .* ([\d,]+) lost · agent CPU ([\d.]+) s", stderr)
        assert found, stderr
        table = pq.read_table(capture / "cuda_events")
        lag = max(pq.read_table(capture / "agent_health")["drain_lag_ns"].to_pylist()) / 1e9
        size = sum(file.stat().st_size for file in (capture / "cuda_events").iterdir())
        events, lost = (int(found[i].replace(",", "")) for i in (2, 3))
        return Recorded(printed, events, lost, float(found[4]), lag, table, size)


@contextmanager
def floor(layer: str, no_return: bool) -> Iterator[None]:
    files = [str(standins().driver), str(standins().runtime)]
    command = [*pinned(AGENT_CORE), sys.executable, str(HERE / "floor.py"), layer, *files]
    process = subprocess.Popen(
        [*command, *(["--no-return"] if no_return else [])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not process.stdout.readline().strip():
            raise RuntimeError("the floor could not be attached")
        yield
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


# a. The traced program


def launch_cost(repetitions: int, launches: int) -> dict[str, Any]:
    options = (*LAUNCH_BOUND, "--launches", launches)

    def bare() -> float:
        return float(run_json(workload_command(*options))[0]["cpu_ns"]) / launches

    samples: dict[str, list[float]] = defaultdict(list)
    for _ in range(repetitions):
        for layer, no_return in WAYS:
            way = f"{layer}{' --no-return' if no_return else ''}"
            none = bare()
            with floor(layer, no_return):
                low = bare()
            recorded = record(*options, layer=layer, no_return=no_return)
            if recorded.events != launches + 30:
                raise RuntimeError(f"{recorded.events} events instead of {launches + 30}")
            ours = recorded.workload["cpu_ns"] / launches
            for name, value in (("none", none), ("floor", low), ("kdiff", ours)):
                samples[f"{way}: {name}"].append(value)
    rows = []
    for layer, no_return in WAYS:
        way = f"{layer}{' --no-return' if no_return else ''}"
        none, low, ours = (samples[f"{way}: {name}"] for name in ("none", "floor", "kdiff"))
        added = sorted(o - n for o, n in zip(ours, none, strict=True))
        base = statistics.median(none)
        rows.append(
            {
                "way": way,
                "none_ns": base,
                "floor_added_ns": statistics.median(low) - base,
                "added_ns": statistics.median(ours) - base,
                "added_min_ns": added[0],
                "added_max_ns": added[-1],
                "ratio": (statistics.median(ours) - base) / (statistics.median(low) - base),
                "ratio_of_minima": (min(ours) - min(none)) / (min(low) - min(none)),
            }
        )
    print(f"\nadded CPU ns a launch ({launches:,} launches, median of {repetitions})")
    print(f"{'':<22}{'none':>7}{'floor':>8}{'kdiff':>8}{'min..max':>16}{'ratio':>8}{'of minima':>11}")
    for row in rows:
        spread = f"{row['added_min_ns']:.0f}..{row['added_max_ns']:.0f}"
        print(
            f"{row['way']:<22}{row['none_ns']:>7.0f}{row['floor_added_ns']:>8.0f}{row['added_ns']:>8.0f}{spread:>16}"
            f"{row['ratio']:>8.2f}{row['ratio_of_minima']:>11.2f}"
        )
    return {"rows": rows, "samples": samples}


# b. The agent: its stages on records that were prepared, and all of it in a real recording


def synthetic(count: int, batch: int = 20, kernels: int = 40, threads: int = 4) -> np.ndarray:
    """Launches of four threads, each on a stream of its own, a sync after each `batch`."""
    rng = np.random.default_rng(1)
    events = np.zeros(count, EVENT)
    at = np.cumsum(rng.integers(2_000, 6_000, count)).astype(np.uint64)
    thread = rng.integers(0, threads, count)
    turn = np.zeros(count, np.int64)
    for one in range(threads):
        mine = thread == one
        turn[mine] = np.arange(mine.sum())
    sync = turn % (batch + 1) == batch
    kernel = rng.integers(0, kernels, count)
    # Entered a call's time before it returned, so that the times of each thread's calls do not overlap.
    duration = np.where(sync, rng.integers(1_000, 1_900, count), rng.integers(700, 1_900, count))
    events["timestamp_ns"] = at
    events["duration_ns"] = duration
    events["pid"] = 4242
    events["tid"] = 4242 + thread
    events["stream"] = 0x7F0000000000 + 0x1000 * thread
    apis = [p.symbol for p in POINTS]
    events["kind"] = np.where(sync, Kind.SYNC, Kind.LAUNCH)
    events["sync"] = np.where(sync, Sync.STREAM, Sync.NONE)
    events["api"] = np.where(sync, apis.index("cudaStreamSynchronize"), apis.index("cudaLaunchKernel"))
    launch = ~sync
    events["handle"][launch] = 0x5500_0000_0000 + 0x200 * kernel[launch]
    events["grid"][launch] = np.stack([1 + kernel[launch] * 16, np.ones(launch.sum()), np.ones(launch.sum())], axis=1)
    events["block"][launch] = [128, 1, 1]
    events["shared_bytes"][launch] = 1024 * (kernel[launch] % 7)
    return events


def ring_of(events: np.ndarray) -> Ring:
    """A ring, as the kernel lays it out, that holds these records."""
    slots = np.zeros(len(events), np.dtype([("length", "<u4"), ("page", "<u4"), ("record", EVENT)]))
    slots["length"], slots["record"] = EVENT.itemsize, events
    size = 1 << (slots.nbytes - 1).bit_length()
    size = max(size, mmap.PAGESIZE)
    fd = os.memfd_create("ring")
    os.truncate(fd, 2 * mmap.PAGESIZE + 2 * size)
    os.pwrite(fd, np.uint64(slots.nbytes).tobytes(), mmap.PAGESIZE)
    os.pwrite(fd, slots.tobytes(), 2 * mmap.PAGESIZE)
    ring = Ring(fd, size, EVENT)
    os.close(fd)
    return ring


def joined(parts: list[np.ndarray]) -> np.ndarray:
    """As the recorder joins them: as bytes, since numpy copies structured arrays field by field."""
    return np.concatenate([part.view(np.uint8) for part in parts]).view(parts[0].dtype)


def stage_costs(count: int, per_pairing: int, per_read: int, per_segment: int) -> dict[str, float]:
    """CPU ns an event in each stage, with the chunks of a recording at `per_pairing` events a half second."""
    events = synthetic(count)
    spent: dict[str, int] = defaultdict(int)

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        began = time.process_time_ns()
        yield
        spent[name] += time.process_time_ns() - began

    names = {0x5500_0000_0000 + 0x200 * k: Kernel(f"kernel_{k}", f"kernel_{k}", "load") for k in range(64)}
    owner = Owner("bench", "", "GPU-0")
    maker = RowMaker(
        Services("bench").periods, "host", lambda _pid, _generation, handle: names[handle], lambda _pid, _tid: owner
    )
    pairing = Pairing()
    pairing.process_began(4242)
    with tempfile.TemporaryDirectory() as folder:
        writer = SegmentWriter(Path(folder), "host", "0" * 32, 1)
        ready: list[np.ndarray] = []
        made = 0

        def flush() -> None:
            nonlocal made
            with stage("rows"):
                table, _ = maker.make(joined(ready))
            ready.clear()
            made += len(table)
            with stage("parquet"):
                writer.write("cuda_events", table)

        for start in range(0, count, per_pairing):
            chunk = events[start : start + per_pairing]
            raw = []
            for begin in range(0, len(chunk), per_read):
                ring = ring_of(chunk[begin : begin + per_read])
                with stage("ring"):
                    raw.append(ring.read())
            with stage("pairing"):
                now = int(chunk["timestamp_ns"][-1])
                ready.append(pairing.feed(joined(raw), now, last=start + per_pairing >= count))
            if sum(map(len, ready)) >= per_segment:
                flush()
        if ready:
            flush()
        assert made == count
        size = writer.bytes_written
    costs = {name: ns / count for name, ns in spent.items()}
    return {**costs, "all": sum(costs.values()), "bytes": size / count}


def stages(repetitions: int, count: int) -> dict[str, Any]:
    found = {}
    print(f"\nagent CPU ns an event by stage ({count:,} prepared events, median of {repetitions})")
    print(f"{'':<22}{'ring':>7}{'pairing':>9}{'rows':>7}{'parquet':>9}{'all':>7}{'bytes':>7}")
    for name, per_pairing, per_segment in (("200,000/s", 100_000, 500_000), ("10,000/s", 5_000, 100_000)):
        runs = [stage_costs(count, per_pairing, max(200, per_pairing // 25), per_segment) for _ in range(repetitions)]
        row = found[name] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        print(
            f"{name:<22}{row['ring']:>7.0f}{row['pairing']:>9.0f}{row['rows']:>7.0f}{row['parquet']:>9.0f}"
            f"{row['all']:>7.0f}{row['bytes']:>7.1f}"
        )
    return found


def whole_agent(repetitions: int, launches: int) -> dict[str, Any]:
    """What one event adds: agent CPU of long recordings minus that of short ones of the same length of time."""
    few = 101
    idle = [record(*LAUNCH_BOUND, "--launches", few) for _ in range(repetitions)]
    busy = [record(*LAUNCH_BOUND, "--launches", launches) for _ in range(repetitions)]
    start_up = statistics.median(r.agent_cpu_s for r in idle)
    per_event = sorted((r.agent_cpu_s - start_up) / r.events * 1e9 for r in busy)
    rates = [r.events / (r.workload["seconds"]) for r in busy]
    row = {
        "start_up_s": start_up,
        "ns_per_event": statistics.median(per_event),
        "min": per_event[0],
        "max": per_event[-1],
        "events_per_second": statistics.median(rates),
    }
    print(f"\nagent CPU of a recording ({launches:,} launches, median of {repetitions})")
    print(
        f"start-up and end {row['start_up_s']:.2f} s; then {row['ns_per_event']:.0f} ns an event"
        f" ({row['min']:.0f}..{row['max']:.0f}) at {row['events_per_second']:,.0f} events/s"
    )
    return row


# c. The disk


def disk(launches: int) -> dict[str, Any]:
    found = {}
    print(f"\nbytes an event on disk ({launches:,} launches, 5 kernels)")
    for name, options in REALISTIC.items():
        done = record(*KERNELS, *options, "--launches", launches)
        found[name] = {"bytes_per_event": done.bytes / done.events, "events": done.events, "columns": columns_of(done)}
        largest = sorted(found[name]["columns"].items(), key=lambda item: -item[1])[:5]
        print(
            f"{name:<38}{done.bytes / done.events:>6.1f}   "
            + ", ".join(f"{column} {size:.1f}" for column, size in largest)
        )
    return found


def columns_of(done: Recorded) -> dict[str, float]:
    """Bytes an event of each column, in one segment of the same rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = SegmentWriter(Path(folder), "h", "0" * 8, 1).write("cuda_events", done.table)
        sizes: dict[str, float] = defaultdict(float)
        metadata = pq.read_metadata(path)
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                sizes[column.path_in_schema] += column.total_compressed_size / done.events
        return sizes


# d. Loss


def loss(launches: int) -> dict[str, Any]:
    done = record(*LAUNCH_BOUND, "--launches", launches)
    rate = launches / done.workload["seconds"]
    row = {
        "launches": launches,
        "events": done.events,
        "lost": done.lost,
        "launches_per_second": rate,
        "drain_lag_s": done.drain_lag_s,
    }
    print(
        f"\nat {rate:,.0f} launches/s, all that one core can: {done.events:,} events, {done.lost:,} lost; "
        f"at most {done.drain_lag_s:.2f} s between two reads of the ring"
    )
    return row


def machine() -> dict[str, Any]:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": model[1] if model else platform.machine(),
        "cores": len(CORES),
        "virtual": "hypervisor" in Path("/proc/cpuinfo").read_text(),
        "linux": platform.release(),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two minutes instead of ten")
    parser.add_argument("--only", default="launch,stages,agent,disk,loss", help="parts to run, with commas")
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    quick = options.quick
    parts: Mapping[str, Callable[[], Any]] = {
        "launch": lambda: launch_cost(3 if quick else 9, 60_000 if quick else 150_000),
        "stages": lambda: stages(3 if quick else 5, 500_000 if quick else 1_000_000),
        "agent": lambda: whole_agent(2 if quick else 5, 300_000 if quick else 1_000_000),
        "disk": lambda: disk(60_000 if quick else 200_000),
        "loss": lambda: loss(300_000 if quick else 2_000_000),
    }
    found: dict[str, Any] = {"machine": machine()}
    place = found["machine"]
    print(
        f"{place['date']}, {place['cores']} cores of {place['cpu']}{' (virtual)' if place['virtual'] else ''}, "
        f"Linux {place['linux']}, load {place['load']:.1f}"
    )
    for name in options.only.split(","):
        found[name] = parts[name]()
    print(f"\nload at the end {os.getloadavg()[0]:.1f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
