"""What the history of a service says of kdiff's own errors: by how much standard errors are too small, and how often a
comparison in which nothing was swapped would have been REGRESSED.

Adjacent windows without a swap between them have the same quantile. z is the critical value at which the interval of
their ratio begins to exclude 1, so that standard errors f times as large make it z/f: exactly what `inflation` in
interval.tail_estimate does. Were the errors right, z would be of Student's distribution, whose root mean square is
sqrt(nu / (nu - 2)); the factor is max(1, RMS(z) / that). Nothing else sees levels that move more slowly than a window.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis import bins
from kdiff.analysis.decision import smallest_level
from kdiff.analysis.interval import TailEstimate, joint_quantum, ratio_interval, student_quantile
from kdiff.analysis.judging import paired
from kdiff.analysis.multiple import holm
from kdiff.analysis.verdict import MIN_EFFECTIVE_EXCEEDANCES, Policy

MIN_PAIRS: Final = 20
"""Pairs of adjacent windows that a factor needs."""
OUTLIER: Final = 4.0
"""So many times the root mean square of the other z are one that a change of the level may explain."""
NEIGHBOURS: Final = 10
"""Windows on either side that say whether a level stayed."""
STAYED: Final = 0.8
"""The share of these that must be on their own side of the middle between both levels."""
MOST_SHIFTS: Final = 0.05
"""The share of a kernel's pairs that may be left out as shifts; 2 in any case: a swap and its rollback."""
ALPHA_LIMIT: Final = 0.05
"""How often the upper limit of a rate is too low."""

_NOISE: Final = 2.0
_LEAST: Final = 1e-12
_COLUMNS: Final = 8
Floats = NDArray[np.float64]
Kernel = tuple[str, str]
"""Name and metric."""


@dataclass(frozen=True, slots=True)
class Factor:
    """By how much the standard errors of one kernel are too small, from `pairs`; `shifts` more were left out."""

    factor: float
    pairs: int
    shifts: int


