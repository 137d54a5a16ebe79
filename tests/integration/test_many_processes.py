"""Many processes of a host at once: they begin and end as they like, with different files at the same path."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from recording import Recording, record, whole_host

from standins.building import Standins
from standins.standins import KIND_LAUNCH, build, load_truth, workload

pytestmark = pytest.mark.ebpf

LAUNCHES = 997
COUNT = 20
NAMESPACES = 3


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """An agent that records the processes of this test's own workloads, wherever they run."""
    state = ("--state", tmp_path / "drivers.json")
    learned = record(tmp_path / "learned", workload("--launches", 11), *state)  # where this driver keeps names
    assert learned.status == 0
    with whole_host(tmp_path / "capture", *state, "--include", f"command=*{tmp_path}*") as agent:
        yield agent


def start(tmp_path: Path, number: int, program: Path) -> subprocess.Popen[bytes]:
    """A workload in a mount namespace of its own, where `same` is one of several copies of the CUDA libraries."""
    same, copy = tmp_path / "same", tmp_path / f"libraries-{number % NAMESPACES}"
    name = f"kernel_{number % NAMESPACES}"
    run = workload(
        *("--kernel", f"{name}:20", "--launches", LAUNCHES, "--sync-every", 1, "--rate", 600, "--seed", number + 1),
        *("--wait-before", 4, "--wait-after", 0.3),
        truth=tmp_path / f"truth-{number}",
        program=program,
    )
    mount = f"mount --bind {shlex.quote(str(copy))} {shlex.quote(str(same))} && exec {shlex.join(run.command)}"
    env = {**run.env, "LD_LIBRARY_PATH": str(same)}
    return subprocess.Popen(["unshare", "--mount", "sh", "-c", mount], env=env, stdout=subprocess.DEVNULL)


def test_twenty_processes_in_three_mount_namespaces(tmp_path: Path, recorder: subprocess.Popen[str]) -> None:
    same = tmp_path / "same"
    same.mkdir()
    copies = [Standins(shutil.copytree(build().build, tmp_path / f"libraries-{n}")) for n in range(NAMESPACES)]
    draw = random.Random(20)
    doomed = sorted(draw.sample(range(COUNT), COUNT // 2))
    running = []
    for number in range(COUNT):
        running.append(start(tmp_path, number, copies[number % NAMESPACES].workload))
        time.sleep(draw.uniform(0, 0.05))
    time.sleep(4)  # twenty that begin at once, of files that are on the disk only, are probed by then on a slow machine
    for number in doomed:
        time.sleep(draw.uniform(0, 0.25))
        running[number].send_signal(signal.SIGKILL)
    statuses = [process.wait(timeout=60) for process in running]
    recorder.send_signal(signal.SIGTERM)
    _, stderr = recorder.communicate(timeout=60)
    assert recorder.returncode == 0, stderr
    recording = Recording(tmp_path / "capture", 0, stderr)
    launches = recording.launches.groupby(["pid", "kernel_name"]).size().to_dict()
    well = [number for number, status in enumerate(statuses) if status == 0]
    assert set(range(COUNT)) - set(doomed) <= set(well)
    for number in well:
        assert launches.pop((running[number].pid, f"kernel_{number % NAMESPACES}")) == LAUNCHES
    # Of the others what they had launched, but for the call that they died in.
    for (pid, name), count in launches.items():
        number = next(n for n, process in enumerate(running) if process.pid == pid)
        made = len(load_truth(tmp_path / f"truth-{number}").of_kind(KIND_LAUNCH))
        assert name == f"kernel_{number % NAMESPACES}"
        assert made - 1 <= count <= made + 1, (count, made)
    assert len({os.stat(copy.build / "libcuda.so.1").st_ino for copy in copies}) == NAMESPACES
