"""Which sync proves which launch finished: completion times, and how many launches share one.

A sync proves a launch when it waits for the launch's stream (or for the whole device) and was entered after the
launch call had returned; one that waits for an event, when the event was recorded on that stream after it had. The
first such sync to end gives the bound: launch entry to sync return. Nothing is claimed beyond that: captured and
failed launches have no completion, and of those before the first sync on a stream that was already in use when
recording began it is unknown how many share it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kdiff.agent.captures import Captures, Stream
from kdiff.agent.event_syncs import EventRecords
from kdiff.agent.graphs import Graphs, Made
from kdiff.agent.ring import Columns, chosen, columns, in_one, joined
from kdiff.probes.wire import EVENT, Kind, Sync, WireFlags

DEFAULT_STREAM: Final = 0
LEGACY_STREAM: Final = 1  # CU_STREAM_LEGACY: another name for stream 0
PER_THREAD_STREAM: Final = 2  # CU_STREAM_PER_THREAD

PAIRED: Final = np.dtype(
    [
        ("event", EVENT),
        ("completion_ns", "<i8"),
        ("clock_offset_ns", "<i8"),  # what was added to the event's time: 0 while that is monotonic
        ("batch_launches", "<u4"),
        ("captured", "?"),
        ("after_graph", "?"),  # of a sync: the last launch that it proves is of a graph
    ]
)
_NEVER: Final = np.int64(2**63 - 1)


@dataclass
class _StreamState:
    known: bool  # nothing unseen can be queued before the next launch
    unproven: int = 0  # when the last launch had returned that was given up on, until a sync that it shares; 0: none


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
    _captures: Captures = field(default_factory=Captures)
    _records: EventRecords = field(default_factory=EventRecords)
    graphs: Graphs = field(default_factory=Graphs)
    _ended: list[NDArray[np.void]] = field(default_factory=list)  # rows to give out as they are
    _lost: set[int] = field(default_factory=set)  # the processes of which events are; 0: of any

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
        for stream in [s for s in self._streams if s[0] == pid]:
            del self._streams[stream]
        self._captures.process_ended(pid)
        self._records.forget({pid})
        self.graphs.forget(pid)

    def many_devices(self, pid: int) -> None:
        """The process uses several GPUs: default streams and device syncs do not tell which, so they prove nothing."""
        self._many_devices.add(pid)

    def events_lost(self, pids: Iterable[int] = (0,)) -> None:
        """Events of these processes, 0: of any, are missing among those fed next.

        How many launches share a sync is unknown there.
        """
        self._lost.update(pids)
        self._captures.events_lost(self._lost)

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
        own = event["stream"] == PER_THREAD_STREAM
        captured, made = self._captures.find(event, own, entered, left, launch)
        if self._lost:
            self._captures.events_lost(self._lost)
            made = [one for one in made if one.pid not in self._lost and 0 not in self._lost]
        rows["captured"] |= captured
        self._number_graphs(rows, event, entered, made)
        waiting &= ~rows["captured"]
        batch_of = np.full(len(rows), -1, np.int64)
        proves_from, of_event = self._resolve_events(rows, event, entered, left)
        groups = _by_stream(event, launch, of_event)
        first_device = self._first_device_syncs(event, left, sync)
        suspects = self._suspect_device_syncs(first_device, {stream for stream, _ in groups})
        for stream, members in groups:
            drained_at = left[first_device[stream[0]]] if stream[0] in first_device else _NEVER
            suspects |= self._pair_stream(
                stream, members, rows, event, entered, proves_from, left, sync, waiting, batch_of, drained_at
            )
        self._known_processes.update(first_device)
        proven = batch_of >= 0
        shares = np.bincount(batch_of[proven], minlength=len(rows)).astype(np.uint32)
        shares[list(suspects)] = 0
        rows["batch_launches"][proven] = shares[batch_of[proven]]
        _note_last(rows, event, entered, batch_of, shares)
        if self._lost:
            self._forget_lost(rows, event, proven)
        done = ~waiting | proven
        if not last:
            self._give_up(rows, entered, done, now_ns)
        else:
            done[:] = True
        self._pending = chosen(rows, ~done)
        return self._with_ended(chosen(rows, done))

    def _in_doubt(self, pids: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Which of these are processes whose events were lost."""
        return np.full(len(pids), True) if 0 in self._lost else np.isin(pids, list(self._lost))

    def _forget_lost(self, rows: NDArray[np.void], event: Columns, proven: NDArray[np.bool_]) -> None:
        """Claims nothing more of what launches share a sync in the processes whose events were lost."""
        of_any = 0 in self._lost
        theirs = proven | (event["kind"] == Kind.SYNC)
        rows["batch_launches"][theirs & self._in_doubt(event["pid"])] = 0
        self._known_processes -= self._known_processes if of_any else self._lost
        for stream, state in self._streams.items():
            if of_any or stream[0] in self._lost:
                state.known = False
        self._lost = set()

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
            state = self._streams.get(_stream_of(event))
            if state is not None:
                state.unproven = max(state.unproven, int(event["timestamp_ns"] + event["duration_ns"]))
        done |= late

    def _pair_stream(
        self,
        stream: Stream,
        members: NDArray[np.int64],
        rows: NDArray[np.void],
        event: Columns,
        entered: NDArray[np.int64],
        proves_from: NDArray[np.int64],
        left: NDArray[np.int64],
        sync: NDArray[np.bool_],
        waiting: NDArray[np.bool_],
        batch_of: NDArray[np.int64],
        drained_at: np.int64,
    ) -> set[int]:
        """Pairs one stream; returns the syncs that more launches may share than are seen.

        `members`: its rows, device syncs of its process included, in ring order. `proves_from`: what of launches that
        had returned by then a sync proves. `drained_at`: when the first device sync of its process ended, after which
        nothing unseen is left.
        """
        state = self._streams.get(stream)
        if state is None:
            state = self._streams[stream] = _StreamState(known=stream[0] in self._known_processes)
        launches = members[waiting[members]]
        syncs = members[sync[members]]
        if stream[0] in self._many_devices:
            if stream[1] in (DEFAULT_STREAM, PER_THREAD_STREAM):
                return set()
            syncs = syncs[event["sync"][syncs] != Sync.DEVICE]
        if not len(syncs):
            return set()
        # For each launch the sync that ends first among those that wait for what was there after it had returned.
        syncs = syncs[np.argsort(proves_from[syncs], kind="stable")]
        from_here = len(syncs) - 1 - _running_argmin(left[syncs][::-1])[::-1]
        first = np.searchsorted(proves_from[syncs], left[launches], side="left")
        found = first < len(syncs)
        proved, by = launches[found], syncs[from_here[first[found]]]
        batch_of[proved] = by
        rows["completion_ns"][proved] = left[by] - entered[proved]
        suspects: set[int] = set()
        if not state.known or state.unproven:
            # Up to the first to end of those that prove all of it each may share some of what is not seen any more.
            ending = syncs[np.argsort(left[syncs], kind="stable")]
            proving = np.flatnonzero(proves_from[ending] >= state.unproven)
            ending = ending[: proving[0] + 1] if len(proving) else ending
            suspects = {int(row) for row in ending if left[row] <= drained_at}
        state.known = True
        if state.unproven <= proves_from[syncs[-1]]:
            state.unproven = 0
        return suspects

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

    def _number_graphs(
        self, rows: NDArray[np.void], event: Columns, entered: NDArray[np.int64], made: list[Made]
    ) -> None:
        """In place of a graph's handle, which may come to mean another, a launch of it gets the graph's number."""
        fresh = slice(len(self._pending), None)
        numbers = self.graphs.feed({name: column[fresh] for name, column in event.items()}, entered[fresh], made)
        launched = np.flatnonzero(event["kind"][fresh] == Kind.GRAPH_LAUNCH)
        if len(launched):
            rows["event"]["handle"][len(self._pending) + launched] = numbers[launched]

    def _resolve_events(
        self, rows: NDArray[np.void], event: Columns, entered: NDArray[np.int64], left: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """From when on each sync proves, and which rows are waits for an event whose stream is known: theirs now."""
        of_event = np.zeros(len(rows), bool)
        if self._lost:
            self._records.forget(self._lost)
        waits, recorded = self._records.resolve(event, entered, left, rows["captured"])
        if self._lost:  # a record may be missing between any two
            sure = ~self._in_doubt(event["pid"][waits])
            waits, recorded = waits[sure], recorded[sure]
            self._records.forget(self._lost)
        if not len(waits):
            return entered, of_event
        of_event[waits] = True
        proves_from = entered.copy()
        proves_from[waits] = recorded
        rows["event"]["stream"][waits] = event["stream"][waits]
        return proves_from, of_event


def _note_last(
    rows: NDArray[np.void],
    event: Columns,
    entered: NDArray[np.int64],
    batch_of: NDArray[np.int64],
    shares: NDArray[np.uint32],
) -> None:
    """A sync gets how many launches it proves, 0 where that is not known, and what the last of them launched."""
    proven = np.flatnonzero(batch_of >= 0)
    if not len(proven):
        return
    ordered = proven[np.lexsort((entered[proven], batch_of[proven]))]
    last = ordered[np.flatnonzero(np.append(np.diff(batch_of[ordered]), 1))]
    syncs = batch_of[last]
    rows["batch_launches"][syncs] = shares[syncs]
    rows["after_graph"][syncs] = event["kind"][last] == Kind.GRAPH_LAUNCH
    for name in ("handle", "generation"):
        rows["event"][name][syncs] = rows["event"][name][last]


def _canonical_streams(event: NDArray[np.void]) -> None:
    """One handle a stream: the legacy stream is 0, a thread's own default stream is 2."""
    stream = event["stream"]
    stream[(stream == DEFAULT_STREAM) & (event["flags"] & WireFlags.PER_THREAD != 0)] = PER_THREAD_STREAM
    stream[stream == LEGACY_STREAM] = DEFAULT_STREAM


def _stream_of(launch: np.void) -> Stream:
    """The stream of a launch; its thread's own where its return is not probed."""
    own = int(launch["stream"]) == PER_THREAD_STREAM or int(launch["flags"]) & WireFlags.NO_RETURN
    return int(launch["pid"]), int(launch["stream"]), int(launch["tid"]) if own else 0


def _by_stream(
    event: Columns, launch: NDArray[np.bool_], of_event: NDArray[np.bool_]
) -> list[tuple[Stream, NDArray[np.int64]]]:
    """Rows of each stream in ring order, with the device syncs of its process. `of_event`: syncs of an event's stream.

    A launch whose return is not probed is ordered against syncs of its own thread only: its stream is its thread's.
    """
    no_return = launch & ((event["flags"] & WireFlags.NO_RETURN) != 0)
    own = (event["stream"] == PER_THREAD_STREAM) | no_return.any()
    tid = np.where(own, event["tid"], 0)
    sync = event["kind"] == Kind.SYNC
    device = sync & (event["sync"] == Sync.DEVICE)
    placed = np.flatnonzero(launch | (sync & (event["sync"] == Sync.STREAM)) | of_event)
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
