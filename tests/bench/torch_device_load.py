"""A load on a real GPU for torch_device.py: `python torch_device_load.py LOAD --seconds S`, LOAD one of

- `launch`: `torch.relu_` on 64 floats, launch-bound;
- `threads`: the same beside a thread that launches `torch.sin_` all the time, which the profiler's count leaves out;
- `waiting`: `threads` where the other thread waits long for its stream after each 20,000 launches;
- `graph`: replays of a CUDA graph of 20 such kernels;
- `gpu`: 4096 x 4096 matrix products, the device always busy;
- `serving`: requests of four sizes, seeded, of a small transformer-like net: cuBLAS, PyTorch's own kernels, a Triton
  kernel, a CUDA graph for the smallest size; a sync after each request.

Prints `ready`, and at the end one line of JSON: Unix time and iterations a second of each tenth of a second, and what
the profiler saw. Needs PyTorch and Triton.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import triton
import triton.language as tl

BUCKET_S = 0.1

ending = threading.Event()


@triton.jit
def fused_gelu(source, target, size, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + at, mask=at < size).to(tl.float32)
    for _ in range(ROUNDS):
        value = 0.5 * value * (1.0 + tl.erf(value * 0.70710678)) + value * 0.0001
    tl.store(target + at, value.to(tl.bfloat16), mask=at < size)


def launch() -> Callable[[], None]:
    x = torch.ones(64, device="cuda")
    return lambda: [torch.relu_(x) for _ in range(100)] and None


def threads() -> Callable[[], None]:
    return beside(lambda y: torch.sin_(y))


def waiting() -> Callable[[], None]:
    def long_wait(y: torch.Tensor) -> None:
        for _ in range(20_000):
            torch.sin_(y)
        torch.cuda.current_stream().synchronize()

    return beside(long_wait)


def beside(work: Callable[[torch.Tensor], object]) -> Callable[[], None]:
    """`launch` in this thread, `work` again and again in another one until the program ends."""
    y = torch.ones(64, device="cuda")

    def other() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            while not ending.is_set():
                work(y)

    threading.Thread(target=other).start()
    return launch()


def graph() -> Callable[[], None]:
    x = torch.ones(64, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.relu_(x)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(20):
            torch.relu_(x)
    return lambda: [captured.replay() for _ in range(10)] and None


def gpu() -> Callable[[], None]:
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        for _ in range(10):
            x @ x
        torch.cuda.synchronize()

    return step


def serving(rounds: int = 8) -> Callable[[], None]:
    width, layers = 1024, 4
    torch.manual_seed(0)

    def weight(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * 0.02

    weights = [(weight(width, 4 * width), weight(4 * width, width)) for _ in range(layers)]
    norms = [torch.nn.LayerNorm(width, device="cuda", dtype=torch.bfloat16) for _ in range(layers)]

    @torch.no_grad()
    def forward(hidden: torch.Tensor) -> torch.Tensor:
        for (up, down), norm in zip(weights, norms, strict=True):
            inner = norm(hidden) @ up
            activated = torch.empty_like(inner)
            size = inner.numel()
            fused_gelu[(triton.cdiv(size, 1024),)](inner, activated, size, ROUNDS=rounds, BLOCK=1024, num_warps=4)
            hidden = hidden + activated @ down
        return torch.softmax(hidden, -1)

    inputs = {b: torch.randn(b * 16, width, device="cuda", dtype=torch.bfloat16) for b in (1, 8, 32, 128)}
    for one in inputs.values():
        forward(one)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured), torch.no_grad():
        forward(inputs[1])
    draw = random.Random(7)

    def step() -> None:
        size = draw.choices((1, 8, 32, 128), (50, 30, 15, 5))[0]
        if size == 1:
            captured.replay()
        else:
            forward(inputs[size])
        torch.cuda.current_stream().synchronize()

    return step


LOADS = {"launch": launch, "threads": threads, "waiting": waiting, "graph": graph, "gpu": gpu, "serving": serving}


def run(step: Callable[[], None], seconds: float) -> Iterator[tuple[int, float]]:
    """Iterations and seconds of each stretch of about BUCKET_S."""
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        done = 0
        while time.monotonic() < began + BUCKET_S:
            step()
            done += 1
        torch.cuda.synchronize()
        yield done, time.monotonic() - began


@dataclass
class Profile:
    """What torch.profiler has of some iterations: `durations` in ns on the device, graph nodes included."""

    from_ns: int  # Unix time
    to_ns: int
    rate: float  # iterations a second
    durations: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    launches: Counter[str] = field(default_factory=Counter)  # of single kernels, by name
    graphs: int = 0  # launches of graphs of two kernels or more


def profiled(step: Callable[[], None], iterations: int) -> Profile:
    """Profiles iterations with torch.profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        began, began_ns = time.monotonic(), time.time_ns()
        for _ in range(iterations):
            step()
        torch.cuda.synchronize()
        seen = Profile(began_ns, time.time_ns(), iterations / (time.monotonic() - began))
    path = Path(f"/tmp/kdiff-trace-{time.monotonic_ns()}.json")
    profiler.export_chrome_trace(str(path))
    calls: dict[int, list[str]] = defaultdict(list)  # the kernels of a graph launch share its correlation
    for event in json.loads(path.read_text())["traceEvents"]:
        if event.get("cat") == "kernel":
            seen.durations[event["name"]].append(round(event["dur"] * 1000))
            calls[event["args"]["correlation"]].append(event["name"])
    seen.launches.update(names[0] for names in calls.values() if len(names) == 1)
    seen.graphs = sum(len(names) > 1 for names in calls.values())
    path.unlink()
    return seen


