"""Device time from the program's library through real probes to rows, against what the stand-ins say really ran."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from recording import Recording, agent_command, by_thread, host_environment, record

from kdiff.probes.device_library import library
from kdiff.queries.kernel_names import demangle
from standins.standins import KIND_LAUNCH, Records, Truth, Workload, build, cupti_ns, load_calls, load_truth, workload

pytestmark = pytest.mark.ebpf

MS = 1_000_000
GPU = "GPU-6b646966-6620-7374-616e-642d696e2030"
KERNELS = ["--kernel", "k1:5", "--kernel", "_Z2k2Pf:8@4x2x3/32x4x2", "--kernel", "_ZN2at4gemmIfLi8EEEvPT_:3@7/96"]
SHAPE = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
DENSE = "60ms/150ms"


class Load:
    """A workload that launches nothing before CUPTI collects, unless told so."""

    def __init__(
        self, directory: Path, *args: str | float | Path, env: Mapping[str, str] | None = None, in_window: bool = True
    ) -> None:
        self.directory = directory
        self._log, self._go = directory / "calls", directory / "go"
        settings = {
            "KDIFF_STANDIN_CUPTI_LOG": str(self._log),
            "KDIFF_DEVICE_BUDGET": "none",
            "KDIFF_DEVICE_SETTLE": "0",
            **(env or {}),
        }
        gate = ("--go-file", self._go) if in_window else ()
        self.workload: Workload = workload(*args, *gate, truth=directory / "truth", env=settings)
        if in_window:
            threading.Thread(target=self._open_gate, daemon=True).start()

    def _open_gate(self) -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            if self._log.exists() and "cuptiActivityEnable" in self._log.read_text():
                break
            time.sleep(0.01)
        self._go.touch()

    def record(self, *options: str) -> Recording:
        """Records it from its start to its end."""
        return record(self.directory / "capture", self.workload, *options)

    @property
    def truth(self) -> Truth:
        return load_truth(self.directory / "truth")


def observed(truth: Truth) -> Records:
    records: Records = truth.executions[truth.executions["correlation"] > 0]
    return records


def in_queue_order(rows: pd.DataFrame, true: Records) -> tuple[pd.DataFrame, Records]:
    """Both stream by stream in the order of execution, in which rows and truth are the same."""
    rows = rows.sort_values(["stream", "timestamp_ns"], kind="stable").reset_index(drop=True)
    return rows, true[np.lexsort((true["start_ns"], true["queue"]))]


def same_executions(recording: Recording, truth: Truth, expected: Records) -> tuple[pd.DataFrame, Records]:
    """Every expected execution is one row, each column as it was; both in the same order."""
    rows, true = in_queue_order(recording.table("kernel_executions"), expected)
    assert len(rows) == len(true)
    assert (rows.kernel_name.to_numpy() == [demangle(truth.names[k]) for k in true["kernel"]]).all()
    device_ns = [cupti_ns(int(ran["end_ns"])) - cupti_ns(int(ran["start_ns"])) for ran in true]
    assert (rows.duration_ns.to_numpy() == device_ns).all()
    _, queues = np.unique(true["queue"], return_inverse=True)
    assert (rows.stream.rank(method="dense").to_numpy() - 1 == queues).all()
    for i, axis in enumerate("xyz"):
        assert (rows[f"grid_{axis}"].to_numpy() == true["grid"][:, i]).all()
        assert (rows[f"block_{axis}"].to_numpy() == true["block"][:, i]).all()
    assert (rows.dynamic_shared.to_numpy() == true["shared_bytes"]).all()
    assert (rows.static_shared.to_numpy() == 256 * (true["kernel"] % 7)).all()
    assert (rows.local_bytes.to_numpy() == 8 * (true["kernel"] % 5)).all()
    assert (rows.registers.to_numpy() == 16 + 2 * (true["kernel"] % 100)).all()
    assert (rows.graph_id.to_numpy() == true["graph"]).all()
    nodes = np.where(true["graph"] > 0, true["graph"].astype(np.uint64) << 32 | (true["node"] + 1), 0)
    assert (rows.graph_node_id.to_numpy() == nodes).all()
    assert (rows.pid.to_numpy() == truth.pid).all()
    if len(rows):
        assert rows.gpu_uuid.unique().tolist() == [GPU]
        assert rows.service.unique().tolist() == ["workload"]
    # The host's clock may have been corrected meanwhile: what is left is the error that the windows state.
    error = recording.table("device_windows").clock_error_ns.max()
    apart = rows.timestamp_ns.to_numpy() - true["start_ns"].astype(np.int64)
    assert np.ptp(apart) <= 2 * error + 20_000
    assert abs(int(np.median(apart)) - truth.realtime_minus_monotonic_ns) < MS
    return rows, true


def same_queue_times(recording: Recording, truth: Truth, rows: pd.DataFrame, true: Records) -> float:
    """`timestamp_ns - queue_ns` is the launch's own row in cuda_events. How many of the executions say it, of 1."""
    launches = by_thread(recording.launches)
    calls = truth.of_kind(KIND_LAUNCH)
    calls = calls[np.lexsort((calls["call_ns"], calls["tid"]))]
    made = {
        (tid, call): at for tid, call, at in zip(calls["tid"], calls["call_ns"], launches.timestamp_ns, strict=True)
    }
    entered = np.array([made[tid, call] for tid, call in zip(true["tid"], true["call_ns"], strict=True)])
    known = rows.queue_ns.to_numpy() != 0
    assert ((rows.timestamp_ns - rows.queue_ns).to_numpy()[known] == entered[known]).all()
    return float(known.mean())


