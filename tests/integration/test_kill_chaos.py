"""A hundred agents killed with -9 while programs launch. `tests/bench/chaos_kill.py` is the long form."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kills import LAUNCHES, SYNCS, killed

pytestmark = pytest.mark.ebpf

KILLS = 100


def test_a_hundred_kills_harm_no_target_and_no_closed_segment(tmp_path: Path) -> None:
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")
    outcome = killed(tmp_path, KILLS, lanes=4, seed=seed)
    print(outcome)
    assert outcome.wrong == []
    assert set(outcome.targets) == {(0, LAUNCHES, SYNCS)}
    assert outcome.left_files == []
    assert not outcome.left_bpf
    assert sum(outcome.kills.values()) == KILLS
    assert set(outcome.kills) == {"starting", "recording", "writing", "ending"}
    assert outcome.torn > 0, "no kill met a write"
    assert outcome.rows >= 4 * (LAUNCHES + SYNCS)
