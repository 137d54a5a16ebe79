"""Which stream a wait for an event waits for: the one that the event was recorded on, as it was then."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdiff.agent.ring import Columns
from kdiff.probes.wire import Kind, Sync, WireFlags

_RECORD: Final = np.dtype(
    [
        *(("pid", "<u4"), ("tid", "<u4"), ("handle", "<u8"), ("stream", "<u8"), ("entered", "<i8"), ("left", "<i8")),
        ("sure", "?"),  # no other record of the event returned during this one
    ]
)
_MOST: Final = 65_536  # events; the ones recorded longest ago are forgotten


class EventRecords:
    """The last record of each event.

    A wait for an event proves what was launched on the stream of its last record before that record. It proves nothing
    where the record was not seen, or where another record of the event returned during it or during the wait. Not seen
    is that an event was destroyed: a wait for one that was never recorded, at the handle of one that was, is believed.
    """

    def __init__(self) -> None:
        self._last = np.zeros(0, _RECORD)

    def forget(self, pids: Collection[int]) -> None:
        """Of these processes records may be missing, 0: of any."""
        if len(self._last):
            self._last = self._last[:0] if 0 in pids else self._last[~np.isin(self._last["pid"], list(pids))]

    def resolve(
        self,
        event: Columns,
        entered: NDArray[np.int64],
        left: NDArray[np.int64],
        captured: NDArray[np.bool_],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Takes the columns of EVENT records in ring order, streams by their one handle.

        `captured`: records of events that were captured, which take place when their graph runs, wherever that is.
        Returns the rows of the waits whose record is known, and when that record was entered. Their `stream` and `tid`
        are made those of the record.
        """
        nothing = np.zeros(0, np.int64)
        recorded = np.flatnonzero((event["kind"] == Kind.EVENT_RECORD) & (event["status"] == 0))
        done = (event["status"] == 0) & (event["flags"] & WireFlags.NO_RETURN == 0)
        waits = np.flatnonzero((event["kind"] == Kind.SYNC) & (event["sync"] == Sync.EVENT) & done)
        if not len(recorded) and (not len(waits) or not len(self._last)):
            return nothing, nothing
        fresh = np.zeros(len(recorded), _RECORD)
        for name in ("pid", "tid", "handle", "stream"):
            fresh[name] = event[name][recorded]
        fresh["entered"], fresh["left"], fresh["sure"] = entered[recorded], left[recorded], ~captured[recorded]
        records = np.concatenate([self._last, fresh])
        count = len(records)
        pids, of_pid = np.unique(np.concatenate([records["pid"], event["pid"][waits]]), return_inverse=True)
        _, of_handle = np.unique(np.concatenate([records["handle"], event["handle"][waits]]), return_inverse=True)
        key = of_handle * len(pids) + of_pid
        known_at = np.concatenate([records["left"], entered[waits]])
        order = np.lexsort((np.arange(len(key)) >= count, known_at, key))
        key, is_record = key[order], order < count
        of_key, ordered = key[is_record], order[is_record]
        during = records["left"][ordered[:-1]] > records["entered"][ordered[1:]]
        records["sure"][ordered[1:][during & (of_key[1:] == of_key[:-1])]] = False
        place = np.arange(len(order))
        before = np.maximum.accumulate(np.where(is_record, place, -1))
        after = np.minimum.accumulate(np.where(is_record, place, len(order))[::-1])[::-1]
        at = np.flatnonzero(~is_record)
        before, after = before[at], after[at]
        known = (before >= 0) & (key[before] == key[at])
        overlapped = (after < len(order)) & (key[np.minimum(after, len(order) - 1)] == key[at])
        overlapped[overlapped] = records["left"][order[after[overlapped]]] <= left[waits[order[at[overlapped]] - count]]
        sure = known & ~overlapped
        sure[sure] = records["sure"][order[before[sure]]]
        rows, by = waits[order[at[sure]] - count], records[order[before[sure]]]
        for name in ("stream", "tid"):
            event[name][rows] = by[name]
        self._keep(records, of_key, ordered)
        return rows, by["entered"]

    def _keep(self, records: NDArray[np.void], key: NDArray[np.int64], order: NDArray[np.int64]) -> None:
        """`order`: the records by key and time."""
        newest = np.ones(len(key), bool)
        newest[:-1] = key[1:] != key[:-1]
        kept = records[order[newest]]
        if len(kept) > _MOST:
            kept = kept[np.argsort(kept["left"], kind="stable")[-_MOST:]]
        self._last = kept
