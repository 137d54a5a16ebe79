"""Cleaning: what of two windows is no ordinary traffic, and is left out of both before anything is judged.

Each step finds stretches of processes or of hosts in both windows, is taken in both windows or in neither, and is
counted. A step that would take much of a window, or the judgement of a kernel that can be judged without it, is not
taken: what is left must be what the window was chosen for. Where ordinary traffic is left out, with stretches whose
record is not sound, or with warm-up and autotuning that come again and again, a PASS must hold with it, too (see
`Cleaned.with_traffic`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from kdiff.analysis import cleaning_bursts, cleaning_rules
from kdiff.analysis.at_once import Side, of_both
from kdiff.analysis.counts import Counts, Recording
from kdiff.analysis.device import Process
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.pairing import show
from kdiff.analysis.report import CleaningStep
from kdiff.analysis.scope import Cut
from kdiff.analysis.verdict import values_needed
from kdiff.analysis.window import MINUTE_NS, NS
from kdiff.queries import segments_twice

WARM_UP_NS: Final = 60 * NS
LOOK_BACK_NS: Final = 15 * MINUTE_NS
"""For how long before a window a process is looked for: one that launched nothing for so long may warm up again."""
MOST: Final[Mapping[str, float]] = {"clock": 0.1, "lossy": 0.1, "twice": 0.1, "warm_up": 0.2, "autotune": 0.2}
"""The steps in the order in which they are taken, and what share of a window's launches each may leave out."""
MOST_OF_KERNEL: Final = 0.2
"""A kernel that loses more than this share, and by that what judging it needs, keeps a step from being taken."""
TRAFFIC: Final = frozenset({"clock", "lossy", "twice"})
"""The steps that leave ordinary traffic out."""
MOST_CUTS: Final = 5_000
AS_OFTEN: Final = 0.5
"""Of the share of launches that warm-up or autotuning has after: with this share of it before it comes in both."""
_OF_TAIL: Final = 0.05
"""Of the launches above the quantile: a smaller share moves nothing, and is not worth reading minutes for hours."""
_COUNTED: Final = ("launches", "executions", "completions", "isolated")

