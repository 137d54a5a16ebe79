"""What the ClickHouse store costs, and what a verdict from it costs beside ClickHouse, DuckDB and polars.

    python tests/bench/bench_store.py [--launches 2000000] [--seed 1] [--keep DIR] [--only WORD ...]

Writes the capture of store_load.py, ships it to the stand-in of tests/standins/ (the real engine behind HTTP, on this
machine's cores) and compares its two windows; then what store_month.py prints. --launches 100000000 takes 6 GB of disk,
half an hour and more, and 7 GB of memory for one of the peers. Peers that are not installed (`pip install -e .[bench]`)
are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

import pyarrow.parquet as pq
from store_load import AFTER, BEFORE, HOSTS, Load
from store_month import Fleet, month

from kdiff.agent.segment_files import Listing, SegmentFile
from kdiff.agent.shipping import Hooks, Shipper
from kdiff.queries.address import Address
from kdiff.queries.connection import connect
from kdiff.queries.migrations import migrate
from kdiff.queries.tables import ROLLUPS
from server import PASSWORD, StandIn

KEEP_DAYS: Final = 36_500  # the load's time is past
INSERTED_ROWS: Final = 500_000
VIEWS: Final = (
    "kernel_minutes_of_events",
    "kernel_minutes_of_executions",
    "kernel_totals_of_minutes",
    "process_minutes_of_events",
    "process_minutes_of_executions",
    "kernel_hours_of_totals",
    "process_hours_of_minutes",
    "health_hours_of_accounts",
    "device_hours_of_windows",
)
RAW: Final = ("cuda_events", "kernel_executions")
KDIFF: Final = str(Path(sys.executable).parent / "kdiff")
PEERS: Final = str(Path(__file__).with_name("store_peers.py"))
ENVIRONMENT: Final = {**os.environ, "KDIFF_CLICKHOUSE_PASSWORD": PASSWORD}
Way = Callable[["Server", str, list[SegmentFile]], float]
"""Puts segments into a database, and tells the time that it took in s."""
# ru_maxrss of a child begins at what its parent has: one in between has little.
ASIDE: Final = """import json, os, subprocess, sys, time
began = time.perf_counter()
process = subprocess.Popen(sys.argv[2:], stdout=open(sys.argv[1], "wb"), stderr=subprocess.STDOUT)
_, status, used = os.wait4(process.pid, 0)
print(json.dumps([time.perf_counter() - began, used.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)]))"""


@dataclass
class Server:
    """The stand-in, and what its process holds."""

    standin: StandIn

    def client(self, database: str) -> Any:
        """A client of clickhouse-connect."""
        return connect(self.standin.address(), database=database, timeout_s=900)

    def reset_peak(self) -> None:
        """The peak begins anew, from what is held now."""
        Path(f"/proc/{self.standin.pid}/clear_refs").write_text("5")

    def peak_mb(self) -> float:
        """The most that was resident since then."""
        status = Path(f"/proc/{self.standin.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024


@dataclass
class Run:
    """A command's time in s, its peak memory in MB, what it printed."""

    seconds: float
    mb: float
    code: int
    printed: str


