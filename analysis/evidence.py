"""What a store holds of one window: counts a kernel, losses and coverage, and the samples to judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdiff.analysis.columns import column
from kdiff.analysis.counts import GRAPHS, OF_DEVICE, OF_HOST, UNNAMED, Counts, Metric, Recording, is_graph
from kdiff.analysis.coverage import covered_ns, hosts_of, unrolled
from kdiff.analysis.device import DeviceRecording, Process, read_hours, read_recording
from kdiff.analysis.histograms import Histograms
from kdiff.analysis.quantiles import quantile
from kdiff.analysis.scaling import Scale, by_kernel, common_scale, minutes_to_read
from kdiff.analysis.values import Values, read_rows
from kdiff.analysis.window import HOUR_NS, MINUTE_NS, Window, utc_short
from kdiff.queries.errors import KdiffError
from kdiff.queries.store import Params, Store
from kdiff.queries.tables import KIND_GRAPH_LAUNCH, KIND_LAUNCH, KIND_SYNC

_MOST_KEYS: Final = 5_000
_LAST_NS: Final = 2**63 // HOUR_NS * HOUR_NS
_LOST: Final = ("launches", "syncs", "other")
_BY_HOUR: Final = ("census", "graphs_timed", "processes", "bins", "tails")
"""The queries of roll-ups that those of hours answer as well."""
_LATE: Final = 0.01  # what may arrive between two queries


class Evidence:
    """One window of one store, optionally of one service ('' is all).

    A window of two hours or more is narrowed to whole UTC minutes, one of five days or more to whole hours, and read
    from the roll-ups, unless `exact`. Of their durations only those from about the `quantile` on are read stretch by
    stretch: what a verdict about it needs.
    """

    def __init__(
        self, store: Store, window: Window, service: str = "", exact: bool = False, quantile: float = 0.99
    ) -> None:
        """Nothing is read yet."""
        self.store = store
        self.window = window = window.whole()
        self.exact = exact
        self.rolled = bool(window.unit_ns) and not exact
        self.service = service
        self.quantile = quantile
        self._params: dict[str, int | str | list[int]] = {
            "from_ns": window.from_ns,
            "to_ns": window.to_ns,
            "service": service,
        }

    def at(self, quantile: float) -> Self:
        """The same, to judge another quantile; nothing is read yet."""
        return type(self)(self.store, self.window, self.service, self.exact, quantile)

    def query(self, name: str, params: Params | None = None) -> pa.Table:
        """Run queries/sql/`name`.sql for this window and service; `params` add to these. Raises StoreError.

        Long lists, which belong together place by place, are asked for in parts: a server takes 128 KiB a parameter.
        """
        asked = self._params | dict(params or {})
        lists = {key: value for key, value in asked.items() if isinstance(value, list)}
        places = range(0, max(map(len, lists.values()), default=0), _MOST_KEYS)
        if len(places) < 2:
            return self.store.query(name, asked)
        return pa.concat_tables(
            self.store.query(name, asked | {key: value[at : at + _MOST_KEYS] for key, value in lists.items()})
            for at in places
        )

    def query_rolled(self, name: str, params: Params | None = None) -> pa.Table:
        """A query that the roll-ups answer as well, from these where they are used and kept. Raises StoreError.

        Over a capture reading the rows is the shorter way: there its roll-ups would be made for each query.
        """
        if not (self.rolled and self.store.expires):
            return self.query(name, params)
        return self.query(f"hours_{name}" if self.hourly and name in _BY_HOUR else f"minutes_{name}", params)

    @cached_property
    def hourly(self) -> bool:
        """Whether it is read from roll-ups of hours, and no rows beside them. Raises StoreError."""
        if not (self.rolled and self.store.expires and self.window.unit_ns == HOUR_NS):
            return False
        since = self.query("hours_since").to_pylist()[0]["since_ns"]
        return since is not None and int(since) <= self.window.from_ns

    @cached_property
    def missing_rows(self) -> int:
        """Launches and executions that the store knows from the roll-ups only. Raises StoreError."""
        if not self.store.expires:
            return 0
        # All of the minutes that it touches: the rows of a minute go together.
        start, end = self.window.from_ns // MINUTE_NS * MINUTE_NS, -(-self.window.to_ns // MINUTE_NS) * MINUTE_NS
        return self._only("rolled", start, end)

    @cached_property
    def missing_rollups(self) -> int:
        """Launches and executions that roll-ups lack. Raises StoreError.

        Launches that those of processes hold and those of kernels do not; else rows, where an agent counted events and
        nothing of its host is rolled up: all of them are too many to count.
        """
        if not self.store.expires or not self.rolled:
            return 0
        seen = sum(row["launches"] for row in self.processes)
        if seen - sum(row["launches"] for row in self._calls) > _LATE * seen:
            # What arrived between the two queries is in the answer to a third.
            lacking: int = seen - sum(row["launches"] for row in self.query_rolled("census").to_pylist())
            if lacking > _LATE * seen:
                return lacking
        if self.hourly:
            return self._missing_by_hour()
        bare = unrolled(self.window, self._health, self.query("minutes_present"))
        return self._only("raw", *bare) if bare else 0

    def _missing_by_hour(self) -> int:
        """The same of a few hours only, those with most events of hosts of which nothing is rolled up in them."""
        missing = 0
        for row in self.query("hours_bare").to_pylist():
            hour = {"from_ns": row["hour_ns"], "to_ns": row["hour_ns"] + HOUR_NS}
            seen = self.query("hours_seen", hour).to_pylist()[0]
            missing += max(0, seen["in_minutes"] - seen["in_hours"]) + self._only("raw", **hour)
        return missing

    def _only(self, where: Literal["raw", "rolled"], from_ns: int, to_ns: int) -> int:
        """Launches and executions of whole minutes that the store knows from rows only, or from roll-ups only."""
        seen = self.query("minutes_seen", {"from_ns": from_ns, "to_ns": to_ns}).to_pylist()[0]
        return int(seen[f"only_{where}"])

    def census(self) -> dict[str, Counts]:
        """Counts by kernel name; launches of graphs under theirs, of unknown ones under GRAPHS. Raises StoreError."""
        counts: dict[str, Counts] = {}
        timed = self._graphs_timed
        for row in self._calls:
            name, key = _name(row["kind"], row["kernel_name"]), row["kernel_key"]
            beside = timed.get(key, 0) if row["kind"] == KIND_GRAPH_LAUNCH else 0
            called = Counts((key,), **{field: row[field] for field in OF_HOST}, graphs_timed=beside)
            counts[name] = counts.get(name, Counts()) + called
        for row in self._executions:
            name = _name(KIND_LAUNCH, row["kernel_name"])
            ran = Counts((row["kernel_key"],), **{field: row[field] for field in OF_DEVICE})
            counts[name] = counts.get(name, Counts()) + ran
        return counts

    @cached_property
    def _graphs_timed(self) -> dict[int, int]:
        if all(row["kind"] != KIND_GRAPH_LAUNCH for row in self._calls):
            return {}
        return {row["kernel_key"]: row["launches"] for row in self.query_rolled("graphs_timed").to_pylist()}

    @cached_property
    def _calls(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.query_rolled("census").to_pylist()
        return rows

    @cached_property
    def _executions(self) -> list[dict[str, Any]]:
        """Of each kernel, or of each kernel and process, with what they stand for in all of the time."""
        each = [self.device.scale((row["host"], row["pid"])) for row in self._timed]
        if not self.hourly:
            return [row | Scale(scale, scale).of(row) for row, scale in zip(self._timed, each, strict=True)]
        rows = self.query("hours_census_device").to_pylist()
        common, alike = common_scale(self._timed, each)
        if alike:
            return [row | common.of(row) for row in rows]
        minutes = minutes_to_read(self.window, len(each), len(rows))
        if minutes is None:
            scale_of = self.device.scale
            return [row | Scale(*[scale_of((row["host"], row["pid"]))] * 2).of(row) for row in self._by_process]
        sample = self.query("minutes_sample_device", {"minutes": minutes})
        scales = by_kernel(sample, {row["process"]: scale for row, scale in zip(self._timed, each, strict=True)})
        return [row | scales.get(row["kernel_key"], common).of(row) for row in rows]

    @cached_property
    def _by_process(self) -> list[dict[str, Any]]:
        """Executions of each kernel and process."""
        rows: list[dict[str, Any]] = self.query_rolled("census_device").to_pylist()
        return rows

    @cached_property
    def _timed(self) -> list[dict[str, Any]]:
        """Executions of each process, in more than one row where they are told by kernel."""
        rows: list[dict[str, Any]] = self.query("hours_timed").to_pylist() if self.hourly else self._by_process
        return rows

    @property
    def timed(self) -> int:
        """Executions that the device timed. Raises StoreError."""
        return sum(row["executions"] for row in self._timed)

    @property
    def timed_processes(self) -> dict[int, Process]:
        """The processes with executions that the device timed, by what stands for them in rows of executions.

        Raises StoreError.
        """
        return {row["process"]: (row["host"], row["pid"]) for row in self._timed}

    @property
    def timed_by(self) -> dict[Process, int]:
        """Executions that the device timed, of each process that has any. Raises StoreError."""
        found: dict[Process, int] = {}
        for row in self._timed:
            process = row["host"], row["pid"]
            found[process] = found.get(process, 0) + row["executions"]
        return found

    @cached_property
    def processes(self) -> list[dict[str, Any]]:
        """The processes that launched, rows of queries/sql/processes.sql. Raises StoreError."""
        rows: list[dict[str, Any]] = self.query_rolled("processes").to_pylist()
        return rows

    @cached_property
    def device(self) -> DeviceRecording:
        """What the device timed of the window. Raises StoreError."""
        windows = self.query("hours_device" if self.hourly else "device_windows")
        timed = sorted(self.timed_by)
        # Whether other processes were timed matters only where any was.
        processes = self.processes if windows.num_rows or timed else []
        return (read_hours if self.hourly else read_recording)(self.window, windows, processes, timed)

    @cached_property
    def missing_executions(self) -> int:
        """Executions that the store knows from the roll-ups only. Raises StoreError."""
        if not self.store.expires or not self.rolled:
            return self.missing_rows
        rows: int = self.query("executions_count").to_pylist()[0]["rows"]
        return max(0, self.timed - rows)

    def kernels(self) -> list[dict[str, Any]]:
        """Launches, average and p99 of each kernel, host side and device side, in ns; of each graph too, by its `kind`.

        Raises StoreError.
        """
        rows: list[dict[str, Any]] = self.query_rolled("kernels_between").to_pylist()
        if self.rolled:
            measures: tuple[tuple[Metric, str], ...] = (
                ("completion", KIND_LAUNCH),
                ("device", KIND_LAUNCH),
                ("graph", KIND_GRAPH_LAUNCH),
            )
            for row in rows:
                row |= {"completion_p99_ns": None, "device_p99_ns": None}
            for metric, kind in measures:
                keys = {row["kernel_key"]: place for place, row in enumerate(rows) if row["kind"] == kind}
                for place, ordered in Histograms(self, metric, keys).ordered().items() if keys else ():
                    measured = "device" if metric == "device" else "completion"
                    rows[place][f"{measured}_p99_ns"] = quantile(ordered, 0.99)
        return [row | {"kernel_name": _name(row["kind"], row["kernel_name"])} for row in rows]

    def recording(self) -> Recording:
        """Losses and coverage.

        Stretches that overlap the window count whole, on both sides of the ratio: an agent does not know where in
        a stretch a loss fell. Raises StoreError.
        """
        if self.hourly and (found := self._recording_of_hours()):
            return found
        health = self._health
        if not health.num_rows:
            return Recording()
        names, host = hosts_of(health)
        start, end = (column(health, name, np.int64) for name in ("from_ns", "to_ns"))
        lost = {name: int(column(health, f"lost_{name}", np.uint64).sum()) for name in _LOST}
        events = int(column(health, "events", np.uint64).sum())
        length = self.window.length_ns
        return _recording(
            lost,
            self._kept(events, int(start.min()), int(end.max())),
            covered_ns(self.window, start, end) / length,
            {name: covered_ns(self.window, start[host == i], end[host == i]) / length for i, name in enumerate(names)},
        )

    def _recording_of_hours(self) -> Recording | None:
        health = self.query("hours_health").to_pylist()
        if not health:
            return None
        covered = self.query("hours_covered").to_pylist()[0]["covered_ns"]
        lost = {name: sum(row[f"lost_{name}"] for row in health) for name in _LOST}
        length = self.window.length_ns
        return _recording(
            lost,
            self._kept(sum(row["events"] for row in health), self.window.from_ns, self.window.to_ns),
            covered / length,
            {row["host"]: row["covered_ns"] / length for row in health},
        )

    @cached_property
    def _health(self) -> pa.Table:
        health = self.query("health")
        if self.service and not health.num_rows and self.service in _services(self.store):
            # It is quiet: what tells that agents recorded are their accounts of no service.
            every = self.query("health", {"service": ""})
            return every.filter(pc.equal(every["service"].cast(pa.string()), ""))
        return health

    def _kept(self, events: int, from_ns: int, to_ns: int) -> dict[str, int]:
        """Events of each kind in the stretches that the agents account for, in which they counted `events`."""
        if self.rolled:  # syncs are not rolled up, but the agents count all events
            launches = sum(row["launches"] for row in self.processes)
            return {KIND_LAUNCH: launches, KIND_SYNC: max(0, events - launches)}
        rows = self.query("event_counts", {"from_ns": from_ns, "to_ns": to_ns}).to_pylist()
        return {row["kind"]: row["events"] for row in rows}

    def values(self, metric: Metric, keys: Mapping[int, int], outside: bool = False) -> Mapping[int, Values]:
        """The values of `metric` of the kernels in `keys` (kernel_key -> index), by index.

        Two keys with one index are one kernel. `outside`: of calls, without those in device windows of their process,
        where rows are read. Raises StoreError.
        """
        if not keys:
            return {}
        if self.rolled and (self.hourly or not (outside and metric != "device")):
            return Histograms(self, metric, keys).values(self.quantile)
        return read_rows(self, metric, keys, outside)


@dataclass(frozen=True, slots=True)
class Extent:
    """From when to when a store holds anything, Unix ns."""

    from_ns: int
    to_ns: int


def extent(store: Store, service: str = "") -> Extent | None:
    """The stretch from the first to the last recorded call or execution; that of the agents if there is none.

    None where the store is empty. Raises StoreError.
    """
    sources = ("extent", "minutes_extent") if store.expires else ("extent",)
    found = (row for name in sources for row in store.query(name, {"service": service}).to_pylist())
    rows = {row["source"]: row for row in found}
    events = [row for source, row in rows.items() if source != "agent_health" and row["rows"]]
    if events:
        return Extent(min(r["first_ns"] for r in events), max(r["last_ns"] for r in events) + 1)
    health = rows["agent_health"]
    return Extent(health["first_ns"], health["last_ns"]) if health["rows"] else None


def whole_window(store: Store, service: str = "") -> Window:
    """The whole recorded stretch, in whole minutes where it is long. Raises KdiffError where nothing was recorded."""
    found = extent(store, service)
    # A clock that was off must not hide the rest: no window reaches out of 64 bits or before 1970.
    start, end = (0, 0) if found is None else (max(found.from_ns, 0), min(found.to_ns, _LAST_NS))
    if end <= start:
        raise KdiffError(holdings(store, service))
    return Window(start, end).around()


def holdings(store: Store, service: str = "") -> str:
    """One sentence on what the store holds, for a user who asked for something else. Raises StoreError."""
    known = _services(store)
    if service and service not in known:
        names = ", ".join(name for name in known[:8] if name) or "none"
        return f"the store {store.name} holds no launches of the service {service} (services: {names})"
    found = extent(store, service)
    if found is None:
        return f"the store {store.name} is empty: wait for the agent's next flush, or name another with --store"
    return f"the store {store.name} holds {utc_short(found.from_ns)}..{utc_short(found.to_ns)}: choose a window in it"


def _services(store: Store) -> list[str]:
    """Those with launches, the busiest first. Raises StoreError."""
    return [row["service"] for row in store.query("services").to_pylist()]


def _name(kind: str, name: str) -> str:
    """Under what a kernel or a graph is listed, by the kind of its launches: no kernel as graphs are."""
    if kind == KIND_GRAPH_LAUNCH:
        return name if is_graph(name) else GRAPHS
    return UNNAMED if name == "" or is_graph(name) else name


def _recording(
    lost: Mapping[str, int], kept: Mapping[str, int], coverage: float, hosts: Mapping[str, float]
) -> Recording:
    received = sum(count for kind, count in kept.items() if kind != KIND_SYNC)
    return Recording(
        lost=sum(lost.values()),
        lost_launches=_share(lost["launches"], received),
        lost_syncs=_share(lost["syncs"], kept.get(KIND_SYNC, 0)),
        coverage=coverage,
        hosts=hosts,
    )


def _share(lost: int, received: int) -> float:
    return lost / (lost + received) if lost else 0.0
