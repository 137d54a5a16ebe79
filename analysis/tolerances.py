"""Tolerances of single kernels, which a policy file gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kdiff.analysis.measure import Plan
from kdiff.analysis.pairing import Pair, matches, show

_TOLD: Final = 3  # that were not used: a file that many services share has many


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The slowdown that is accepted of kernels whose name holds or matches `pattern`; `place`: where that is said."""

    pattern: str
    share: float
    place: str


def tolerance_of(names: Sequence[str], tolerances: Sequence[Tolerance]) -> float | None:
    """That of the first of `tolerances` that names a kernel by one of its names; None where none does."""
    return next((one.share for one in tolerances if any(matches(name, (one.pattern,)) for name in names)), None)


def margins(plans: Sequence[Plan], tolerances: Sequence[Tolerance]) -> dict[int, float]:
    """The tolerance of each plan's kernel, by index, where one of `tolerances` names it."""
    found = {i: tolerance_of((plan.pair.kernel, *plan.pair.old), tolerances) for i, plan in enumerate(plans)}
    return {index: share for index, share in found.items() if share is not None}


def unused(pairs: Iterable[Pair], tolerances: Sequence[Tolerance]) -> list[str]:
    """A warning for each of `tolerances` that names no kernel that ran, or only kernels that others before it name."""
    ran, taken, found = list(pairs), dict[int, Tolerance](), []
    for one in tolerances:
        named = [index for index, pair in enumerate(ran) if names_match(pair, one.pattern)]
        before = {id(first): first for index in named if (first := taken.get(index)) is not None}.values()
        if not named:
            found.append(f"{one.place} was not used: no kernel that ran matches {show(one.pattern)}")
        elif all(index in taken for index in named) and any(first.share != one.share for first in before):
            first = next(first for first in before if first.share != one.share)
            found.append(
                f"{one.place} was not used: what {show(one.pattern)} matches is matched by {show(first.pattern)} "
                "further up, and the first that matches counts"
            )
        for index in named:
            taken.setdefault(index, one)
    more = len(found) - _TOLD
    return [*found[:_TOLD], *([f"{more:,} more tolerances of the policy file were not used"] if more > 0 else [])]


def names_match(pair: Pair, pattern: str) -> bool:
    """Whether one of a kernel's names holds or matches a pattern."""
    return any(matches(name, (pattern,)) for name in (pair.kernel, *pair.old))
