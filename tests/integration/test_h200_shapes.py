"""The kernel of a real recording (tests/data/h200-serving) that got slower is slower at each of its shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import captures
from kdiff.analysis.compare import Options, compare
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.report import MixReport
from kdiff.analysis.verdict import Verdict
from kdiff.analysis.window import Window
from kdiff.queries.store import CaptureStore

DATA: Final = Path(__file__).parents[1] / "data" / "h200-serving"
PHASES: Final = {
    entry["phase"]: Window(entry["start_ns"], entry["end_ns"])
    for entry in json.loads((DATA / "phases.json").read_text())
}


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executions of fused_gelu, with the sizes of the recording; those that it lacks are 1."""
    root = tmp_path_factory.mktemp("shapes")
    device = pq.read_table(DATA / "device.parquet")
    device = device.filter(pc.match_substring(device["name"].cast(pa.string()), "fused_gelu"))
    sizes = {name: device[name].to_numpy() for name in ("grid_x", "grid_y", "block_x")}
    rows = captures.executions(
        "fused_gelu",
        device["start_ns"].to_numpy(),
        device["duration_ns"].to_numpy(),
        **dict.fromkeys(("grid_z", "block_y", "block_z"), 1),
        **sizes,
    )
    captures.write(root, "kernel_executions", rows)
    for name, phase in PHASES.items():
        captures.write(root, "agent_health", captures.health(phase.from_ns, phase.to_ns), name)
    return root


def judged(capture: Path, before: str, after: str) -> tuple[Verdict, MixReport]:
    with CaptureStore(capture) as store:
        windows = [Evidence(store, PHASES[name]) for name in (before, after)]
        row = captures.only(compare(windows[0], windows[1], Options()), "fused_gelu")
    assert row.mix is not None
    return row.verdict, row.mix


def test_each_of_its_four_shapes_got_slower(capture: Path) -> None:
    verdict, mix = judged(capture, "B", "C")
    assert verdict is Verdict.REGRESSED
    assert [(s.grid, s.n_before, s.n_after, s.tested) for s in mix.strata] == [
        (6, 10_004, 9_464, True),
        (9, 5_708, 6_072, True),
        (11, 3_084, 3_104, True),
        (13, 976, 1_008, False),
    ]
    assert np.array([s.ratio for s in mix.strata]) == pytest.approx([1.141, 1.201, 1.228, 1.236], abs=0.002)
    assert all(s.ci is not None and s.ci[0] > 1.05 for s in mix.strata)
    assert (mix.support_before, mix.support_after, mix.decides) == (1.0, 1.0, False)


def test_the_same_program_passes_at_each(capture: Path) -> None:
    verdict, mix = judged(capture, "A", "B")
    assert verdict is Verdict.PASS
    assert [s.ratio for s in mix.strata] == pytest.approx([1.0, 1.0, 1.0, 1.002], abs=0.0005)
    assert all(s.ci is not None and s.ci[1] < 1.05 for s in mix.strata)
    assert mix.mix_effect == pytest.approx(1.0, abs=0.01)
