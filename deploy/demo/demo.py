"""A kernel swap that goes wrong, recorded by kdiff-agent and judged by kdiff.

With a GPU, PyTorch and Triton it swaps a real kernel; without, one of the stand-in CUDA libraries that the tests use.
Either way the probes, the captures and the verdict are real. Exit status: 0 if kdiff finds the slow kernel and no
other, 1 if it does not, 2 if recording fails.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "demo"
BIN = Path(sys.executable).parent
SLOWED = "fused_gelu"
LAUNCHES = 45_000  # of three kernels, half of them in windows; a p99 needs at least 2,000 of each
SYNC_EVERY = 50  # launches queue up, as in a busy service: no time that the host sees is a kernel's own
WINDOWS = "200ms/400ms"  # of device time; the default, 1s/10s, is for recordings of minutes


@dataclass(frozen=True)
class Load:
    """A program to record, before and after the swap."""

    before: list[str]
    after: list[str]
    environment: dict[str, str] = field(default_factory=dict)


class DemoError(Exception):
    """The demo cannot go on; the message is one sentence."""


def standin_load() -> Load:
    """Three kernels on a stand-in GPU, slow at every twentieth launch; afterwards one takes 30% longer."""
    sys.path.insert(0, str(ROOT / "tests"))
    from standins.standins import build

    built = build()

    def command(slowed_us: int) -> list[str]:
        kernels = {"layer_norm": 110, SLOWED: slowed_us, "softmax": 180}
        options = [f"--kernel={name}:{median}:0.06:0.05:3" for name, median in kernels.items()]
        seed = f"--seed={random.randrange(1 << 31)}"
        return [path(built.workload), f"--launches={LAUNCHES}", f"--sync-every={SYNC_EVERY}", seed, *options]

    # As on a GPU host, the loader finds the CUDA libraries.
    return Load(command(140), command(182), {"LD_LIBRARY_PATH": path(built.build)})


def triton_load(python: str) -> Load:
    """Two Triton kernels on the GPU; afterwards one does 30% more work under its old name."""
    script = path(Path(__file__).with_name("triton_swap.py"))
    options = [python, script, f"--sync-every={SYNC_EVERY}"]
    return Load([*options, "--rounds=60"], [*options, "--rounds=78"])


def triton_python() -> str | None:
    """A Python that has PyTorch with a GPU, and Triton; not the virtual environment's own, which has neither."""
    if not succeeds(["nvidia-smi"]):
        return None
    check = "import torch, triton, sys; sys.exit(not torch.cuda.is_available())"
    for python in dict.fromkeys([os.environ.get("DEMO_PYTHON", "python3"), "/usr/bin/python3", sys.executable]):
        found = shutil.which(python)
        if found and succeeds([found, "-c", check]):
            return found
    return None


def succeeds(command: Sequence[str]) -> bool:
    """Whether a command is there and exits with 0."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def path(of: Path) -> str:
    """As short as it can be pasted in the directory that the commands run in."""
    return str(of.relative_to(ROOT)) if of.is_relative_to(ROOT) else str(of)


def show(command: Sequence[str], environment: dict[str, str]) -> None:
    """Print a command line as a shell takes it."""
    settings = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    print("\n$", " ".join([*settings, shlex.join(command)]), flush=True)


def record(side: str, program: list[str], environment: dict[str, str]) -> None:
    """Record one side, as a user would. Raises DemoError."""
    state = path(WORK / "drivers.json")  # not the host's: the stand-in is no driver worth remembering
    options = ["-o", path(WORK / side), "--state", state, "--device-time", WINDOWS]
    command = [path(BIN / "kdiff-agent"), "record", *options, "--", *program]
    show(command, environment)
    status = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=False).returncode
    if status:
        raise DemoError(f"recording ended with status {status}; what went wrong is said above")


def judge() -> dict[str, str]:
    """Run kdiff on both captures and show its table. Returns each kernel's verdict. Raises DemoError."""
    command = [path(BIN / "kdiff"), "--before", path(WORK / "before"), "--after", path(WORK / "after")]
    show(command, {})
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    print(f"\nexit status {status}", flush=True)
    if status not in (0, 1, 3):
        raise DemoError("kdiff could not compare the captures; what went wrong is said above")
    done = subprocess.run([*command, "--format", "json"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != status:
        raise DemoError(f"kdiff exited {status} and then {done.returncode} on the same captures: please report it")
    return {row["kernel"]: row["verdict"] for row in json.loads(done.stdout)["kernels"]}


def run(load: Load) -> bool:
    """Record both sides and compare them: whether the slowed kernel is found, and no other is blamed."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    record("before", load.before, load.environment)
    record("after", load.after, load.environment)
    regressed = [kernel for kernel, verdict in judge().items() if verdict == "REGRESSED"]
    return regressed == [SLOWED]


NEXT = """
Right: {slowed} does 30% more work after the swap, and kdiff blames it and no other kernel. Next:

What ran, and how long each took:
  {bin}/kdiff kernels --store {work}/after
Would a rollout that accepts 50% be stopped?
  {bin}/kdiff --before {work}/before --after {work}/after --tolerance 50%
Record your own program (see docs/guide-agent.md):
  {bin}/kdiff-agent record -- YOUR-PROGRAM
"""

WRONG = """
kdiff's answer is not the expected one ({slowed} REGRESSED and no other kernel): please report it with
the output above."""


def main() -> int:
    """Run the demo."""
    print("A kernel is swapped in; did it get slower? This records before and after, with real eBPF probes.")
    try:
        python = triton_python()
        load = standin_load() if python is None else triton_load(python)
        print("The GPU is", "a stand-in: CUDA's interface, with simulated kernels." if python is None else "real.")
        if run(load):
            print(NEXT.format(slowed=SLOWED, bin=shlex.quote(path(BIN)), work=shlex.quote(path(WORK))), end="")
            return 0
    except (DemoError, OSError, RuntimeError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    print(WRONG.format(slowed=SLOWED), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