@dataclass(frozen=True, slots=True)
class Rates:
    """How often comparisons of the history came out wrong; see queries.calibrations.KeptCalibration for the names."""

    comparisons: int
    regressed: int
    not_passed: int
    runs: int
    runs_regressed: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What a history says.

    Attributes:
        pairs: pairs of windows in which any kernel was judged.
        shifts: pairs of windows of a kernel that were left out because its level changed for good.
        pooled: the factor of all kernels together.
        kernels: those with MIN_PAIRS or more pairs of their own.
        plain, widened: the rates without the factors and with them.
    """

    pairs: int
    shifts: int
    pooled: float
    kernels: Mapping[Kernel, Factor]
    plain: Rates
    widened: Rates


@dataclass(slots=True)
class History:
    """The pairs of adjacent windows seen so far: 64 bytes a kernel and pair."""

    policy: Policy
    _tracks: dict[Kernel, array[float]] = field(default_factory=dict)
    _places: set[int] = field(default_factory=set)

    @property
    def pairs(self) -> int:
        """Pairs of windows in which any kernel was judged."""
        return len(self._places)

    def add(self, place: int, kernel: Kernel, before: TailEstimate, after: TailEstimate) -> bool:
        """Judge one kernel in the pair of windows that is the `place`-th in time; whether it has enough data."""
        pair = paired(before, after, self.policy)
        if pair.lack:
            return False
        tail = 1.0 - self.policy.quantile
        z, nu = deviation(before, after), min(before.nu, after.nu)
        effective = tail * min(before.n_eff, after.n_eff)
        if effective < MIN_EFFECTIVE_EXCEEDANCES:  # judged all the same: its limits are within the timer's reach
            effective = math.inf
        reach = min(float(estimate.evidence[-1]) for estimate in (before, after))
        row = (place, z, nu, pair.p_regressed(), effective, reach, before.value, after.value)
        self._tracks.setdefault(kernel, array("d")).extend(map(float, row))
        self._places.add(place)
        return True

    def measure(self) -> Measured:
        """What they say; pairs must be MIN_PAIRS or more."""
        tracks = {kernel: _Track.of(numbers) for kernel, numbers in self._tracks.items()}
        kernels = {
            kernel: Factor(factor(track.z[track.kept], track.nu[track.kept]), int(track.kept.sum()), track.shifts)
            for kernel, track in tracks.items()
            if track.kept.sum() >= MIN_PAIRS
        }
        every = list(tracks.values())
        pooled = factor(
            np.concatenate([track.z[track.kept] for track in every]),
            np.concatenate([track.nu[track.kept] for track in every]),
        )
        factors = {kernel: kernels[kernel].factor if kernel in kernels else pooled for kernel in tracks}
        return Measured(
            pairs=self.pairs,
            shifts=sum(track.shifts for track in every),
            pooled=pooled,
            kernels=kernels,
            plain=self._rates(tracks, dict.fromkeys(tracks, 1.0)),
            widened=self._rates(tracks, factors),
        )

    def _rates(self, tracks: Mapping[Kernel, _Track], factors: Mapping[Kernel, float]) -> Rates:
        """The verdicts of the pairs, all kernels of a pair together, with standard errors larger by the factors."""
        policy = self.policy
        by_place: dict[int, dict[Kernel, float]] = {}
        comparisons = passed = 0
        for kernel, track in tracks.items():
            p = widened(track.p, track.nu, factors[kernel])
            enough = track.kept & _enough(track, factors[kernel], policy)
            comparisons += int(track.kept.sum())
            passed += int((enough & (1.0 - p <= policy.alpha_pass)).sum())
            for place, value in zip(track.place[enough], p[enough], strict=True):
                by_place.setdefault(int(place), {})[kernel] = float(value)
        found = [_regressed(p, policy.alpha_regressed) for p in by_place.values()]
        return Rates(comparisons, sum(found), comparisons - passed, self.pairs, sum(map(bool, found)))


def deviation(before: TailEstimate, after: TailEstimate) -> float:
    """z of two windows, signed: the Student quantile at which the interval of log(after/before) touches 0.

    Rounding to bins is taken out of the limits, which no factor widens. Two quantiles within one tick or bin of each
    other may be the same: then |z| is at most what it is on average where the errors are right.
    """
    if before.value == after.value:
        return 0.0
    nu = min(before.nu, after.nu)
    sign = 1.0 if after.value > before.value else -1.0

    def excluded(level: float) -> bool:
        limits = ratio_interval(before, after, level)
        rounding = before.rounding(level) + after.rounding(level)
        return limits.low + rounding > 0.0 if sign > 0 else limits.high - rounding < 0.0

    z = -student_quantile(nu, smallest_level(excluded))
    values = max(before.value, after.value)
    step = max(joint_quantum(before, after), values * (1.0 - 1.0 / bins.WIDTH) + 1.0 if before.binned else 0)
    if abs(after.value - before.value) <= step:
        z = min(z, neutral(nu))
    return sign * max(z, 0.0)


def neutral(nu: float) -> float:
    """The root mean square of Student's distribution; it is there from 3 degrees of freedom on, and kdiff has 4."""
    return math.sqrt(nu / (nu - 2.0))


def factor(z: Floats, nu: Floats) -> float:
    """max(1, RMS(z / sqrt(nu / (nu - 2)))); shapes (n,), n >= 1. 1 says that the errors are no larger than claimed."""
    return max(1.0, math.sqrt(float(np.mean(z * z * (nu - 2.0) / nu))))


