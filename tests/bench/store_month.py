"""What a verdict over a month of a fleet reads from a server, by minutes and by hours.

    python tests/bench/store_month.py [--hosts 4] [--kernels 6] [--days 30]

Fills the roll-ups of minutes and the accounts of agents, with the densest that agents write: each kernel in each minute
of each process, an account and a device window every 10 s. The views make the hours from them. There are no rows, which
are gone after a week. What each query reads grows by a law that is printed; by it a fleet's month is extrapolated.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from kdiff.analysis.compare import Options, compare
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.report import Report
from kdiff.analysis.window import HOUR_NS, NS, Window
from kdiff.queries.address import Address
from kdiff.queries.connection import connect
from kdiff.queries.migrations import migrate
from kdiff.queries.server import ServerStore
from kdiff.queries.tables import ROLLUPS
from server import StandIn

START: Final = 1_764_237_600 * NS  # 2025-11-27T10:00:00Z
KEEP_DAYS: Final = 36_500
FLEET: Final = (1_000, 8, 300)
"""Hosts, processes of each, kernels: what is extrapolated to."""
COUNTERS: Final = ("SelectedRows", "SelectedBytes", "ReadCompressedBytes")
GROWS: Final = {
    "hours_census": "kernels", "hours_census_device": "kernels", "hours_bins": "kernels", "hours_tails": "kernels",
    "hours_timed": "processes", "hours_processes": "processes", "hours_device": "processes",
    "hours_health": "hosts", "hours_covered": "hosts", "hours_bare": "processes",
    "minutes_census": "kernels", "minutes_bins": "kernels", "minutes_tails": "kernels",
    "minutes_census_device": "processes x kernels", "minutes_processes": "processes x kernels",
    "minutes_present": "processes x kernels", "device_windows": "processes", "health": "hosts",
}  # fmt: skip
"""What the rows that a query reads are proportional to; what is not listed reads none that would grow."""


@dataclass(frozen=True)
class Fleet:
    """How much is simulated."""

    hosts: int = 4
    kernels: int = 6
    days: int = 30

    @property
    def windows(self) -> tuple[Window, Window]:
        """Before and after, one behind the other."""
        length = 24 * self.days * HOUR_NS
        return Window(START, START + length), Window(START + length, START + 2 * length)

    def factor(self, law: str) -> float:
        """How much more FLEET has of it; here each host has one process."""
        hosts, processes, kernels = FLEET
        of_processes, of_kernels = hosts * processes / self.hosts, kernels / self.kernels
        return {
            "hosts": hosts / self.hosts,
            "processes": of_processes,
            "kernels": of_kernels,
            "processes x kernels": of_processes * of_kernels,
        }.get(law, 1.0)

    def fill(self, client: Any) -> None:
        """All tables that a verdict over these windows reads."""
        first, minutes = START // (60 * NS), 2 * self.days * 1_440
        place = f"concat('gpu-host-', toString(number % {self.hosts}))"
        name = "concat('void serving::kernel_', leftPad(toString({}), 3, '0'), '<__half, 4>(__half*, int)')"
        of_process = f"intDiv(number, {self.hosts})"
        minute = f"toDateTime(({first} + intDiv({{}}, {self.kernels})) * 60, 'UTC')"
        for kind, often in (("launch", 12), ("device", 1)):
            # The level of a kernel moves by a few bins from minute to minute; the second window is no slower.
            level = f"200 + 37 * (number % {self.kernels}) % 900 + cityHash64(number) % 13"
            met = [1 + int(2 * often * math.exp(-((i - 20) ** 2) / 50)) for i in range(40)]
            bins = f"arrayMap(i -> toUInt16({level} + i), range(40))"
            held = f"CAST(({bins}, {[self.hosts * count for count in met]}), 'Map(UInt16, UInt64)')"
            nothing = "CAST(map(), 'Map(UInt16, UInt64)')"
            launches, executions = (sum(met), 0) if kind == "launch" else (0, sum(met))
            count, ran = self.hosts * launches, self.hosts * executions
            sums = [count, count, 0, 0, 0, count, count, count, *[count * 20_000] * 3, ran, 0, ran * 20_000]
            maps = (held, nothing, held, nothing) if kind == "launch" else (nothing, nothing, nothing, held)
            client.command(
                f"INSERT INTO kernel_totals SELECT {minute.format('number')}, '{kind}', "
                f"{name.format(f'number % {self.kernels}')}, 'serving', {', '.join(map(str, sums))}, {', '.join(maps)} "
                f"FROM numbers({minutes * self.kernels})"
            )
            client.command(
                f"INSERT INTO process_minutes SELECT {minute.format(of_process)} AS minute, '{kind}', "
                f"{name.format(f'{of_process} % {self.kernels}')}, 'serving', {place}, 4000 + number % {self.hosts}, "
                f"{launches}, {executions}, 0, {executions} * 20000, "
                f"toUnixTimestamp(minute) * 1000000000 + 7, toUnixTimestamp(minute) * 1000000000 + 59000000000 "
                f"FROM numbers({minutes * self.kernels * self.hosts})"
            )
        begins = f"{START} + intDiv(number, {self.hosts}) * 10000000000"
        client.command(
            "INSERT INTO agent_health (from_ns, to_ns, service, host, layer, events, lost_launches, lost_syncs, "
            "lost_other, agent_cpu_ns, drain_lag_ns, attached_probes, unresolved_launches) "
            f"SELECT {begins} AS begun, begun + 10000000000, 'serving', {place}, 'both', "
            f"{100 * self.kernels}, 0, 0, 0, 1000, 0, 12, 0 FROM numbers({minutes * 6 * self.hosts})"
        )
        client.command(
            "INSERT INTO device_windows (from_ns, to_ns, service, host, pid, container_id, executions, uncollected, "
            "dropped, lost, clock_error_ns, inside_ns, ended, skipped) "
            f"SELECT {begins} AS begun, begun + 1000000000, 'serving', {place}, "
            f"4000 + number % {self.hosts}, '', {5 * self.kernels}, 0, 0, 0, 200, 100000, 'duration', 0 "
            f"FROM numbers({minutes * 6 * self.hosts})"
        )
        for table in (*ROLLUPS, "agent_health", "device_windows"):
            client.command(f"OPTIMIZE TABLE {table} FINAL")


@dataclass
class Reading:
    """What a verdict read, by query: rows, bytes in memory, bytes on the disk; and how long it took, s."""

    queries: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0

    def total(self, place: int, fleet: Fleet | None = None) -> float:
        """Of a counter; as a whole fleet's month would have it."""
        return sum(
            counts[place] * (fleet.factor(GROWS.get(name, "")) if fleet else 1.0)
            for name, counts in self.queries.items()
        )


