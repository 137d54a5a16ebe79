"""What the accounts of agents cover of a window: in a month of a fleet, millions of stretches."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kdiff.analysis.columns import column
from kdiff.analysis.window import MINUTE_NS, NS, Window

Times = NDArray[np.int64]


def hosts_of(health: pa.Table) -> tuple[list[str], NDArray[np.int64]]:
    """The hosts, ascending, and for each row which of them it is of; shape (rows,)."""
    encoded = pc.dictionary_encode(pa.chunked_array([pa.concat_arrays(health["host"].cast(pa.string()).chunks)]))
    names = encoded.chunk(0).dictionary.to_pylist()
    order = sorted(range(len(names)), key=names.__getitem__)
    place = np.empty(len(names), np.int64)
    place[order] = np.arange(len(names))
    codes = column(pa.table({"code": encoded.chunk(0).indices}), "code", np.int32)
    return [names[i] for i in order], place[codes]


def covered_ns(window: Window, start: Times, end: Times) -> int:
    """How much of `window` the union of the stretches [start, end), shapes (n,), covers, in ns."""
    order = np.argsort(start, kind="stable")
    start, end = (np.clip(side[order], window.from_ns, window.to_ns) for side in (start, end))
    reached = np.maximum.accumulate(end)
    before = np.concatenate([[window.from_ns], reached[:-1]])
    return int(np.maximum(0, reached - np.maximum(start, before)).sum())


def unrolled(window: Window, health: pa.Table, present: pa.Table) -> tuple[int, int] | None:
    """The whole minutes, from and to in ns, around all stretches in which an agent counted events and the roll-ups
    hold nothing of its host; None without any. `present`: rows of queries/sql/minutes_present.sql.
    """
    told = column(health, "events", np.uint64) > 0
    if not told.any():
        return None
    first = np.maximum(column(health, "from_ns", np.int64)[told], window.from_ns) // MINUTE_NS
    last = (np.minimum(column(health, "to_ns", np.int64)[told], window.to_ns) - 1) // MINUTE_NS
    names, host = hosts_of(health)
    host = host[told]
    rolled = np.empty(0, np.int64)
    # Host and minute are one number; hosts lie a window and a minute apart.
    begin, span = int(first.min()), int(last.max()) - int(first.min()) + 2
    if present.num_rows:
        known, its = hosts_of(present)
        place = {name: i for i, name in enumerate(names)}
        its = np.array([place.get(name, -1) for name in known])[its]
        minute = column(present, "minute_s", np.int64) // (MINUTE_NS // NS) - begin
        inside = (its >= 0) & (minute >= 0) & (minute < span - 1)
        rolled = np.sort(its[inside] * span + minute[inside])
    begins, ends = (host * span + side - begin for side in (first, last))
    bare = np.searchsorted(rolled, ends, side="right") <= np.searchsorted(rolled, begins)
    if not bare.any():
        return None
    return int(first[bare].min()) * MINUTE_NS, (int(last[bare].max()) + 1) * MINUTE_NS