Found = Mapping[str, Sequence[Cut]]
Both = tuple[Evidence, Evidence]


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Two windows, cleaned.

    Attributes:
        before, after: what is left to judge.
        recorded: both windows as they were recorded, whose losses decide whether there is a verdict.
        with_traffic: both windows with what was left out of ordinary traffic; None without any.
        traffic: the steps that left that out, in order.
        steps: what each step left out of each window, in order; (before's, after's).
    """

    before: Evidence
    after: Evidence
    recorded: Both
    with_traffic: Both | None = None
    traffic: tuple[str, ...] = ()
    steps: tuple[tuple[CleaningStep, ...], tuple[CleaningStep, ...]] = ((), ())

    def losses(self, left: Mapping[str, Recording]) -> dict[str, Recording]:
        """How well the windows were recorded, all of them; `left` says it of what is left. Raises StoreError."""
        if self.with_traffic is None:
            return dict(left)
        return {side: evidence.recording() for side, evidence in zip(left, self.recorded, strict=True)}


def clean(
    before: Evidence, after: Evidence, warm_up_ns: int, max_loss: float, wanted: bool = True, metric: str = "auto"
) -> Cleaned:
    """Both windows without what is no ordinary traffic. Raises StoreError.

    A window that is judged by hours, five days or more, stays as it is. In one that is read from roll-ups autotuning is
    not looked for, and whole minutes are left out.

    Args:
        before: the window to compare with.
        after: the window to judge.
        warm_up_ns: what of a process counts as warming up, from its first launch; 0: nothing.
        max_loss: the share of its events that a stretch may have lost.
        wanted: whether anything is left out but segments that are there twice.
        metric: what is asked to be judged: autotuning is looked for among launches unless that is device time.
    """
    if not wanted:
        return Cleaned(before, after, (before, after), steps=(tuple(_copies(before)), tuple(_copies(after))))
    timed: Callable[[Evidence, Side], int] = lambda evidence, _side: 0 if evidence.rolled else evidence.timed  # noqa: E731
    of_calls = metric not in ("auto", "device") or not all(of_both(before, after, timed))
    find = partial(_find, warm_up_ns=warm_up_ns, max_loss=max_loss, of_calls=of_calls)
    # One window by itself, of a history, is asked once.
    found = (find(before, "before"),) * 2 if before is after else of_both(before, after, find)
    now, kept, traffic = (before, after), (before, after), list[str]()
    steps: tuple[list[CleaningStep], list[CleaningStep]] = (_copies(before), _copies(after))
    for step in MOST:
        cuts = found[0].get(step, ()), found[1].get(step, ())
        if not any(cuts):
            continue
        trial = _without(now[0], cuts[0]), _without(now[1], cuts[1])
        lost, shares, why = _try(step, now, trial, cuts)
        if not why:
            strange = _strange(step, cuts, shares, now, warm_up_ns)
            if any(map(len, strange)):
                kept = _without(kept[0], strange[0]), _without(kept[1], strange[1])
            if tuple(map(len, strange)) != tuple(map(len, cuts)):
                traffic.append(step)
            now = trial
        for its, side, (launches, executions) in zip(steps, cuts, lost, strict=True):
            if side:
                its.append(_told(step, side, launches, executions, why))
    told = tuple(steps[0]), tuple(steps[1])
    return Cleaned(*now, (before, after), kept if traffic else None, tuple(traffic), told)


def _strange(
    step: str,
    cuts: tuple[Sequence[Cut], Sequence[Cut]],
    shares: Sequence[float],
    now: Both,
    warm_up_ns: int,
) -> tuple[Sequence[Cut], Sequence[Cut]]:
    """The cuts of each window that leave out no ordinary traffic.

    Warm-up and autotuning that hold about as much of the before window are part of what there is every day. So is the
    warm-up of processes that start in a window and end in it again; `now`: both windows, of which they are left out.
    """
    if step in TRAFFIC or shares[0] >= AS_OFTEN * shares[1] > 0.0:
        return (), ()
    if step != "warm_up":
        return cuts
    ended = [_ended(evidence, warm_up_ns) for evidence in now]
    before, after = (
        [cut for cut in side if (cut.host, cut.pid) not in its] for its, side in zip(ended, cuts, strict=True)
    )
    return before, after


def _ended(evidence: Evidence, warm_up_ns: int) -> set[Process]:
    """The processes that launched nothing at the end of the window, for as long as one warms up."""
    end = evidence.window.to_ns - warm_up_ns
    return {(row["host"], row["pid"]) for row in evidence.processes if row["last_ns"] < end}


def _find(evidence: Evidence, _side: Side, warm_up_ns: int, max_loss: float, of_calls: bool) -> Found:
    """What each step has to leave out of a window, without what is too little to matter where that is dear to read."""
    if evidence.hourly:
        return {}
    accounts = evidence.accounts
    window, minutes = evidence.window, evidence.rolled
    found = {
        "clock": cleaning_rules.clock_steps(accounts),
        "lossy": cleaning_rules.lossy(accounts, max_loss),
        "twice": cleaning_rules.twice(accounts),
        "warm_up": _started(evidence, warm_up_ns) if warm_up_ns else [],
        "autotune": cleaning_bursts.read(evidence, of_calls),
    }
    whole = {step: cleaning_rules.inside(cuts, window, minutes) for step, cuts in found.items() if cuts}
    if not (minutes and evidence.store.expires):
        return whole
    return {step: cuts for step, cuts in whole.items() if _matters(evidence, cuts)}


def _started(evidence: Evidence, warm_up_ns: int) -> list[Cut]:
    """The warm-up of the processes that started."""
    window, rows, earlier = evidence.window, evidence.processes, dict[Process, int]()
    # Nearly all launch all the time: those that were there before are known by a few minutes.
    for length in sorted({2 * warm_up_ns, max(LOOK_BACK_NS, 2 * warm_up_ns)}):
        if not rows:
            return []
        earlier = _launched_before(evidence, length)
        rows = [row for row in rows if _first(row, earlier) + warm_up_ns > window.from_ns]
    if not rows:
        return []
    accounts = [evidence.accounts]
    if min(_first(row, earlier) for row in rows) < window.from_ns + cleaning_rules.QUIET_NS:
        # Of all services: that of a process which starts may have no account yet.
        start = window.from_ns - warm_up_ns - cleaning_rules.QUIET_NS
        accounts.append(evidence.query("health", {"from_ns": start, "to_ns": window.from_ns, "service": ""}))
    return cleaning_rules.started(window, rows, earlier, cleaning_rules.recorded_by(*accounts), warm_up_ns)


def _launched_before(evidence: Evidence, length_ns: int) -> dict[Process, int]:
    """When each process launched first in a stretch before a window; of whole minutes where these tell it."""
    start, end = evidence.window.from_ns - length_ns, evidence.window.from_ns
    query = "processes"
    if evidence.store.expires:
        query, start, end = "minutes_processes", start // MINUTE_NS * MINUTE_NS, -(-end // MINUTE_NS) * MINUTE_NS
    rows = evidence.query(query, {"from_ns": start, "to_ns": end}).to_pylist()
    return {(row["host"], row["pid"]): row["first_ns"] for row in rows}


def _first(row: Mapping[str, Any], earlier: Mapping[Process, int]) -> int:
    first: int = min(row["first_ns"], earlier.get((row["host"], row["pid"]), row["first_ns"]))
    return first


def _matters(evidence: Evidence, cuts: Sequence[Cut]) -> bool:
    """Whether the cuts of a window of many minutes may hold enough launches to move the quantile."""
    lives = {(row["host"], row["pid"]): row for row in evidence.processes}
    hosts: dict[str, int] = {}
    for (host, _), row in lives.items():
        hosts[host] = hosts.get(host, 0) + row["launches"]
    held = 0.0
    for cut in cuts:
        length, launches = evidence.window.length_ns, hosts.get(cut.host, 0)
        if (cut.host, cut.pid) in lives:
            row = lives[cut.host, cut.pid]
            length, launches = max(row["last_ns"] - row["first_ns"], MINUTE_NS), row["launches"]
        held += launches * min(1.0, (cut.to_ns - cut.from_ns) / length)
    return held > _OF_TAIL * (1.0 - evidence.quantile) * sum(hosts.values())


def _without(evidence: Evidence, cuts: Sequence[Cut]) -> Evidence:
    """The same object where there is nothing to leave out: what it has read stays read."""
    return evidence.scoped(replace(evidence.scope, cuts=(*evidence.scope.cuts, *cuts))) if cuts else evidence


def _try(
    step: str, now: Both, trial: Both, cuts: tuple[Sequence[Cut], Sequence[Cut]]
) -> tuple[list[tuple[int, int]], list[float], str]:
    """(launches, executions) that a step leaves out of each window, what share these are, the larger of the two, and
    why it is not taken; '' if it is."""
    if max(map(len, cuts)) > MOST_CUTS:
        return [(0, 0), (0, 0)], [0.0, 0.0], f"there are more than {MOST_CUTS:,} of them"
    count: Callable[[Evidence, Side], dict[str, Counts]] = lambda evidence, _side: evidence.census()  # noqa: E731
    was, left = of_both(*now, count), of_both(*trial, count)
    lost, shares, why = [], list[float](), ""
    sides = ("control", "canary") if now[0].scope.by_host else ("before", "after")
    needed = values_needed(now[0].quantile)
    for name, a, b in zip(sides, was, left, strict=True):
        of, remain = sum(a.values(), Counts()), sum(b.values(), Counts())
        lost.append((of.launches - remain.launches, of.executions - remain.executions))
        share = max(_share(of.launches, lost[-1][0]), _share(of.executions, lost[-1][1]))
        shares.append(share)
        if share > MOST[step]:
            why = why or f"that would be {_above(share, MOST[step])} of the {name} window (at most {MOST[step]:.0%})"
    for name, a, b in zip(sides, was, left, strict=True):
        for kernel in sorted(was[0].keys() & was[1].keys()):
            starved = _starved([counts[kernel] for counts in was], a[kernel], b.get(kernel, Counts()), needed)
            if starved and not why:
                why = f"the {name} window would hold too little of {show(kernel)} to judge it"
    return lost, shares, why


def _starved(both: Sequence[Counts], was: Counts, left: Counts, needed: int) -> bool:
    """Whether a kernel that could be judged in both windows cannot be any more, by any of its measures."""
    return any(
        min(getattr(counts, name) for counts in both) >= needed > getattr(left, name)
        and _share(getattr(was, name), getattr(was, name) - getattr(left, name)) > MOST_OF_KERNEL
        for name in _COUNTED
    )


def _share(of: int, part: int) -> float:
    return part / of if of else 0.0


def _above(share: float, most: float) -> str:
    """A share that is above `most`, and looks it."""
    shown = f"{share:.0%}"
    return shown if shown != f"{most:.0%}" else f"over {shown}"


def _told(step: str, cuts: Sequence[Cut], launches: int, executions: int, why: str) -> CleaningStep:
    found = len({(cut.host, cut.pid) for cut in cuts}) if step == "warm_up" else len(cuts)
    return CleaningStep(step, found, launches, executions, sum(cut.to_ns - cut.from_ns for cut in cuts), why)


def _copies(evidence: Evidence) -> list[CleaningStep]:
    """The segments that are read once though the capture has them more often, as far as they concern the window."""
    bounds = evidence.window.from_ns, evidence.window.to_ns
    tables = evidence.store.copies
    found = [segment for its in tables.values() for segment in its if segment.overlaps(*bounds)]
    if not found:
        return []
    calls, executions = (
        segments_twice.rows_in(tables.get(name, ()), *bounds) for name in ("cuda_events", "kernel_executions")
    )
    return [CleaningStep("copies", len(found), calls, executions, 0)]
