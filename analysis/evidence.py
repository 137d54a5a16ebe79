"""What a store holds of one window: counts a kernel, losses and coverage, and the samples to judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kdiff.analysis.bins import device_tick, durations_ns
from kdiff.analysis.columns import column
from kdiff.analysis.coverage import covered_ns, hosts_of, unrolled
from kdiff.analysis.device import DeviceRecording, Process, read_recording
from kdiff.analysis.interval import Sample
from kdiff.analysis.quantiles import Ordered, quantile
from kdiff.analysis.window import MINUTE_NS, Window, utc_short
from kdiff.queries.errors import KdiffError
from kdiff.queries.store import Params, Store
from kdiff.queries.tables import KIND_GRAPH_LAUNCH, KIND_LAUNCH, KIND_SYNC

Metric = Literal["device", "completion", "launch", "graph"]

GRAPHS: Final = "(graph launches)"
"""The name under which launches of graphs are listed: the host cannot tell one graph from another."""

UNNAMED: Final = "(no name)"

_MOST_KEYS: Final = 5_000
_LAST_NS: Final = 2**63 // MINUTE_NS * MINUTE_NS

_QUERIES: Final[dict[Metric, tuple[str, dict[str, str]]]] = {
    "device": ("samples_device", {}),
    "completion": ("samples_completion", {"kind": KIND_LAUNCH}),
    "launch": ("samples_launch", {}),
    "graph": ("samples_completion", {"kind": KIND_GRAPH_LAUNCH}),
}


# Of the roll-ups: the kind of row and the histograms that together hold a measure. The first are isolated launches.
_BINS: Final[dict[Metric, tuple[str, tuple[str, ...]]]] = {
    "device": ("device", ("device",)),
    "completion": (KIND_LAUNCH, ("isolated", "shared")),
    "launch": (KIND_LAUNCH, ("call",)),
    "graph": (KIND_GRAPH_LAUNCH, ("isolated", "shared")),
}


@dataclass(frozen=True, slots=True)
class Counts:
    """What one kernel did in one window, in launches; `*_ns` are sums of time.

    `keys` stand for its names in the store: more than one after a rename. `executions` were timed on the device,
    `in_graphs` of them inside graphs; `device_runs` and `device_ns` are scaled to all of the time, each process's by
    the share of it that was timed.
    """

    keys: tuple[int, ...] = ()
    launches: int = 0
    failed: int = 0
    captured: int = 0
    unresolved: int = 0
    completions: int = 0
    isolated: int = 0
    timed: int = 0
    isolated_ns: int = 0
    launch_ns: int = 0
    executions: int = 0
    in_graphs: int = 0
    device_runs: float = 0.0
    device_ns: float = 0.0

    @property
    def seen(self) -> int:
        """How often it was launched, whatever came of it, or was timed on the device."""
        return max(self.launches, self.executions)

    @property
    def runs(self) -> float:
        """How often it was launched or ran in the whole window; an estimate where only a part of it was timed."""
        return max(float(self.launches), self.device_runs)

    @property
    def ran(self) -> int:
        """How often it ran, as far as is known: by the device, or as launched by the host."""
        return max(self.launches - self.failed - self.captured, self.executions)

    def __add__(self, other: Counts) -> Counts:
        sums = {name: getattr(self, name) + getattr(other, name) for name in _FIELDS}
        return Counts(tuple(dict.fromkeys(self.keys + other.keys)), **sums)

    def available(self, metric: Metric, isolated: bool) -> int:
        """How many values of `metric` there are; `isolated` counts only launches alone between two syncs."""
        if metric == "device":
            return self.executions
        if metric == "launch":
            return self.timed
        return self.isolated if isolated else self.completions


@dataclass(frozen=True, slots=True)
class Recording:
    """How well a window was recorded. Shares in [0, 1]; coverage is that of all hosts together, and of each."""

    lost: int = 0
    lost_launches: float = 0.0
    lost_syncs: float = 0.0
    coverage: float = 0.0
    hosts: Mapping[str, float] = field(default_factory=dict)

    def loss(self, with_syncs: bool) -> float | None:
        """The share lost; where times end at syncs, lost syncs count as much. None where no agent recorded."""
        if not self.hosts:
            return None
        return max(self.lost_launches, self.lost_syncs) if with_syncs else self.lost_launches


@dataclass(frozen=True, eq=False, slots=True)
class Values:
    """The values of one measure of one kernel in one window, and which are of isolated launches (None: not told)."""

    sample: Sample
    isolated: NDArray[np.bool_] | None = None

    def choose(self, isolated: bool) -> Sample | None:
        """All values, or those of isolated launches; None where there are none."""
        sample = self.sample
        if isolated and self.isolated is not None:
            only = self.isolated
            counts = None if sample.counts is None else sample.counts[only]
            sample = Sample(
                sample.durations_ns[only], sample.bucket[only], sample.buckets, counts, sample.tick, sample.binned
            )
        return sample if sample.size else None


_FIELDS: Final = tuple(f.name for f in fields(Counts) if f.name != "keys")
_DEVICE_FIELDS: Final = ("executions", "in_graphs", "device_runs", "device_ns")
_HOST_FIELDS: Final = tuple(name for name in _FIELDS if name not in _DEVICE_FIELDS)


class Evidence:
    """One window of one store, optionally of one service ('' is all).

    A window of two hours or more is narrowed to whole UTC minutes and read from the roll-ups, unless `exact`.
    """

    def __init__(self, store: Store, window: Window, service: str = "", exact: bool = False) -> None:
        """Nothing is read yet."""
        self.store = store
        self.window = window = window.whole_minutes()
        self.rolled = window.is_whole_minutes and not exact
        self.service = service
        self._params: dict[str, int | str | list[int]] = {
            "from_ns": window.from_ns,
            "to_ns": window.to_ns,
            "service": service,
        }

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

    def _query_counts(self, name: str) -> list[dict[str, Any]]:
        """The rows of a query that the roll-ups answer as well, from these where they are used and kept.

        Over a capture counting the rows is the shorter way: there its roll-ups would be made for each query.
        """
        rolled = self.rolled and self.store.expires
        rows: list[dict[str, Any]] = self.query(f"minutes_{name}" if rolled else name).to_pylist()
        return rows

    @cached_property
    def missing_rows(self) -> int:
        """Launches and executions that the store knows from the roll-ups only. Raises StoreError."""
        if not self.store.expires:
            return 0
        # All of the minutes that it touches: the rows of a minute go together.
        start, end = self.window.from_ns // MINUTE_NS * MINUTE_NS, -(-self.window.to_ns // MINUTE_NS) * MINUTE_NS
        return max(0, self._rolled_more(start, end))

    @cached_property
    def missing_rollups(self) -> int:
        """Launches and executions whose rows are there, but whose roll-ups are not. Raises StoreError.

        Looked for where an agent counted events and the roll-ups hold nothing of its host: rows are too many to count.
        """
        if not self.store.expires or not self.rolled:
            return 0
        bare = unrolled(self.window, self._health, self.query("minutes_present"))
        return max(0, -self._rolled_more(*bare)) if bare else 0

    def _rolled_more(self, from_ns: int, to_ns: int) -> int:
        """How many more launches and executions of whole minutes the roll-ups hold than the rows."""
        seen = self.query("minutes_seen", {"from_ns": from_ns, "to_ns": to_ns}).to_pylist()[0]
        return int(seen["rolled"]) - int(seen["raw"])

    def census(self) -> dict[str, Counts]:
        """Counts by kernel name; launches of graphs under GRAPHS. Raises StoreError."""
        counts: dict[str, Counts] = {}
        for row in self._query_counts("census"):
            graph = row["kind"] == KIND_GRAPH_LAUNCH
            name = GRAPHS if graph else row["kernel_name"] or UNNAMED
            counts[name] = Counts((row["kernel_key"],), **{field: row[field] for field in _HOST_FIELDS})
        for row in self._executions:
            scale = self.device.scale((row["host"], row["pid"]))
            name = row["kernel_name"] or UNNAMED
            ran = Counts(
                (row["kernel_key"],),
                executions=row["executions"],
                in_graphs=row["in_graphs"],
                device_runs=scale * row["executions"],
                device_ns=scale * row["device_ns"],
            )
            counts[name] = counts.get(name, Counts()) + ran
        return counts

    @cached_property
    def _executions(self) -> list[dict[str, Any]]:
        return self._query_counts("census_device")

    @property
    def timed(self) -> int:
        """Executions that the device timed. Raises StoreError."""
        return sum(row["executions"] for row in self._executions)

    @property
    def timed_by(self) -> dict[Process, int]:
        """Executions that the device timed, of each process that has any. Raises StoreError."""
        found: dict[Process, int] = {}
        for row in self._executions:
            process = row["host"], row["pid"]
            found[process] = found.get(process, 0) + row["executions"]
        return found

    @cached_property
    def processes(self) -> list[dict[str, Any]]:
        """The processes that launched, rows of queries/sql/processes.sql. Raises StoreError."""
        return self._query_counts("processes")

    @cached_property
    def device(self) -> DeviceRecording:
        """What the device timed of the window. Raises StoreError."""
        windows = self.query("device_windows")
        timed = sorted(self.timed_by)
        # Whether other processes were timed matters only where any was.
        processes = self.processes if windows.num_rows or timed else []
        return read_recording(self.window, windows, processes, timed)

    def kernels(self) -> list[dict[str, Any]]:
        """Launches, average and p99 of each kernel, host side and device side, in ns. Raises StoreError."""
        rows = self._rolled_kernels() if self.rolled else self.query("kernels_between").to_pylist()
        return [row | {"kernel_name": row["kernel_name"] or UNNAMED} for row in rows]

    def _rolled_kernels(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.query("minutes_kernels").to_pylist()
        keys = {row["kernel_key"]: place for place, row in enumerate(rows)}
        measures: tuple[Metric, ...] = ("completion", "device")
        for metric in measures:
            values = self.values(metric, keys)
            for place, row in enumerate(rows):
                sample = values[place].sample if place in values else None
                row[f"{metric}_p99_ns"] = (
                    None if sample is None else quantile(Ordered.of(sample.durations_ns, sample.counts), 0.99)
                )
        return rows

    def recording(self) -> Recording:
        """Losses and coverage.

        Stretches that overlap the window count whole, on both sides of the ratio: an agent does not know where in
        a stretch a loss fell. Raises StoreError.
        """
        health = self._health
        if not health.num_rows:
            return Recording()
        names, host = hosts_of(health)
        start, end = (column(health, name, np.int64) for name in ("from_ns", "to_ns"))
        kept = self._kept(health, int(start.min()), int(end.max()))
        lost = {name: int(column(health, f"lost_{name}", np.uint64).sum()) for name in ("launches", "syncs", "other")}
        received = sum(count for kind, count in kept.items() if kind != KIND_SYNC)
        length = self.window.length_ns
        return Recording(
            lost=sum(lost.values()),
            lost_launches=_share(lost["launches"], received),
            lost_syncs=_share(lost["syncs"], kept.get(KIND_SYNC, 0)),
            coverage=covered_ns(self.window, start, end) / length,
            hosts={
                name: covered_ns(self.window, start[host == i], end[host == i]) / length for i, name in enumerate(names)
            },
        )

    @cached_property
    def _health(self) -> pa.Table:
        return self.query("health")

    def _kept(self, health: pa.Table, from_ns: int, to_ns: int) -> dict[str, int]:
        """Events of each kind in the stretches that the agents account for."""
        if self.rolled:  # syncs are not rolled up, but the agents count all events
            launches = sum(row["launches"] for row in self.processes)
            events = int(column(health, "events", np.uint64).sum())
            return {KIND_LAUNCH: launches, KIND_SYNC: max(0, events - launches)}
        rows = self.query("event_counts", {"from_ns": from_ns, "to_ns": to_ns}).to_pylist()
        return {row["kind"]: row["events"] for row in rows}

    def values(self, metric: Metric, keys: Mapping[int, int], outside: bool = False) -> dict[int, Values]:
        """The values of `metric` of the kernels in `keys` (kernel_key -> index), by index.

        Two keys with one index are one kernel. `outside`: of calls, without those in device windows of their process.
        Raises StoreError.
        """
        if not keys:
            return {}
        if self.rolled and not (outside and metric != "device"):
            read = self._binned(metric, keys)
        else:
            read = self._rows(metric, keys, outside)
        if not read.num_rows:
            return {}
        ordered = np.array(sorted(keys), dtype=np.uint64)
        index = np.array([keys[int(key)] for key in ordered], dtype=np.int32)
        codes = index[np.searchsorted(ordered, column(read, "kernel_key", np.uint64))]
        values = column(read, "value", np.int64)
        bucket = column(read, "bucket", np.int32)
        names = read.column_names
        isolated = column(read, "isolated", np.uint8).astype(np.bool_) if "isolated" in names else None
        counts = column(read, "count", np.int64) if "count" in names else None
        del read
        order = np.argsort(codes, kind="stable")
        present, starts = np.unique(codes[order], return_index=True)
        pieces = np.split(order, starts[1:])
        buckets, _ = self.window.buckets()
        found = {}
        for code, piece in zip(present, pieces, strict=True):
            if counts is None:
                sample = Sample(values[piece], bucket[piece], buckets)
            else:  # bins hide the tick of the host's clock, if it has one
                tick = device_tick(values[piece], counts[piece]) if metric == "device" else 1
                sample = Sample(values[piece], bucket[piece], buckets, counts[piece], tick, binned=True)
            found[int(code)] = Values(sample, None if isolated is None else isolated[piece])
        return found

    def _rows(self, metric: Metric, keys: Mapping[int, int], outside: bool) -> pa.Table:
        """A value a row."""
        asked: dict[str, int | str | list[int]] = {"bucket_ns": self.window.buckets()[1], "keys": sorted(keys)}
        if metric != "device":
            asked["outside"] = int(outside)
        query, of_kind = _QUERIES[metric]
        return self.query(query, asked | of_kind)

    def _binned(self, metric: Metric, keys: Mapping[int, int]) -> pa.Table:
        """A bin of a minute a row, and how often it was met."""
        kind, histograms = _BINS[metric]
        parts = []
        for histogram in histograms:
            asked: dict[str, int | str | list[int]] = {"kind": kind, "measure": histogram, "keys": sorted(keys)}
            part = self.query("minutes_samples", asked | {"bucket_ns": self.window.buckets()[1]})
            bins = column(part, "bin", np.uint16).astype(np.int64)
            part = part.drop_columns("bin").append_column("value", pa.array(durations_ns(bins)))
            if len(histograms) > 1:
                part = part.append_column("isolated", pa.array(np.full(len(part), histogram == "isolated", np.uint8)))
            parts.append(part)
        return pa.concat_tables(parts)


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
    return Window(start, end).around_minutes()


def holdings(store: Store, service: str = "") -> str:
    """One sentence on what the store holds, for a user who asked for something else. Raises StoreError."""
    known = [row["service"] for row in store.query("services").to_pylist()]
    if service and service not in known:
        names = ", ".join(name for name in known[:8] if name) or "none"
        return f"the store {store.name} holds no launches of the service {service} (services: {names})"
    found = extent(store, service)
    if found is None:
        return f"the store {store.name} is empty: wait for the agent's next flush, or name another with --store"
    return f"the store {store.name} holds {utc_short(found.from_ns)}..{utc_short(found.to_ns)}: choose a window in it"


def _share(lost: int, received: int) -> float:
    return lost / (lost + received) if lost else 0.0
