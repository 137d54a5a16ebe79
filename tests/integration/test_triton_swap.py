"""Captures made on a real GPU, before and after a Triton kernel swap, judged by the real command."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from recording import KDIFF, Recording

DATA = Path(__file__).parents[1] / "data" / "triton-swap"


def compare(before: str, after: str) -> tuple[int, dict[str, dict[str, Any]]]:
    command = [KDIFF, "--before", str(DATA / before), "--after", str(DATA / after), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.returncode, {kernel["kernel"]: kernel for kernel in json.loads(done.stdout)["kernels"]}


@pytest.mark.parametrize("side", ["before", "again", "after"])
def test_every_launch_was_seen_and_named(side: str) -> None:
    recording = Recording(DATA / side, 0, "")
    launches = recording.launches
    counts = launches.kernel_name.value_counts()
    assert counts["fused_gelu"] == counts["layer_norm"] == 20_000
    assert len(launches) == 40_001
    assert (recording.events.kind == "sync").sum() == 40_000
    assert recording.lost == 0
    assert (launches["flags"] == 0).all()
    triton = launches[launches.kernel_name == "fused_gelu"]
    assert set(triton.api) == {"cuLaunchKernelEx"}
    assert set(triton.grid_x) == {4096}
    assert set(triton.block_x) == {128}
    assert launches.gpu_uuid.str.startswith("GPU-").all()


def test_the_swap_is_a_regression() -> None:
    status, kernels = compare("before", "after")
    assert status == 1
    assert [name for name, kernel in kernels.items() if kernel["verdict"] == "REGRESSED"] == ["fused_gelu"]
    assert 1.24 < kernels["fused_gelu"]["ratio"] < 1.29
    assert kernels["fused_gelu"]["metric"] == "completion"


def test_the_same_kernel_again_is_none() -> None:
    status, kernels = compare("before", "again")
    assert status != 1
    assert kernels["fused_gelu"]["verdict"] == "PASS"


def test_swapped_back_it_improved() -> None:
    status, kernels = compare("after", "before")
    assert status != 1
    assert kernels["fused_gelu"]["verdict"] == "IMPROVED"


def test_the_exit_status_does_not_depend_on_who_reads_stderr() -> None:
    for before, status in (("before", 1), ("no-such-capture", 2)):
        command = [KDIFF, "--before", str(DATA / before), "--after", str(DATA / "after")]
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=full, timeout=60, check=False)
        assert done.returncode == status
