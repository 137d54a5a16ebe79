"""Which launches were captured into a graph, and did not run; and what the graph then holds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdiff.agent.graphs import Made, Node
from kdiff.agent.ring import Columns
from kdiff.probes.points import POINTS
from kdiff.probes.wire import Kind, Sync

_WRONG_THREAD: Final = 908  # CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD: only then a failed end ends nothing

_MOST_NODES: Final = 200_000  # of a capture: beyond it what it holds is not known
_NOTHING: Final = np.zeros(0, np.int64)

_TO_GRAPH: Final = np.array(["ToGraph" in point.symbol for point in POINTS])  # into a graph that may hold nodes already

Stream = tuple[int, int, int]  # pid, stream, tid (0 unless the stream is a thread's own)


@dataclass
class _Capture:
    since: int  # monotonic ns
    origin: Stream  # whose end ends it
    nodes: list[Node] = field(default_factory=list)
    whole: bool = True  # it began with nothing in the graph, and all of it was seen


class Captures:
    """Streams that are being captured: those that a capture began on, and those that joined.

    A stream, but not the legacy one, joins by waiting for an event that was recorded on a captured one, and leaves with
    the capture's end.
    """

    def __init__(self) -> None:
        self._open: dict[Stream, _Capture] = {}
        self._events: dict[tuple[int, int], Stream] = {}  # recorded on a captured stream: the capture's origin

    def events_lost(self, pids: Collection[int]) -> None:
        """Events of these processes, 0: of any, are missing: what is being captured is not known any more."""
        for stream, capture in self._open.items():
            if 0 in pids or stream[0] in pids:
                capture.whole = False

    def process_ended(self, pid: int) -> None:
        """Forgets a process."""
        self._open = {stream: capture for stream, capture in self._open.items() if stream[0] != pid}
        self._events = {key: origin for key, origin in self._events.items() if key[0] != pid}

    def find(
        self,
        event: Columns,
        own: NDArray[np.bool_],
        entered: NDArray[np.int64],
        left: NDArray[np.int64],
        launch: NDArray[np.bool_],
    ) -> tuple[NDArray[np.bool_], list[Made]]:
        """Which launches and records of events were captured, and the graphs that were made.

        Captured is from the begin's return to the end's entry.

        Takes the columns of EVENT records, streams by their one handle. `own`: which streams are their thread's own.
        """
        captured = np.zeros(len(entered), bool)
        made: list[Made] = []
        kind, good = event["kind"], event["status"] == 0
        begins = (kind == Kind.CAPTURE_BEGIN) & good
        ends = (kind == Kind.CAPTURE_END) & (event["status"] != _WRONG_THREAD)
        if not self._open and not begins.any():
            return captured, made
        # A stream that is being captured cannot be waited for: a sync shows that the capture has ended.
        syncs = (kind == Kind.SYNC) & (event["sync"] == Sync.STREAM) & good
        joins = ((kind == Kind.EVENT_RECORD) & good) | (kind == Kind.STREAM_WAIT)
        pids = {stream[0] for stream in self._open} | {int(pid) for pid in np.unique(event["pid"][begins])}
        theirs = np.isin(event["pid"], list(pids))
        marks = np.flatnonzero((begins | ends | syncs | joins) & theirs)
        launches = _by_stream(event, entered, np.flatnonzero(launch & theirs))

        def close(stream: Stream, until: int) -> _Capture:
            capture = self._open.pop(stream)
            rows, when = launches.get(stream[:2], (_NOTHING, _NOTHING))
            rows = rows[np.searchsorted(when, capture.since) : np.searchsorted(when, until, "right")]
            rows = rows[~captured[rows] & ((event["tid"][rows] == stream[2]) | (stream[2] == 0))]
            captured[rows] = True
            nodes = rows[event["status"][rows] == 0]
            if not capture.whole or len(capture.nodes) + len(nodes) > _MOST_NODES:
                capture.whole, capture.nodes, nodes = False, [], _NOTHING
            capture.nodes += [_node(event, entered, row) for row in nodes]
            return capture

        def end(stream: Stream, row: int) -> list[_Capture]:
            capture = self._open.get(stream)
            if capture is None or (syncs[row] and entered[row] < capture.since):  # it waited for what was before
                return []
            if capture.origin != stream:  # that it has ended here says nothing of the others
                if ends[row] and not good[row]:  # only where it began can it be ended
                    return []
                if capture.origin in self._open:
                    self._open[capture.origin].whole = False
                return [close(stream, int(entered[row]))]
            self._events = {key: origin for key, origin in self._events.items() if origin != stream}
            joined = [one for one, its in self._open.items() if its.origin == stream]
            return [close(one, int(entered[row])) for one in joined]

        for row in marks[np.argsort(entered[marks], kind="stable")]:
            pid, handle = int(event["pid"][row]), int(event["handle"][row])
            stream = (pid, int(event["stream"][row]), int(event["tid"][row]) if own[row] else 0)
            if begins[row]:
                end(stream, row)  # unless the end of one before was not seen there is none
                self._open[stream] = _Capture(int(left[row]), stream, whole=not _TO_GRAPH[event["api"][row]])
            elif ends[row] or syncs[row]:
                captures = end(stream, row)
                if captures and ends[row] and good[row]:
                    nodes = sorted((n for c in captures for n in c.nodes), key=lambda node: node.entered_ns)
                    whole = all(c.whole and c.origin == stream for c in captures)
                    made.append(Made(int(left[row]), pid, handle, nodes=tuple(nodes) if whole else ()))
            elif kind[row] == Kind.EVENT_RECORD:
                if stream in self._open and entered[row] >= self._open[stream].since:
                    captured[row] = True
                    self._events[pid, handle] = self._open[stream].origin
                else:
                    self._events.pop((pid, handle), None)
            elif stream[1] and stream not in self._open and self._events.get((pid, handle)) in self._open:
                self._open[stream] = _Capture(int(entered[row]), self._events[pid, handle])
        for stream in list(self._open):
            self._open[stream] = close(stream, 2**63 - 1)
        return captured, made


def _by_stream(
    event: Columns, entered: NDArray[np.int64], rows: NDArray[np.int64]
) -> dict[tuple[int, int], tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """These rows by pid and stream in the order of their entries, and the times of these."""
    if not len(rows):
        return {}
    rows = rows[np.lexsort((entered[rows], event["stream"][rows], event["pid"][rows]))]
    pid, stream = event["pid"][rows], event["stream"][rows]
    parts = np.split(rows, np.flatnonzero((pid[1:] != pid[:-1]) | (stream[1:] != stream[:-1])) + 1)
    return {(int(event["pid"][part[0]]), int(event["stream"][part[0]])): (part, entered[part]) for part in parts}


def _node(event: Columns, entered: NDArray[np.int64], row: int) -> Node:
    kind, generation, handle = (int(event[name][row]) for name in ("kind", "generation", "handle"))
    return Node(
        int(entered[row]), kind, generation, handle, (*event["grid"][row].tolist(), *event["block"][row].tolist())
    )
