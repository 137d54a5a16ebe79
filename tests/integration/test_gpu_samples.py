"""Samples of GPUs in what a real agent records, on a stand-in NVML, and that nothing waits for it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from nvml_host import H200, OTHER, READINGS, Host
from recording import AGENT, Recording, agent_command, host_environment, record

from kdiff.queries.tables import GPU_SAMPLES
from standins.standins import KIND_LAUNCH, Workload, load_truth, workload

pytestmark = pytest.mark.ebpf

RATE: list[str | float | Path] = ["--rate", 4001, "--sync-every", 7, "--kernel", "k1:5"]
LAG_NS = 1_000_000_000  # of a busy machine; whoever waited for NVML here would wait longer


def on(host: Host, directory: Path, run: Workload, *options: str) -> Recording:
    return record(directory, run, *options, env=host.environment)


def child_named(name: str, parent: int) -> int | None:
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/comm").read_text().strip() == name:
                return int(child)
    return None


def whole(recording: Recording, run: Workload) -> None:
    """Every launch is there, and the ring was read in time all along."""
    assert recording.status == 0, recording.stderr
    assert run.truth is not None
    assert len(recording.launches) == len(load_truth(run.truth).of_kind(KIND_LAUNCH)) > 0
    assert recording.lost == 0
    assert recording.table("agent_health").drain_lag_ns.max() < LAG_NS


def test_a_recording_has_a_row_for_each_gpu_and_second(tmp_path: Path) -> None:
    host = Host(tmp_path, H200)
    run = workload(*RATE, "--duration", 3, truth=tmp_path / "truth")
    begin = time.time_ns()
    recording = on(host, tmp_path / "capture", run)
    whole(recording, run)
    rows = recording.table("gpu_samples")
    assert list(rows.columns) == GPU_SAMPLES.names
    assert 3 <= len(rows) <= 5
    one = rows.iloc[1].to_dict()
    assert begin < one.pop("timestamp_ns") < time.time_ns()
    assert (one.pop("pids").tolist(), one.pop("pid_memory_bytes").tolist()) == ([4242, 4243], [77309411328, 1048576])
    assert one == {
        "service": "workload",
        "host": socket.gethostname(),
        "gpu_uuid": H200["uuid"],
        "parent_uuid": "",
        "gpu_name": "NVIDIA H200",
        **READINGS,
        "processes": 2,
    }
    assert recording.events.gpu_uuid.unique().tolist() == [H200["uuid"]]
    found = re.search(r"GPU samples: (\d+) · 0 failed · agent CPU [\d.]+ ms each", recording.stderr)
    assert found is not None
    assert int(found[1]) == len(rows)


def test_readings_that_are_not_supported_are_null_in_the_capture(tmp_path: Path) -> None:
    host = Host(tmp_path, OTHER)
    recording = on(host, tmp_path / "capture", workload(*RATE, "--duration", 1, truth=tmp_path / "truth"))
    rows = recording.table("gpu_samples")
    assert rows.sm_clock_mhz.isna().all()
    assert rows.ecc_uncorrected.isna().all()
    assert rows.processes.tolist() == [0] * len(rows)


@pytest.mark.parametrize("late", [False, True])
def test_the_gpu_of_a_process_is_known_however_late_nvml_tells_it(tmp_path: Path, late: bool) -> None:
    """As for a program that makes its context after its first calls: of two GPUs it is the one that lists its pid."""
    host = Host(tmp_path, H200, OTHER)
    run = workload(*RATE, "--duration", 3, truth=tmp_path / "truth")
    directory = tmp_path / "capture"
    with subprocess.Popen(
        agent_command(directory, command=run.command),
        env={**host_environment(run), **host.environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as agent:
        while (pid := child_named("workload", agent.pid)) is None:
            time.sleep(0.01)
        time.sleep(2.0 if late else 0.0)
        host.set(H200, OTHER | {"pids": f"{pid}:5"})
        stderr = agent.communicate(timeout=60)[1]
    recording = Recording(directory, agent.returncode, stderr)
    whole(recording, run)
    assert recording.events.gpu_uuid.unique().tolist() == [OTHER["uuid"]]
    samples = recording.table("gpu_samples").explode("pids")
    there = recording.events[["pid", "gpu_uuid"]].drop_duplicates()
    joined = samples.merge(there, left_on=["pids", "gpu_uuid"], right_on=["pid", "gpu_uuid"])
    assert set(joined.pid) == {pid}
    # Nothing but the thread asks NVML.
    assert len({thread for _, thread, _ in host.calls()} - {agent.pid}) == 1
    assert agent.pid not in {thread for _, thread, _ in host.calls()}


@pytest.mark.parametrize(
    ("gpu", "others"),
    [({}, {"hang__nvmlInitWithFlags": 1}), ({"hang.nvmlDeviceGetMemoryInfo_v2": 1}, {}), ({"hang": 1}, {})],
    ids=["init", "reading", "gpu"],
)
def test_an_nvml_that_hangs_delays_and_loses_nothing(
    tmp_path: Path, gpu: dict[str, object], others: dict[str, object]
) -> None:
    run = workload(*RATE, "--duration", 7, truth=tmp_path / "truth")
    begin = time.monotonic()
    recording = on(Host(tmp_path, H200 | gpu, **others), tmp_path / "capture", run)
    assert time.monotonic() - begin < 7 + 12
    whole(recording, run)
    assert not (tmp_path / "capture" / "gpu_samples").exists()
    assert recording.stderr.count("NVML does not answer") == 1


def test_calls_that_take_long_delay_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path, H200)
    run = workload(*RATE, "--duration", 6, truth=tmp_path / "truth")
    with subprocess.Popen(
        agent_command(tmp_path / "capture", command=run.command),
        env={**host_environment(run), **host.environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as agent:
        while agent.poll() is None:
            host.set(H200 | {"hang": 1})
            time.sleep(1.5)
            host.set(H200)
            time.sleep(0.05)
        stderr = agent.communicate(timeout=60)[1]
    recording = Recording(tmp_path / "capture", agent.returncode, stderr)
    whole(recording, run)
    assert len(recording.table("gpu_samples")) >= 1


def test_a_gpu_that_is_lost_meanwhile_is_said_once_and_counted(tmp_path: Path) -> None:
    host = Host(tmp_path, H200 | {"error.nvmlDeviceGetClockInfo": "15@4"}, OTHER)
    run = workload(*RATE, "--duration", 5, truth=tmp_path / "truth")
    recording = on(host, tmp_path / "capture", run)
    whole(recording, run)
    rows = recording.table("gpu_samples").gpu_uuid.value_counts()
    # Two clocks a GPU and second: the fifth call is of the first GPU, in the second second.
    assert rows[H200["uuid"]] == 1
    assert rows[OTHER["uuid"]] >= 4
    assert recording.stderr.count("is not sampled") == 1
    assert "GPU 0 (NVIDIA H200) is not sampled: NVML says GPU is lost" in recording.stderr
    found = re.search(r"GPU samples: (\d+) · (\d+) failed", recording.stderr)
    assert found is not None
    assert int(found[1]) == len(recording.table("gpu_samples"))
    assert int(found[2]) == rows[OTHER["uuid"]] - 1


def test_without_samples_and_without_nvml_there_are_none(tmp_path: Path) -> None:
    host = Host(tmp_path, H200)
    run = workload(*RATE, "--duration", 1, truth=tmp_path / "truth")
    recording = on(host, tmp_path / "off", run, "--no-gpu-samples")
    whole(recording, run)
    assert recording.events.gpu_uuid.unique().tolist() == [H200["uuid"]]
    bare = record(tmp_path / "bare", run)
    whole(bare, run)
    assert bare.events.gpu_uuid.unique().tolist() == [""]
    for one in (recording, bare):
        assert not (one.directory / "gpu_samples").exists()
        assert "GPU" not in one.stderr


@pytest.mark.parametrize("wanted", [True, False])
def test_the_service_samples_too_and_ends_at_once_although_nvml_hangs(tmp_path: Path, wanted: bool) -> None:
    host = Host(tmp_path, H200)
    spool = tmp_path / "spool"
    state = str(tmp_path / "drivers.json")
    command = [AGENT, "run", "-o", str(spool), "--state", state, "--include", "command=no such"]
    with subprocess.Popen(
        [*command, *([] if wanted else ["--no-gpu-samples"])],
        env=os.environ | host.environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as agent:
        deadline = time.monotonic() + 60
        while not any("nvmlDeviceGetUUID" in call for call in host.calls()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert agent.stderr is not None
        while "recording" not in agent.stderr.readline():
            assert time.monotonic() < deadline
        time.sleep(2.5)
        host.set(H200 | {"hang": 1})
        time.sleep(1.5)
        begin = time.monotonic()
        agent.send_signal(signal.SIGTERM)
        agent.communicate(timeout=30)
        assert time.monotonic() - begin < 10
    assert agent.returncode == 0
    rows = [row for path in spool.glob("gpu_samples/*") for row in pq.read_table(path).to_pylist()]
    assert 2 <= len(rows) <= 4 if wanted else rows == []
    assert {row["service"] for row in rows} == ({""} if wanted else set())
