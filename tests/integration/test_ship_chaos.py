"""Rows that are shipped while everything fails arrive once. `tests/bench/chaos_ship.py` is the long form."""

from __future__ import annotations

import time
from pathlib import Path

from chaos import Chaos

ROWS = 100_003


def test_each_row_arrives_once_whatever_fails(tmp_path: Path) -> None:
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")
    chaos = Chaos(tmp_path, seed, print)
    try:
        outcome = chaos.run(ROWS, faults=6)
    finally:
        chaos.close()
    assert outcome.of_server == outcome.of_files
    assert outcome.of_server[0] == ROWS
    assert outcome.of_minutes == outcome.of_rows
    assert outcome.accounts == chaos.accounts
    assert "shipped 0 segments · 0 rows" in outcome.again
    assert f"{outcome.segments:,} were there already" in outcome.again
