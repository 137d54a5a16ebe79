"""What a store holds of one window: counts a kernel, losses and coverage, and the samples to judge."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, Literal

import pyarrow as pa

from kdiff.analysis.accounts import read_health, read_recording, read_recording_of_hours
from kdiff.analysis.counts import GRAPHS, OF_DEVICE, OF_HOST, UNNAMED, Counts, Metric, Recording, is_graph
from kdiff.analysis.coverage import unrolled
from kdiff.analysis.device import DeviceRecording, Process, read_device, read_hours
from kdiff.analysis.histograms import Histograms
from kdiff.analysis.holdings import Extent, extent, holdings, whole_window
from kdiff.analysis.quantiles import Ordered, quantile
from kdiff.analysis.reading import Reading
from kdiff.analysis.sample import Sample
from kdiff.analysis.scaling import Scale, by_kernel, common_scale, minutes_to_read
from kdiff.analysis.strata import Stratum
from kdiff.analysis.strata_reading import StrataReader
from kdiff.analysis.values import Values, read_rows
from kdiff.analysis.window import HOUR_NS, MINUTE_NS
from kdiff.queries.tables import KIND_GRAPH_LAUNCH, KIND_LAUNCH

__all__ = ["Evidence", "Extent", "extent", "holdings", "whole_window"]

_LATE: Final = 0.01  # what may arrive between two queries


class Evidence(Reading):
    """What a window of a store holds."""

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
        if self.by_hours:
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
        if not self.by_hours:
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
        rows: list[dict[str, Any]] = self.query("hours_timed").to_pylist() if self.by_hours else self._by_process
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
        windows = self.query("hours_device" if self.by_hours else "device_windows")
        timed = sorted(self.timed_by)
        # Whether other processes were timed matters only where any was.
        processes = self.processes if windows.num_rows or timed else []
        if self.by_hours:
            return read_hours(self.window, windows, processes, timed)
        return read_device(self.window, windows, processes, timed, self.cutting)

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
        """Losses and coverage, of hosts: cuts of single processes have no account of their own. Raises StoreError."""
        if self.scope.of_processes:
            return self.scoped(self.scope.of_hosts()).recording()
        if self.by_hours and (found := read_recording_of_hours(self, self.processes)):
            return found
        return read_recording(self, self._health, self.processes if self.rolled else ())

    @property
    def accounts(self) -> pa.Table:
        """The accounts of agents that overlap the window, as read_health has them. Raises StoreError."""
        return self._health

    @cached_property
    def _health(self) -> pa.Table:
        return read_health(self)

    def values(self, metric: Metric, keys: Mapping[int, int], outside: bool = False) -> Mapping[int, Values]:
        """The values of `metric` of the kernels in `keys` (kernel_key -> index), by index.

        Two keys with one index are one kernel. `outside`: of calls, without those in device windows of their process,
        where rows are read. Raises StoreError.
        """
        if not keys:
            return {}
        if self._from_bins(metric, outside):
            return Histograms(self, metric, keys, self._hosts).values(self.quantile)
        return read_rows(self, metric, keys, outside, self._hosts)

    def shapes(self, metric: Metric, keys: Mapping[int, int], isolated: bool = False) -> dict[int, dict[Stratum, int]]:
        """How many values of `metric` of the kernels in `keys` (kernel_key -> index) each stratum has, by index.

        No value is read. `isolated`: of completions, those of launches alone between two syncs. Whether launches were
        in graphs is told where rows are read. None of a window that is judged by hours, which do not tell shapes.
        Raises StoreError.
        """
        return self._strata.shapes(metric, keys, isolated) if keys and not self.hourly else {}

    def strata(
        self, metric: Metric, keys: Mapping[int, int], isolated: bool = False, outside: bool = False
    ) -> dict[int, dict[Stratum, Sample]]:
        """The values of `metric` of the kernels in `keys` (kernel_key -> index), by index and stratum.

        Together those of `values`, chosen by `isolated`; from histograms all bins of each stretch. `outside` as there,
        windows without as in `shapes`. Raises StoreError.
        """
        if not keys or self.hourly:
            return {}
        if self._from_bins(metric, outside):
            return self._strata.of_bins(metric, keys, isolated, self._hosts)
        return self._strata.of_rows(metric, keys, isolated, outside, self._hosts)

    def strata_whole(
        self, metric: Metric, keys: Mapping[int, int], isolated: bool = False, outside: bool = False
    ) -> dict[int, dict[Stratum, Ordered]] | None:
        """As `strata`, of the whole window: a small part of what those are. None where rows are read.

        Raises StoreError.
        """
        if not keys or self.hourly or not self._from_bins(metric, outside):
            return None
        return self._strata.whole(metric, keys, isolated)

    @cached_property
    def _strata(self) -> StrataReader:
        return StrataReader(self)

    def _from_bins(self, metric: Metric, outside: bool) -> bool:
        return self.rolled and (self.hourly or not (outside and metric != "device"))

    @property
    def _hosts(self) -> int:
        """How many hosts there are where these are the stretches of samples; else 0."""
        return len(self.scope.hosts) if self.scope.by_host else 0


def _name(kind: str, name: str) -> str:
    """Under what a kernel or a graph is listed, by the kind of its launches: no kernel as graphs are."""
    if kind == KIND_GRAPH_LAUNCH:
        return name if is_graph(name) else GRAPHS
    return UNNAMED if name == "" or is_graph(name) else name