@contextmanager
def counted(store: ServerStore, client: Any, reading: Reading) -> Iterator[None]:
    """While it lasts, queries are asked one after the other and what each reads is added to `reading`."""
    query = store.query

    def noted(name: str, params: Any = None, *more: Any) -> Any:
        before = counters(client)
        answer = query(name, params, *more)
        its = reading.queries.setdefault(name, [0] * len(COUNTERS))
        for place, (one, other) in enumerate(zip(before, counters(client), strict=True)):
            its[place] += other - one
        return answer

    with mock.patch.object(store, "query", noted), mock.patch.object(ServerStore, "concurrent", False):
        yield


def counters(client: Any) -> list[int]:
    """The server's counters since it began."""
    rows = client.query("SELECT event, value FROM system.events").result_rows
    found = dict(rows)
    return [int(found.get(name, 0)) for name in COUNTERS]


def verdict(store: ServerStore, fleet: Fleet, metric: str, hourly: bool) -> Report:
    """Of the two windows."""
    sides = [Evidence(store, window) for window in fleet.windows]
    options = Options(metric=metric)  # type: ignore[arg-type]
    if hourly:
        assert all(side.hourly for side in sides)
        return compare(sides[0], sides[1], options)
    with mock.patch.object(Evidence, "hourly", False):
        return compare(sides[0], sides[1], options)


def month(address: Address, fleet: Fleet) -> None:
    """Fills a database of its own and prints what verdicts read of it."""
    client = connect(address, database="", timeout_s=900)
    migrate(client, address.database, raw_days=KEEP_DAYS, rollup_days=KEEP_DAYS)
    client.database = address.database
    began = time.perf_counter()
    fleet.fill(client)
    filled = time.perf_counter() - began
    rows = {
        table: client.query(f"SELECT count() FROM {table}").first_row[0]
        for table in (*ROLLUPS, "agent_health", "device_windows")
    }
    print(f"\n{fleet.days} days before and as many after, {fleet.hosts} hosts of one process, {fleet.kernels} kernels")
    print(f"filled in {filled:.0f} s: " + ", ".join(f"{count:,} of {table}" for table, count in rows.items() if count))
    hosts, processes, kernels = FLEET
    print(f"{'':<24}{'rows':>14}{'MB':>10}{'MB on disk':>12}{'s':>7}", end="")
    print(f"{f'{hosts:,} hosts of {processes}, {kernels} kernels: rows':>50}{'MB':>14}{'MB on disk':>12}")
    with ServerStore(address) as store:
        for metric in ("completion", "device"):
            reports = []
            for how, hourly in (("minutes", False), ("hours", True)):
                began = time.perf_counter()
                verdict(store, fleet, metric, hourly)
                reading = Reading(seconds=time.perf_counter() - began)
                with counted(store, client, reading):
                    reports.append(verdict(store, fleet, metric, hourly))
                here = [reading.total(place) for place in range(3)]
                there = [reading.total(place, fleet) for place in range(3)]
                print(
                    f"{f'{metric}, by {how}':<24}{here[0]:>14,.0f}{here[1] / 1e6:>10,.1f}{here[2] / 1e6:>12,.2f}",
                    end="",
                )
                print(f"{reading.seconds:>7.2f}{there[0]:>50,.0f}{there[1] / 1e6:>14,.0f}{there[2] / 1e6:>12,.0f}")
                for name, counts in sorted(reading.queries.items(), key=lambda item: -item[1][1]):
                    law = GROWS.get(name, "")
                    told = f"  {name} ({law})" if law else f"  {name}"
                    print(f"{told:<52}{counts[0]:>14,}{counts[1] / 1e6:>10,.2f}{counts[2] / 1e6:>12,.3f}")
            one, other = reports
            if one.kernels != other.kernels:
                print("WRONG: minutes and hours differ")
    client.command(f"DROP DATABASE {address.database} SYNC")
    client.close()


def main() -> None:
    """Measures it on a stand-in of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("hosts", "kernels", "days"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Fleet, name))
    given = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kdiff-month-") as root, StandIn(Path(root)) as standin:
        month(standin.address("month"), Fleet(given.hosts, given.kernels, given.days))
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
