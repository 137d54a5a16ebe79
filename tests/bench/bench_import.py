"""What importing traces costs, beside reading them with the standard library and doing nothing with what is read.

    python tests/bench/bench_import.py [--kernels 100000] [--keep DIR]

Writes a trace in each format, in Kineto's with a launch, four operators and an arrow for each kernel, and prints MB for
each second of a processor (of gzip those of the text), and the peak of memory, of `kdiff import` and of what it cannot
beat. ijson, a streaming parser, is a peer if it is installed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

import traces
from traces import PID, Kernel, Raw, us

KDIFF: Final = str(Path(sys.executable).parent / "kdiff")
# ru_maxrss of a child begins at what its parent has: one in between has little.
ASIDE: Final = """import json, os, subprocess, sys, time
began = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(json.dumps([time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024,
                  os.waitstatus_to_exitcode(status)]))"""
FLOORS: Final = {
    "json": "import json, sys; json.load(open(sys.argv[1]))",
    "json.gz": "import gzip, json, sys; json.load(gzip.open(sys.argv[1]))",
    "sqlite": "import sqlite3, sys; [r for t in ('KERNEL', 'RUNTIME') "
    "for r in sqlite3.connect(sys.argv[1]).execute('SELECT * FROM CUPTI_ACTIVITY_KIND_' + t)]",
    "csv": "import csv, sys; [row for row in csv.reader(open(sys.argv[1]))]",
}
NAMES: Final = {"json": "json.load", "json.gz": "json.load(gzip)", "sqlite": "sqlite3 select", "csv": "csv.reader"}
IJSON: Final = "import ijson, sys; [0 for _ in ijson.items(open(sys.argv[1], 'rb'), 'traceEvents.item')]"


def kernels(count: int) -> Iterator[Kernel]:
    """Kernels with names as long as PyTorch's."""
    for number in range(1, count + 1):
        start = 12_345 * number
        name = (
            f"void at::native::vectorized_elementwise_kernel<{number % 50}, at::native::FillFunctor<float>, "
            "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
        )
        yield Kernel(name, start, 3_000 + number % 777, launch_ns=start - 9_001, correlation=number)


def write_kineto(path: Path, count: int) -> None:
    """A trace as the profiler writes it, without holding it."""
    head, tail = traces.kineto_text([]).split('"traceEvents": [')
    with path.open("w") as file:
        file.write(head + '"traceEvents": [\n')
        for kernel in kernels(count):
            events: list[Any] = [
                traces.kineto_launch(kernel, traces.relative),
                traces.kineto_event(kernel, traces.relative),
            ]
            events += [operator(kernel)] * 4
            events.append({"ph": "s", "id": kernel.correlation, "pid": PID, "tid": PID, "ts": 1, "cat": "ac2g"})
            end = "\n" if kernel.correlation == count else ",\n"
            file.write(",\n".join(map(traces.dumps, events)) + end)
        file.write(tail.lstrip())


def operator(kernel: Kernel) -> dict[str, Any]:
    """An operator of PyTorch, with shapes."""
    shapes = {"Concrete Inputs": ["", ""], "Input type": ["float", "Scalar"], "Input Dims": [[1024], []]}
    args = {"External id": kernel.correlation, "Record function id": 0, **shapes, "Ev Idx": kernel.correlation}
    at = Raw(us(kernel.start_ns - 10_000))
    named = {"ph": "X", "cat": "cpu_op", "name": "aten::fill_", "pid": PID, "tid": PID}
    return {**named, "ts": at, "dur": Raw("12.345"), "args": args}


def measure(what: str, command: list[str], size: int) -> None:
    """Prints one line."""
    done = subprocess.run([sys.executable, "-c", ASIDE, *command], capture_output=True, text=True, check=True)
    seconds, cpu, memory, code = json.loads(done.stdout)
    failed = f"  FAILED ({code}): {done.stderr[:200]}" if code else ""
    print(f"  {what:<16}{seconds:>8.2f} s{cpu:>8.2f} s CPU{size / cpu / 1e6:>8.1f} MB/s{memory:>9,.0f} MB{failed}")


def main() -> None:
    """Writes, measures, prints."""
    options = argparse.ArgumentParser()
    options.add_argument("--kernels", type=int, default=100_000)
    options.add_argument("--keep", type=Path, help="write the traces here, or use those that are")
    asked = options.parse_args()
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="kdiff-import-"))
    folder.mkdir(exist_ok=True)
    try:
        for kind, floor in FLOORS.items():
            path = folder / f"{asked.kernels}.{kind}"
            if not path.exists():
                write(path, kind, asked.kernels)
            size = (path.with_suffix("") if kind == "json.gz" else path).stat().st_size
            print(f"{kind}: {asked.kernels:,} kernels, {size / 1e6:,.1f} MB")
            out = folder / f"out.{kind}"
            shutil.rmtree(out, ignore_errors=True)
            measure("kdiff import", [KDIFF, "import", str(path), "-o", str(out)], size)
            measure(NAMES[kind], [sys.executable, "-c", floor, str(path)], size)
            if kind == "json" and find_spec("ijson"):
                measure("ijson", [sys.executable, "-c", IJSON, str(path)], size)
    finally:
        if not asked.keep:
            shutil.rmtree(folder)


def write(path: Path, kind: str, count: int) -> None:
    """A trace of a kind."""
    if kind == "json":
        write_kineto(path, count)
    elif kind == "json.gz":
        plain = path.with_suffix("")
        subprocess.run(["gzip", "-1", "--keep", "--force", str(plain)], check=True)
    elif kind == "sqlite":
        traces.nsys(path, list(kernels(count)))
    else:
        traces.csv_own(path, list(kernels(count)))


if __name__ == "__main__":
    main()
