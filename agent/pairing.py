"""Which sync proves which launch finished: completion times, and how many launches share one.

A sync proves a launch when it waits for the launch's stream (or for the whole device) and was entered after the
launch call had returned. The first such sync to end gives the bound: launch entry to sync return. Nothing is
claimed beyond that: captured and failed launches, and those before the first sync on a stream that was already in
use when recording began, have no completion.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kdiff.probes.wire import EVENT, Kind, Sync, WireFlags

DEFAULT_STREAM: Final = 0
LEGACY_STREAM: Final = 1  # CU_STREAM_LEGACY: another name for stream 0
PER_THREAD_STREAM: Final = 2  # CU_STREAM_PER_THREAD

PAIRED: Final = np.dtype([("event", EVENT), ("completion_ns", "<i8"), ("batch_launches", "<u4"), ("captured", "?")])
_SHARED_WITH_UNSEEN: Final = np.uint32(2**32 - 1)

Stream = tuple[int, int, int]  # pid, stream, tid (0 unless the stream is a thread's own, or the launch has no return)


@dataclass
class _StreamState:
    known: bool  # nothing unseen can be queued before the next launch
    unproven: int = 0  # launches given up on since the last sync: they still share it
    capturing_since: int | None = None


@dataclass
class Pairing:
    """Keeps what is not proven yet from one batch of events to the next.

    `patience_ns`: how long a launch waits for its sync before its row is given out without a completion.
    """

    patience_ns: int = 10_000_000_000
    max_pending: int = 200_000
    _streams: dict[Stream, _StreamState] = field(default_factory=dict)
    _pending: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, PAIRED))
    _known_processes: set[int] = field(default_factory=set)
    _many_devices: set[int] = field(default_factory=set)

    def process_began(self, pid: int) -> None:
        """The process was seen from its first CUDA call: none of its streams holds unseen work."""
        self._known_processes.add(pid)

    def process_ended(self, pid: int) -> None:
        """Forgets a process: its pid may come back as another."""
        self._known_processes.discard(pid)
        self._many_devices.discard(pid)
        for stream in [s for s in self._streams if s[0] == pid]:
            del self._streams[stream]

    def many_devices(self, pid: int) -> None:
        """The process uses several GPUs: default streams and device syncs do not tell which, so they prove nothing."""
        self._many_devices.add(pid)

    def events_lost(self) -> None:
        """Events are missing: what the next sync on any stream shares is unknown."""
        self._known_processes.clear()
        for state in self._streams.values():
            state.known = False

    def feed(self, events: NDArray[np.void], now_ns: int, *, last: bool = False) -> NDArray[np.void]:
        """Takes EVENT records in ring order and gives out rows (PAIRED), those that wait for a sync later.

        `now_ns`: monotonic, when the events were read. `last`: nothing comes after; give out everything.
        """
        rows = np.zeros(len(self._pending) + len(events), PAIRED)
        rows[: len(self._pending)] = self._pending
        rows["event"][len(self._pending) :] = events
        del events
        if not len(rows):
            return rows
        event = rows["event"]
        _canonical_streams(event)
        entered = event["timestamp_ns"].astype(np.int64)
        left = entered + event["duration_ns"].astype(np.int64)
        kind = event["kind"]
        launch = (kind == Kind.LAUNCH) | (kind == Kind.GRAPH_LAUNCH)
        sync = (kind == Kind.SYNC) & (event["status"] == 0) & (event["flags"] & WireFlags.NO_RETURN == 0)
        waiting = launch & (event["status"] == 0)
        batch_of = np.full(len(rows), -1, np.int64)
        for stream, members in _by_stream(event):
            self._pair_stream(stream, members, rows, entered, left, sync, waiting, batch_of)
        proven = batch_of >= 0
        shares = np.bincount(batch_of[proven], minlength=len(rows))
        claimed = proven & (rows["batch_launches"] == 0)
        rows["batch_launches"][claimed] = shares[batch_of[claimed]]
        unknown = rows["batch_launches"] == _SHARED_WITH_UNSEEN
        rows["batch_launches"][unknown] = 0
        rows["completion_ns"][unknown] = 0
        done = ~waiting | proven | rows["captured"]
        if not last:
            self._give_up(rows, entered, done, now_ns)
        else:
            done[:] = True
        self._pending = rows[~done]
        out: NDArray[np.void] = rows[done]
        return out

    def _give_up(
        self, rows: NDArray[np.void], entered: NDArray[np.int64], done: NDArray[np.bool_], now_ns: int
    ) -> None:
        late = ~done & (entered < now_ns - self.patience_ns)
        excess = int((~done & ~late).sum()) - self.max_pending
        if excess > 0:
            late[np.flatnonzero(~done & ~late)[:excess]] = True
        for row in np.flatnonzero(late):
            state = self._streams.get(_stream_of(rows["event"][row]))
            if state is not None:
                state.unproven += 1
        done |= late

    def _pair_stream(
        self,
        stream: Stream,
        members: NDArray[np.int64],
        rows: NDArray[np.void],
        entered: NDArray[np.int64],
        left: NDArray[np.int64],
        sync: NDArray[np.bool_],
        waiting: NDArray[np.bool_],
        batch_of: NDArray[np.int64],
    ) -> None:
        """`members`: rows of one stream, device syncs of its process included, in ring order."""
        state = self._streams.get(stream)
        if state is None:
            state = self._streams[stream] = _StreamState(known=stream[0] in self._known_processes)
        event = rows["event"]
        self._mark_captures(state, members, rows, entered, left)
        launches = members[waiting[members] & ~rows["captured"][members]]
        syncs = members[sync[members]]
        if stream[0] in self._many_devices:
            if stream[1] in (DEFAULT_STREAM, PER_THREAD_STREAM):
                return
            syncs = syncs[event["sync"][syncs] == Sync.STREAM]
        if not len(syncs):
            return
        # For each launch the sync that ends first among those entered after the launch had returned.
        syncs = syncs[np.argsort(entered[syncs], kind="stable")]
        from_here = len(syncs) - 1 - _running_argmin(left[syncs][::-1])[::-1]
        first = np.searchsorted(entered[syncs], left[launches], side="left")
        found = first < len(syncs)
        proved, by = launches[found], syncs[from_here[first[found]]]
        batch_of[proved] = by
        rows["completion_ns"][proved] = left[by] - entered[proved]
        if not state.known or state.unproven:
            # Until the first sync that follows, more is queued than is seen here.
            earliest = syncs[np.argmin(left[syncs])]
            rows["batch_launches"][proved[by == earliest]] = _SHARED_WITH_UNSEEN
            state.known, state.unproven = True, 0

    def _mark_captures(
        self,
        state: _StreamState,
        members: NDArray[np.int64],
        rows: NDArray[np.void],
        entered: NDArray[np.int64],
        left: NDArray[np.int64],
    ) -> None:
        kinds = rows["event"]["kind"][members]
        marks = members[(kinds == Kind.CAPTURE_BEGIN) | (kinds == Kind.CAPTURE_END)]
        if state.capturing_since is None and not len(marks):
            return
        captured = rows["captured"]
        for row in marks[np.argsort(entered[marks], kind="stable")]:
            if rows["event"]["status"][row] != 0:
                continue
            if rows["event"]["kind"][row] == Kind.CAPTURE_BEGIN:
                state.capturing_since = int(left[row])
            elif state.capturing_since is not None:
                inside = (entered[members] >= state.capturing_since) & (entered[members] <= entered[row])
                captured[members[inside]] = True
                state.capturing_since = None
        if state.capturing_since is not None:
            captured[members[entered[members] >= state.capturing_since]] = True


def _canonical_streams(event: NDArray[np.void]) -> None:
    """One handle a stream: the legacy stream is 0, a thread's own default stream is 2."""
    stream = event["stream"]
    stream[stream == LEGACY_STREAM] = DEFAULT_STREAM
    stream[(stream == DEFAULT_STREAM) & (event["flags"] & WireFlags.PER_THREAD != 0)] = PER_THREAD_STREAM


