"""What of a window is no ordinary traffic: rules on what a store says of processes, accounts and configurations.

Nothing here reads a store, and nothing decides whether a stretch is left out: see cleaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kdiff.analysis.columns import column
from kdiff.analysis.coverage import hosts_of
from kdiff.analysis.device import Process
from kdiff.analysis.scope import Cut, Cuts, joined
from kdiff.analysis.window import MINUTE_NS, NS, Window

QUIET_NS: Final = 5 * NS
"""For how long an agent must have recorded a host before a process's first launch that is seen to be its first one."""
_GAP: Final = np.array([0, NS // 10])
"""Accounts of one host that lie no further apart, ns, follow each other."""

_LAST_NS: Final = 2**62
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)

Numbers = NDArray[np.int64]
Recorded = Callable[[str, int, int], bool]
"""(host, from_ns, to_ns) -> whether an agent recorded all of it."""


def started(
    window: Window,
    processes: Sequence[Mapping[str, Any]],
    earlier: Mapping[Process, int],
    recorded: Recorded,
    warm_up_ns: int,
) -> list[Cut]:
    """The warm-up of each process that was seen to start in the window, or so shortly before that it reaches into it.

    A process is left alone where nobody recorded its host right before its first launch: then it is the recording that
    started; and where it ends with its warm-up or soon after, as a job does that is started for one piece of work: it
    has no other launches.

    Args:
        window: what is judged.
        processes: rows of queries/sql/processes.sql of the window.
        earlier: the first launch of each process in a stretch before the window, Unix ns.
        recorded: whether an agent recorded a host.
        warm_up_ns: how long a process warms up, from its first launch.
    """
    found = []
    for row in processes:
        process = row["host"], row["pid"]
        first = min(row["first_ns"], earlier.get(process, row["first_ns"]))
        if row["pid"] == 0 or first + warm_up_ns <= window.from_ns:
            continue
        lives_on = row["last_ns"] >= min(first + 2 * warm_up_ns, window.to_ns - warm_up_ns)
        if lives_on and recorded(row["host"], first - QUIET_NS, first):
            found.append(Cut(*process, max(first, 0), max(first, 0) + warm_up_ns, "warm-up"))
    return found


def recorded_by(*accounts: pa.Table) -> Recorded:
    """What agents recorded, by their accounts: tables with the columns from_ns, to_ns and host."""
    spans: dict[str, list[Cuts]] = {}
    for table in accounts:
        if not table.num_rows:
            continue
        names, host = hosts_of(table)
        both = np.stack([column(table, name, np.int64) for name in ("from_ns", "to_ns")], axis=1)
        for place, name in enumerate(names):
            spans.setdefault(name, []).append(both[host == place])
    known: dict[str, Cuts] = {}

    def recorded(host: str, from_ns: int, to_ns: int) -> bool:
        if host not in spans:
            return False
        if host not in known:
            its = np.concatenate(spans[host])
            known[host] = joined(its + _GAP)
        its = known[host]
        place = int(np.searchsorted(its[:, 0], from_ns, side="right")) - 1
        return place >= 0 and bool(its[place, 1] >= to_ns)

    return recorded


def lossy(accounts: pa.Table, limit: float) -> list[Cut]:
    """The stretches of a host of whose events more than the share `limit` was lost, by its own account.

    Accounts of one stretch (of several services) count together. `accounts`: rows of queries/sql/health.sql.
    """
    if not accounts.num_rows:
        return []
    lost = np.zeros(accounts.num_rows)
    for kind in ("launches", "syncs", "other"):
        lost += column(accounts, f"lost_{kind}", np.uint64)
    if not lost.any():
        return []
    names, host, start, end = _stretches(accounts)
    stretch = _numbers(host, start, end)
    chosen = np.flatnonzero(np.isin(stretch, stretch[lost > 0]))
    _, first, place = np.unique(stretch[chosen], return_index=True, return_inverse=True)
    losses = np.bincount(place, weights=lost[chosen])
    events = np.bincount(place, weights=column(accounts, "events", np.uint64)[chosen].astype(np.float64))
    over = chosen[first[losses > limit * (losses + events)]]
    return _cuts(names, host[over], start[over], end[over], "lossy")


def clock_steps(accounts: pa.Table) -> list[Cut]:
    """The stretches of a host in which its clock was set or it slept: times around that moment overlap, or gape.

    `accounts`: rows of queries/sql/health.sql.
    """
    if not accounts.num_rows:
        return []
    moved = column(accounts, "clock_set_ns", np.int64) != 0
    moved |= column(accounts, "slept_ns", np.int64) > 0
    if not moved.any():
        return []
    names, host, start, end = _stretches(accounts)
    return _cuts(names, host[moved], start[moved], end[moved], "clock")


def twice(accounts: pa.Table) -> list[Cut]:
    """The stretches of which the store has the same account twice or more: their rows are most likely there as often.

    An agent accounts for a stretch once, for each service. `accounts`: rows of queries/sql/health.sql.
    """
    if accounts.num_rows < 2:
        return []
    names, host, start, end = _stretches(accounts)
    events = column(accounts, "events", np.uint64).astype(np.int64)
    same = _numbers(host, start, end, events, _codes(accounts["service"]))
    order = np.argsort(same, kind="stable")
    again = order[1:][same[order[1:]] == same[order[:-1]]]
    again = again[events[again] > 0]
    return _cuts(names, host[again], start[again], end[again], "twice")


def _stretches(accounts: pa.Table) -> tuple[list[str], Numbers, Numbers, Numbers]:
    """The hosts, and of each account which of them it is of, and from when to when it is."""
    names, host = hosts_of(accounts)
    start, end = (column(accounts, name, np.int64) for name in ("from_ns", "to_ns"))
    return names, host, start, end


def _numbers(*columns: Numbers) -> NDArray[np.uint64]:
    """One number for each row, of 64 bits: rows that differ have others, but for one chance in 2^64 a pair."""
    number = np.zeros(len(columns[0]), np.uint64)
    for one in columns:
        number = (number ^ one.view(np.uint64)) * _ODD
        number ^= number >> _HALF
    return number


def _cuts(names: Sequence[str], host: Numbers, start: Numbers, end: Numbers, why: str) -> list[Cut]:
    """Of stretches of hosts, each once, in order; an account may say what it will, a cut lies in 64 bits."""
    start, end = (np.clip(side, 0, _LAST_NS) for side in (start, end))
    every = sorted({(names[which], int(a), int(b)) for which, a, b in zip(host, start, end, strict=True)})
    return [Cut(name, 0, a, b, why) for name, a, b in every if b > a]


def _codes(values: pa.ChunkedArray) -> Numbers:
    """A number for each text, shape (rows,)."""
    encoded = pc.dictionary_encode(pa.chunked_array([pa.concat_arrays(values.cast(pa.string()).chunks)]))
    return column(pa.table({"code": encoded.chunk(0).indices}), "code", np.int32).astype(np.int64)


def inside(cuts: Iterable[Cut], window: Window, whole_minutes: bool = False) -> list[Cut]:
    """The cuts that touch the window, joined where those of one process or host meet, in order.

    `whole_minutes`: each is widened to these, of which roll-ups are made.
    """
    spans: dict[tuple[str, int, str], list[tuple[int, int]]] = {}
    for cut in cuts:
        start, end = cut.from_ns, cut.to_ns
        if whole_minutes:
            start, end = start // MINUTE_NS * MINUTE_NS, -(-end // MINUTE_NS) * MINUTE_NS
        start, end = max(start, window.from_ns), min(end, window.to_ns)
        if end > start:
            spans.setdefault((cut.host, cut.pid, cut.why), []).append((start, end))
    return [
        Cut(host, pid, int(start), int(end), why)
        for (host, pid, why), its in sorted(spans.items())
        for start, end in joined(np.array(its, np.int64))
    ]
