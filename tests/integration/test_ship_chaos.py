"""Rows that are shipped while everything fails arrive once. `tests/bench/chaos_ship.py` is the long form."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import shipped
from chaos import AGENT, ENVIRONMENT, Chaos

from kdiff.queries.connection import connect

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


def test_a_spool_that_is_bounded_and_shipped_by_hand_loses_no_count(tmp_path: Path) -> None:
    """`run` without a server gives up rows while `ship` sends them, both are killed; then `run` has a server."""
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")
    chance = random.Random(seed)
    root = tmp_path / "spool"
    with shipped.own_server(tmp_path / "server") as server:
        keep = [sys.executable, "-P", "-m", "kdiff.agent.keeper", str(root), "--max-bytes", "150000"]
        ship = [AGENT, "ship", str(root), "--store", server.url()]
        began = time.time_ns() - 3_600_000_000_000
        made = 0
        keeper: subprocess.Popen[bytes] | None = None
        for number in range(10):
            sizes = [chance.randrange(1000, 5000) for _ in range(3)]
            shipped.write(root, sizes, began_ns=began + number * 10**11)
            made += sum(sizes)
            if keeper is None:
                keeper = subprocess.Popen(keep, stdin=subprocess.PIPE)
            shipper = subprocess.Popen(ship, env=ENVIRONMENT, stderr=subprocess.DEVNULL) if number % 3 else None
            time.sleep(chance.uniform(0.2, 2.0))
            for process in (shipper, keeper if chance.random() < 0.5 else None):
                if process is not None:
                    process.kill()
                    process.communicate()
                    keeper = None if process is keeper else keeper
        if keeper is not None:
            keeper.communicate(timeout=15)
        done = subprocess.run(ship, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        subprocess.run([*keep, "--store", server.url()], env=ENVIRONMENT, input=b"", timeout=30, check=True)
        client = connect(server.address())
        lost = client.query("SELECT sum(lost_launches + lost_syncs + lost_other) FROM agent_health").first_row[0]
        print(f"{made} made, {lost} lost")
        assert shipped.count(client) + lost == made
        rows = client.query("SELECT count(), uniqExact(timestamp_ns, pid, tid, stream) FROM cuda_events").first_row
        assert rows[0] == rows[1]
        client.close()
