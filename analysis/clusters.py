"""Verdicts where each host is one observation: what an arm needs, and which host stands apart from the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from kdiff.analysis.interval import TailEstimate
from kdiff.analysis.output_text import duration
from kdiff.analysis.report import quantile_name
from kdiff.analysis.verdict import Policy
from kdiff.analysis.weighted import LEAST_ABOVE
from kdiff.queries.printable import quoted

MIN_HOSTS: Final = 5
"""Hosts with launches that an arm must have: below it 4 degrees of freedom are not left."""
MIN_EVEN_HOSTS: Final = 4.0
"""The same when unequal hosts count for less: (sum n_h)^2 / sum n_h^2."""
_APART: Final = 4.0
"""Spreads, as standard deviations, that a host lies above the others beyond the margin to be named."""
_MAD: Final = 1.4826  # makes the median absolute deviation the standard deviation of a normal distribution


def too_few(name: str, filled: int, even: float) -> list[str]:
    """Why the hosts of an arm are too few, one sentence each: `filled` have launches, and `even` say as much evenly."""
    if filled < MIN_HOSTS:
        return [f"The {name} window has launches on {_hosts(filled)}; {MIN_HOSTS} are needed: add hosts to it."]
    if even < MIN_EVEN_HOSTS:
        return [
            f"The {name} window's launches crowd onto the equal of {even:.1f} hosts; {MIN_EVEN_HOSTS:g} are needed: "
            "add hosts to it, or spread its traffic."
        ]
    return []


def lack(name: str, estimate: TailEstimate, policy: Policy) -> list[str]:
    """Why the hosts of an arm do not tell its quantile, one sentence each."""
    if few := too_few(name, estimate.filled, estimate.even):
        return few
    known = 0 if estimate.levels is None else int(np.isfinite(estimate.levels).sum())
    if known < MIN_HOSTS:
        needed = math.ceil(round(LEAST_ABOVE / (1.0 - policy.quantile), 6))
        return [
            f"The {name} window has {needed:,} launches or more, for a {quantile_name(policy.quantile)} of its own, on "
            f"{_hosts(known)}; {MIN_HOSTS} are needed: take a longer window, or add hosts to it."
        ]
    limits = [limit for alpha in (policy.alpha_regressed, policy.alpha_pass) for limit in estimate.limits(alpha)]
    if not all(map(math.isfinite, limits)):
        return [
            f"The {name} window's slow launches are those of a few of its {_hosts(estimate.filled)}, which do not "
            "bound its quantile: add hosts to it."
        ]
    return []


def apart(name: str, estimate: TailEstimate, margin: float, hosts: Sequence[str]) -> list[str]:
    """One sentence on the host of an arm that is slower than its others, by more than the margin and their spread.

    `hosts`: what they are called.
    """
    if estimate.levels is None or np.isfinite(estimate.levels).sum() < MIN_HOSTS:
        return []
    logs = np.log(np.maximum(estimate.levels, 1.0))
    slowest = int(np.nanargmax(logs))
    others = np.delete(logs, slowest)
    middle = float(np.nanmedian(others))
    spread = _MAD * float(np.nanmedian(np.abs(others - middle)))
    if logs[slowest] - middle <= math.log1p(margin) + _APART * spread:
        return []
    named = quoted(hosts[slowest]) if slowest < len(hosts) else f"number {slowest + 1}"
    return [
        f"The host {named} of the {name} window is slower than its others: {quantile_name(estimate.q)} "
        f"{duration(float(estimate.levels[slowest]))}, that of the others {duration(math.exp(middle))} at the median."
    ]


def _hosts(number: int) -> str:
    return "1 host" if number == 1 else f"{number} hosts"