def shifts(place: Floats, z: Floats, nu: Floats, before: Floats, after: Floats) -> NDArray[np.bool_]:
    """Which pairs of a kernel lie where its level changed for good, as by a swap; all of shape (n,), in time order.

    A pair whose z is OUTLIER times the root mean square of the others', or whose log ratio is, beyond noise, and on
    whose sides the levels of the NEIGHBOURS nearest windows stayed apart. (Few launches bound z, whatever the change.)
    What comes back sooner is noise of the history, and counts; so do levels that wander, whose steps are alike.

    Args:
        place: which pair of the history it is.
        z, nu: as in `deviation`.
        before, after: the quantile of both windows, ns.
    """
    found = np.zeros(z.size, np.bool_)
    if z.size < 3:
        return found
    scaled = np.abs(z) / np.sqrt(nu / (nu - 2.0))
    logs = np.abs(np.log(np.maximum(after, 1.0) / np.maximum(before, 1.0)))
    middle = np.sqrt(np.maximum(before, 1.0) * np.maximum(after, 1.0))
    came_back = np.zeros(z.size, np.bool_)
    most = max(2, math.floor(MOST_SHIFTS * z.size))
    while found.sum() < most:
        left = ~(found | came_back)
        at = int(np.where(left, logs, -1.0).argmax())
        others = ~found
        others[at] = False
        if not left.any() or not others.any():
            break
        beyond = scaled[at] > OUTLIER * max(1.0, _rms(scaled[others]))
        if not beyond and not (scaled[at] > _NOISE and logs[at] > OUTLIER * _rms(logs[others])):
            break
        stayed = _stayed(at, z, before, after, middle[at])
        found[at], came_back[at] = stayed, not stayed
    return found


def widened(p: Floats, nu: Floats, by: float) -> Floats:
    """The one-sided p-values that standard errors larger by the factor `by` would have given; shapes (n,)."""
    from scipy.special import stdtr, stdtrit

    tail = np.clip(np.minimum(p, 1.0 - p), _LEAST, 0.5)
    found = stdtr(nu, stdtrit(nu, tail) / by)
    return np.asarray(np.where(p <= 0.5, found, 1.0 - found), np.float64)


def upper_limit(count: int, total: int) -> float:
    """The 95% upper limit of a rate seen `count` times in `total` (Clopper & Pearson 1934); 1 where nothing was seen.

    It takes the comparisons for independent.
    """
    from scipy.special import betaincinv

    if count >= total:
        return 1.0
    return float(betaincinv(count + 1, total - count, 1.0 - ALPHA_LIMIT))


@dataclass(frozen=True, slots=True)
class _Track:
    """The pairs of one kernel in order of time, shapes (n,), and which of them count.

    `effective` exceedances and `reach`, the critical value beyond which a quantile has no upper limit, are those of the
    window that has less.
    """

    place: Floats
    z: Floats
    nu: Floats
    p: Floats
    effective: Floats
    reach: Floats
    kept: NDArray[np.bool_]

    @property
    def shifts(self) -> int:
        return int((~self.kept).sum())

    @classmethod
    def of(cls, numbers: array[float]) -> _Track:
        place, z, nu, p, effective, reach, before, after = np.frombuffer(numbers).reshape(-1, _COLUMNS).T
        return cls(place, z, nu, p, effective, reach, ~shifts(place, z, nu, before, after))


def _rms(values: Floats) -> float:
    return math.sqrt(float(np.mean(values * values)))


def _stayed(at: int, z: Floats, before: Floats, after: Floats, middle: float) -> bool:
    left, right = before[max(0, at - NEIGHBOURS + 1) : at + 1], after[at : at + NEIGHBOURS]
    if z[at] < 0.0:
        left, right = right, left
    return bool((left < middle).mean() >= STAYED and (right > middle).mean() >= STAYED)


def _regressed(p_values: Mapping[Kernel, float], alpha: float) -> int:
    return len(holm(p_values, lambda kernel, level: p_values[kernel] <= level, alpha))


def _enough(track: _Track, by: float, policy: Policy) -> NDArray[np.bool_]:
    """Whether both windows can still be judged where their standard errors are larger by a factor, see judging."""
    if by <= 1.0:
        return np.ones(track.z.size, np.bool_)
    critical = np.array([-student_quantile(int(nu), min(policy.alpha_regressed, policy.alpha_pass)) for nu in track.nu])
    return np.asarray((track.effective >= MIN_EFFECTIVE_EXCEEDANCES * by * by) & (track.reach >= by * critical))
