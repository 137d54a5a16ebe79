"""Two traces as PyTorch wrote them on an H200: every kernel is there, and the one that got slower is found."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from command_line import Run, kdiff

DATA = Path(__file__).parents[1] / "data" / "kineto-swap"


@pytest.fixture(scope="module")
def traces() -> dict[str, list[dict]]:  # type: ignore[type-arg]
    """The kernels of both, as the standard library reads them."""
    found = {}
    for side in ("before", "after"):
        with gzip.open(DATA / f"{side}.json.gz", "rt") as file:
            found[side] = [event for event in json.load(file)["traceEvents"] if event.get("cat") == "kernel"]
    return found


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *arguments: kdiff(monkeypatch, capsys, *arguments)


def test_every_kernel_of_a_trace_is_a_row_and_the_swap_is_found(run: Run, traces: dict, tmp_path: Path) -> None:  # type: ignore[type-arg]
    for side, kernels in traces.items():
        result = run("import", str(DATA / f"{side}.json.gz"), "-o", str(tmp_path / side), "--service", "serving")
        assert result.code == 0, result.err
        durations, blocks = defaultdict(list), defaultdict(set)
        for event in kernels:
            durations[event["name"]].append(round(event["dur"] * 1000))
            blocks[event["name"]].add(tuple(event["args"]["block"]))
        rows = pq.read_table(tmp_path / side / "kernel_executions").to_pylist()
        read, read_blocks = defaultdict(list), defaultdict(set)
        for row in rows:
            read[row["kernel_name"]].append(row["duration_ns"])
            read_blocks[row["kernel_name"]].add((row["block_x"], row["block_y"], row["block_z"]))
        assert len(rows) == {"before": 44_959, "after": 38_783}[side]
        assert {name: sorted(values) for name, values in read.items()} == {n: sorted(v) for n, v in durations.items()}
        assert read_blocks == blocks

    result = run("--before", str(tmp_path / "before"), "--after", str(tmp_path / "after"), "--format", "json")
    assert result.code == 1
    found = json.loads(result.out)
    regressed = [row for row in found["kernels"] if row["verdict"] == "REGRESSED"]
    assert [row["kernel"] for row in regressed] == ["fused_gelu"]
    for side, kernels in traces.items():
        values = [round(event["dur"] * 1000) for event in kernels if event["name"] == "fused_gelu"]
        assert regressed[0][f"p99_{side}"] == int(np.quantile(values, 0.99, method="inverted_cdf"))
