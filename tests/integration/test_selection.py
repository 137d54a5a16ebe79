"""Rules of which processes are recorded, with real probes on a whole host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from recording import Recording, agent_command, whole_host

from standins.standins import build, workload

pytestmark = pytest.mark.ebpf


def test_only_what_rules_choose_is_recorded(tmp_path: Path) -> None:
    chosen = workload("--kernel", "mine:5", "--launches", 997, "--syncs", 7, "--wait-after", 0.3)
    excluded = workload("--kernel", "secret:5", "--launches", 499, "--syncs", 7, "--wait-after", 0.3)
    other = workload("--kernel", "other:5", "--launches", 503, "--syncs", 7, "--wait-after", 0.3)
    rules = ("--include", "command=*mine*", "--include", "command=*secret*", "--exclude", "command=*secret*")
    with whole_host(tmp_path / "capture", *rules) as agent:
        running = [run.start() for run in (other, excluded, chosen, chosen)]
        for process in running:
            process.communicate(timeout=60)
        agent.terminate()
        _, stderr = agent.communicate(timeout=60)
    recording = Recording(tmp_path / "capture", agent.returncode, stderr)
    assert recording.status == 0, stderr
    assert recording.lost == 0
    assert recording.launches.groupby("pid").size().to_dict() == {running[2].pid: 997, running[3].pid: 997}
    assert set(recording.launches.kernel_name) == {"mine"}


@pytest.mark.parametrize("chosen", [True, False])
def test_a_process_that_becomes_another_program_is_what_that_is(tmp_path: Path, chosen: bool) -> None:
    """It is met as what it was: a launcher that maps the driver, or a child between fork and exec."""
    load = ("--kernel", "becomes:5", "--launches", 997, "--syncs", 7)
    run = workload(*load, "--wait-before", 4, "--wait-after", 0.3)
    code = f"import ctypes, json, os, time; ctypes.CDLL('{build().build / 'libcuda.so.1'}'); time.sleep(1.2); "
    code += "command = json.loads(os.environ.pop('BECOMES')); os.execv(command[0], command)"
    env = {**run.env, "BECOMES": json.dumps([str(part) for part in run.command])}
    rule = ("--include" if chosen else "--exclude", "command=*becomes*")
    with whole_host(tmp_path / "capture", *rule) as agent:
        launcher = subprocess.Popen([sys.executable, "-c", code], env=env)
        assert launcher.wait(timeout=60) == 0
        agent.terminate()
        _, stderr = agent.communicate(timeout=60)
    recording = Recording(tmp_path / "capture", agent.returncode, stderr)
    if chosen:
        assert recording.launches.groupby("pid").size().to_dict() == {launcher.pid: 997}
    else:
        assert not list(recording.directory.glob("cuda_events/*")), stderr


def test_rules_that_cannot_be_meant_are_one_sentence(tmp_path: Path) -> None:
    for options, why in (
        (("--include", "usr=me"), "is user meant?"),
        (("--exclude", "me"), "is not KIND=PATTERN"),
        (("--include", "user=me", "--pid", "1"), "leave --pid and the command out"),
    ):
        command = agent_command(tmp_path / "capture", *options)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert why in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "capture").exists()
