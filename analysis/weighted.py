"""The quantile of a window whose durations have weights, or whose stretches are hosts, and how well it is known.

Of strata s with weights omega_s, n_s launches and the exceedance share p_s each, F(x) = sum_s omega_s #{v <= x}_s / n.
The residual of a stretch t is r_t = sum_s omega_s (#{x > q}_{s,t} - p_s n_{s,t}): each stratum against its own share,
so that a mix that moves inside the window adds no variance. From there on as interval.tail_estimate, whose results
these are where all weights are one; the binomial floor is that of a stratified sample, sum_s omega_s^2 n_s p_s (1-p_s)
(Cochran 1977, ch. 5).

Of hosts V = H/(H-1) sum_h r_h^2 with H - 1 degrees of freedom (the linearised variance of independent clusters).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis import quantiles
from kdiff.analysis.interval import BURST_SCALE, TailEstimate, cosines, degrees_of_freedom, long_run
from kdiff.analysis.sample import Sample

Floats = NDArray[np.float64]

LEAST_ABOVE = 3.0
"""Launches expected above the quantile that a host needs to have a quantile of its own (300 launches at p99)."""
_BLOCK = 1 << 15
"""Steps whose residuals are held at once."""


def one_by_one(sample: Sample) -> Sample:
    """The same without `below`: its durations dealt to the stretches so that both totals are right, see `told_from`."""
    below, per_bucket = sample.below, sample.per_bucket
    if below is None or per_bucket is None:
        return sample
    counts = np.ones(sample.bucket.size, np.int64) if sample.counts is None else sample.counts
    told = np.bincount(sample.bucket, counts, sample.buckets)
    # Rows came or went between two queries: no stretch holds fewer than none of them.
    rest = np.maximum(0, np.rint(per_bucket - told).astype(np.int64))
    values, buckets = np.cumsum(below.counts), np.cumsum(rest)
    most = min(int(values[-1]) if values.size else 0, int(buckets[-1]))
    edges = np.unique(np.concatenate([values, buckets, [most]]))
    edges = edges[(edges > 0) & (edges <= most)]
    return replace(
        sample,
        durations_ns=np.concatenate([sample.durations_ns, below.values[values.searchsorted(edges)]]),
        bucket=np.concatenate([sample.bucket, buckets.searchsorted(edges).astype(sample.bucket.dtype)]),
        counts=np.concatenate([counts, np.diff(edges, prepend=0)]).astype(np.int64),
        below=None,
        per_bucket=None,
        told_from=int(below.values[-1]) if below.values.size else -1,
    )


@dataclass(frozen=True, eq=False)
class _Noise:
    """How residuals of stretches become a variance.

    Attributes:
        rows: shape (r, T), what residuals are multiplied by.
        nu: degrees of freedom.
        hosts: whether the stretches are hosts.
    """

    rows: Floats
    nu: int
    hosts: bool

    @classmethod
    def of(cls, per_bucket: Floats, hosts: bool) -> _Noise:
        """`per_bucket`: shape (T,); stretches without launches carry no information."""
        busy = per_bucket > 0
        filled = int(busy.sum())
        nu = max(1, filled - 1) if hosts else degrees_of_freedom(filled)
        rows = np.zeros((filled if hosts else nu, per_bucket.size))
        # One host alone has no variance to show; it is never judged.
        rows[:, busy] = np.eye(filled) * np.sqrt(filled / max(1, filled - 1)) if hosts else cosines(filled, nu)
        return cls(rows, nu, hosts)

    def variance(self, projected: Floats) -> Floats:
        """V from `rows` @ residuals; shape (r, ...) to (...)."""
        return np.square(projected).sum(axis=0) if self.hosts else long_run(projected)


@dataclass(frozen=True, eq=False)
class _Strata:
    """Sums by stratum, weights scaled so that all of them are n.

    Attributes:
        held: shape (S, T), weight of the launches that began in each stretch.
        weight: shape (S,), weight of all.
        square: shape (S,), sum of squared weights.
    """

    held: Floats
    weight: Floats
    square: Floats

    def binomial(self, above: Floats, above_square: Floats) -> Floats:
        """Variance of the weight above, launches independent in each stratum; shapes (S, ...) to (...).

        `above`: weight above, `above_square`: sum of its squared weights.
        """
        shape = (-1,) + (1,) * (above.ndim - 1)
        share = above / self.weight.reshape(shape)
        each = above_square * (1.0 - 2.0 * share) + share**2 * self.square.reshape(shape)
        return np.asarray(np.maximum(each, 0.0).sum(axis=0), dtype=np.float64)


def weighted_estimate(sample: Sample, q: float, inflation: float = 1.0) -> TailEstimate:
    """As interval.tail_estimate, of a sample with weights or of hosts."""
    sample = one_by_one(sample)
    n = sample.size
    counts = np.ones(sample.bucket.size) if sample.counts is None else sample.counts.astype(np.float64)
    weights = np.ones(sample.bucket.size) if sample.weights is None else sample.weights
    weights = weights * (n / float((counts * weights).sum()))
    mass, square = counts * weights, counts * weights**2
    present, stratum = (
        (np.zeros(1, np.int64), np.zeros(sample.bucket.size, np.int64))
        if sample.strata is None
        else np.unique(sample.strata, return_inverse=True)
    )
    distribution = quantiles.Weighted.of(sample.durations_ns, mass)
    value = distribution.quantile(q)
    if value <= sample.told_from:
        raise ValueError(f"the {q}-quantile lies among the durations that are told as a whole")
    many = present.size
    size = (many, sample.buckets)

    def by_stratum(of: Floats) -> Floats:
        return np.bincount(stratum, of, many).astype(np.float64)

    def by_place(of: Floats) -> Floats:
        flat = np.bincount(stratum * sample.buckets + sample.bucket, of, many * sample.buckets)
        return flat.astype(np.float64).reshape(size)

    sums = _Strata(by_place(mass), by_stratum(mass), by_stratum(square))
    raw = np.bincount(sample.bucket, counts, sample.buckets).astype(np.float64)
    noise = _Noise.of(raw, sample.clustered)

    is_above, is_equal = sample.durations_ns > value, sample.durations_ns == value
    expected = (1.0 - q) * n
    tied = float(mass[is_equal].sum())
    share = min(1.0, max(0.0, (expected - float(mass[is_above].sum())) / tied))
    part = is_above + share * is_equal
    above = by_stratum(mass * part)
    serial = float(
        noise.variance(noise.rows @ (by_place(mass * part) - sums.held * (above / sums.weight)[:, None]).sum(0))
    )
    floor = float(sums.binomial(above, by_stratum(square * part)))
    if many > 1:
        # Where the quantile falls between two strata all shares are 0 or 1: a launch more or less is still possible.
        floor = max(floor, float(weights.max()) ** 2)
    ties = share * (1.0 - share) * float(square[is_equal].sum())
    variance = max(serial + ties, floor) * inflation**2

    order = np.flatnonzero(is_above)
    order = order[np.lexsort((weights[order], stratum[order], sample.bucket[order], sample.durations_ns[order]))]
    tail = _Tail(sample.durations_ns[order], sample.bucket[order], stratum[order], mass[order], square[order])
    steps, evidence = _evidence_above(value, tail, sums, noise, expected, floor)
    told = (expected**2 / float((square * part).sum()) / (1.0 - q)) if part.any() else float(n)
    ordered = sample.ordered
    return TailEstimate(
        ordered=ordered,
        q=q,
        value=value,
        n=n,
        variance=variance,
        nu=noise.nu,
        filled=int((raw > 0).sum()),
        even=n * n / float(raw @ raw),
        quantum=sample.tick or quantiles.timer_quantum(ordered),
        binned=sample.binned,
        steps=steps,
        evidence=evidence / inflation,
        weighted=distribution,
        informative=min(told, n * n / float(square.sum())) * (1.0 + 1e-9),
        clustered=sample.clustered,
        levels=_levels(sample, mass, raw, q) if sample.clustered else None,
        inflation=inflation,
    )


def _levels(sample: Sample, mass: Floats, launches: Floats, q: float) -> Floats:
    """TailEstimate.levels; `launches`: of each host, shape (T,), LEAST_ABOVE of them expected above its quantile."""
    levels = np.full(sample.buckets, np.nan)
    for host in np.flatnonzero(launches * (1.0 - q) >= LEAST_ABOVE * (1.0 - 1e-9)):
        its = sample.bucket == host
        level = quantiles.Weighted.of(sample.durations_ns[its], mass[its]).quantile(q)
        levels[host] = level if level > sample.told_from else np.nan
    return levels


@dataclass(frozen=True, eq=False)
class _Tail:
    """The launches above the quantile, ascending; each of shape (k,)."""

    durations_ns: NDArray[np.int64]
    bucket: NDArray[np.int32]
    stratum: NDArray[np.int64]
    mass: Floats
    square: Floats


def _evidence_above(
    value: int, tail: _Tail, sums: _Strata, noise: _Noise, expected: float, floor: float
) -> tuple[NDArray[np.int64], Floats]:
    """As interval._evidence_above; `expected`: the weight above the quantile, `floor`: its binomial variance there.

    What the binomial variance is if the quantile lies above a step depends on which strata exceed it then: those that
    do so here, or those that exceed the quantile, whichever vary more.
    """
    first = np.flatnonzero(np.diff(tail.durations_ns, prepend=value) != 0)
    steps = np.concatenate([[value], tail.durations_ns[first]]).astype(np.int64)
    left = (tail.mass.size - np.append(first, tail.mass.size))[::-1]  # entries above each step, ascending
    blocks = zip(*_blocks(tail, sums, noise, left, expected), strict=True)
    count, binomial, observed, null = (np.concatenate(part)[::-1] for part in blocks)
    excess = np.maximum(0.0, observed - binomial)
    excess *= np.minimum(BURST_SCALE, expected / np.maximum(count, 1.0)) ** 2
    if excess.size > 1:
        excess[-1], null[-1] = excess[-2], null[-2]
    statistic = (expected - count) / np.sqrt(np.maximum(null, floor) + excess)
    return steps, np.maximum.accumulate(statistic)


def _blocks(
    tail: _Tail, sums: _Strata, noise: _Noise, left: NDArray[np.int64], expected: float
) -> Iterator[tuple[Floats, Floats, Floats, Floats]]:
    """At each of `left`, ascending numbers of the longest launches: their weight, its binomial variance, V of it, and
    the binomial variance if as many as `expected` were above in these proportions."""
    drift = noise.rows @ (sums.held / sums.weight[:, None]).T  # shape (r, S)
    strata = np.arange(sums.weight.size)[:, None]
    running = np.zeros((noise.rows.shape[0], 1))
    above = np.zeros((sums.weight.size, 1))
    square = np.zeros_like(above)
    start = 0
    for here in np.array_split(left, max(1, -(-int(left[-1]) // _BLOCK))):
        if not here.size:
            continue
        rows = slice(tail.mass.size - int(here[-1]), tail.mass.size - start)
        mine = (tail.stratum[rows] == strata)[:, ::-1]
        mass = tail.mass[rows][::-1]

        def on(carried: Floats, added: Floats) -> Floats:
            return np.concatenate([carried, carried + np.cumsum(added, axis=1)], axis=1)

        running = on(running, noise.rows[:, tail.bucket[rows]][:, ::-1] * mass)
        above = on(above, mine * mass)
        square = on(square, mine * tail.square[rows][::-1])
        at = here - start
        exceeding, squares = above[:, at], square[:, at]
        count = exceeding.sum(axis=0)
        scale = expected / np.maximum(count, 1e-300)
        most = sums.weight[:, None] / np.maximum(exceeding, 1e-300)  # not more than all of a stratum
        scaled = np.minimum(scale, most)
        null = np.where(count > 0, sums.binomial(exceeding * scaled, squares * scaled), 0.0)
        yield count, sums.binomial(exceeding, squares), noise.variance(running[:, at] - drift @ exceeding), null
        running, above, square = running[:, -1:], above[:, -1:], square[:, -1:]
        start = int(here[-1])
