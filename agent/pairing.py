"""Which sync proves which launch finished: completion times, and how many launches share one.

A sync proves a launch when it waits for the launch's stream (or for the whole device) and was entered after the
launch call had returned. The first such sync to end gives the bound: launch entry to sync return. Nothing is
claimed beyond that: captured and failed launches have no completion, and of those before the first sync on a stream
that was already in use when recording began it is unknown how many share it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kdiff.agent.ring import Columns, chosen, columns, in_one, joined
from kdiff.probes.wire import EVENT, Kind, Sync, WireFlags

DEFAULT_STREAM: Final = 0
LEGACY_STREAM: Final = 1  # CU_STREAM_LEGACY: another name for stream 0
PER_THREAD_STREAM: Final = 2  # CU_STREAM_PER_THREAD

PAIRED: Final = np.dtype([("event", EVENT), ("completion_ns", "<i8"), ("batch_launches", "<u4"), ("captured", "?")])
_NEVER: Final = np.int64(2**63 - 1)
_WRONG_THREAD: Final = 908  # CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD: only then a failed end ends nothing

Stream = tuple[int, int, int]  # pid, stream, tid (0 unless the stream is a thread's own, or the launch has no return)


@dataclass
class _StreamState:
    known: bool  # nothing unseen can be queued before the next launch
    unproven: int = 0  # launches given up on since the last sync: they still share it


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
    _capturing: dict[Stream, int] = field(default_factory=dict)  # since when
    _ended: list[NDArray[np.void]] = field(default_factory=list)  # rows to give out as they are
    _lost: bool = False

    def process_began(self, pid: int) -> None:
        """The process was seen from its first CUDA call: none of its streams holds unseen work."""
        self._known_processes.add(pid)

    def process_ended(self, pid: int) -> None:
        """Forgets a process: its pid may come back as another."""
        self._known_processes.discard(pid)
        self._many_devices.discard(pid)
        own = self._pending["event"]["pid"] == pid
        if own.any():
            self._ended.append(chosen(self._pending, own))
            self._pending = chosen(self._pending, ~own)
        for table in (self._streams, self._capturing):
            for stream in [s for s in table if s[0] == pid]:
                del table[stream]

    def many_devices(self, pid: int) -> None:
        """The process uses several GPUs: default streams and device syncs do not tell which, so they prove nothing."""
        self._many_devices.add(pid)

    def events_lost(self) -> None:
        """Events are missing among those fed next: how many launches share a sync is unknown there."""
        self._lost = True

    @property
    def waiting(self) -> NDArray[np.void]:
        """Launches (PAIRED) whose sync has not come yet."""
        return self._pending

    def feed(self, events: NDArray[np.void], now_ns: int, *, last: bool = False) -> NDArray[np.void]:
        """Takes EVENT records in ring order and gives out rows (PAIRED), those that wait for a sync later.

        `now_ns`: monotonic, when the events were read. `last`: nothing comes after; give out everything.
        """
        rows = self._with_pending(events)
        del events
        if not len(rows):
            return self._with_ended(rows)
        event = columns(rows)
        entered = event["timestamp_ns"].view(np.int64)
        left = entered + event["duration_ns"].view(np.int64)
        kind = event["kind"]
        launch = (kind == Kind.LAUNCH) | (kind == Kind.GRAPH_LAUNCH)
        sync = (kind == Kind.SYNC) & (event["status"] == 0) & (event["flags"] & WireFlags.NO_RETURN == 0)
        waiting = launch & (event["status"] == 0)
        self._mark_captures(rows, event, entered, left, launch, sync)
        waiting &= ~rows["captured"]
        batch_of = np.full(len(rows), -1, np.int64)
        groups = _by_stream(event)
        first_device = self._first_device_syncs(event, left, sync)
        suspects = self._suspect_device_syncs(first_device, {stream for stream, _ in groups})
        for stream, members in groups:
            drained_at = left[first_device[stream[0]]] if stream[0] in first_device else _NEVER
            suspects |= self._pair_stream(
                stream, members, rows, event, entered, left, sync, waiting, batch_of, drained_at
            )
        self._known_processes.update(first_device)
        proven = batch_of >= 0
        shares = np.bincount(batch_of[proven], minlength=len(rows)).astype(np.uint32)
        shares[list(suspects)] = 0
        rows["batch_launches"][proven] = shares[batch_of[proven]]
        if self._lost:
            self._lost = False
            rows["batch_launches"][proven] = 0
            self._known_processes.clear()
            for state in self._streams.values():
                state.known = False
        done = ~waiting | proven
        if not last:
            self._give_up(rows, entered, done, now_ns)
        else:
            done[:] = True
        self._pending = chosen(rows, ~done)
        return self._with_ended(chosen(rows, done))

    def _with_pending(self, events: NDArray[np.void]) -> NDArray[np.void]:
        fresh = np.zeros((len(events), PAIRED.itemsize), np.uint8)
        fresh[:, : EVENT.itemsize] = np.ascontiguousarray(events).view(np.uint8).reshape(-1, EVENT.itemsize)
        rows: NDArray[np.void] = fresh.reshape(-1).view(PAIRED)
        _canonical_streams(rows["event"])
        return joined([self._pending, rows], PAIRED) if len(self._pending) else rows

    def _with_ended(self, rows: NDArray[np.void]) -> NDArray[np.void]:
        """Adds what waited for processes that have ended."""
        if self._ended:
            rows = joined([*self._ended, rows], PAIRED)
            self._ended = []
        return rows

    def _give_up(
        self, rows: NDArray[np.void], entered: NDArray[np.int64], done: NDArray[np.bool_], now_ns: int
    ) -> None:
        late = ~done & (entered < now_ns - self.patience_ns)
        excess = int((~done & ~late).sum()) - self.max_pending
        if excess > 0:
            late[np.flatnonzero(~done & ~late)[:excess]] = True
        for row in np.flatnonzero(late):
            event = rows["event"][row]
            state = self._streams.get(_stream_of(event, own=bool(int(event["flags"]) & WireFlags.NO_RETURN)))
            if state is not None:
                state.unproven += 1
        done |= late

    def _pair_stream(
        self,
        stream: Stream,
        members: NDArray[np.int64],
        rows: NDArray[np.void],
        event: Columns,
        entered: NDArray[np.int64],
        left: NDArray[np.int64],
        sync: NDArray[np.bool_],
        waiting: NDArray[np.bool_],
        batch_of: NDArray[np.int64],
        drained_at: np.int64,
    ) -> set[int]:
        """Pairs one stream; returns the syncs that more launches may share than are seen.

        `members`: its rows, device syncs of its process included, in ring order. `drained_at`: when the first device
        sync of its process ended, after which nothing unseen is left.
        """
        state = self._streams.get(stream)
        if state is None:
            state = self._streams[stream] = _StreamState(known=stream[0] in self._known_processes)
        launches = members[waiting[members]]
        syncs = members[sync[members]]
        if stream[0] in self._many_devices:
            if stream[1] in (DEFAULT_STREAM, PER_THREAD_STREAM):
                return set()
            syncs = syncs[event["sync"][syncs] == Sync.STREAM]
        if not len(syncs):
            return set()
        # For each launch the sync that ends first among those entered after the launch had returned.
        syncs = syncs[np.argsort(entered[syncs], kind="stable")]
        from_here = len(syncs) - 1 - _running_argmin(left[syncs][::-1])[::-1]
        first = np.searchsorted(entered[syncs], left[launches], side="left")
        found = first < len(syncs)
        proved, by = launches[found], syncs[from_here[first[found]]]
        batch_of[proved] = by
        rows["completion_ns"][proved] = left[by] - entered[proved]
        earliest = int(syncs[np.argmin(left[syncs])])
        suspect = (not state.known or state.unproven) and left[earliest] <= drained_at
        state.known, state.unproven = True, 0
        return {earliest} if suspect else set()

    def _first_device_syncs(self, event: Columns, left: NDArray[np.int64], sync: NDArray[np.bool_]) -> dict[int, int]:
        """By process the row of the device sync that ended first."""
        device = np.flatnonzero(sync & (event["sync"] == Sync.DEVICE))
        first = {}
        for pid in {int(pid) for pid in event["pid"][device]} - self._many_devices:
            of_process = device[event["pid"][device] == pid]
            first[pid] = int(of_process[np.argmin(left[of_process])])
        return first

    def _suspect_device_syncs(self, first_device: dict[int, int], present: set[Stream]) -> set[int]:
        """Device syncs that launches may share which are not among the rows: unseen ones, or ones given up on.

        `present`: streams that have rows, and look after themselves.
        """
        suspects = set()
        for pid, row in first_device.items():
            absent = [state for stream, state in self._streams.items() if stream[0] == pid and stream not in present]
            if pid not in self._known_processes or any(not state.known or state.unproven for state in absent):
                suspects.add(row)
            for state in absent:
                state.known, state.unproven = True, 0
        return suspects

    def _mark_captures(
        self,
        rows: NDArray[np.void],
        event: Columns,
        entered: NDArray[np.int64],
        left: NDArray[np.int64],
        launch: NDArray[np.bool_],
        sync: NDArray[np.bool_],
    ) -> None:
        """Marks launches on the stream that is being captured, from the begin's return to the end's entry."""
        captured = rows["captured"]
        begins = (event["kind"] == Kind.CAPTURE_BEGIN) & (event["status"] == 0)
        ends = (event["kind"] == Kind.CAPTURE_END) & (event["status"] != _WRONG_THREAD)
        if not self._capturing and not begins.any():
            return
        for stream in {*self._capturing, *(_stream_of(rows["event"][row]) for row in np.flatnonzero(begins))}:
            on_it = (event["pid"] == stream[0]) & (event["stream"] == stream[1])
            if stream[2]:
                on_it &= event["tid"] == stream[2]
            # A stream that is being captured cannot be waited for: a sync shows that the capture has ended.
            over = ends | (sync & (event["sync"] == Sync.STREAM))
            since = self._capturing.pop(stream, None)
            marks = np.flatnonzero(on_it & (begins | over))
            for row in marks[np.argsort(entered[marks], kind="stable")]:
                if begins[row]:
                    since = int(left[row])
                elif since is not None:
                    captured |= on_it & launch & (entered >= since) & (entered <= entered[row])
                    since = None
            if since is not None:
                captured |= on_it & launch & (entered >= since)
                self._capturing[stream] = since


def _canonical_streams(event: NDArray[np.void]) -> None:
    """One handle a stream: the legacy stream is 0, a thread's own default stream is 2."""
    stream = event["stream"]
    stream[(stream == DEFAULT_STREAM) & (event["flags"] & WireFlags.PER_THREAD != 0)] = PER_THREAD_STREAM
    stream[stream == LEGACY_STREAM] = DEFAULT_STREAM


