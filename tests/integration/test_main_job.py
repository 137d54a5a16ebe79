"""The main job: two recordings of real processes, compared by the real engine, judged, with an exit status."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from recording import KDIFF, Recording, record

from standins.standins import Workload, workload

pytestmark = pytest.mark.ebpf

# The median is judged, at real-time priority: what else runs on a test machine of two cores moves a p99 of time that
# the host sees by more than a slow kernel does. Recorded GPUs and device time have tests of their p99.
KERNELS = ["--kernel", "k1:100:0.1", "--kernel", "k2:120:0.1", "--kernel", "k3:80:0.1"]
MEDIAN = ("--quantile", "0.5")


def capture(directory: Path, launches: int, *options: str | int) -> Recording:
    run = workload(*KERNELS, "--launches", launches, "--isolated", "--wait-before", 1, *options)
    recording = record(directory, Workload(["chrt", "-f", "10", *run.command], run.env, None))
    assert recording.status == 0, recording.stderr
    assert len(recording.launches) == launches
    assert recording.lost == 0
    return recording


def compare(before: str | Path, after: str | Path, *options: str) -> tuple[int, dict[str, Any]]:
    command = [KDIFF, "--before", str(before), "--after", str(after), "--format", "json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {kernel["kernel"]: kernel["verdict"] for kernel in report["kernels"]}


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return capture(tmp_path_factory.mktemp("baseline") / "capture", 18_000, "--seed", 1)


def test_the_same_workload_passes(tmp_path: Path, baseline: Recording) -> None:
    capture(tmp_path / "again", 18_000, "--seed", 12)
    status, report = compare(baseline.directory, tmp_path / "again", *MEDIAN)
    assert status == 0, report
    assert verdicts(report).keys() == {"k1", "k2", "k3"}
    assert set(verdicts(report).values()) <= {"PASS", "IMPROVED"}
    assert all(k["n_before"] == k["n_after"] == 6_000 and k["metric"] == "completion" for k in report["kernels"])


def test_one_slower_kernel_is_found_and_no_other(tmp_path: Path, baseline: Recording) -> None:
    capture(tmp_path / "slow", 18_000, "--seed", 2, "--change", "k2=1.3@launch:0")
    status, report = compare(baseline.directory, tmp_path / "slow", *MEDIAN)
    assert status == 1, report
    assert {name for name, verdict in verdicts(report).items() if verdict == "REGRESSED"} == {"k2"}
    slower = next(kernel for kernel in report["kernels"] if kernel["kernel"] == "k2")
    assert 1.2 < slower["ratio"] < 1.35
    low, high = slower["ci"]
    assert 1.05 < low < slower["ratio"] < high


def test_a_window_of_one_capture_against_the_next(tmp_path: Path) -> None:
    """The kernel gets slower in mid-run: the two windows are times in the same store."""
    recording = capture(tmp_path / "capture", 18_000, "--seed", 5, "--change", "k1=1.5@launch:9000")
    launches = recording.launches.sort_values("timestamp_ns")
    first, middle, last = (int(launches.timestamp_ns.iloc[i]) for i in (0, 9_000, -1))
    status, report = compare(f"{first}..{middle}", f"{middle}..{last}", "--store", str(recording.directory), *MEDIAN)
    assert status == 1, report
    assert {name for name, verdict in verdicts(report).items() if verdict == "REGRESSED"} == {"k1"}


def test_too_few_launches_are_not_judged(tmp_path: Path) -> None:
    for name in ("before", "after"):
        capture(tmp_path / name, 600)
    status, report = compare(tmp_path / "before", tmp_path / "after")
    assert status == 3
    assert set(verdicts(report).values()) == {"NOT_ENOUGH_DATA"}


def test_batches_do_not_pass_a_kernel(tmp_path: Path) -> None:
    for name in ("before", "after"):
        run = workload(*KERNELS, "--launches", 18_000, "--sync-every", 10)
        record(tmp_path / name, run)
    status, report = compare(tmp_path / "before", tmp_path / "after")
    assert status == 3
    assert set(verdicts(report).values()) == {"INCONCLUSIVE"}
    assert all("device time not recorded" in " ".join(k["reasons"]).lower() for k in report["kernels"])


def test_a_capture_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    run = workload("--kernel", "k1:20", "--duration", 14, "--rate", 3000, "--sync-every", 1)
    from recording import agent_command, host_environment

    command = agent_command(tmp_path / "capture", command=run.command)
    agent = subprocess.Popen(command, env=host_environment(run), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    folder = tmp_path / "capture" / "cuda_events"
    while not list(folder.glob("*.parquet")):
        assert agent.poll() is None
    listing = subprocess.run(
        [KDIFF, "kernels", "--store", str(tmp_path / "capture")], capture_output=True, text=True, check=False
    )
    assert agent.poll() is None, "it still records"
    assert listing.returncode == 0, listing.stderr
    assert "k1" in listing.stdout
    assert agent.wait(timeout=60) == 0