def run(command: Sequence[str]) -> Run:
    """Runs a command of its own process to its end."""
    with tempfile.NamedTemporaryFile() as out:
        aside = [sys.executable, "-c", ASIDE, out.name, *command]
        told = subprocess.run(aside, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
        seconds, mb, code = json.loads(told)
        return Run(seconds, mb, code, out.read().decode())


def forget_files() -> bool:
    """Empties the cache of the file system, where this user may."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


# ---- from segments into the store ----


def inserting(server: Server, capture: Path) -> None:
    """Prints rows/s of ways into the store, each into an empty database, twice in turns; the better of the two."""
    files = [file for file in Listing(capture, print).read() if file.table == "cuda_events"]
    some: list[SegmentFile] = []
    rows = 0
    for file in files:
        if rows < INSERTED_ROWS:
            some.append(file)
            rows += pq.read_metadata(file.path).num_rows
    best: dict[str, float] = {}
    for _ in range(2):
        for name, way in (
            ("kdiff-agent's shipping", shipped),
            ("insert_arrow, from segments", lambda s, d, f: arrow(s, d, f, False)),
            ("insert_arrow, rows in memory", lambda s, d, f: arrow(s, d, f, True)),
            ("shipping, without roll-ups", lambda s, d, f: shipped(s, d, f, False)),
        ):
            seconds = into_empty(server, way, some)
            best[name] = max(best.get(name, 0.0), rows / seconds)
    plain = best["insert_arrow, from segments"]
    print(f"\nInto the store, {rows:,} rows of cuda_events in {len(some)} segments")
    print(f"{'':<32}{'rows/s':>12}{'of insert_arrow':>18}")
    for name, rate in best.items():
        print(f"{name:<32}{rate:>12,.0f}{rate / plain:>18.2f}")


def into_empty(server: Server, way: Way, files: list[SegmentFile]) -> float:
    """How long `way` takes into a database of its own, s."""
    client = server.client("")
    try:
        migrate(client, "empty", raw_days=KEEP_DAYS, rollup_days=KEEP_DAYS)
        return way(server, "empty", files)
    finally:
        client.command("DROP DATABASE empty SYNC")
        client.close()


def shipped(server: Server, database: str, files: list[SegmentFile], rolled: bool = True) -> float:
    """By the agent's shipper: looked up, sent with a token, listed."""
    if not rolled:
        client = server.client(database)
        for view in VIEWS:
            client.command(f"DROP VIEW {view}")
        client.close()
    address: Address = server.standin.address(database)
    shipper = Shipper(lambda: address, Hooks(note=print))
    began = time.perf_counter()
    shipper.ship(files)
    shipper.close()
    assert len(shipper.tally.confirmed) == len(files)
    return time.perf_counter() - began


def arrow(server: Server, database: str, files: list[SegmentFile], in_memory: bool) -> float:
    """By clickhouse-connect alone, an insert a segment, without tokens and lists."""
    client = server.client(database)
    tables = [pq.read_table(file.path) for file in files] if in_memory else []
    began = time.perf_counter()
    for place, file in enumerate(files):
        client.insert_arrow(file.table, tables[place] if in_memory else pq.read_table(file.path))
    seconds = time.perf_counter() - began
    client.close()
    return seconds


def fill(server: Server, capture: Path) -> None:
    """Ships what the store lacks of the capture, and waits until the roll-ups are merged."""
    client = server.client("")
    migrate(client, "kdiff", raw_days=KEEP_DAYS, rollup_days=KEEP_DAYS)
    there = client.query("SELECT count() FROM kdiff.shipped_segments").first_row[0]
    client.close()
    files = Listing(capture, print).read()
    rows = sum(pq.read_metadata(file.path).num_rows for file in files)
    seconds = shipped(server, "kdiff", files)
    print(f"\nThe whole capture: {rows:,} rows in {len(files):,} segments", end="")
    print(", shipped before" if there else f", shipped in {seconds:.0f} s, {rows / seconds:,.0f} rows/s", flush=True)
    client = server.client("kdiff")
    for table in ROLLUPS:
        client.command(f"OPTIMIZE TABLE {table} FINAL")
    client.close()


def disk(server: Server, capture: Path) -> None:
    """Prints bytes a row of each column."""
    client = server.client("kdiff")
    print("\nOn the disk")
    for table in (*RAW, *ROLLUPS):
        rows, parts, size = client.query(
            "SELECT sum(rows), count(), sum(data_compressed_bytes) FROM system.parts "
            "WHERE active AND database = 'kdiff' AND table = {t:String}",
            parameters={"t": table},
        ).first_row
        columns = client.query(
            "SELECT name, data_compressed_bytes FROM system.columns WHERE database = 'kdiff' AND table = {t:String} "
            "ORDER BY data_compressed_bytes DESC",
            parameters={"t": table},
        ).result_rows
        print(f"{table}: {rows:,} rows, {size / 1e6:,.1f} MB in {parts} parts, {size / rows:.2f} bytes a row", end="")
        if table in RAW:
            files = sum(path.stat().st_size for path in (capture / table).glob("*.parquet"))
            print(f" ({files / rows:.2f} in segments)", end="")
        small = sum(of for _, of in columns if of < 0.05 * rows)
        shown = [f"{name} {of / rows:.2f}" for name, of in columns if of >= 0.05 * rows]
        print(f"\n  {', '.join(shown)}; the others together {small / rows:.2f}")
    client.close()


# ---- a verdict ----


def kdiff(store: str, measure: str, *more: str) -> list[str]:
    """The command that compares the two windows."""
    windows = ("--before", str(BEFORE), "--after", str(AFTER))
    chosen = () if measure == "auto" else ("--metric", measure)
    return [KDIFF, "--store", store, *windows, *chosen, "--format", "json", *more]


def verdicts(server: Server, capture: Path, best_of: int, only: Sequence[str]) -> None:
    """Prints time and memory of a verdict, and of the exact p99 that peers compute; of ways whose name holds a word."""
    url, here = server.standin.url() + "?timeout=600", str(capture)
    peer = [sys.executable, PEERS]
    forgotten = forget_files()
    for measure, rows, of in (("completion", "launches", "completion"), ("auto", "executions", "device")):
        print(f"\nVerdicts by the {of} time of all {rows}, and their exact p99 alone")
        print(f"{'':<34}{'cold s':>8}{'warm s':>8}{'MB':>8}{'server MB':>11}")
        answers: dict[str, str] = {}
        for name, command, on_server in (
            ("kdiff, server, roll-ups", kdiff(url, measure), True),
            ("kdiff, server, --exact", kdiff(url, measure, "--exact"), True),
            ("kdiff, capture", kdiff(here, measure), False),
            ("kdiff, capture, --exact", kdiff(here, measure, "--exact"), False),
            ("p99: ClickHouse, server", [*peer, "clickhouse", url, of], True),
            ("p99: ClickHouse, segments", [*peer, "clickhouse", here, of], False),
            ("p99: DuckDB, segments", [*peer, "duckdb", here, of], False),
            ("p99: polars, segments", [*peer, "polars", here, of], False),
        ):
            if measure == "auto" and name.startswith("kdiff, capture"):
                continue
            if only and not any(word in name for word in only):
                continue
            if on_server:
                server.standin.stop()
            forget_files()
            if on_server:
                server.standin.start()
                server.reset_peak()
            cold = run(command)
            if not right(cold, command):
                print(f"{name:<34}{cold.printed.strip()[-160:]}", flush=True)
                continue
            warm = [run(command) for _ in range(best_of if measure == "completion" else 1)]
            mb = max(one.mb for one in (cold, *warm))
            served = f"{server.peak_mb():>11,.0f}" if on_server else f"{'':>11}"
            print(f"{name:<34}{cold.seconds:>8.2f}{min(w.seconds for w in warm):>8.2f}{mb:>8,.0f}{served}", flush=True)
            answers[name] = cold.printed
        kdiffs = {name: json.loads(answer) for name, answer in answers.items() if name.startswith("kdiff")}
        if {"kdiff, server, roll-ups", "kdiff, server, --exact"} <= kdiffs.keys():
            agreement(kdiffs["kdiff, server, roll-ups"], kdiffs["kdiff, server, --exact"])
        for how, other in (("roll-ups", "capture"), ("--exact", "capture, --exact")):
            how, other = f"kdiff, server, {how}", f"kdiff, {other}"
            if how in kdiffs and other in kdiffs and judged(kdiffs[how]) != judged(kdiffs[other]):
                print(f"WRONG: {how} and {other} differ")
    if not forgotten:
        print("cold is not: this user may not empty the cache of the file system")


def right(done: Run, command: Sequence[str]) -> bool:
    """Whether it answered."""
    return done.code in (0, 1, 3) if command[0] == KDIFF else done.code == 0 and done.printed.strip().isdigit()


def judged(report: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The verdicts and the values that they are about."""
    return sorted((k["kernel"], k["verdict"], k["value_before"], k["value_after"]) for k in report["kernels"])


def agreement(rolled: dict[str, Any], exact: dict[str, Any]) -> None:
    """Prints how far a verdict from roll-ups lies from one from rows."""
    theirs = {kernel["kernel"]: kernel for kernel in exact["kernels"]}
    pairs = [(kernel, theirs[kernel["kernel"]]) for kernel in rolled["kernels"]]
    assert len(pairs) == len(theirs)
    differ = Counter(f"{one['verdict']} for {two['verdict']}" for one, two in pairs if one["verdict"] != two["verdict"])
    apart = [
        abs(one[side] / two[side] - 1)
        for one, two in pairs
        for side in ("value_before", "value_after")
        if one[side] and two[side]
    ]
    told = ", ".join(f"{count} {how}" for how, count in differ.items()) or "none"
    print(
        f"roll-ups and --exact, {len(pairs)} kernels: p99 differs by {max(apart):.3%} at most; other verdicts: {told}"
    )


def main() -> None:
    """Measures all and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--best-of", type=int, default=3, help="warm runs, of which the fastest counts")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where both lie and stay; what is there is taken")
    parser.add_argument("--only", nargs="*", default=(), metavar="WORD", help="verdicts whose name holds one of these")
    given = parser.parse_args()
    began = time.perf_counter()
    root = given.keep or Path(tempfile.mkdtemp(prefix="kdiff-bench-"))
    capture = root / "capture"
    fresh = not capture.exists()
    try:
        load = Load(given.launches, given.seed)
        if fresh:
            load.write(capture)
        written = time.perf_counter() - began
        print(f"{given.launches:,} launches of {HOSTS} hosts in {load.segments:,} segments", end="")
        print(f", written in {written:.0f} s" if fresh else "", flush=True)
        with StandIn(root / "server") as standin:
            server = Server(standin)
            if fresh:
                inserting(server, capture)
            fill(server, capture)
            disk(server, capture)
            verdicts(server, capture, given.best_of, given.only)
            if not given.only:
                month(standin.address("month"), Fleet())
    finally:
        if given.keep is None:
            shutil.rmtree(root, ignore_errors=True)
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
