"""The durations of a measure of many kernels, read from rows: one a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kdiff.analysis.columns import column
from kdiff.analysis.counts import Metric
from kdiff.analysis.sample import Sample
from kdiff.analysis.window import Window
from kdiff.queries.store import Params
from kdiff.queries.tables import KIND_GRAPH_LAUNCH, KIND_LAUNCH

QUERIES: Final[dict[Metric, tuple[str, dict[str, str]]]] = {
    "device": ("samples_device", {}),
    "completion": ("samples_completion", {"kind": KIND_LAUNCH}),
    "launch": ("samples_launch", {}),
    "graph": ("samples_completion", {"kind": KIND_GRAPH_LAUNCH}),
}


class Source(Protocol):
    """A window of a store."""

    @property
    def window(self) -> Window:
        """The stretch of time."""

    def query(self, name: str, params: Params | None = None) -> pa.Table:
        """Run queries/sql/`name`.sql for the window. Raises StoreError."""

    def query_rolled(self, name: str, params: Params | None = None) -> pa.Table:
        """The same from roll-ups where they are used and kept. Raises StoreError."""


class Values(Protocol):
    """The values of one measure of one kernel in one window."""

    def choose(self, isolated: bool) -> Sample | None:
        """All of them, or those of launches alone between two syncs where that is told; None where there are none.

        Raises StoreError.
        """


@dataclass(frozen=True, eq=False, slots=True)
class RowValues:
    """Values one by one, and which are of isolated launches (None: not told)."""

    sample: Sample
    isolated: NDArray[np.bool_] | None = None

    def choose(self, isolated: bool) -> Sample | None:
        """As in Values."""
        sample = self.sample
        if isolated and self.isolated is not None:
            only = self.isolated
            sample = replace(sample, durations_ns=sample.durations_ns[only], bucket=sample.bucket[only])
        return sample if sample.size else None


def read_rows(
    source: Source, metric: Metric, keys: Mapping[int, int], outside: bool, hosts: int = 0
) -> dict[int, Values]:
    """As Evidence.values, from rows. `hosts`: how many these are where they are the stretches. Raises StoreError."""
    buckets, width = source.window.buckets()
    buckets = hosts or buckets
    asked: dict[str, int | str | list[int]] = {"bucket_ns": width, "keys": sorted(keys)}
    if metric != "device":
        asked["outside"] = int(outside)
    query, of_kind = QUERIES[metric]
    read = source.query(query, asked | of_kind)
    if not read.num_rows:
        return {}
    index = indices(read, keys)
    values = column(read, "value", np.int64)
    bucket = column(read, "bucket", np.int32)
    isolated = column(read, "isolated", np.uint8).astype(np.bool_) if "isolated" in read.column_names else None
    del read
    return {
        one: RowValues(
            Sample(values[rows], bucket[rows], buckets, clustered=bool(hosts)),
            None if isolated is None else isolated[rows],
        )
        for one, rows in by_index(index)
    }


def indices(read: pa.Table, keys: Mapping[int, int]) -> NDArray[np.int32]:
    """The index of each row's kernel by `keys` (kernel_key -> index), shape (rows,). Raises StoreError."""
    ordered = np.array(sorted(keys), dtype=np.uint64)
    index = np.array([keys[int(key)] for key in ordered], dtype=np.int32)
    return index[np.searchsorted(ordered, column(read, "kernel_key", np.uint64))]


def by_index(index: NDArray[np.integer[Any]]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Each index that occurs, ascending, and the rows that have it, in their order."""
    if not index.size:
        return
    order = np.argsort(index, kind="stable")
    present, starts = np.unique(index[order], return_index=True)
    for one, rows in zip(present, np.split(order, starts[1:]), strict=True):
        yield int(one), rows
