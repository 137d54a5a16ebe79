"""Two traces are judged like two recordings."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import traces
from command_line import Result, Run, kdiff
from traces import Kernel, numbered


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *arguments: kdiff(monkeypatch, capsys, *arguments)


def traffic(seed: int, gelu_ns: int) -> list[Kernel]:
    """3,000 runs of each of two kernels in about 0.2 s."""
    rng = np.random.default_rng(seed)
    kernels, now = [], 1_000_000
    for _ in range(3_000):
        for name, mean in (("gelu", gelu_ns), ("norm", 7_000)):
            lasted = int(mean * (1 + 0.01 * rng.standard_normal()))
            kernels.append(Kernel(name, now, lasted, launch_ns=now - 8_000 - int(rng.integers(500))))
            now += lasted + int(rng.integers(2_000, 40_000))
    return numbered(kernels)


WRITERS: dict[str, Callable[[Path, Sequence[Kernel]], Path]] = {
    "json.gz": traces.kineto,
    "sqlite": traces.nsys,
    "csv": traces.csv_nsys,
}


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("kind", WRITERS)
def test_a_kernel_that_got_slower_is_found(run: Run, tmp_path: Path, kind: str) -> None:
    for name, seed, gelu_ns in (("before", 1, 20_000), ("again", 2, 20_000), ("after", 3, 24_000)):
        trace = WRITERS[kind](tmp_path / f"{name}.{kind}", traffic(seed, gelu_ns))
        assert run("import", trace, "-o", tmp_path / name, "--start", "2025-11-27T10:00").code == 0
    slower = judged(run("--before", tmp_path / "before", "--after", tmp_path / "after", "--format", "json"))
    assert slower["exit_code"] == 1
    assert {k["kernel"]: (k["verdict"], k["metric"], k["n_before"]) for k in slower["kernels"]} == {
        "gelu": ("REGRESSED", "device", 3_000),
        "norm": ("PASS", "device", 3_000),
    }
    [gelu] = [k for k in slower["kernels"] if k["kernel"] == "gelu"]
    assert 1.19 < gelu["ratio"] < 1.21
    assert slower["before"]["device"]["coverage"] == slower["after"]["device"]["coverage"] == 1.0
    # The times overlap, and the stores are two.
    same_again = judged(run("--before", tmp_path / "before", "--after", tmp_path / "again", "--format", "json"))
    assert (same_again["exit_code"], same_again["verdict"]) == (0, "PASS")


def judged(result: Result) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(result.out)
    assert result.code == report["exit_code"], result.err
    return report
