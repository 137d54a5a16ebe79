"""What a scope costs: counting rows with more and more cuts of processes, and of some hosts.

    python tests/bench/bench_scope.py [--rows 20000000]

Rows lie in memory, of 50 hosts and 2,000 processes; the condition is that of queries/narrowing.py.
"""

from __future__ import annotations

import argparse
import time
from typing import Final

from kdiff.analysis.scope import Cut, Cutting, Scope
from kdiff.analysis.window import Window
from kdiff.queries.store import _connect

T0: Final = 1_764_237_600 * 10**9
EVERY_NS: Final = 1_000_000
QUERY: Final = "SELECT count() FROM rows WHERE 1 /* AND scope(host, pid, timestamp_ns) */"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    rows = parser.parse_args().rows
    client = _connect()
    client.command("CREATE DATABASE bench_scope")
    client.database = "bench_scope"
    client.command("CREATE TABLE rows (timestamp_ns Int64, host LowCardinality(String), pid UInt32) ENGINE = Memory")
    client.command(
        f"INSERT INTO rows SELECT {T0} + number * {EVERY_NS}, concat('host-', toString(number % 50)), "
        f"1000 + number % 2000 FROM numbers({rows})"
    )
    window = Window(T0, T0 + rows * EVERY_NS)
    step = window.length_ns // 10_000
    every = [
        Cut(f"host-{i % 50}", 1000 + i % 2000, T0 + i * step, T0 + i * step + 60 * 10**9, "started")
        for i in range(10_000)
    ]
    scopes = {f"{n:,} cuts": Scope(cuts=tuple(every[: n * 5 : 5])) for n in (0, 1, 20, 2_000)}
    scopes["10,000 cuts"] = Scope(cuts=tuple(every))
    scopes["25 hosts"] = Scope(hosts=tuple(f"host-{i}" for i in range(25)))
    for name, scope in scopes.items():
        sql, params = Cutting(scope, whole_minutes=False).narrowing(window).narrow("rows", QUERY)
        seconds, left = [], 0
        for _ in range(3):
            began = time.perf_counter()
            left = client.query(sql, parameters=params).first_row[0]
            seconds.append(time.perf_counter() - began)
        print(f"{name:>12}: {left:,} of {rows:,} rows in {min(seconds):.2f} s")
    client.command("DROP DATABASE bench_scope")
    client.close()


if __name__ == "__main__":
    main()
