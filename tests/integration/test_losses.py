"""Every launch is a row or counted as lost, exactly, whatever stands in the agent's way.

`tests/bench/bench_minute.py` is the long form: a minute of all that a core can launch.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest
from recording import Recording, host_environment

from standins.standins import build, workload

pytestmark = pytest.mark.ebpf

SYNCS = 31
# Segments every fifth of a second, and room in memory for so many rows: a disk is full within seconds.
_KEPT = 200_000
_AGENT = (
    "from kdiff.agent import recorder, segments; recorder._FLUSH_EVERY_S = 0.2; "
    f"segments.Spool.__init__.__defaults__ = ({_KEPT},); from kdiff.agent.cli import main; main()"
)


@dataclass
class Made:
    """What a program did."""

    launches: int
    syncs: int
    seconds: float


@dataclass
class Running:
    """A recording of a program, from its start."""

    agent: subprocess.Popen[str]
    directory: Path
    ready: Path
    said: str = ""

    def end(self) -> tuple[Recording, Made]:
        """Once both have ended."""
        out, said = self.agent.communicate(timeout=120)
        self.said += said
        printed = json.loads(out)
        made = Made(printed["launches"], printed["syncs"], printed["seconds"])
        return Recording(self.directory, self.agent.returncode, self.said), made

    def until_said(self, words: str) -> None:
        assert self.agent.stderr is not None
        while words not in self.said:
            line = self.agent.stderr.readline()
            assert line, f"it ended: {self.said}"
            self.said += line


@contextmanager
def recorded(tmp_path: Path, directory: Path, *options: str | int) -> Iterator[Running]:
    """Once the program is about to launch."""
    ready = tmp_path / "ready"
    run = workload("--kernel", "k:0.05", "--syncs", SYNCS, "--ready-file", ready, *options)
    command = [sys.executable, "-c", _AGENT, "record", "-o", str(directory), "--state", str(tmp_path / "state.json")]
    agent = subprocess.Popen(
        [*command, "--", *run.command],
        env={**host_environment(run), "KDIFF_STANDIN_QUEUE": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(ready.exists)
        yield Running(agent, directory, ready)
    finally:
        agent.send_signal(signal.SIGCONT)
        agent.kill()
        agent.communicate()


def until(condition: Callable[[], object], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def check_equation(recording: Recording, made: Made) -> tuple[int, int]:
    """Launches and syncs made are rows or counted, in `agent_health` as in the summary; how many were counted."""
    assert recording.status == 0, recording.stderr
    events, health = recording.events, recording.table("agent_health")
    launches, syncs = int((events.kind == "launch").sum()), int((events.kind == "sync").sum())
    assert launches + syncs == len(events)
    assert not events.duplicated(["tid", "timestamp_ns"]).any()
    lost_launches, lost_syncs = int(health.lost_launches.sum()), int(health.lost_syncs.sum())
    assert (launches + lost_launches, syncs + lost_syncs) == (made.launches, made.syncs)
    assert int(health.lost_other.sum()) == 0
    figures = re.search(r"· ([\d,]+) events · .* ([\d,]+) lost ·", recording.stderr)
    assert figures is not None, recording.stderr
    assert int(figures[2].replace(",", "")) == lost_launches + lost_syncs
    return lost_launches, lost_syncs


def test_an_agent_that_is_stopped_for_seconds_counts_what_the_ring_had_no_room_for(tmp_path: Path) -> None:
    launches = 2_000_003
    with recorded(tmp_path, tmp_path / "capture", "--launches", launches, "--threads", 3) as running:
        time.sleep(0.5)
        running.agent.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        running.agent.send_signal(signal.SIGCONT)
        recording, made = running.end()
    assert made.launches == launches
    lost, _ = check_equation(recording, made)
    assert lost > 50_000
    health = recording.table("agent_health")
    assert int(health.events.sum()) == len(recording.events)
    assert health.drain_lag_ns.max() > 2.4e9


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 16 MiB."""
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(mount)], check=True)
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def test_a_disk_that_is_full_for_longer_than_memory_lasts_loses_the_oldest_and_counts_them(
    tmp_path: Path, small_disk: Path
) -> None:
    filler = small_disk / "filler"
    options = ("--launches", 700_001, "--rate", 100_000)
    with recorded(tmp_path, small_disk / "capture", *options) as running:
        subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=64k"], check=False, capture_output=True)
        running.until_said("cannot be written (No space left on device): keeping rows in memory")
        time.sleep(4)
        filler.unlink()
        recording, made = running.end()
    assert made.launches == 700_001
    lost, _ = check_equation(recording, made)
    assert lost > 10_000
    assert not list((small_disk / "capture").glob("*/.*"))


def test_a_directory_that_is_removed_loses_nothing_that_was_not_in_it(tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    with recorded(tmp_path, capture, "--launches", 300_007, "--rate", 100_000) as running:
        until(lambda: list(capture.glob("agent_health/*.parquet")))
        running.agent.send_signal(signal.SIGSTOP)  # what is in it does not change while it is moved away
        shutil.copytree(capture, tmp_path / "before")
        shutil.rmtree(capture)
        running.agent.send_signal(signal.SIGCONT)
        recording, made = running.end()
    assert made.launches == 300_007
    assert f"{capture} was removed: it was made anew, and what it held is gone" in recording.stderr
    assert set(recording.launches.kernel_id) == set(recording.table("kernels").kernel_id), "names are there again"
    shutil.copytree(tmp_path / "before", capture, dirs_exist_ok=True)
    assert check_equation(recording, made) == (0, 0)


def test_an_agent_tells_how_full_its_ring_was_and_what_its_probes_have_cost(tmp_path: Path) -> None:
    own = Path(shutil.copytree(build().build, tmp_path / "standins"))
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{one.getsockname()[1]}"
    options = ["--metrics", place, "--include", f"command=*{own}/*", "--state", str(tmp_path / "state.json")]
    agent = subprocess.Popen(
        [sys.executable, "-c", _AGENT, "run", "-o", str(tmp_path / "spool"), *options],
        env={**host_environment(workload()), "LD_LIBRARY_PATH": str(own)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert agent.stderr is not None
        while "recording, " not in (line := agent.stderr.readline()):
            assert line
        run = workload("--launches", 50_021, "--syncs", 7, program=own / "workload")
        subprocess.run(run.command, env={**run.env, "LD_LIBRARY_PATH": str(own)}, check=True, capture_output=True)
        until(lambda: told(place).get("kdiff_launches_total") == 50_021)
        figures = told(place)
    finally:
        agent.terminate()
        agent.communicate(timeout=30)
    cost = figures['kdiff_probe_cost_seconds{call="runtime"}']
    assert 200e-9 < figures['kdiff_probe_cost_seconds{call="driver"}'] < cost < 1e-4
    assert figures["kdiff_added_seconds_total"] == pytest.approx(50_021 * cost)
    assert 0 < figures['kdiff_ring_fill_ratio{ring="events"}'] <= 1
    assert 0 < figures['kdiff_ring_fill_ratio{ring="names"}'] <= 1
    assert figures['kdiff_ring_fill_ratio{ring="device"}'] == 0


def told(place: str) -> dict[str, float]:
    """Metrics by name and labels; {} where nobody answers yet."""
    try:
        with urlopen(f"http://{place}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return {}
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}
