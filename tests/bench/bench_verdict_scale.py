"""A verdict on many kernels over two days of a server's roll-ups: what the queries cost, and what the statistics do.

    python tests/bench/bench_verdict_scale.py [--kernels 2000] [--hours 24] [--shapes 1]

Fills the roll-ups of minutes of a stand-in, each shape of each kernel in each minute, 41 executions of 12 bins, and
runs the command twice: the second time is told. Queries are asked one after the other and end when their answer is
here; statistics are all of judging. The rest decodes answers, cuts them into samples and makes the report.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from store_month import KEEP_DAYS, START

from kdiff.analysis import cli, compare
from kdiff.analysis.window import HOUR_NS, NS, Window
from kdiff.queries.address import Address
from kdiff.queries.connection import connect
from kdiff.queries.migrations import migrate
from kdiff.queries.server import ServerStore
from server import StandIn

STATISTICS: Final = ("judge_all", "read_mixes", "find_rare", "pair_kernels")
"""What of a comparison computes; the first is told by itself."""


class Clocks:
    """Seconds that functions took, without what they waited for queries, and how often they were called."""

    def __init__(self) -> None:
        self.wall: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.queries = 0.0

    def timing(self, name: str, function: Callable[..., Any], is_query: bool = False) -> Callable[..., Any]:
        """`function`, timed."""

        def timed(*arguments: Any, **named: Any) -> Any:
            began, asked = time.perf_counter(), self.queries
            answer = function(*arguments, **named)
            took = time.perf_counter() - began
            self.wall[name] += took - (self.queries - asked)
            self.calls[name] += 1
            if is_query:
                self.queries += took
            return answer

        return timed


@contextmanager
def timed(clocks: Clocks) -> Iterator[None]:
    """While it lasts the parts of comparisons are timed, and nothing is asked ahead."""
    query = ServerStore.query

    def asked(store: ServerStore, name: str, *further: Any) -> Any:
        return clocks.timing(f"query {name}", query, is_query=True)(store, name, *further)

    patches: list[Any] = [
        mock.patch.object(ServerStore, "query", asked),
        mock.patch.object(ServerStore, "concurrent", False),
    ]
    patches += [
        mock.patch.object(compare, name, clocks.timing(name, getattr(compare, name)))
        for name in STATISTICS
        if hasattr(compare, name)
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def run(address: Address, windows: tuple[Window, Window], *options: str) -> tuple[dict[str, Any], float]:
    """The command's JSON, and the seconds it took."""
    arguments = ["kdiff", "--store", str(address), "--format", "json", "--metric", "device", *options]
    for side, window in zip(("--before", "--after"), windows, strict=True):
        arguments += [side, str(window)]
    text = io.StringIO()
    began = time.perf_counter()
    with mock.patch.object(sys, "argv", arguments), redirect_stdout(text):
        try:
            cli.main()
        except SystemExit as ended:
            if ended.code not in (0, 1, 3):
                raise
    return json.loads(text.getvalue()), time.perf_counter() - began


