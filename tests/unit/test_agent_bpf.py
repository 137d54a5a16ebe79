"""kdiff.agent.bpf: the older way to attach, and what it says when it cannot."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from recording import Recording, agent_command, by_thread, host_environment, truth_frame

from kdiff.agent.bpf import explain_attach
from standins.standins import KIND_LAUNCH, load_truth, workload

OLD_KERNEL = """
from functools import partial
from kdiff.agent import recorder
from kdiff.agent.cli import main
recorder.Program = partial(recorder.Program, multi=False)
main()
"""


DETACH_TWICE = """
import os, sys
from kdiff.agent.bpf import Probe, Program
from kdiff.probes.program import Tracing
program = Program(Tracing())
links = [program.attach_to(os.getpid(), sys.executable, Probe(0x1000), "device_entry") for _ in range(2)]
print(program.attached)
program.detach_from(links[0])
print(program.attached)
program.detach()
print(program.attached)
reused = [os.open("/dev/null", os.O_RDONLY) for _ in range(9)]
program.detach_from(links[1])
print(program.attached, "open" if all(os.fstat(fd) for fd in reused) else "")
"""


DETACH_MANY = """
import subprocess, sys, time
from kdiff.agent.bpf import Probe, Program
from kdiff.probes.program import Tracing
program = Program(Tracing())
processes = [subprocess.Popen(["sleep", "60"]) for _ in range(61)]
for process in processes:
    program.attach_to(process.pid, sys.executable, Probe(0x1000), "device_entry")
began = time.monotonic()
program.detach()
print(program.attached, time.monotonic() - began)
for process in processes:
    process.kill()
"""


@pytest.mark.ebpf
@pytest.mark.parametrize("options", [[], ["--no-return"], ["--layer", "driver"]], ids=" ".join)
def test_with_an_event_for_each_probe_it_records_the_same(tmp_path: Path, options: list[str]) -> None:
    """Linux before 6.6 has no link that attaches to many places."""
    kernels = ["--kernel", "k1:5", "--kernel", "_Z2k2Pf:8@4x2x3/32x4x2"]
    run = workload(
        *kernels, "--threads", 2, "--launches", 5003, "--sync-every", 7, truth=tmp_path / "truth", init_ms=150
    )  # fmt: skip
    command = agent_command(tmp_path / "capture", *options, command=run.command)
    done = subprocess.run(
        [sys.executable, "-c", OLD_KERNEL, *command[1:]],
        env=host_environment(run), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    recording = Recording(tmp_path / "capture", done.returncode, done.stderr)
    truth = load_truth(tmp_path / "truth")
    rows, true = by_thread(recording.launches), truth_frame(truth.of_kind(KIND_LAUNCH), truth.names)
    assert len(rows) == len(true) == 5003
    for column in ("pid", "tid", "stream", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"):
        assert (rows[column].to_numpy() == true[column].to_numpy()).all(), column
    assert rows.kernel_name.tolist() == true.kernel.replace("_Z2k2Pf", "k2(float*)").tolist()
    # Each thread's launches, in sevens but for its last.
    assert (rows.batch_launches == 7).sum() >= 5003 - 2 * 7
    assert (rows.completion_ns.to_numpy() >= np.maximum(rows.duration_ns.to_numpy(), 1)).all()
    assert recording.lost == 0


@pytest.mark.ebpf
def test_what_was_detached_with_the_rest_is_not_detached_again() -> None:
    """Its descriptors may be another file's by then."""
    done = subprocess.run([sys.executable, "-c", DETACH_TWICE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == (["2", "1", "0", "0", "open"], "")


@pytest.mark.ebpf
def test_many_processes_are_left_at_once() -> None:
    """One after the other took 40 ms each: what was handed over meanwhile was lost, and the end of a recording late."""
    done = subprocess.run([sys.executable, "-c", DETACH_MANY], capture_output=True, text=True, timeout=60, check=False)
    left, took = done.stdout.split()
    assert (left, done.stderr) == ("0", "")
    assert float(took) < 1


def test_why_a_probe_could_not_be_attached() -> None:
    assert "the kernel refused" in explain_attach(OSError(errno.EPERM, "Operation not permitted"))
    assert explain_attach(OSError(errno.ENOENT, "No such file or directory")) == "No such file or directory"
    assert explain_attach(OSError("odd")) == "odd"
