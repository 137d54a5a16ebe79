"""The values of many kernels by stratum: from rows one by one, from histograms all bins of each stretch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kdiff.analysis.bins import LAST_BIN, device_tick, durations_ns
from kdiff.analysis.columns import codes, column
from kdiff.analysis.counts import Metric
from kdiff.analysis.histograms import MEASURES
from kdiff.analysis.quantiles import Ordered
from kdiff.analysis.reading import Reading
from kdiff.analysis.sample import Sample
from kdiff.analysis.strata import Stratum
from kdiff.analysis.values import QUERIES, by_index, indices
from kdiff.analysis.window import MINUTE_NS
from kdiff.queries.narrowing import Strata

Shapes = dict[int, dict[Stratum, int]]
Samples = dict[int, dict[Stratum, Sample]]

_EVER_NS: Final = 2**62
_TOLD_NS: Final = 10 * MINUTE_NS
_AT_ONCE: Final = 50
"""Kernels of one query of histograms: the rows of its answer are held beside what was made of those before."""


class StrataReader:
    """The strata of a window."""

    def __init__(self, reading: Reading) -> None:
        """Nothing is read yet."""
        self._reading = reading

    @cached_property
    def _models(self) -> tuple[str, ...]:
        """The models of GPUs, ascending; the first is '', unknown."""
        return ("", *sorted(set(self._gpus.values())))

    @cached_property
    def _gpus(self) -> dict[str, str]:
        """The model of each GPU, of all that a capture holds: a window of it may have been recorded without NVML.

        Of a server, which may hold a week of a fleet's samples, those at both ends of the window.
        """
        window, store = self._reading.window, self._reading.store
        stretches = [(0, _EVER_NS)]
        if store.expires:
            end = max(window.from_ns, window.to_ns - _TOLD_NS)
            stretches = [(window.from_ns, min(end, window.from_ns + _TOLD_NS)), (end, window.to_ns)]
        asked = [store.query("gpu_models", {"from_ns": start, "to_ns": end}) for start, end in stretches if start < end]
        return {row["gpu_uuid"]: row["gpu_name"] for read in asked for row in read.to_pylist()}

    @cached_property
    def _strata(self) -> Strata:
        number = {model: place for place, model in enumerate(self._models)}
        # Roll-ups do not tell who was in a graph; a capture is read as a server would be.
        return Strata({gpu: number[model] for gpu, model in self._gpus.items()}, graphs=not self._reading.rolled)

    def shapes(self, metric: Metric, keys: Mapping[int, int], isolated: bool) -> Shapes:
        """How many values there are by index and stratum, see Evidence.shapes. Raises StoreError."""
        kind, measure = MEASURES[metric]
        alone = int(isolated and measure == "completion")
        asked: dict[str, int | str | list[int]] = {"kind": kind, "measure": measure, "isolated": alone}
        read = self._reading.query_rolled("shapes", asked | {"keys": sorted(keys)}, self._strata)
        found: Shapes = {}
        if not read.num_rows:
            return found
        met = column(read, "met", np.uint64).tolist()
        strata = column(read, "stratum", np.uint64).tolist()
        for index, code, count in zip(indices(read, keys).tolist(), strata, met, strict=True):
            its = found.setdefault(index, {})
            stratum = self._stratum(code)
            its[stratum] = its.get(stratum, 0) + count
        return found

    def of_rows(self, metric: Metric, keys: Mapping[int, int], isolated: bool, outside: bool, hosts: int) -> Samples:
        """The values, from rows; `hosts` as in values.read_rows. Raises StoreError."""
        buckets, width = self._reading.window.buckets()
        asked: dict[str, int | str | list[int]] = {"bucket_ns": width, "keys": sorted(keys)}
        if metric != "device":
            asked["outside"] = int(outside)
        query, of_kind = QUERIES[metric]
        read = self._reading.query(query, {**asked, **of_kind}, self._strata)
        if isolated and "isolated" in read.column_names:
            read = read.filter(read["isolated"].cast(pa.bool_()))
        found: Samples = {}
        if not read.num_rows:
            return found
        values, bucket = column(read, "value", np.int64), column(read, "bucket", np.int32)
        strata, group = self._groups(read, keys)
        for code, its in by_index(group):
            index, place = divmod(code, len(strata))
            sample = Sample(values[its], bucket[its], hosts or buckets, clustered=bool(hosts))
            found.setdefault(index, {})[strata[place]] = sample
        return found

    def of_bins(self, metric: Metric, keys: Mapping[int, int], isolated: bool, hosts: int) -> Samples:
        """The values, as far as bins tell them, from histograms. Raises StoreError."""
        found: Samples = {}
        of: dict[int, list[int]] = {}
        for key in sorted(keys):
            of.setdefault(keys[key], []).append(key)
        every = sorted(of)
        for at in range(0, len(every), _AT_ONCE):
            part = {key: index for index in every[at : at + _AT_ONCE] for key in of[index]}
            found |= self._of_bins(metric, part, isolated, hosts)
        return found

    def whole(self, metric: Metric, keys: Mapping[int, int], isolated: bool) -> dict[int, dict[Stratum, Ordered]]:
        """The durations of each stratum in the whole window, from histograms. Raises StoreError."""
        read = self._bins(metric, keys, isolated, self._reading.window.length_ns)
        found: dict[int, dict[Stratum, Ordered]] = {}
        if not read.num_rows:
            return found
        strata, group = self._groups(read, keys)
        bins = np.minimum(column(read, "bin", np.uint16).astype(np.int64), LAST_BIN)
        ordered = Ordered.of((group << 16) + bins, column(read, "count", np.int64))
        values = durations_ns(ordered.values & 0xFFFF)
        for code, start, end in _runs(ordered.values >> 16):
            index, place = divmod(code, len(strata))
            found.setdefault(index, {})[strata[place]] = Ordered(values[start:end], ordered.counts[start:end])
        return found

    def _bins(self, metric: Metric, keys: Mapping[int, int], isolated: bool, width_ns: int) -> pa.Table:
        kind, measure = MEASURES[metric]
        asked: dict[str, int | str | list[int]] = {"kind": kind, "measure": measure, "bucket_ns": width_ns}
        asked |= {"isolated": int(isolated and measure == "completion"), "keys": sorted(keys)}
        return self._reading.query_rolled("strata", asked, self._strata)

    def _of_bins(self, metric: Metric, keys: Mapping[int, int], isolated: bool, hosts: int) -> Samples:
        buckets, width = self._reading.window.buckets()
        read = self._bins(metric, keys, isolated, width)
        found: Samples = {}
        if not read.num_rows:
            return found
        strata, group = self._groups(read, keys)
        bins = np.minimum(column(read, "bin", np.uint16).astype(np.int64), LAST_BIN)
        bucket = column(read, "bucket", np.int32)
        # By kernel, stratum, bin and stretch, whatever the server's order is.
        order = np.argsort((group << 40) + (bins << 24) + bucket)
        group, values, bucket = group[order], durations_ns(bins[order]), bucket[order]
        counts = column(read, "count", np.int64)[order]
        ticks = {}
        if metric == "device":
            # The timer is that of the kernel's GPUs, whatever it was launched with.
            for index, start, end in _runs(group // len(strata)):
                ordered = Ordered.of(values[start:end], counts[start:end])
                ticks[index] = device_tick(ordered.values, ordered.counts)
        for code, start, end in _runs(group):
            index, place = divmod(code, len(strata))
            its = slice(start, end)
            sample = Sample(values[its], bucket[its], hosts or buckets, counts[its], ticks.get(index, 1), binned=True)
            found.setdefault(index, {})[strata[place]] = replace(sample, clustered=True) if hosts else sample
        return found

    def _groups(self, read: pa.Table, keys: Mapping[int, int]) -> tuple[list[Stratum], NDArray[np.int64]]:
        """The strata, and of each row the index times how many these are plus the place of its stratum among them."""
        numbers, number = codes(read, "stratum", np.uint64)
        return [self._stratum(int(code)) for code in numbers], indices(read, keys) * np.int64(len(numbers)) + number

    def _stratum(self, code: int) -> Stratum:
        """What the number of queries/narrowing.py stands for."""
        rest, block = divmod(code, 128)
        rest, grid = divmod(rest, 128)
        model, in_graph = divmod(rest, 2)
        return Stratum(grid - 1, block - 1, self._models[model], bool(in_graph))


def _runs(codes: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Each code, ascending, and where it begins and ends in `codes`, which are in order."""
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), codes.size], strict=True):
        yield int(codes[start]), start, end