def whole_windows(recording: Recording, count: int) -> pd.DataFrame:
    """Windows that do not overlap and together account for all rows."""
    windows = recording.table("device_windows").sort_values("from_ns").reset_index(drop=True)
    assert (windows.to_ns > windows.from_ns).all()
    assert (windows.from_ns.to_numpy()[1:] >= windows.to_ns.to_numpy()[:-1]).all()
    assert windows.executions.sum() == count
    assert windows.lost.sum() == 0
    assert (windows.clock_error_ns > 0).all()
    assert windows.clock_error_ns.max() < MS
    return windows


def test_every_execution_of_an_always_open_window_is_one_row(tmp_path: Path) -> None:
    load = Load(
        tmp_path,
        *KERNELS,
        *("--launches", 10007, "--rate", 6000, "--threads", 3, "--shared", 4099, "--api", "mixed"),
    )
    recording = load.record("--device-time", "always")
    assert recording.status == 0, recording.stderr
    truth = load.truth
    assert len(observed(truth)) == 10007
    rows, true = same_executions(recording, truth, truth.executions)
    # Threads that launch the same kernel at the same time leave it open which launch was which.
    assert same_queue_times(recording, truth, rows, true) > 0.2
    windows = whole_windows(recording, 10007)
    assert (windows.from_ns.to_numpy()[1:] - windows.to_ns.to_numpy()[:-1] < 50_000).all()
    assert windows.ended.tolist() == ["duration"] * (len(windows) - 1) + ["exit"]
    assert windows[["uncollected", "dropped", "skipped"]].sum().tolist() == [0, 0, 0]
    # The kernels of both tables are the same, by their ids.
    ids = set(recording.launches.kernel_id)
    assert ids == set(rows.kernel_id)
    assert set(recording.table("kernels").kernel_id) == ids


def test_behind_a_deep_queue(tmp_path: Path) -> None:
    load = Load(tmp_path, *KERNELS, "--kernel", "k:211", "--launches", 2003, "--syncs", 2)
    recording = load.record("--device-time", "always")
    truth = load.truth
    rows, true = same_executions(recording, truth, truth.executions)
    assert same_queue_times(recording, truth, rows, true) == 1
    assert rows.queue_ns.median() > 20 * MS


def test_windows_hold_what_was_launched_in_them(tmp_path: Path) -> None:
    load = Load(tmp_path, *KERNELS, "--duration", 2.5, "--rate", 9000)
    recording = load.record("--device-time", DENSE)
    assert recording.status == 0, recording.stderr
    truth = load.truth
    expected = observed(truth)
    assert 0.2 < len(expected) / len(truth.executions) < 0.8
    rows, true = same_executions(recording, truth, expected)
    assert same_queue_times(recording, truth, rows, true) > 0.5
    windows = whole_windows(recording, len(expected))
    assert len(windows) > 8
    offset = truth.realtime_minus_monotonic_ns
    calls = truth.executions["call_ns"].astype(np.int64)
    for began, ended in zip(windows.from_ns - offset, windows.to_ns - offset, strict=True):
        inside = (calls > began + MS) & (calls < ended - MS)
        assert (truth.executions["correlation"][inside] > 0).all()


