"""The durations of a measure of many kernels, read from histograms: the longest by stretch, the others as a whole.

The limits of a quantile rest on when the durations from it on began, a hundredth of all for a p99, and on how many
began in each stretch. So the histograms of the whole window are read first, and then those bins of each stretch. What
arrives or goes between the two queries is put where most are; a kernel of which that may move the quantile is read
anew, all of its bins by stretch: one query, which agrees with itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kdiff.analysis.bins import LAST_BIN, device_tick, durations_ns
from kdiff.analysis.columns import column
from kdiff.analysis.counts import Metric
from kdiff.analysis.quantiles import Ordered, quantile, rank
from kdiff.analysis.sample import Sample
from kdiff.analysis.values import Source, Values, indices
from kdiff.queries.store import Params
from kdiff.queries.tables import KIND_GRAPH_LAUNCH, KIND_LAUNCH

_COMPLETION: Final = "completion"
MEASURES: Final[dict[Metric, tuple[str, str]]] = {
    "device": ("device", "device"),
    "completion": (KIND_LAUNCH, _COMPLETION),
    "launch": (KIND_LAUNCH, "call"),
    "graph": (KIND_GRAPH_LAUNCH, _COMPLETION),
}
"""The kind of call and the histogram that hold a measure."""
_EVERY_BIN: Final = 65_535
"""In place of a bin: all durations of the stretch."""
_SPARE: Final = 0.05
"""How much more than what lies above the quantile is read: what arrives between two queries may lower its bin."""


@dataclass(frozen=True, eq=False, slots=True)
class _Whole:
    """Of one kernel in the whole window: its bins, ascending, what they stand for, and how often each was met."""

    bins: NDArray[np.int64]
    ordered: Ordered

    def floor(self, q: float) -> int:
        """The bin from which on durations are read one by one to judge their q-quantile."""
        value = quantile(self.ordered, max(0.0, q - _SPARE * (1.0 - q)))
        return int(self.bins[np.searchsorted(self.ordered.values, value)])

    def below(self, floor: int, size: int, most_late: float) -> Ordered | None:
        """The bins below `floor`, which hold `size` durations by now; None where too many came or went."""
        place = int(np.searchsorted(self.bins, floor))
        counts = self.ordered.counts[:place].copy()
        late = size - int(counts.sum())
        if late:
            if not place or abs(late) > most_late:
                return None
            counts[counts.argmax()] += late
        return Ordered(self.ordered.values[:place], counts) if (counts > 0).all() else None


_NOTHING: Final = _Whole(np.empty(0, np.int64), Ordered(np.empty(0, np.int64), np.empty(0, np.int64)))


class Histograms:
    """One measure of the kernels in `keys` (kernel_key -> index) in a window of whole minutes."""

    def __init__(self, source: Source, metric: Metric, keys: Mapping[int, int], hosts: int = 0) -> None:
        """Nothing is read yet. `hosts`: how many these are where they are the stretches."""
        self._source = source
        self._metric = metric
        self._keys = {key: keys[key] for key in sorted(keys)}
        self._hosts = hosts
        self._samples: dict[tuple[bool, float], dict[int, Sample]] = {}

    def ordered(self) -> dict[int, Ordered]:
        """The durations of each kernel in the whole window, by index. Raises StoreError."""
        return {index: whole.ordered for index, whole in self._whole(isolated=False).items()}

    def values(self, q: float) -> dict[int, Values]:
        """Of every kernel, to judge its q-quantile; read once they are chosen from."""
        return {index: _Binned(self, index, q) for index in self._keys.values()}

    def sample(self, index: int, isolated: bool, q: float) -> Sample | None:
        """As Values.choose. Those of all kernels are read at once. Raises StoreError."""
        which = isolated and MEASURES[self._metric][1] == _COMPLETION, q
        if which not in self._samples:
            self._samples[which] = self._read(*which)
        return self._samples[which].get(index)

    def _query(self, name: str, isolated: bool, keys: Mapping[int, int], more: Params | None = None) -> pa.Table:
        kind, measure = MEASURES[self._metric]
        asked: dict[str, int | str | list[int]] = {"kind": kind, "measure": measure, "isolated": int(isolated)}
        return self._source.query_rolled(name, asked | {"keys": list(keys)} | dict(more or {}))

    def _whole(self, isolated: bool) -> dict[int, _Whole]:
        read = self._query("bins", isolated, self._keys)
        bins = np.minimum(column(read, "bin", np.uint16).astype(np.int64), LAST_BIN)
        found = Ordered.of((indices(read, self._keys).astype(np.int64) << 16) + bins, column(read, "count", np.int64))
        bins = found.values & 0xFFFF
        durations = durations_ns(bins)
        present, starts = np.unique(found.values >> 16, return_index=True)
        ends = [*starts[1:], bins.size][: present.size]
        return {
            int(index): _Whole(bins[a:b], Ordered(durations[a:b], found.counts[a:b]))
            for index, a, b in zip(present, starts, ends, strict=True)
        }

    def _read(self, isolated: bool, q: float) -> dict[int, Sample]:
        # Of hosts each one's own quantile is asked for, which may lie far below that of all of them.
        found = self._tails(isolated, q, {} if self._hosts else self._whole(isolated), self._keys)
        changed = {key: index for key, index in self._keys.items() if index in found and found[index] is None}
        if changed:
            found |= self._tails(isolated, q, {}, changed)
        return {index: sample for index, sample in found.items() if sample is not None}

    def _tails(
        self, isolated: bool, q: float, wholes: Mapping[int, _Whole], keys: Mapping[int, int]
    ) -> dict[int, Sample | None]:
        """The samples of the kernels in `keys` by index; of those that `wholes` lacks, every bin is read by stretch.

        None for a kernel that has changed too much since `wholes` was read.
        """
        floors = {index: whole.floor(q) for index, whole in wholes.items()}
        buckets, width = self._source.window.buckets()
        buckets = self._hosts or buckets
        read = self._query(
            "tails", isolated, keys, {"bucket_ns": width, "floors": [floors.get(index, 0) for index in keys.values()]}
        )
        index, bucket = indices(read, keys), column(read, "bucket", np.int32)
        bins, counts = column(read, "bin", np.uint16), column(read, "count", np.int64)
        # By kernel and bin, whatever the server's order is.
        order = np.argsort((index.astype(np.int64) << 40) + (bins.astype(np.int64) << 24) + bucket)
        index, bucket, bins, counts = index[order], bucket[order], bins[order], counts[order]
        durations = durations_ns(np.minimum(bins.astype(np.int64), LAST_BIN))
        starts = np.flatnonzero(np.diff(index, prepend=-1))
        ends = np.append(starts, index.size)[1:]
        samples: dict[int, Sample | None] = {}
        for start, end in zip(starts, ends, strict=True):
            one, middle = int(index[start]), start + int(bins[start:end].searchsorted(_EVERY_BIN))
            single, total = slice(start, middle), slice(middle, end)
            size = int(counts[total].sum())
            whole = wholes.get(one, _NOTHING)
            below = whole.below(floors.get(one, 0), size - int(counts[single].sum()), _SPARE * (1.0 - q) * size)
            if below is None or rank(size, q) <= below.size:
                samples[one] = None
                continue
            tick = 1  # bins hide that of the host's clock, if it has one
            if self._metric == "device":
                ordered = whole.ordered if one in wholes else Ordered.of(durations[single], counts[single])
                tick = device_tick(ordered.values, ordered.counts)
            per_bucket = np.bincount(bucket[total], counts[total], buckets).astype(np.float64)
            samples[one] = Sample(
                durations[single],
                bucket[single],
                buckets,
                counts[single],
                tick,
                binned=True,
                below=below,
                per_bucket=per_bucket,
                clustered=bool(self._hosts),
            )
        return samples


@dataclass(frozen=True, eq=False, slots=True)
class _Binned:
    """The values of one kernel."""

    histograms: Histograms
    index: int
    q: float

    def choose(self, isolated: bool) -> Sample | None:
        """As in Values."""
        return self.histograms.sample(self.index, isolated, self.q)