def peak_mb() -> float:
    """The most memory that this process had, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_000


@dataclass(frozen=True)
class Scale:
    """How much is simulated."""

    kernels: int
    hours: int
    shapes: int

    @property
    def windows(self) -> tuple[Window, Window]:
        """Before and after, one behind the other."""
        length = self.hours * HOUR_NS
        return Window(START, START + length), Window(START + length, START + 2 * length)

    def fill(self, client: Any) -> None:
        """One process that the device times all the time; the views make totals and hours of the minutes."""
        each = self.kernels * self.shapes
        met = [1, 2, 4, 6, 8, 7, 5, 3, 2, 1, 1, 1]
        minute = f"toDateTime({{first}} + intDiv(number, {each}) * 60, 'UTC') AS minute"
        name = f"concat('void serving::kernel_', leftPad(toString(number % {self.kernels}), 4, '0'), '<4>()') AS name"
        # The level of a kernel moves by a few bins from minute to minute; the second window is no slower.
        level = f"200 + 37 * (number % {self.kernels}) % 900 + cityHash64(number) % 5"
        bins = f"CAST((arrayMap(i -> toUInt16({level} + i), range({len(met)})), {met}), 'Map(UInt16, UInt64)')"
        grid = f"toUInt32(exp2(4 + 2 * (intDiv(number, {self.kernels}) % {self.shapes})))"
        for hour in range(2 * self.hours):
            first = START // NS + 3_600 * hour
            rows = f"FROM numbers({60 * each})"
            place = minute.format(first=first)
            client.command(
                "INSERT INTO kernel_minutes (minute, kind, kernel_name, service, host, pid, grid_x, grid_y, grid_z, "
                f"block_x, block_y, block_z, executions, device_ns, device_bins) SELECT {place}, 'device', {name}, "
                f"'serving', 'gpu-host-0', 4000, {grid}, 1, 1, 128, 1, 1, {sum(met)}, {sum(met) * 20_000}, "
                f"{bins} {rows}"
            )
            client.command(
                "INSERT INTO process_minutes (minute, kind, kernel_name, service, host, pid, executions, device_ns, "
                f"first_ns, last_ns) SELECT {place}, 'device', {name}, 'serving', 'gpu-host-0', 4000, {sum(met)}, "
                f"{sum(met) * 20_000}, toUnixTimestamp(minute) * 1000000000 + 7, "
                f"toUnixTimestamp(minute) * 1000000000 + 59000000000 {rows}"
            )
        begun = f"{START} + number * 60000000000 AS begun, begun + 60000000000, 'serving', 'gpu-host-0'"
        account = "INSERT INTO agent_health (from_ns, to_ns, service, host, layer, events)"
        minutes = f"FROM numbers({120 * self.hours})"
        client.command(f"{account} SELECT {begun}, 'both', 0 {minutes}")
        client.command(
            "INSERT INTO device_windows (from_ns, to_ns, service, host, pid, executions, ended) "
            f"SELECT {begun}, 4000, {sum(met) * each}, 'duration' {minutes}"
        )


def measure(address: Address, scale: Scale) -> None:
    """Fills a database of its own and prints what the command costs."""
    client = connect(address, database="", timeout_s=1_800)
    migrate(client, address.database, raw_days=KEEP_DAYS, rollup_days=KEEP_DAYS)
    client.database = address.database
    began = time.perf_counter()
    scale.fill(client)
    rows = {
        table: int(client.query(f"SELECT count() FROM {table}").first_row[0])
        for table in ("kernel_minutes", "kernel_totals", "process_minutes")
    }
    print(f"{scale.kernels:,} kernels of {scale.shapes} shapes, two windows of {scale.hours} h, ", end="")
    print(f"filled in {time.perf_counter() - began:.0f} s: ", end="")
    print(", ".join(f"{count:,} rows of {table}" for table, count in rows.items()))
    idle = peak_mb()
    run(address, scale.windows)
    clocks = Clocks()
    with timed(clocks):
        document, wall = run(address, scale.windows)
    verdicts = Counter(row["verdict"] for row in document["kernels"])
    judged = document["before"]["executions"] + document["after"]["executions"]
    print(f"{judged:,} executions judged: " + ", ".join(f"{count:,} {verdict}" for verdict, count in verdicts.items()))
    statistics = sum(clocks.wall[name] for name in STATISTICS)
    for what, seconds in (
        ("the command, queries one after the other", wall),
        ("queries", clocks.queries),
        ("statistics", statistics),
        ("the rest", wall - clocks.queries - statistics),
    ):
        print(f"{what:<44}{seconds:>8.2f} s")
    for name, seconds in clocks.wall.most_common(12):
        print(f"  {name:<42}{seconds:>8.2f} s{clocks.calls[name]:>8} times")
    print(f"peak memory of the command {peak_mb():,.0f} MB, {idle:,.0f} MB of it before it began")
    print("statistics cost less than the queries" if statistics < clocks.queries else "WRONG: statistics cost more")
    client.command(f"DROP DATABASE {address.database} SYNC")
    client.close()


def main() -> None:
    """Measures it on a stand-in of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=2_000)
    parser.add_argument("--hours", type=int, default=24, help="of each window (default 24)")
    parser.add_argument("--shapes", type=int, default=1, help="of each kernel (default 1)")
    given = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kdiff-scale-") as root, StandIn(Path(root)) as standin:
        address = standin.address("scale")
        os.environ["KDIFF_CLICKHOUSE_PASSWORD"] = address.password
        measure(address, Scale(given.kernels, given.hours, given.shapes))
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
