"""Captures with device time made on a real GPU: a kernel swapped behind a deep queue, judged by the real command."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from recording import KDIFF, Recording

DATA = Path(__file__).parents[1] / "data" / "device-swap"
TRUTH: dict[str, dict[str, dict[str, int]]] = json.loads((DATA / "truth.json").read_text())
EXECUTIONS = {"before": 6_248, "again": 5_711, "after": 4_990, "faster": 5_901}


def compare(before: str, after: str, *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    command = [KDIFF, "--before", str(DATA / before), "--after", str(DATA / after), "--format", "json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.returncode, {kernel["kernel"]: kernel for kernel in json.loads(done.stdout)["kernels"]}


def verdicts(kernels: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: kernels[name]["verdict"] for name in ("fused_gelu", "layer_norm")}


@pytest.mark.parametrize("side", TRUTH)
def test_windows_tell_what_windows_without_a_gap_tell(side: str) -> None:
    executions = pq.read_table(DATA / side / "kernel_executions").to_pandas()
    windows = pq.read_table(DATA / side / "device_windows").to_pandas()
    assert len(executions) == windows["executions"].sum() == EXECUTIONS[side]
    assert windows[["uncollected", "dropped", "lost", "skipped"]].sum().tolist() == [0, 0, 0, 0]
    for name, truth in TRUTH[side].items():
        durations = executions["duration_ns"][executions["kernel_name"].astype(str) == name]
        for quantile in (50, 99):
            seen = np.quantile(durations, quantile / 100, method="inverted_cdf")
            assert seen == pytest.approx(truth[f"p{quantile}"], rel=0.005), (name, quantile)


@pytest.mark.parametrize("side", TRUTH)
def test_every_launch_was_seen_and_named(side: str) -> None:
    recording = Recording(DATA / side, 0, "")
    counts = recording.launches.kernel_name.value_counts()
    assert counts["fused_gelu"] == counts["layer_norm"] == 12_000
    assert len(recording.launches) == 24_001
    assert (recording.events.kind == "sync").sum() == 121
    assert recording.lost == 0


def test_the_gpu_was_sampled_and_the_program_found_on_it() -> None:
    samples = pq.read_table(DATA / "before" / "gpu_samples").to_pandas()
    pid = Recording(DATA / "before", 0, "").launches.pid.iloc[0]
    busy = samples[samples["gpu_utilization"] > 80]
    assert set(busy["gpu_name"].astype(str)) == {"NVIDIA H200"}
    assert [list(pids) for pids in busy["pids"]] == [[pid]] * 6
    assert set(busy["sm_clock_mhz"]) == {1980}


def test_a_slower_kernel_is_seen_on_the_device_and_not_in_its_launches() -> None:
    status, kernels = compare("before", "after")
    assert status == 1
    assert verdicts(kernels) == {"fused_gelu": "REGRESSED", "layer_norm": "PASS"}
    gelu = kernels["fused_gelu"]
    assert gelu["metric"] == "device"
    true = TRUTH["after"]["fused_gelu"]["p99"] / TRUTH["before"]["fused_gelu"]["p99"]
    assert gelu["ratio"] == pytest.approx(true, rel=0.002)
    assert gelu["ci"][0] > 1.05
    status, kernels = compare("before", "after", "--metric", "launch")
    assert status == 3
    assert "REGRESSED" not in verdicts(kernels).values()


def test_the_same_kernel_again_passes() -> None:
    status, kernels = compare("before", "again")
    assert status == 0
    assert verdicts(kernels) == {"fused_gelu": "PASS", "layer_norm": "PASS"}


def test_a_faster_kernel_at_a_higher_rate_improved() -> None:
    status, kernels = compare("before", "faster")
    assert status == 0
    assert verdicts(kernels) == {"fused_gelu": "IMPROVED", "layer_norm": "PASS"}
    true = TRUTH["faster"]["fused_gelu"]["p99"] / TRUTH["before"]["fused_gelu"]["p99"]
    assert kernels["fused_gelu"]["ratio"] == pytest.approx(true, rel=0.002)


def test_swapped_back_it_improved() -> None:
    status, kernels = compare("after", "before")
    assert status == 0
    assert verdicts(kernels) == {"fused_gelu": "IMPROVED", "layer_norm": "PASS"}
