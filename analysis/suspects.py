"""Kernels that may be one under two names: gone and new, at the same place among the launches, about as often.

A suspicion decides nothing. It is shown with what speaks for it and with the argument that makes it a comparison.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis.at_once import Side, of_both
from kdiff.analysis.canonical import family, is_kernel
from kdiff.analysis.columns import column
from kdiff.analysis.evidence import Evidence
from kdiff.analysis.measure import Plan
from kdiff.analysis.pairing import Pair, show
from kdiff.analysis.report import KernelReport
from kdiff.analysis.verdict import RAN_ONLY, Verdict
from kdiff.queries.printable import printable

MOST_APART: Final = 2.0
"""Launches a second that differ by more than this factor are not those of one kernel."""
ALIKE: Final = 0.6
"""How much of its places, its shapes or its name two kernels must share for it to speak for them."""
MIN_SIGNS: Final = 2
"""Signs that must speak for a pair: the place among the launches, the shapes, the name."""
MOST_KERNELS: Final = 32
"""Gone, and new, kernels that are looked at: those with most launches."""
CHUNKS: Final = 4
CHUNK_ROWS: Final = 25_000
"""Stretches of each window of which the sequence is read, and rows of each."""
ROUNDS: Final = 4
"""How often it is looked again with what is suspected so far."""
_LIKE: Final = 256  # characters of a name that are compared
_ITSELF: Final = -1
_UNPAIRED: Final = -2
_SHORT: Final = 160  # of both names together, that a sentence on the run may hold

Shares = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one kernel stands in one window.

    Attributes:
        previous, following: share of each kernel (by a number that both windows have) right before and after it.
        shapes: share of each grid and block, by a hash.
    """

    previous: Shares = field(default_factory=dict)
    following: Shares = field(default_factory=dict)
    shapes: Shares = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Two plans, by index, that may be one kernel; the others are shares in [0, 1] that are alike, None: not known."""

    gone: int
    new: int
    place: float | None
    shape: float | None
    name: float

    @property
    def signs(self) -> int:
        """How many speak for it."""
        return sum(share is not None and share >= ALIKE for share in (self.place, self.shape, self.name))

    @property
    def weight(self) -> float:
        """All of them together."""
        return (self.place or 0.0) + (self.shape or 0.0) + self.name


def suspect(
    before: Evidence,
    after: Evidence,
    plans: Sequence[Plan],
    rows: Sequence[KernelReport],
    beside: Sequence[Pair],
    recorded_ns: tuple[float, float],
) -> list[KernelReport]:
    """The rows, those of a plan at its place, in which one takes the place of two that may be one kernel.

    `beside` are all pairs of the windows, what no plan is of too. `recorded_ns`: for how long calls were recorded
    before and after. Reads CHUNKS stretches of each window, and only where kernels are gone and others new.
    Raises StoreError.
    """
    sides: tuple[Side, Side] = ("before", "after")
    gone, new = (_unpaired(plans, rows, verdict) for verdict in (Verdict.GONE, Verdict.NEW))
    if not gone or not new or before.hourly or after.hourly:
        return list(rows)
    asked: dict[Side, list[int]] = {"before": gone, "after": new}
    around = of_both(before, after, lambda e, side: read_around(e, plans, side, asked[side], beside))
    rates = [_rates(plans, side, asked[side], ns) for side, ns in zip(sides, recorded_ns, strict=True)]
    found: list[Suspicion] = []
    for _ in range(ROUNDS):
        # A kernel beside one that is suspected may be known by it in turn.
        places = [places_of(its, _numbers(plans, side, found, beside)) for side, its in zip(sides, around, strict=True)]
        more = find(gone, new, plans, (places[0], places[1]), (rates[0], rates[1]))
        if {(one.gone, one.new) for one in more} == {(one.gone, one.new) for one in found}:
            break
        found = more
    told: list[KernelReport | None] = list(rows)
    for one in found:
        told[one.new] = _row(rows[one.gone], rows[one.new], one, rates[0][one.gone], rates[1][one.new])
        told[one.gone] = None
    return [row for row in told if row is not None]


def unchosen(pairs: Sequence[Pair], beside: Sequence[Pair], recorded_ns: tuple[float, float]) -> list[Pair]:
    """What --kernel did not choose of `beside` and may be one of `pairs`, chosen, under another name.

    Gone, and chosen ones are new, or new, and chosen ones are gone, launched about as often.
    `recorded_ns` as in suspect.
    """
    chosen = {pair.kernel for pair in pairs}

    def rate(pair: Pair) -> float:
        return max(pair.before.runs / max(recorded_ns[0], 1.0), pair.after.runs / max(recorded_ns[1], 1.0))

    rates = {
        side: [rate(p) for p in pairs if p.in_before != p.in_after and p.in_after == side] for side in (True, False)
    }
    return [
        pair
        for pair in beside
        if pair.kernel not in chosen
        and pair.in_before != pair.in_after
        and any(max(rate(pair), its) <= MOST_APART * min(rate(pair), its) for its in rates[pair.in_before])
    ]


def unpaired_cause(rows: Sequence[KernelReport], others: Sequence[Pair] = ()) -> str:
    """Why kernels that are gone beside others that are new leave a run undecided; '' where there are not both.

    The swap that the user is gating on may be one of them, under another name. `others`: see unchosen.
    """
    suspected = [row for row in rows if row.verdict is Verdict.RENAME_SUSPECTED]
    new = [row.kernel for row in rows if row.verdict is Verdict.NEW] + [row.kernel for row in suspected]
    gone = [row.kernel for row in rows if row.verdict is Verdict.GONE] + [row.before_names[0] for row in suspected]
    new += [pair.kernel for pair in others if pair.in_after]
    gone += [pair.kernel for pair in others if pair.in_before]
    if not new or not gone:
        return ""
    hint = ": pair what was replaced with --map old=new, or add --unpaired ignore"
    if len(new) == len(gone) == 1 and len(gone[0]) + len(new[0]) <= _SHORT:
        hint = f": if one replaced the other, {_mend(gone[0], new[0])}"
    elif suspected:
        hint = ": add the --map of those that replaced others, as told with RENAME_SUSPECTED, or --unpaired ignore"
    return f"{len(gone)} {'kernel is' if len(gone) == 1 else 'kernels are'} gone and {len(new)} new{hint}"


def find(
    gone: Sequence[int],
    new: Sequence[int],
    plans: Sequence[Plan],
    places: tuple[Mapping[int, Place], Mapping[int, Place]],
    rates: tuple[Mapping[int, float], Mapping[int, float]],
) -> list[Suspicion]:
    """Pairs with signs enough, each better than any other of both its kernels; by index of `plans`."""
    candidates = []
    for g in gone:
        for n in new:
            low, high = sorted((rates[0][g], rates[1][n]))
            if high > MOST_APART * low:
                continue
            one, other = places[0].get(g, Place()), places[1].get(n, Place())
            found = Suspicion(g, n, _same_place(one, other), _shared(one.shapes, other.shapes), 0.0)
            if found.signs + 1 < MIN_SIGNS:
                continue  # names take milliseconds to compare
            found = replace(found, name=_like(plans[g].pair.kernel, plans[n].pair.kernel))
            if found.signs >= MIN_SIGNS:
                candidates.append(found)
    chosen = []
    for one_pair in candidates:
        rivals = [o for o in candidates if o is not one_pair and (o.gone == one_pair.gone or o.new == one_pair.new)]
        if all(rival.weight < one_pair.weight for rival in rivals):
            chosen.append(one_pair)
    return chosen


@dataclass(frozen=True, slots=True)
class Around:
    """What was met around one kernel in a few stretches of a window, and how often.

    Attributes:
        previous, following: calls right before and after it on its thread and stream, by kernel_key; its own: _ITSELF.
        shapes: its grids and blocks, by a hash.
    """

    previous: Counter[int] = field(default_factory=Counter)
    following: Counter[int] = field(default_factory=Counter)
    shapes: Counter[int] = field(default_factory=Counter)


def read_around(
    evidence: Evidence, plans: Sequence[Plan], side: Side, asked: Sequence[int], beside: Sequence[Pair]
) -> dict[int, Around]:
    """What is launched, or runs, around the `asked` plans in one window, by index; `beside` is all that is.

    The launches of a thread and stream, or, of kernels that are not launched by themselves, executions on a stream.
    Those that were not met are left out. Raises StoreError.
    """
    launched = [i for i in asked if getattr(plans[i].pair, side).launches]
    others = [i for i in asked if not getattr(plans[i].pair, side).launches]
    found: dict[int, Around] = {}
    for query, indices in (("sequence_launches", launched), ("sequence_executions", others)):
        if indices:
            counts = [getattr(pair, side) for pair in beside]
            rows = sum(c.launches if query == "sequence_launches" else c.executions for c in counts)
            keys = {key: i for i in indices for key in getattr(plans[i].pair, side).keys}
            for table in _tables(evidence, query, rows):
                _count(found, keys, *table)
    return found


def places_of(around: Mapping[int, Around], numbers: Mapping[int, int]) -> dict[int, Place]:
    """By index, the places of kernels; `numbers` (kernel_key -> number): kernels of one number are one to both windows.

    What has none only one window has: _UNPAIRED. Beside a kernel that was renamed may stand another that was; where one
    of two is fused, only one window has that.
    """

    def numbered(calls: Counter[int]) -> dict[int, float]:
        counter: Counter[int] = Counter()
        for key, count in calls.items():
            counter[_ITSELF if key == _ITSELF else numbers.get(key, _UNPAIRED)] += count
        return _shares(counter)

    return {i: Place(numbered(its.previous), numbered(its.following), _shares(its.shapes)) for i, its in around.items()}


def _tables(
    evidence: Evidence, query: str, rows: int
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.bool_]]]:
    """CHUNKS stretches that begin at equal distances, of about CHUNK_ROWS of the window's `rows` each, never more.

    Of each, in order, `key`, `shape` (0: not known), and `follows`, whether a call comes right after the one before it
    on its thread and stream; all of shape (calls,).
    """
    window = evidence.window
    width = max(1, min(window.length_ns // CHUNKS, window.length_ns * CHUNK_ROWS // max(1, rows)))
    for chunk in range(CHUNKS):
        start = window.from_ns + window.length_ns * chunk // CHUNKS
        table = evidence.query(query, {"from_ns": start, "to_ns": start + width, "most": CHUNK_ROWS})
        key, shape = column(table, "kernel_key", np.uint64), column(table, "shape", np.uint64)
        lane, at = column(table, "lane", np.uint64), column(table, "timestamp_ns", np.int64)
        order = np.lexsort((at, lane))
        lane = lane[order]
        follows = np.concatenate([np.zeros(1, np.bool_), lane[1:] == lane[:-1]])[: lane.size]
        yield key[order], shape[order], follows


def _count(
    found: dict[int, Around],
    keys: Mapping[int, int],
    key: NDArray[np.uint64],
    shape: NDArray[np.uint64],
    follows: NDArray[np.bool_],
) -> None:
    """Adds what stands around the kernels of `keys` (kernel_key -> index) in one table, see _tables."""
    for row in np.flatnonzero(np.isin(key, np.array(sorted(keys), np.uint64))).tolist():
        its = int(key[row])
        around = found.setdefault(keys[its], Around())
        if follows[row]:
            before = int(key[row - 1])
            around.previous[_ITSELF if before == its else before] += 1
        if row + 1 < key.size and follows[row + 1]:
            after = int(key[row + 1])
            around.following[_ITSELF if after == its else after] += 1
        if shape[row]:
            around.shapes[int(shape[row])] += 1


def _numbers(plans: Sequence[Plan], side: Side, found: Sequence[Suspicion], beside: Sequence[Pair]) -> dict[int, int]:
    """The number of each kernel that ran in both windows, perhaps under two names, by its key."""
    numbered = [(pair, i) for i, pair in enumerate(beside) if pair.in_before and pair.in_after]
    numbered += [(plans[one.gone if side == "before" else one.new].pair, len(beside) + one.new) for one in found]
    return {key: number for pair, number in numbered for key in getattr(pair, side).keys}


def _shares(counter: Counter[int]) -> dict[int, float]:
    total = counter.total()
    return {value: count / total for value, count in counter.items()} if total else {}


def _shared(one: Shares, other: Shares) -> float | None:
    """How much of two distributions is alike; None where one is not known."""
    if not one or not other:
        return None
    return sum(min(share, other.get(value, 0.0)) for value, share in one.items())


def _same_place(one: Place, other: Place) -> float | None:
    """How much of their neighbours is alike; None where that says nothing.

    What only one window has may be one kernel, or not: beside such alone any two kernels would be at one place.
    """
    sides = [(a, b) for a, b in ((one.previous, other.previous), (one.following, other.following)) if a and b]
    shared = [(_shared(a, b) or 0.0, min(a.get(_UNPAIRED, 0.0), b.get(_UNPAIRED, 0.0))) for a, b in sides]
    if not shared or (any(doubt for _, doubt in shared) and all(alike - doubt < ALIKE for alike, doubt in shared)):
        return None
    return sum(alike for alike, _ in shared) / len(shared)


@lru_cache(2 * MOST_KERNELS**2)
def _like(one: str, other: str) -> float:
    """How much two names are alike: by what they are without template arguments, or whole."""
    pairs = ((family(one), family(other)), (one, other))
    return max(difflib.SequenceMatcher(None, a[:_LIKE], b[:_LIKE], autojunk=False).ratio() for a, b in pairs)


def _unpaired(plans: Sequence[Plan], rows: Sequence[KernelReport], verdict: Verdict) -> list[int]:
    """The kernels of that verdict with most launches."""
    found = [
        i
        for i, (plan, row) in enumerate(zip(plans, rows, strict=True))
        if row.verdict is verdict and is_kernel(plan.pair.kernel)
    ]
    found.sort(key=lambda i: (-(plans[i].pair.before.runs + plans[i].pair.after.runs), plans[i].pair.kernel))
    return found[:MOST_KERNELS]


def _rates(plans: Sequence[Plan], side: str, asked: Sequence[int], ns: float) -> dict[int, float]:
    """Launches, or runs where it is not launched by itself, a second."""
    return {i: getattr(plans[i].pair, side).runs / max(ns, 1.0) * 1e9 for i in asked}


def _row(
    gone: KernelReport, new: KernelReport, found: Suspicion, rate_before: float, rate_after: float
) -> KernelReport:
    rates = f"{_rate(rate_before)} -> {_rate(rate_after)} launches a second"
    signs = []
    for share, what in (
        (found.place, "of its neighbours in the launch sequence"),
        (found.shape, "of its grids and blocks"),
        (found.name, "of its name"),
    ):
        if share is not None:
            signs.append(f"{share:.0%} {what}")
    reason = (
        f"It may be {show(gone.kernel)} under another name: {rates}, and {', '.join(signs)} are the same. "
        f"If it is, {_mend(gone.kernel, new.kernel)}."
    )
    alike = gone.metric == new.metric
    return replace(
        new,
        verdict=Verdict.RENAME_SUSPECTED,
        before_names=(gone.kernel,),
        n_before=gone.n_before,
        quantiles_before=gone.quantiles_before if alike else None,
        value_before=gone.value_before if alike else None,
        queue_before=gone.queue_before,
        reasons=(reason, *(r for r in new.reasons if not r.startswith(RAN_ONLY))),
    )


def _mend(old: str, new: str) -> str:
    """How to compare two kernels: the argument whole, as a shell takes it."""
    argument = f"{old}={new}"
    if printable(argument) != argument or (old.strip(), new.strip()) != (old, new):
        return "name both in a file for --map-file"
    quoted = argument.replace("'", "'\"'\"'")
    return f"add --map '{quoted}'"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
