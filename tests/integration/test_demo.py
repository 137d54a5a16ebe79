"""The demo, as `make demo` runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.ebpf


def test_the_demo_finds_the_slow_kernel_and_its_next_steps_work() -> None:
    demo = [sys.executable, str(ROOT / "deploy" / "demo" / "demo.py")]
    done = subprocess.run(demo, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout.rpartition("\nkernel ")[2]
    assert re.findall(r"^(\w+) +REGRESSED ", table, re.MULTILINE) == ["fused_gelu"]
    assert "\nexit status 1\n" in done.stdout

    steps = re.findall(r"^  (\S*kdiff .*)$", done.stdout.rpartition("Right: ")[2], re.MULTILINE)
    assert len(steps) == 2
    listed, tolerant = (
        subprocess.run(["bash", "-c", step], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        for step in steps
    )
    assert listed.returncode == 0, listed.stderr
    assert all(kernel in listed.stdout for kernel in ("fused_gelu", "layer_norm", "softmax"))
    assert tolerant.returncode == 0, tolerant.stdout
