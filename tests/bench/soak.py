"""An hour of `kdiff-agent run` while programs come and go: is its memory flat, and is every launch accounted for?

    soak.py [--seconds 3600] [--rate 10000] [--each 15]

As root. Programs of `--each` seconds with kernels of their own names run one after another, `--rate` launches a second;
RSS of the agent and of the process that keeps its spool is printed at ten moments. Exits 1 if launches and syncs made
are not rows plus counted losses.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_agent import environment, machine, standins
from bench_minute import MOMENTS, Counted, resident_mb
from recording import AGENT

from standins.standins import workload


def keeper_of(pid: int) -> int:
    """The process that keeps the spool; 0 when there is none."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else 0


def agent_of(root: Path) -> subprocess.Popen[str]:
    """The service, once it records this benchmark's own programs."""
    options = ["--state", str(root.with_name("drivers.json")), "--include", f"command=*{standins().build}*"]
    agent = subprocess.Popen(
        [AGENT, "run", "-o", str(root), "--max-bytes", "1T", *options],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert agent.stderr is not None
    while "recording" not in (line := agent.stderr.readline()):
        assert line, "it ended"
    return agent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--each", type=float, default=15)
    given = parser.parse_args()
    place = machine()
    print(
        f"{place['date']}, {place['cores']} cores of {place['cpu']}, Linux {place['linux']}, load {place['load']:.1f}"
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "spool"
        agent = agent_of(root)
        began, moments = time.monotonic(), iter(range(1, MOMENTS + 1))
        due = next(moments)
        launches = syncs = programs = 0
        print("   time   agent MB  its own  keeper MB   launches")
        for turn in itertools.count():
            names = [option for k in range(5) for option in ("--kernel", f"kernel_{turn % 40}_{k}:2")]
            threads = ("--threads", 2, "--sync-every", 20)
            load = workload(
                *names, *threads, "--rate", given.rate, "--duration", given.each, program=standins().workload
            )
            done = type(load)(load.command, {**os.environ, **environment()}, None).run(timeout=given.each + 60)
            launches, syncs, programs = launches + done["launches"], syncs + done["syncs"], programs + 1
            passed = time.monotonic() - began
            if passed >= due * given.seconds / MOMENTS:
                whole, own = resident_mb(agent.pid), resident_mb(agent.pid, "RssAnon")
                keeper = resident_mb(keeper_of(agent.pid))
                print(f"{passed:6.0f} s {whole:10.1f} {own:8.1f} {keeper:10.1f} {launches:10,}", flush=True)
                due = next(moments, 0)
            if not due:
                break
        agent.send_signal(signal.SIGTERM)
        _, said = agent.communicate(timeout=120)
        print(said.strip())
        counted = Counted.of(root)
    right = (
        agent.returncode == 0
        and counted.launches + counted.lost_launches == launches
        and counted.syncs + counted.lost_syncs == syncs
    )
    print(f"{launches:,} launches of {programs} programs = {counted.launches:,} rows + {counted.lost_launches:,} lost")
    print("ok" if right else "WRONG")
    sys.exit(not right)


if __name__ == "__main__":
    main()