def _stream_of(event: np.void) -> Stream:
    own = int(event["stream"]) == PER_THREAD_STREAM or bool(int(event["flags"]) & WireFlags.NO_RETURN)
    return int(event["pid"]), int(event["stream"]), int(event["tid"]) if own else 0


def _by_stream(event: NDArray[np.void]) -> list[tuple[Stream, NDArray[np.int64]]]:
    """Rows of each stream in ring order, with the device syncs of its process.

    A launch whose return is not probed is ordered against syncs of its own thread only: its stream is its thread's.
    """
    no_return = (event["flags"] & WireFlags.NO_RETURN) != 0
    own = (event["stream"] == PER_THREAD_STREAM) | no_return.any()
    tid = np.where(own, event["tid"], 0)
    event_syncs = (event["kind"] == Kind.SYNC) & (event["sync"] == Sync.EVENT)
    device = (event["kind"] == Kind.SYNC) & (event["sync"] == Sync.DEVICE)
    placed = np.flatnonzero(~device & ~event_syncs & (event["kind"] != Kind.INIT))
    if not len(placed):
        return []
    group = _codes(event["stream"][placed], _thread(event["pid"][placed], tid[placed]))
    order = placed[np.argsort(group, kind="stable")]
    groups = []
    device_rows = np.flatnonzero(device)
    for members in np.split(order, np.cumsum(np.bincount(group))[:-1]):
        first = event[members[0]]
        stream = (int(first["pid"]), int(first["stream"]), int(tid[members[0]]))
        if len(device_rows):
            same = event["pid"][device_rows] == stream[0]
            if stream[2]:
                same &= event["tid"][device_rows] == stream[2]
            members = np.sort(np.concatenate([members, device_rows[same]]))
        groups.append((stream, members))
    return groups


def _thread(pid: NDArray[np.uint32], tid: NDArray[np.uint32]) -> NDArray[np.uint64]:
    return pid.astype(np.uint64) << np.uint64(32) | tid.astype(np.uint64)


def _codes(*columns: NDArray[np.uint64]) -> NDArray[np.uint16]:
    """A small number for each distinct row of the columns, every number below the largest used (hashed, no sort)."""
    codes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        if (column == column[0]).all():
            continue
        encoded = pa.array(column).dictionary_encode()
        codes = codes * np.uint64(len(encoded.dictionary)) + encoded.indices.to_numpy().astype(np.uint64)
        codes = pa.array(codes).dictionary_encode().indices.to_numpy().astype(np.uint64)
    return codes.astype(np.uint16 if codes.max() < 65536 else np.uint32)


def _running_argmin(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each position the position of the smallest value so far."""
    lowest = np.minimum.accumulate(values)
    fresh = np.concatenate([[True], lowest[1:] < lowest[:-1]])
    at: NDArray[np.int64] = np.maximum.accumulate(np.where(fresh, np.arange(len(values)), 0))
    return at