def test_nodes_of_graphs(tmp_path: Path) -> None:
    load = Load(tmp_path, *KERNELS, "--graph", 11, "--threads", 2, "--launches", 401, "--rate", 400)
    recording = load.record("--device-time", "always")
    truth = load.truth
    assert len(observed(truth)) == 11 * 401
    rows, _ = same_executions(recording, truth, truth.executions)
    assert rows.graph_node_id.nunique() == 22


def test_what_has_no_times_is_counted_also_with_cuda_12(tmp_path: Path) -> None:
    faults = {"ZERO_EVERY": "7", "REVERSED_EVERY": "11", "DROP_EVERY": "13"}
    env = {f"KDIFF_STANDIN_CUPTI_{name}": value for name, value in faults.items()}
    env["KDIFF_DEVICE_CUPTI"] = str(build().cupti12)
    load = Load(tmp_path, *KERNELS, "--launches", 5003, "--rate", 9000, "--threads", 2, env=env)
    recording = load.record("--device-time", "always")
    ran = np.arange(1, 5003 + 1)
    dropped = ran % 13 == 0
    timeless = ~dropped & ((ran % 7 == 0) | (ran % 11 == 0))
    windows = whole_windows(recording, 5003 - dropped.sum() - timeless.sum())
    assert windows.dropped.sum() == dropped.sum()
    assert windows.uncollected.sum() == timeless.sum()


def test_a_program_killed_in_a_window_leaves_what_it_handed_over(tmp_path: Path) -> None:
    load = Load(tmp_path, *KERNELS, "--duration", 20, "--rate", 40000, "--sync-every", 16, "--end-at", "0.8:kill")
    recording = load.record("--device-time", "always")
    assert recording.status == 128 + signal.SIGKILL
    rows = recording.table("kernel_executions")
    assert len(rows) > 1000
    windows = recording.table("device_windows").sort_values("from_ns")
    assert windows.executions.sum() == len(rows)
    assert windows.ended.tolist()[-1] == "exit"
    # It has no second reading of the clocks: the error is that of one.
    assert (rows.duration_ns < 1000 * MS).all()


def test_an_agent_that_ends_leaves_the_program_alone(tmp_path: Path) -> None:
    args = ("--duration", 60, "--rate", 5000)
    env = {"CUDA_INJECTION64_PATH": str(library()), "KDIFF_DEVICE_TIME": "50/100"}
    load = Load(tmp_path, *args, env=env, in_window=False)
    process = subprocess.Popen(
        load.workload.command, env=host_environment(load.workload), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    command = agent_command(tmp_path / "capture", "--pid", str(process.pid), "--duration", "1.3")
    done = subprocess.run(command, env={**os.environ, "KDIFF_DEBUG": "1"}, capture_output=True, text=True, check=False)
    left = time.monotonic_ns()
    assert done.returncode == 0, done.stderr
    time.sleep(1)  # it launches without an agent
    process.terminate()
    _, error = process.communicate(timeout=20)
    assert (process.returncode, error) == (0, b"")
    calls = load_calls(tmp_path / "calls")
    assert not [call for call in calls if call.at_ns > left + 300 * MS]
    on = {"cuptiActivityEnable": 1, "cuptiActivityDisable": -1}
    assert sum(on.get(call.function, 0) for call in calls) == 0
    rows = pd.read_parquet(tmp_path / "capture" / "kernel_executions")
    assert 100 < len(rows) <= len(observed(load.truth))


@pytest.mark.parametrize(("manners", "resumes"), [("give", True), ("keep", False)])
def test_a_profiler_is_given_way_to(tmp_path: Path, manners: str, resumes: bool) -> None:
    load = Load(
        tmp_path,
        *("--duration", 2.5, "--rate", 5000, "--manners", manners, "--profiler", build().profiler, "--profiler-first"),
        *("--profile", "0.6:0.4:307", "--profile", "1.2:0.2:211"),
        env={"KDIFF_STANDIN_CUPTI_STRICT": "1"},
    )
    recording = load.record("--device-time", DENSE)
    assert recording.status == 0, recording.stderr
    truth = load.truth
    profiled = truth.named(truth.executions, "profiled")
    assert len(profiled) == 518
    windows = recording.table("device_windows").sort_values("from_ns")
    later = windows.from_ns - truth.realtime_minus_monotonic_ns > int(profiled["end_ns"].max())
    assert later.any() == resumes
    assert "profiled" not in set(recording.table("kernel_executions").kernel_name)
    assert ("another user of CUPTI" in recording.stderr) or resumes
    if resumes:
        assert windows.skipped.sum() >= 1
