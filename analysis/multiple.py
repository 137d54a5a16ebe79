"""Which of many kernels are regressed: Holm's control of any error, Benjamini and Hochberg's of the share of errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

K = TypeVar("K")

FALSE_DISCOVERIES: Final = 0.05
"""q: the share of false ones expected among the bystanders that are called REGRESSED."""


def holm(p_values: Mapping[K, float], rejects: Callable[[K, float], bool], alpha: float) -> set[K]:
    """The hypotheses rejected with a family-wise error of at most `alpha` (Holm, Scand. J. Statist. 6 (1979) 65).

    `p_values` sets the order, `rejects(key, level)` decides: the two agree except for the rounding of a
    p-value, and the decision must be the one that the interval at that level shows.
    """
    rejected: set[K] = set()
    remaining = len(p_values)
    for key in sorted(p_values, key=lambda k: p_values[k]):
        if not rejects(key, alpha / remaining):
            break
        rejected.add(key)
        remaining -= 1
    return rejected


def benjamini_hochberg(
    p_values: Mapping[K, float], rejects: Callable[[K, float], bool], q: float, most: float = 1.0
) -> set[K]:
    """The hypotheses rejected with an expected share of false ones of at most `q`, none of them at more than `most`.

    Step-up with the levels min(q i / m, most): of m hypotheses the largest number i whose i-th smallest p-value
    reaches its level (Benjamini & Hochberg, JRSS B 57 (1995) 289; with levels below theirs, Blanchard & Roquain, EJS 2
    (2008) 963). Valid where statistics are independent or move together (Benjamini & Yekutieli, Ann. Statist. 29 (2001)
    1165). `p_values` and `rejects` as in `holm`.
    """
    ordered = sorted(p_values, key=lambda k: p_values[k])
    for number in range(len(ordered), 0, -1):
        level = min(q * number / len(ordered), most)
        if rejects(ordered[number - 1], level):
            return {key for key in ordered[:number] if rejects(key, level)}
    return set()


def regressed(
    p_values: Mapping[K, float],
    rejects: Callable[[K, float], bool],
    alpha: float,
    swapped: Collection[K] = (),
    known: bool = False,
) -> set[K]:
    """The kernels that are REGRESSED: by `holm` at `alpha` over all of them, or over the `swapped` ones where it is
    `known` which those are, and then by `benjamini_hochberg` over the others, none at more than `alpha`."""
    if not known:
        return holm(p_values, rejects, alpha)
    named = {key: p for key, p in p_values.items() if key in swapped}
    others = {key: p for key, p in p_values.items() if key not in swapped}
    return holm(named, rejects, alpha) | benjamini_hochberg(others, rejects, FALSE_DISCOVERIES, alpha)
