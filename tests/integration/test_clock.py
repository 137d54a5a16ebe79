"""A host whose clock is set back, and which sleeps, while it is recorded: the kernel's own times are had back."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from recording import Recording, agent_command, host_environment

from standins.standins import KIND_LAUNCH, load_truth, workload

pytestmark = pytest.mark.ebpf

S = 1_000_000_000
SET_BACK_S, SLEPT_S = 3600, 60
# The clock is set back 1.2 s after the agent first reads it, and the host sleeps 1 s later.
UNSTEADY = f"""
import time
from kdiff.agent import cli, clock
offset, slept, began = clock.unix_offset_ns, clock.sleep_ns, []
def passed(s):
    began.append(time.monotonic())
    del began[1:]
    return time.monotonic() - began[0] > s
clock.unix_offset_ns = lambda: offset() - passed(1.2) * {SET_BACK_S * S} + passed(2.2) * {SLEPT_S * S}
clock.sleep_ns = lambda: slept() + passed(2.2) * {SLEPT_S * S}
cli.main()
"""


def test_raw_times_are_had_back_through_a_clock_that_is_set_and_a_sleep(tmp_path: Path) -> None:
    load = workload(
        *("--kernel", "k:5", "--isolated", "--launches", 4001, "--rate", 1000), truth=tmp_path / "truth",
        env={"KDIFF_DEVICE_SETTLE": "0", "KDIFF_DEVICE_BUDGET": "none"},
    )  # fmt: skip
    command = agent_command(tmp_path / "capture", "--device-time", "200ms/300ms", command=load.command)
    before_ns = time.monotonic_ns()
    done = subprocess.run(
        [sys.executable, "-c", UNSTEADY, *command[1:]],
        env=host_environment(load), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    after_ns = time.monotonic_ns()
    assert done.returncode == 0, done.stderr
    assert "this host's clock was set back by 3600.0 s and this host slept for 60.0 s: durations" in done.stderr
    recording, truth = Recording(tmp_path / "capture", 0, done.stderr), load_truth(tmp_path / "truth")
    assert recording.lost == 0
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    launches = recording.launches
    launches["raw_ns"] = launches.timestamp_ns - launches.clock_offset_ns
    launches = launches.sort_values("raw_ns").reset_index(drop=True)
    calls = np.sort(truth.of_kind(KIND_LAUNCH), order="call_ns")
    assert len(launches) == len(calls) == 4001
    assert set(launches.boot_id) == {boot}
    assert launches.timestamp_ns.diff().min() < -3500 * S  # by the host's clock an hour comes twice
    # Each raw time is after the return of the call before, and before its own arrival in the driver.
    raw = launches.raw_ns.to_numpy()
    assert (raw <= calls["call_ns"].astype(np.int64)).all()
    assert (raw[1:] > calls["return_ns"][:-1].astype(np.int64)).all()
    spent = (calls["return_ns"] - calls["call_ns"]).astype(np.int64)
    assert (launches.duration_ns.to_numpy() >= spent).all()
    assert launches.duration_ns.max() < S
    assert (launches.batch_launches == 1).all()
    assert launches.completion_ns.between(1, S).all()

    ran = recording.table("kernel_executions")
    assert len(ran) > 1000
    assert set(ran.boot_id) == {boot}
    known = ran[ran.queue_ns > 0]
    assert len(known) > 1000
    # By either clock the start less the wait is the launch.
    started = (known.timestamp_ns - known.clock_offset_ns - known.queue_ns).to_numpy()
    assert np.isin(started, raw).all()
    assert np.isin((known.timestamp_ns - known.queue_ns).to_numpy(), launches.timestamp_ns.to_numpy()).all()
    assert known.queue_ns.max() < S
    windows = recording.table("device_windows")
    assert windows.boot_id.unique().tolist() == [boot]
    opened = (windows.from_ns - windows.clock_offset_ns).to_numpy()
    assert ((opened > before_ns) & (opened < after_ns)).all()
    assert ((windows.to_ns - windows.from_ns) < S).all()

    health = recording.table("agent_health")
    assert health.boot_id.unique().tolist() == [boot]
    assert abs(int(health.clock_set_ns.sum()) + SET_BACK_S * S) < S // 10
    assert int(health.slept_ns.sum()) == pytest.approx(SLEPT_S * S, abs=S // 10)
    # The account covers every row, whichever clock it has.
    covered = [health.from_ns.min() <= at < health.to_ns.max() for at in launches.timestamp_ns]
    assert all(covered)
    assert (health.to_ns >= health.from_ns).all()
