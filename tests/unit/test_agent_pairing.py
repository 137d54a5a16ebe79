"""kdiff.agent.pairing against plain loops over the rules its docstrings state, on random calls of random threads."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiff.agent.pairing import PAIRED, Pairing
from kdiff.probes.wire import EVENT, Kind, Sync, WireFlags

LEGACY, PER_THREAD = 1, 2
NO_RETURN = int(WireFlags.NO_RETURN)
LONG_AGO = 10**15  # `now_ns` before which nothing is ever given up


@dataclass(frozen=True)
class Call:
    """One EVENT record. `entered` is unique and names it."""

    kind: Kind
    entered: int
    left: int
    pid: int = 1
    tid: int = 1
    stream: int = 7
    flags: int = 0
    status: int = 0
    sync: Sync = Sync.NONE
    handle: int = 0

    @property
    def emitted(self) -> int:
        return self.entered if self.flags & NO_RETURN else self.left

    @property
    def canonical(self) -> int:
        """The legacy stream's names are 0; a thread's own default stream is 2."""
        if self.stream == LEGACY:
            return 0
        return PER_THREAD if self.stream == 0 and self.flags & WireFlags.PER_THREAD else self.stream

    @property
    def launch(self) -> bool:
        return self.kind in (Kind.LAUNCH, Kind.GRAPH_LAUNCH)


Answer = tuple[int, int, bool]  # completion_ns, batch_launches, captured


def records(calls: Sequence[Call]) -> np.ndarray:
    events = np.zeros(len(calls), EVENT)
    for event, call in zip(events, calls, strict=True):
        event["timestamp_ns"], event["duration_ns"] = (
            call.entered,
            0 if call.flags & NO_RETURN else (call.left - call.entered),
        )
        for name in ("kind", "pid", "tid", "stream", "flags", "status", "sync", "handle"):
            event[name] = getattr(call, name)
    return events


def answers(rows: np.ndarray) -> dict[int, Answer]:
    """By the time of entry, which must not occur twice: rows out are rows in, each once."""
    found = {
        int(row["event"]["timestamp_ns"]): (
            int(row["completion_ns"]), int(row["batch_launches"]), bool(row["captured"])
        )
        for row in rows
    }  # fmt: skip
    assert len(found) == len(rows)
    return found


def captured_launches(out: dict[int, Answer], calls: Sequence[Call]) -> list[int]:
    return [call.entered for call in calls if call.launch and out[call.entered][2]]


def fed(pairing: Pairing, chunks: Sequence[Sequence[Call]], now_ns: int = 0) -> dict[int, Answer]:
    out = [pairing.feed(records(chunk), now_ns) for chunk in chunks]
    out.append(pairing.feed(np.zeros(0, EVENT), now_ns, last=True))
    return answers(np.concatenate(out))


def pairing_for(pids: Sequence[int], many: Sequence[int] = ()) -> Pairing:
    pairing = Pairing()
    for pid in pids:
        pairing.process_began(pid)
    for pid in many:
        pairing.many_devices(pid)
    return pairing


# The oracle


def same_stream(launch: Call, other: Call, by_thread: bool) -> bool:
    own = by_thread or launch.canonical == PER_THREAD
    return other.pid == launch.pid and other.canonical == launch.canonical and (not own or other.tid == launch.tid)


def captures(calls: Sequence[Call], by_thread: bool) -> set[int]:
    """Launches and records between the end of a successful begin of a capture and the start of its end."""
    found = set()
    marks = [c for c in calls if c.kind == Kind.CAPTURE_END or (c.kind == Kind.CAPTURE_BEGIN and c.status == 0)]
    for call in calls:
        if not call.launch and (call.kind != Kind.EVENT_RECORD or call.status):
            continue
        before = [m for m in marks if same_stream(call, m, by_thread) and m.left <= call.entered]
        if before and max(before, key=lambda m: m.entered).kind == Kind.CAPTURE_BEGIN:
            found.add(call.entered)
    return found


def record_of(sync: Call, calls: Sequence[Call]) -> Call | None:
    """The last record of the event before the wait, unless captured or another returns during it or the wait."""
    records = [
        c
        for c in calls
        if c.kind == Kind.EVENT_RECORD and c.status == 0 and (c.pid, c.handle) == (sync.pid, sync.handle)
    ]
    if any(sync.entered < r.left <= sync.left for r in records):
        return None
    last = max((r for r in records if r.left <= sync.entered), key=lambda r: r.left, default=None)
    if last is None or any(last.entered < r.left < last.left for r in records):
        return None
    if last.entered in captures(calls, by_thread=False):
        return None
    return last


def as_of_stream(sync: Call, calls: Sequence[Call]) -> Call:
    """The wait for an event as one for the stream of its record; one that proves nothing where that is not known."""
    record = record_of(sync, calls)
    if record is None:
        return replace(sync, sync=Sync.NONE)
    return replace(sync, sync=Sync.STREAM, stream=record.stream, flags=record.flags, tid=record.tid)


def expected(calls: Sequence[Call], known: Sequence[int], many: Sequence[int]) -> dict[int, Answer]:
    by_thread = any(c.flags & NO_RETURN for c in calls)
    captured = captures(calls, by_thread)
    syncs = [c for c in calls if c.kind == Kind.SYNC and c.status == 0 and not c.flags & NO_RETURN]
    syncs = [s if s.sync != Sync.EVENT else as_of_stream(s, calls) for s in syncs]

    def waits_for(sync: Call, launch: Call) -> bool:
        if sync.sync == Sync.DEVICE:
            own = by_thread or launch.canonical == PER_THREAD
            return sync.pid == launch.pid and (not own or sync.tid == launch.tid) and launch.pid not in many
        defaults = launch.canonical in (0, PER_THREAD)
        return (
            sync.sync == Sync.STREAM and same_stream(launch, sync, by_thread) and not (defaults and launch.pid in many)
        )

    proves_from = {s.entered: record_of(s, calls).entered if s.handle else s.entered for s in syncs if s.sync}
    proof: dict[int, Call] = {}
    unseen = set()
    for launch in calls:
        if not launch.launch or launch.status != 0 or launch.entered in captured:
            continue
        of_stream = [s for s in syncs if waits_for(s, launch)]
        after = [s for s in of_stream if proves_from[s.entered] >= (launch.emitted if by_thread else launch.left)]
        if not after:
            continue
        first = min(after, key=lambda s: s.left)
        proof[launch.entered] = first
        device = [s for s in syncs if s.pid == launch.pid and s.sync == Sync.DEVICE and launch.pid not in many]
        if launch.pid not in known and (
            first == min([*of_stream, *device], key=lambda s: s.left)
            or (device and first == min(device, key=lambda s: s.left))
        ):
            unseen.add(first.entered)
    shares = Counter(sync.entered for sync in proof.values())
    return {
        c.entered: (
            proof[c.entered].left - c.entered,
            0 if proof[c.entered].entered in unseen else shares[proof[c.entered].entered],
            False,
        )
        if c.entered in proof
        else (0, 0 if c.entered in unseen else shares[c.entered], c.entered in captured)
        for c in calls
    }


# Random calls


@dataclass
class Scene:
    """Threads that enter and leave calls, one at each tick."""

    no_return: bool
    with_captures: bool
    tick: int = 100
    calls: list[Call] = field(default_factory=list)
    open: dict[tuple[int, int], Call] = field(default_factory=dict)
    capturing: set[tuple[int, int, int]] = field(default_factory=set)

    def key(self, call: Call) -> tuple[int, int, int]:
        return call.pid, call.canonical, call.tid if self.no_return or call.canonical == PER_THREAD else 0

    def step(self, thread: tuple[int, int], wish: tuple[Any, ...]) -> None:
        self.tick += wish[5]
        if thread in self.open:
            self.leave(thread)
            return
        kind, stream, ptsz, status, sync, _, handle = wish
        call = Call(kind, self.tick, 0, *thread, stream, int(WireFlags.PER_THREAD) if ptsz else 0, status)
        if kind == Kind.SYNC:
            call = replace(call, sync=sync, stream=stream if sync == Sync.STREAM else 0, flags=call.flags)
            if sync != Sync.STREAM:
                call = replace(call, flags=0, handle=handle if sync == Sync.EVENT else 0)
        if kind == Kind.EVENT_RECORD:
            call = replace(call, handle=handle)
        if kind in (Kind.CAPTURE_BEGIN, Kind.CAPTURE_END):
            self.mark(call)
            return
        self.open[thread] = call
        if self.no_return and call.launch:
            self.open[thread] = replace(call, flags=call.flags | NO_RETURN, status=0)
            self.leave(thread)

    def mark(self, call: Call) -> None:
        """Captures nest in nothing and overlap no launch of their stream, as CUDA demands."""
        key = self.key(call)
        if not self.with_captures or any(self.key(c) == key for c in self.open.values()):
            return
        kind = Kind.CAPTURE_END if key in self.capturing else Kind.CAPTURE_BEGIN
        if call.status == 0 or kind == Kind.CAPTURE_END:
            self.capturing ^= {key}
        self.tick += 1
        self.calls.append(replace(call, kind=kind, left=self.tick))

    def leave(self, thread: tuple[int, int]) -> None:
        call = self.open.pop(thread)
        if call.kind == Kind.SYNC and call.sync == Sync.STREAM and self.key(call) in self.capturing:
            call = replace(call, status=900)
        self.calls.append(replace(call, left=call.entered if call.flags & NO_RETURN else self.tick))


WISHES = st.tuples(
    st.sampled_from(
        [Kind.LAUNCH] * 8
        + [Kind.GRAPH_LAUNCH]
        + [Kind.SYNC] * 5
        + [Kind.CAPTURE_BEGIN] * 2
        + [Kind.INIT]
        + [Kind.EVENT_RECORD] * 4
    ),
    st.sampled_from([7, 7, 9, 0, PER_THREAD]),
    st.booleans(),
    st.sampled_from([0, 0, 0, 0, 1]),
    st.sampled_from([Sync.STREAM, Sync.STREAM, Sync.STREAM, Sync.DEVICE, Sync.EVENT, Sync.EVENT]),
    st.integers(1, 4),
    st.sampled_from([31, 31, 32]),
)
THREADS = st.tuples(st.sampled_from([1, 1, 2]), st.integers(1, 3))


@st.composite
def scenes(draw: st.DrawFn, *, no_return: bool = False, with_captures: bool = True) -> list[Call]:
    """Calls in the order in which their records are emitted."""
    scene = Scene(no_return, with_captures)
    for thread, wish in draw(st.lists(st.tuples(THREADS, WISHES), max_size=60)):
        scene.step(thread, wish)
    for thread in list(scene.open):
        scene.tick += 1
        scene.leave(thread)
    # Handle 1 is the legacy stream's other name, in functions that do not mean the thread's own stream.
    return [replace(c, stream=LEGACY) if c.stream == 0 and not c.flags and c.entered % 2 else c for c in scene.calls]


def cut(calls: list[Call], cuts: Sequence[int]) -> Iterator[list[Call]]:
    edges = sorted({0, len(calls), *(c % (len(calls) + 1) for c in cuts)})
    for start, end in zip(edges, [*edges[1:], len(calls)], strict=True):
        yield calls[start:end]


CUTS = st.lists(st.integers(0, 60), max_size=12)
SOME = st.sets(st.sampled_from([1, 2]))


def check(calls: list[Call], cuts: Sequence[int], known: set[int], many: set[int]) -> None:
    whole = fed(pairing_for(sorted(known), sorted(many)), [calls])
    launches = {c.entered: c for c in calls if c.launch}
    assert whole == expected(calls, sorted(known), sorted(many))
    for at, (completion, _, captured) in whole.items():
        if completion:
            assert completion >= launches[at].left - launches[at].entered
            assert launches[at].status == 0
            assert not captured
    # Cutting the same records elsewhere may only make it know less, and nothing when the processes are known.
    parts = fed(pairing_for(sorted(known), sorted(many)), list(cut(calls, cuts)))
    assert set(parts) == set(whole)
    for call in calls:
        at = call.entered
        if call.pid in known:
            assert parts[at] == whole[at]
        else:
            assert parts[at] in (whole[at], (whole[at][0], 0, whole[at][2]))


@settings(max_examples=300, deadline=None)
@given(scenes(), CUTS, SOME, SOME)
def test_as_the_rules_say(calls: list[Call], cuts: list[int], known: set[int], many: set[int]) -> None:
    check(calls, cuts, known, many)


@settings(max_examples=200, deadline=None)
@given(scenes(no_return=True, with_captures=False), CUTS, SOME, SOME)
def test_as_the_rules_say_without_returns(calls: list[Call], cuts: list[int], known: set[int], many: set[int]) -> None:
    check(calls, cuts, known, many)


@settings(max_examples=100, deadline=None)
@given(scenes(), CUTS)
def test_every_batch_is_as_large_as_it_says(calls: list[Call], cuts: list[int]) -> None:
    out = fed(pairing_for([1, 2]), list(cut(calls, cuts)))
    pid = {c.entered: c.pid for c in calls}
    ends = Counter((pid[at], at + completion) for at, (completion, _, _) in out.items() if completion)
    for at, (completion, batch, _) in out.items():
        if completion:
            assert ends[pid[at], at + completion] == batch


# Single cases, exact


def launch(at: int, took: int = 2, **more: Any) -> Call:
    return Call(Kind.LAUNCH, at, at + took, **more)


def stream_sync(at: int, took: int = 5, **more: Any) -> Call:
    return Call(Kind.SYNC, at, at + took, sync=Sync.STREAM, **more)


def device_sync(at: int, took: int = 5, **more: Any) -> Call:
    return Call(Kind.SYNC, at, at + took, sync=Sync.DEVICE, stream=0, **more)


def test_a_sync_entered_before_the_launch_returned_proves_nothing() -> None:
    out = fed(pairing_for([1]), [[launch(10, 10), stream_sync(15, 10, tid=2), stream_sync(30, 5)]])
    assert out[10] == (25, 1, False)
    out = fed(pairing_for([1]), [[launch(10, 10), stream_sync(20, 10, tid=2)]])
    assert out[10] == (20, 1, False), "entered at the instant of the return"


def test_the_sync_that_ends_first_counts_not_the_one_that_begins_first() -> None:
    calls = [launch(10), stream_sync(30, 5, tid=2), stream_sync(20, 90, tid=3)]
    assert fed(pairing_for([1]), [calls])[10] == (25, 1, False)
    assert fed(pairing_for([1]), [[c] for c in calls])[10] == (25, 1, False)


def test_the_first_sync_on_a_stream_in_use_before_shares_with_what_was_not_seen() -> None:
    calls = [launch(10), stream_sync(20), launch(30), launch(40), stream_sync(50)]
    out = fed(Pairing(), [calls])
    assert [out[at] for at in (10, 30, 40)] == [(15, 0, False), (25, 2, False), (15, 2, False)]


def test_patience_gives_out_and_the_late_sync_is_shared_with_what_was_given_up() -> None:
    pairing = pairing_for([1])
    pairing.patience_ns = 1000
    assert len(pairing.feed(records([launch(10), launch(20)]), 1010)) == 0, "exactly as old as patience"
    assert answers(pairing.feed(records([]), 1011)) == {10: (0, 0, False)}
    later = answers(pairing.feed(records([stream_sync(1050)]), 1060))
    assert later == {20: (1035, 0, False), 1050: (0, 0, False)}, "two share it, and one of them is gone"
    assert answers(pairing.feed(records([launch(1100), stream_sync(1200)]), 1210))[1100] == (105, 1, False)


def test_above_max_pending_the_oldest_go_first() -> None:
    pairing = pairing_for([1])
    pairing.max_pending = 3
    out = answers(pairing.feed(records([launch(at) for at in range(10, 60, 10)]), 100))
    assert out == {10: (0, 0, False), 20: (0, 0, False)}
    out = answers(pairing.feed(records([stream_sync(100)]), 110))
    assert [out[at] for at in (30, 40, 50)] == [(75, 0, False), (65, 0, False), (55, 0, False)]
    out = answers(pairing.feed(records([launch(110), stream_sync(120)]), 130))
    assert out[110] == (15, 1, False)


def test_last_gives_out_everything() -> None:
    pairing = pairing_for([1])
    assert answers(pairing.feed(records([launch(10), stream_sync(20, stream=9)]), 30, last=True)) == {
        10: (0, 0, False),
        20: (0, 0, False),
    }
    assert len(pairing.feed(records([]), 30, last=True)) == 0


def test_no_records_is_no_rows() -> None:
    out = Pairing().feed(np.zeros(0, EVENT), 0)
    assert (len(out), out.dtype) == (0, PAIRED)


def test_after_a_loss_the_next_sync_is_shared_with_what_was_lost() -> None:
    pairing = pairing_for([1])
    pairing.feed(records([launch(10), stream_sync(20)]), 30)
    pairing.events_lost()
    out = answers(pairing.feed(records([launch(40), stream_sync(50), launch(60), stream_sync(70)]), 80))
    assert out[40] == (15, 0, False)
    assert answers(pairing.feed(records([launch(90), stream_sync(95)]), 100))[90] == (10, 0, False)


def test_a_pid_that_comes_back_is_another_process() -> None:
    pairing = pairing_for([1])
    pairing.feed(records([launch(10), stream_sync(20)]), 30)
    pairing.process_ended(1)
    assert answers(pairing.feed(records([launch(40), stream_sync(50)]), 60))[40] == (15, 0, False)
    pairing.process_ended(1)
    pairing.process_began(1)
    assert answers(pairing.feed(records([launch(70), stream_sync(80)]), 90))[70] == (15, 1, False)


def test_a_sync_says_how_many_launches_it_proves_and_what_the_last_of_them_launched() -> None:
    graph = Call(Kind.GRAPH_LAUNCH, 50, 52)
    calls = [launch(10, handle=3), launch(20, handle=5), stream_sync(30), launch(40, handle=7), graph, stream_sync(60)]
    calls += [stream_sync(70), event_sync(80, 31)]
    rows = pairing_for([1]).feed(records(calls), 0, last=True)
    syncs = rows[rows["event"]["kind"] == Kind.SYNC]
    assert syncs["batch_launches"].tolist() == [2, 2, 0, 0]
    assert syncs["after_graph"].tolist() == [False, True, False, False]
    assert syncs["event"]["handle"].tolist() == [5, 0, 0, 31]
    pairing = pairing_for([1, 2])
    pairing.events_lost({1})
    out = answers(pairing.feed(records([launch(10), stream_sync(30), launch(40, pid=2), stream_sync(50, pid=2)]), 60))
    assert [out[30][1], out[50][1]] == [0, 1]


def test_captures_over_several_reads() -> None:
    begin, end = Call(Kind.CAPTURE_BEGIN, 10, 12), Call(Kind.CAPTURE_END, 60, 61)
    calls = [launch(5), begin, launch(20), launch(30, stream=9), launch(40), end, launch(70), stream_sync(80)]
    calls += [stream_sync(90, stream=9)]
    for chunks in ([calls], [[c] for c in calls]):
        out = fed(pairing_for([1]), chunks)
        assert [out[at] for at in (20, 40)] == [(0, 0, True)] * 2
        assert [out[at] for at in (5, 70)] == [(80, 2, False), (15, 2, False)]
        assert out[30] == (65, 1, False)


def test_a_capture_that_did_not_begin_captures_nothing() -> None:
    calls = [Call(Kind.CAPTURE_BEGIN, 10, 12, status=1), launch(20), stream_sync(30)]
    assert fed(pairing_for([1]), [calls])[20] == (15, 1, False)


def test_many_streams_and_processes_at_once() -> None:
    """More than 65,536 streams: their numbers no longer fit two bytes."""
    count = 70_001
    events = np.zeros(2 * count, EVENT)
    events["timestamp_ns"] = np.arange(2 * count) * 10 + 10
    events["duration_ns"] = 3
    events["pid"] = events["tid"] = 1
    events["stream"] = np.concatenate([np.arange(count), np.arange(count)]) + 1000
    events["kind"][count:] = Kind.SYNC
    events["sync"][count:] = Sync.STREAM
    out = pairing_for([1]).feed(events, 0, last=True)
    launches = out[out["event"]["kind"] == Kind.LAUNCH]
    assert len(launches) == count
    assert (launches["batch_launches"] == 1).all()
    assert (launches["completion_ns"] == 10 * count + 3).all()


# Faults


def test_a_capture_over_several_reads_without_returns() -> None:
    begin, end = Call(Kind.CAPTURE_BEGIN, 10, 12), Call(Kind.CAPTURE_END, 60, 61)
    calls = [begin, launch(20, 0, flags=NO_RETURN), end, launch(70, 0, flags=NO_RETURN), stream_sync(80)]
    for chunks in ([calls], [[c] for c in calls]):
        out = fed(pairing_for([1]), chunks)
        assert [out[at] for at in (20, 70)] == [(0, 0, True), (15, 1, False)]


def test_a_capture_that_was_invalidated_has_ended_too() -> None:
    begin = Call(Kind.CAPTURE_BEGIN, 10, 12)
    end = Call(Kind.CAPTURE_END, 60, 61, status=901)  # CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    out = fed(pairing_for([1]), [[begin, launch(20), end, launch(70), stream_sync(80)]])
    assert [out[at] for at in (20, 70)] == [(0, 0, True), (15, 1, False)]


def test_a_sync_that_succeeds_shows_that_a_capture_has_ended_whose_end_was_lost() -> None:
    calls = [Call(Kind.CAPTURE_BEGIN, 10, 12), launch(20), stream_sync(80), launch(90), stream_sync(100)]
    out = fed(pairing_for([1]), [calls])
    assert [out[at] for at in (20, 90)] == [(0, 0, True), (15, 1, False)]


def test_a_loss_may_lie_anywhere_between_two_reads() -> None:
    pairing = pairing_for([1])
    pairing.events_lost()
    calls = [launch(10), stream_sync(20), launch(30), stream_sync(50)]  # lost: a launch at 40
    out = answers(pairing.feed(records(calls), 60))
    assert out[30] == (25, 0, False)
    # What was lost after these records were read shares the first sync of the next.
    out = answers(pairing.feed(records([launch(70), stream_sync(80), launch(90), stream_sync(95)]), 100))
    assert [out[at] for at in (70, 90)] == [(15, 0, False), (10, 1, False)]


def test_the_legacy_stream_by_its_handle_is_not_the_threads_own() -> None:
    ptsz = int(WireFlags.PER_THREAD)
    calls = [launch(10, stream=LEGACY, flags=ptsz), stream_sync(20, stream=LEGACY, tid=2)]
    for chunks in ([calls], [[c] for c in calls]):
        assert fed(pairing_for([1]), chunks)[10] == (15, 1, False)


def record(at: int, handle: int, took: int = 2, **more: Any) -> Call:
    return Call(Kind.EVENT_RECORD, at, at + took, handle=handle, **more)


def wait(at: int, handle: int, **more: Any) -> Call:
    return Call(Kind.STREAM_WAIT, at, at, handle=handle, flags=NO_RETURN, **more)


def event_sync(at: int, handle: int, took: int = 5, **more: Any) -> Call:
    return Call(Kind.SYNC, at, at + took, stream=0, sync=Sync.EVENT, handle=handle, **more)


def test_a_wait_for_an_event_proves_what_came_before_its_last_record() -> None:
    calls = [launch(10), record(20, 31), launch(30), launch(33, stream=9), event_sync(40, 31, tid=2), stream_sync(90)]
    for chunks in ([calls], [[c] for c in calls]):
        out = fed(pairing_for([1]), chunks)
        assert out[10] == (35, 1, False)
        assert out[30] == (65, 1, False)
        assert out[33] == (0, 0, False)
    moved = [launch(10), record(20, 31), record(30, 31, stream=9), event_sync(40, 31), stream_sync(90)]
    assert fed(pairing_for([1]), [moved])[10] == (85, 1, False)


def test_a_wait_for_an_event_says_on_which_stream_it_was_recorded() -> None:
    rows = pairing_for([1]).feed(records([record(20, 31, stream=9), event_sync(40, 31)]), 0, last=True)
    assert rows["event"]["stream"].tolist() == [9, 9]
    assert rows["event"]["tid"].tolist() == [1, 1]


def test_a_wait_for_an_event_proves_nothing_where_its_record_is_in_doubt() -> None:
    for calls in (
        [launch(10), event_sync(40, 31)],  # never seen
        [launch(10), record(20, 31, status=1), event_sync(40, 31)],
        [launch(10), record(20, 31, pid=2), event_sync(40, 31)],
        [launch(10), record(20, 31), record(39, 31, tid=2, stream=9), event_sync(40, 31)],  # returns within the wait
        [launch(10), record(25, 31, tid=2, stream=9), record(20, 31, 9), event_sync(40, 31)],  # which is the last?
    ):
        assert fed(pairing_for([1]), [calls])[10] == (0, 0, False)
        assert fed(pairing_for([1]), [[c] for c in calls])[10] == (0, 0, False)
    for lost in (1, 0):
        pairing = pairing_for([1])
        pairing.feed(records([launch(10), record(20, 31)]), 0)
        pairing.events_lost({lost})
        pairing.feed(records([record(30, 32)]), 0)
        out = pairing.feed(records([event_sync(40, 31), event_sync(50, 32)]), 60, last=True)
        assert answers(out)[10] == (0, 0, False)


def test_an_event_that_was_captured_says_nothing_of_its_stream() -> None:
    begin, end = Call(Kind.CAPTURE_BEGIN, 10, 12), Call(Kind.CAPTURE_END, 60, 61)
    calls = [launch(5), begin, record(20, 31), end, event_sync(80, 31), stream_sync(90)]
    for chunks in ([calls], [[c] for c in calls]):
        assert fed(pairing_for([1]), chunks)[5] == (90, 1, False)


def test_no_sync_before_the_one_that_proves_what_was_given_up_is_of_one_launch() -> None:
    pairing = Pairing(patience_ns=100)
    pairing.process_began(1)
    pairing.feed(records([launch(5), stream_sync(10), record(20, 31), launch(30)]), 500)
    out = pairing.feed(records([launch(600), event_sync(610, 31), stream_sync(630)]), 640, last=True)
    assert answers(out)[600] == (35, 0, False)


def test_what_was_given_up_after_the_record_shares_the_next_sync_still() -> None:
    pairing = Pairing(patience_ns=100)
    pairing.process_began(1)
    early = [launch(5), stream_sync(10), record(20, 31), launch(30)]
    pairing.feed(records(early), 500)
    out = [pairing.feed(records([launch(600), event_sync(610, 31)]), 620)]
    out += [pairing.feed(records([stream_sync(630), launch(700), stream_sync(710)]), 720, last=True)]
    found = answers(np.concatenate(out))
    assert found[600] == (35, 0, False)
    assert found[700] == (15, 1, False)


def test_streams_that_join_a_capture_are_captured_until_it_ends() -> None:
    begin, end = Call(Kind.CAPTURE_BEGIN, 10, 12), Call(Kind.CAPTURE_END, 80, 81)
    calls = [
        *(launch(5, stream=9), begin, launch(14, stream=9), record(20, 31), wait(25, 31, stream=9)),
        *(launch(30, stream=9), launch(35, stream=8), record(40, 32, stream=9), wait(45, 32, stream=8)),
        *(launch(50, stream=8), record(55, 33, stream=8), wait(60, 33), launch(70), end),
        *(launch(85, stream=9), launch(88, stream=8), wait(89, 31, stream=6), launch(90, stream=6)),
        *(stream_sync(100 + s, stream=s) for s in (6, 8, 9)),
    ]
    for chunks in ([calls], [[c] for c in calls]):
        out = fed(pairing_for([1]), chunks)
        assert captured_launches(out, calls) == [30, 50, 70]
        assert out[14] == (100, 3, False)
        assert out[35] == (78, 2, False)
        assert out[90] == (21, 1, False)


def test_a_sync_that_began_before_the_capture_does_not_end_it() -> None:
    begin, end = Call(Kind.CAPTURE_BEGIN, 10, 20), Call(Kind.CAPTURE_END, 60, 61)
    calls = [stream_sync(12, 3, tid=2), begin, launch(30), end, launch(70), stream_sync(80)]
    for chunks in ([calls], [[c] for c in calls]):
        out = fed(pairing_for([1]), chunks)
        assert [out[at] for at in (30, 70)] == [(0, 0, True), (15, 1, False)]


def test_a_capture_is_ended_on_the_stream_where_it_began_only() -> None:
    begin, end = Call(Kind.CAPTURE_BEGIN, 10, 12), Call(Kind.CAPTURE_END, 60, 61)
    elsewhere = Call(Kind.CAPTURE_END, 30, 31, stream=9, status=903)  # CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
    calls = [begin, record(20, 31), wait(25, 31, stream=9), elsewhere, launch(40, stream=9), launch(45), end]
    for chunks in ([calls], [[c] for c in calls]):
        out = fed(pairing_for([1]), chunks)
        assert captured_launches(out, calls) == [40, 45]


def test_a_capture_begins_anew_where_the_end_of_one_before_was_lost() -> None:
    begins = [Call(Kind.CAPTURE_BEGIN, at, at + 2) for at in (10, 40)]
    calls = [begins[0], launch(20), record(25, 31), wait(30, 31, stream=9), launch(35, stream=9), begins[1], launch(50)]
    calls += [launch(55, stream=9), Call(Kind.CAPTURE_END, 60, 61), launch(70), stream_sync(80)]
    for chunks in ([calls], [[c] for c in calls]):
        out = fed(pairing_for([1]), chunks)
        assert captured_launches(out, calls) == [20, 35, 50]


def test_the_legacy_stream_joins_no_capture() -> None:
    calls = [Call(Kind.CAPTURE_BEGIN, 10, 12), record(20, 31), wait(25, 31, stream=0), launch(30, stream=0)]
    calls += [wait(35, 31, stream=LEGACY), launch(40, stream=0), Call(Kind.CAPTURE_END, 60, 61)]
    calls += [stream_sync(80, stream=0)]
    out = fed(pairing_for([1]), [calls])
    assert [out[at] for at in (30, 40)] == [(55, 2, False), (45, 2, False)]


def test_ten_thousand_captures_among_as_many_launches_are_found_in_time_in_proportion() -> None:
    def seconds(captures: int) -> float:
        events = np.zeros(8 * captures, EVENT)
        events["timestamp_ns"] = np.arange(len(events)) * 10 + 10
        events["duration_ns"], events["stream"], events["pid"], events["tid"] = 5, 7, 1, 1
        events["kind"][0::8], events["kind"][2::8], events["kind"][3::8] = (
            Kind.CAPTURE_BEGIN,
            Kind.CAPTURE_END,
            Kind.GRAPH_MADE,
        )
        events["handle"], events["stream"][3::8] = 31, 31
        events["kind"][4::8] = Kind.GRAPH_LAUNCH
        began = time.process_time()
        Pairing().feed(events, 0)
        return time.process_time() - began

    seconds(10)
    assert seconds(20_000) < 40 * max(seconds(1_000), 0.01)


def test_only_launches_are_captured() -> None:
    calls = [Call(Kind.CAPTURE_BEGIN, 10, 12), launch(20), device_sync(30, tid=2), Call(Kind.CAPTURE_END, 60, 61)]
    assert fed(pairing_for([1]), [calls])[30] == (0, 0, False)


def test_a_device_sync_ends_what_was_not_seen_on_every_stream() -> None:
    calls = [device_sync(10), launch(20), stream_sync(30)]
    assert fed(Pairing(), [calls])[20] == (15, 1, False)
    assert fed(Pairing(), [[c] for c in calls])[20] == (15, 1, False)


def test_the_first_device_sync_is_shared_with_other_streams_unseen_launches() -> None:
    calls = [launch(10), stream_sync(20), launch(30), device_sync(40), launch(50), device_sync(60)]
    out = fed(Pairing(), [calls])
    assert [out[at] for at in (10, 30, 50)] == [(15, 0, False), (15, 0, False), (15, 1, False)]


def test_a_device_sync_is_shared_with_what_was_given_up_on_another_stream() -> None:
    pairing = pairing_for([1])
    pairing.patience_ns = 1000
    pairing.feed(records([launch(10, stream=9)]), 2000)
    assert answers(pairing.feed(records([launch(2010), device_sync(2020)]), 2030))[2010] == (15, 0, False)


def test_launches_of_a_process_that_ended_are_given_out() -> None:
    pairing = pairing_for([1])
    pairing.feed(records([launch(10)]), 20)
    pairing.process_ended(1)
    pairing.process_began(1)
    assert answers(pairing.feed(records([stream_sync(30)]), 40)) == {10: (0, 0, False), 30: (0, 0, False)}