def _stream_of(event: np.void, own: bool = False) -> Stream:
    """`own`: tell the threads on a stream apart, though it is not a thread's own."""
    own = own or int(event["stream"]) == PER_THREAD_STREAM
    return int(event["pid"]), int(event["stream"]), int(event["tid"]) if own else 0


def _by_stream(event: Columns) -> list[tuple[Stream, NDArray[np.int64]]]:
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
    group = _codes(event["stream"][placed], in_one(event["pid"][placed], tid[placed]))
    order = placed[np.argsort(group, kind="stable")]
    groups = []
    device_rows = np.flatnonzero(device)
    for members in np.split(order, np.cumsum(np.bincount(group))[:-1]):
        one = members[0]
        stream = (int(event["pid"][one]), int(event["stream"][one]), int(tid[one]))
        if len(device_rows):
            same = event["pid"][device_rows] == stream[0]
            if stream[2]:
                same &= event["tid"][device_rows] == stream[2]
            members = np.sort(np.concatenate([members, device_rows[same]]))
        groups.append((stream, members))
    return groups


def _codes(*keys: NDArray[np.uint64]) -> NDArray[np.uint16]:
    """A small number for each distinct row of the keys, every number below the largest used (hashed, no sort)."""
    codes: NDArray[np.uint64] | None = None
    for key in keys:
        if (key == key[0]).all():
            continue
        encoded = pa.array(key).dictionary_encode()
        indices = encoded.indices.to_numpy().astype(np.uint64)
        if codes is not None:
            mixed = codes * np.uint64(len(encoded.dictionary)) + indices
            indices = pa.array(mixed).dictionary_encode().indices.to_numpy().astype(np.uint64)
        codes = indices
    if codes is None:
        return np.zeros(len(keys[0]), np.uint16)
    return codes.astype(np.uint16 if codes.max() < 65536 else np.uint32)


def _running_argmin(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each position the position of the smallest value so far."""
    lowest = np.minimum.accumulate(values)
    fresh = np.concatenate([[True], lowest[1:] < lowest[:-1]])
    at: NDArray[np.int64] = np.maximum.accumulate(np.where(fresh, np.arange(len(values)), 0))
    return at
