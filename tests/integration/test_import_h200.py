"""The recording of an H200 as the traces that other tools would have written of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import traces
from command_line import Run, kdiff
from traces import BASE, Kernel, Nsys, numbered

from kdiff.queries.kernel_names import demangle

DATA = Path(__file__).parents[1] / "data" / "h200-serving"
STRETCH_S = 12

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *arguments: kdiff(monkeypatch, capsys, *arguments)


def stretch(phase: str) -> list[Kernel]:
    """The kernels of the first seconds of a phase, named as the device named them."""
    [found] = [entry for entry in json.loads((DATA / "phases.json").read_text()) if entry["phase"] == phase]
    begin = int(found["start_ns"])
    device = pq.read_table(DATA / "device.parquet")
    start = device["start_ns"]
    inside = pc.and_(pc.greater_equal(start, begin), pc.less(start, begin + STRETCH_S * 10**9))
    return numbered(
        Kernel(
            row["name"],
            row["start_ns"] - BASE,
            row["duration_ns"],
            stream=row["stream"],
            grid=(row["grid_x"], row["grid_y"], 1),
            block=(row["block_x"], 1, 1),
            registers=row["registers"],
        )
        for row in device.filter(inside).to_pylist()
    )


def as_kineto(path: Path, kernels: list[Kernel]) -> Path:
    """Kineto writes names that it has demangled."""
    return traces.kineto(path, [replace(kernel, name=demangle(kernel.name)) for kernel in kernels])


def report(run: Run, before: Path, after: Path) -> dict[str, Any]:
    result = run("--before", before, "--after", after, "--kernel", "fused_gelu", "--format", "json")
    found: dict[str, Any] = json.loads(result.out)
    assert result.code == found["exit_code"], result.err
    return found


def test_two_traces_of_two_tools_are_judged_like_the_recording(run: Run, tmp_path: Path) -> None:
    """Before by Nsight Systems, after by PyTorch: by their mangled and demangled names the kernels are the same."""
    kernels = {phase: stretch(phase) for phase in "ABC"}
    files = {
        "A": traces.nsys(tmp_path / "a.sqlite", kernels["A"], Nsys(demangled={"fused_gelu": "in its own style"})),
        "B": as_kineto(tmp_path / "b.json.gz", kernels["B"]),
        "C": as_kineto(tmp_path / "c.json.gz", kernels["C"]),
    }
    for phase, file in files.items():
        result = run("import", file, "-o", tmp_path / phase)
        assert (result.code, result.err) == (0, "")
        assert f"rows {len(kernels[phase]):,} of kernel_executions" in result.out
    slower = report(run, tmp_path / "A", tmp_path / "C")
    [gelu] = slower["kernels"]
    assert (slower["exit_code"], gelu["kernel"], gelu["metric"]) == (1, "fused_gelu", "device")
    assert 1.23 < gelu["ratio"] < 1.25
    durations = {phase: sorted(k.duration_ns for k in kernels[phase] if k.name == "fused_gelu") for phase in "AC"}
    assert (gelu["n_before"], gelu["n_after"]) == (len(durations["A"]), len(durations["C"]))
    assert gelu["p50_before"] in durations["A"]
    same = report(run, tmp_path / "A", tmp_path / "B")
    assert (same["exit_code"], same["kernels"][0]["verdict"]) == (0, "PASS")
    result = run("--before", tmp_path / "A", "--after", tmp_path / "B", "--format", "json")
    verdicts = {kernel["verdict"] for kernel in json.loads(result.out)["kernels"]}
    assert verdicts.isdisjoint({"NEW", "GONE", "REGRESSED"})
