"""What `--scheduling on` adds to a context switch and to a launch.

    python tests/bench/bench_scheduling.py [--quick] [--json FILE]

Needs root and gcc. A switch: two processes on the last core hand a byte to and fro through pipes, so that each of them
is woken, gets the processor, and blocks, ahead of what else runs there (SCHED_FIFO); wall time of a switch, with the
programs on the scheduler's tracepoints less without, in turns. `traced`: both have called a probed function before, so
that they are looked after. A launch: CPU time of the agent's own program (agent/probe_cost.py), with the option less
without, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Final

from kdiff.agent.bpf import Probe, Program
from kdiff.agent.elf import open_elf
from kdiff.agent.probe_cost import measure
from kdiff.probes.points import POINTS
from kdiff.probes.program import Tracing, cookie

CORE: Final = max(os.sched_getaffinity(0))
SYMBOL: Final = "cuLaunchKernel"
PING_PONG: Final = """
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <sys/wait.h>
__attribute__((noinline)) int cuLaunchKernel(void) { __asm__ volatile("nop"); return 0; }
int main(int count, char **words)
{
    int core = atoi(words[1]), traced = atoi(words[2]), there[2], back[2];
    long rounds = atol(words[3]);
    char byte = 0;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    struct sched_param first = {.sched_priority = 1};
    if (sched_setaffinity(0, sizeof set, &set) || sched_setscheduler(0, SCHED_FIFO, &first))
        return 1;
    if (pipe(there) || pipe(back))
        return 1;
    int other = fork();
    if (traced)
        cuLaunchKernel();
    if (!other) {
        for (long i = 0; i < rounds; i++)
            if (read(there[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1)
                return 1;
        return 0;
    }
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (long i = 0; i < rounds; i++)
        if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
            return 1;
    clock_gettime(CLOCK_MONOTONIC, &ended);
    double ns = (ended.tv_sec - began.tv_sec) * 1e9 + (ended.tv_nsec - began.tv_nsec);
    printf("%.1f\\n", ns / rounds / 2);
    return wait(0) < 0;
}
"""


def switch_costs(folder: Path, turns: int, rounds: int) -> dict[str, float]:
    """Wall ns of a switch: without, and added to one of threads that are not traced and of those that are."""
    source, made = folder / "switch.c", folder / "switch"
    source.write_text(PING_PONG)
    subprocess.run(["gcc", "-O1", "-rdynamic", "-o", str(made), str(source)], check=True)
    tracing = Tracing(scheduling=True)
    program = Program(tracing)
    point = next(point for point in POINTS if point.symbol == SYMBOL)
    offset = open_elf(str(made)).sites(frozenset([SYMBOL]))[SYMBOL].offset
    program.attach(str(made), [Probe(offset, cookie(tracing, point))], "call_entry")

    def run(traced: bool) -> float:
        command = [str(made), str(CORE), str(int(traced)), str(rounds)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(turns):
        found["without"].append(run(traced=False))
        program.attach_scheduling()
        found["untraced"].append(run(traced=False))
        found["traced"].append(run(traced=True))
        program.detach_scheduling()
    program.close()
    return _added(found, "without")


def launch_costs(turns: int) -> dict[str, float]:
    """CPU ns that probes add to a launch, by the runtime and by the driver, without the option, and what it adds."""
    found: dict[str, list[float]] = defaultdict(list)
    programs = {on: (Program(Tracing(scheduling=on)), Tracing(scheduling=on)) for on in (False, True)}
    programs[True][0].attach_scheduling()
    for _ in range(turns):
        for on, (program, tracing) in programs.items():
            cost = measure(program, tracing)
            assert cost is not None
            found[f"runtime {'on' if on else 'off'}"].append(cost.runtime_ns)
            found[f"driver {'on' if on else 'off'}"].append(cost.driver_ns)
    for program, _ in programs.values():
        program.close()
    sides = ({k.split()[1]: v for k, v in found.items() if k.startswith(by)} for by in ("runtime", "driver"))
    return {
        f"{by} {name}": value
        for by, side in zip(("runtime", "driver"), sides, strict=True)
        for name, value in _added(side, "off").items()
    }


def _added(found: dict[str, list[float]], base: str) -> dict[str, float]:
    """The median of `base`, and the median of what each other has more in the same turn, with its standard error."""
    out = {base: statistics.median(found[base])}
    for name, values in found.items():
        if name != base:
            more = [value - less for value, less in zip(values, found[base], strict=True)]
            out[f"{name} added"] = statistics.median(more)
            out[f"{name} error"] = 1.2533 * statistics.stdev(more) / len(more) ** 0.5
    return {name: round(value, 1) for name, value in out.items()}


def main() -> None:
    """Prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few seconds, for a look")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write it there too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-scheduling-") as folder:
        switch = switch_costs(Path(folder), *((5, 20_000) if given.quick else (101, 20_000)))
    launch = launch_costs(5 if given.quick else 41)
    for title, costs in (("ns a context switch, wall", switch), ("ns a launch, CPU", launch)):
        print(title)
        for name, value in costs.items():
            print(f"  {name:<16} {value:8.1f}")
    if given.json:
        given.json.write_text(json.dumps({"switch": switch, "launch": launch}, indent=2) + "\n")


if __name__ == "__main__":
    main()