def cupti() -> ctypes.CDLL:
    """The libcupti that PyTorch has mapped."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libcupti.so" in line:
            return ctypes.CDLL(line.split()[-1])
    raise SystemExit("no libcupti is mapped")


def main() -> None:
    parser = argparse.ArgumentParser(description="A load on a real GPU.")
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=8, help="inner work of fused_gelu")
    parser.add_argument("--profile-at", type=float, action="append", help="use torch.profiler after so many seconds")
    parser.add_argument("--profile", type=int, default=20, help="iterations under the profiler each time")
    parser.add_argument("--hold", help="FROM:TO: subscribe to CUPTI then, in seconds, and give it back")
    parser.add_argument("--truth", type=Path, help="profile at the end and write the durations of each kernel here")
    args = parser.parse_args()
    faulthandler.enable()
    step = serving(args.rounds) if args.load == "serving" else LOADS[args.load]()
    for _ in range(50):
        step()
    torch.cuda.synchronize()
    print("ready", flush=True)
    rates, seen, counts, memory = [], [], [], []
    began = time.monotonic()
    at = sorted(args.profile_at or [])
    hold = [float(part) for part in args.hold.split(":")] if args.hold else []
    held, subscriber = [], ctypes.c_void_p()
    for done, seconds in run(step, args.seconds):
        rates.append((round(time.time(), 3), round(done / seconds, 1)))
        if at and time.monotonic() - began >= at[0]:
            at.pop(0)
            try:
                profile = profiled(step, args.profile)
                seen.append((sum(len(v) for k, v in profile.durations.items() if "sin_kernel" not in k), profile.rate))
                counts.append((profile.from_ns, profile.to_ns, profile.launches, profile.graphs))
            except RuntimeError as error:
                seen.append((str(error), 0.0))
        if hold and time.monotonic() - began >= hold[0]:
            hold.pop(0)
            result = (
                cupti().cuptiUnsubscribe(subscriber)
                if held
                else cupti().cuptiSubscribe(ctypes.byref(subscriber), ctypes.cast(None, ctypes.c_void_p), None)
            )
            held.append((time.time_ns(), result))
        if len(rates) % 100 == 1:
            free, total = torch.cuda.mem_get_info()
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
            memory.append((round(time.monotonic() - began), (total - free) >> 20, resident >> 20))
    if args.truth:
        args.truth.write_text(json.dumps(profiled(step, args.profile).durations))
    ending.set()
    print(json.dumps({"rates": rates, "profiled": seen, "counts": counts, "memory": memory, "held": held}))


if __name__ == "__main__":
    main()
