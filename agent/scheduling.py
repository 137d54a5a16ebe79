"""For how long threads were off the processor, joined to the rows of their calls: `--scheduling`."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kdiff.agent.ring import Gathered, joined
from kdiff.probes.wire import WAIT, WireFlags
from kdiff.queries.tables import WAITS

UNKNOWN: Final = -1
_NAMES: Final = tuple(WAITS.names)
_KEEP_NS: Final = 30_000_000_000  # launches wait for their sync for 10 s before their row is given out
_TIME_BITS: Final = 42  # 73 minutes of ns; a thread's number has the other 22: Linux gives none above 2^22
_TIME: Final = np.uint64((1 << _TIME_BITS) - 1)


class Waits:
    """Keeps records (WAIT) until the rows are given out whose events they belong to."""

    def __init__(self) -> None:
        self._fed = Gathered(WAIT)
        self._kept = np.zeros(0, WAIT)
        self._ready: list[NDArray[np.int64]] = []

    def feed(self, records: NDArray[np.void]) -> None:
        """Takes what was read after the events were: each of these that has a record finds it then."""
        self._fed.add(records)

    def match(self, events: NDArray[np.void], now_ns: int) -> None:
        """Takes EVENT records that become rows, their times and `now_ns` monotonic."""
        if len(self._fed):
            self._kept = joined([self._kept, self._fed.take()], WAIT)
        values = waits_of(events["flags"])
        waited = np.flatnonzero(events["flags"] & WireFlags.WAITED)
        if len(waited):
            self._fill(values, waited, _keys(events[waited]))
        # What is left belongs to events that are nobody's rows, or to launches that still wait for a sync.
        if len(self._kept) and int(self._kept["timestamp_ns"][0]) + _KEEP_NS < now_ns:
            self._kept = self._kept[self._kept["timestamp_ns"].astype(np.int64) + _KEEP_NS >= now_ns]
        self._ready.append(values)

    def take(self) -> NDArray[np.int64] | None:
        """Of all events that were matched since, in their order: shape (events, 4), ns in the order of WAITS.

        UNKNOWN where it is. None where nothing was matched.
        """
        ready, self._ready = self._ready, []
        return np.concatenate(ready) if ready else None

    def _fill(self, values: NDArray[np.int64], rows: NDArray[np.int64], keys: NDArray[np.uint64]) -> None:
        kept = _keys(self._kept)
        order = np.argsort(kept, kind="stable")
        place = np.searchsorted(kept[order], keys)
        place[place == len(order)] = 0
        at = order[place] if len(order) else np.zeros(len(keys), np.int64)
        found = kept[at] == keys if len(order) else np.zeros(len(keys), bool)
        values[rows[~found]] = UNKNOWN
        rows, at = rows[found], at[found]
        for column, name in enumerate(_NAMES):
            known = values[rows, column] != UNKNOWN
            values[rows[known], column] = self._kept[name][at[known]].view(np.int64)
        self._kept = np.delete(self._kept, at)


def waits_of(flags: NDArray[np.uint8]) -> NDArray[np.int64]:
    """What events with these flags waited where no record says more: shape (events, 4), 0 or UNKNOWN."""
    values = np.full((len(flags), len(_NAMES)), UNKNOWN, np.int64)
    values[(flags & WireFlags.WAITS_KNOWN) != 0, :2] = 0
    values[(flags & WireFlags.WAITS_BEFORE_KNOWN) != 0, 2:] = 0
    return values


def wait_columns(waits: NDArray[np.int64] | None, count: int) -> dict[str, pa.Array]:
    """The columns WAITS of `count` rows of `cuda_events`; null where it is unknown, all of it without `waits`."""
    if waits is None:
        return dict.fromkeys(_NAMES, pa.nulls(count, pa.int64()))
    columns = np.asfortranarray(waits)
    return {name: pa.array(columns[:, place], mask=columns[:, place] == UNKNOWN) for place, name in enumerate(_NAMES)}


def _keys(records: NDArray[np.void]) -> NDArray[np.uint64]:
    """Of EVENT or WAIT records: no two calls of one thread begin in the same ns."""
    times: NDArray[np.uint64] = records["timestamp_ns"] & _TIME
    return times | records["tid"].astype(np.uint64) << np.uint64(_TIME_BITS)
