"""Synthetic launches whose truth is known, for the benchmarks of the verdicts.

Serving: lognormal launches (sigma 0.15), 3% of them slowed by contention, in a window of 60 minutes whose levels follow
an AR(1) from minute to minute; the analysis cuts it into `buckets`. The other loads change one thing about it each, or
are those that a quantile is hard to judge of: ticks, bursts, two modes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kdiff.analysis.sample import Sample
from kdiff.analysis.window import NS, Window

MINUTES = 60
RHO = 0.8
TICK = 32
DAY = 24 * 60
LEVEL_NS = 50_000.0

Rng = np.random.Generator
Levels = NDArray[np.float64]
"""Shape (MINUTES,), what each minute adds to the logarithm of durations."""


def autoregressive(rng: Rng, sd: float, size: int = MINUTES, rho: float = RHO) -> Levels:
    """A stationary AR(1) path of shape (size,) with standard deviation `sd`."""
    path = rng.normal(0.0, sd, size)
    for t in range(1, size):
        path[t] = rho * path[t - 1] + np.sqrt(1.0 - rho * rho) * path[t]
    return path


@dataclass(frozen=True)
class Loads:
    """The source of chance, and how the analysis cuts a window."""

    rng: Rng
    buckets: int

    def times(self, n: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The minute and the bucket of each of n launches at random times; both of shape (n,)."""
        at = self.rng.random(n)
        return (at * MINUTES).astype(np.int64), (at * self.buckets).astype(np.int32)

    def path(self, sd: float, rho: float = RHO) -> Levels:
        """Levels of a window."""
        return autoregressive(self.rng, sd, rho=rho)

    def serving(self, n: int, sd: float, factor: float = 1.0, rho: float = RHO, tick: int = 1) -> Sample:
        """Launches whose level moves by `sd` (log scale) from minute to minute, read from a timer of `tick` ns."""
        return self.at(n, self.path(sd, rho), factor, tick)

    def at(self, n: int, levels: Levels, factor: float = 1.0, tick: int = 1) -> Sample:
        """Launches at these levels."""
        rng = self.rng
        minute, bucket = self.times(n)
        logs = rng.normal(0.0, 0.15, n) + levels[minute]
        slowed = np.where(rng.random(n) < 0.03, 1.0 + rng.exponential(0.3, n), 1.0)
        durations = LEVEL_NS * factor * slowed * np.exp(logs)
        return Sample(np.rint(durations / tick).astype(np.int64) * tick, bucket, self.buckets)

    def day(self, swing: float) -> tuple[Levels, Levels]:
        """Levels of two hours, one behind the other, at a random time of a day whose level swings by +- `swing`."""
        minute = self.rng.integers(DAY) + np.arange(2 * MINUTES)
        levels = np.log1p(swing) * np.sin(2.0 * np.pi * minute / DAY)
        return levels[:MINUTES], levels[MINUTES:]

    def bimodal(self, n: int, share: float, sd: float, burst: float = 0.0, factor: float = 1.0) -> Sample:
        """A `share` of the launches takes twice as long; the share moves by a factor of lognormal(burst)."""
        rng = self.rng
        minute, bucket = self.times(n)
        often = np.minimum(1.0, share * np.exp(autoregressive(rng, burst) - 0.5 * burst * burst))
        mode = np.where(rng.random(n) < often[minute], 2.0, 1.0)
        logs = rng.normal(0.0, 0.05, n) + self.path(sd)[minute]
        return Sample(np.rint(LEVEL_NS * factor * mode * np.exp(logs)).astype(np.int64), bucket, self.buckets)

    def ticks(self, n: int, share: float, burst: float, factor: float = 1.0, base: int = 64) -> Sample:
        """`base` ticks, or one more for a share of the launches, or two more for a fifth of those.

        The share varies over the minutes by a factor of lognormal(burst), so that the slow values come in bursts.
        """
        rng = self.rng
        minute, bucket = self.times(n)
        level = np.exp(autoregressive(rng, burst) - 0.5 * burst * burst)
        slow = rng.random(n) < np.minimum(1.0, share * level)[minute]
        extra = slow.astype(np.int64) * (1 + (rng.random(n) < 0.2))
        return Sample(TICK * (np.int64(round(base * factor)) + extra), bucket, self.buckets)

    def bursty(self, n: int, share: float, burst: float) -> Sample:
        """As `ticks`, but without ties, and the slow launches have a long tail."""
        tied = self.ticks(n, share, burst)
        slow = tied.durations_ns > TICK * 64
        body = 2_000_000 + 40_000 * self.rng.random(n)
        tail = 2_100_000 * np.exp(self.rng.exponential(0.2, n))
        return Sample(np.where(slow, tail, body).astype(np.int64), tied.bucket, self.buckets)


@dataclass(frozen=True)
class DeviceWindows:
    """A window of `minutes` in which the device is timed for `open_s` of every `period_s`, at a random moment of it."""

    minutes: int
    open_s: float
    period_s: float
    rate: int  # executions a second

    def sample(self, rng: Rng, level: float, burst: float, factor: float = 1.0) -> Sample:
        """Executions whose level moves by `level`, and whose share of slow ones by `burst`, from window to window."""
        window = Window(0, self.minutes * 60 * NS)
        buckets, width = window.buckets()
        count = int(self.minutes * 60 / self.period_s)
        starts = self.period_s * np.arange(count) + (self.period_s - self.open_s) * rng.random(count)
        each = rng.poisson(self.rate * self.open_s, count)
        which = np.repeat(np.arange(count), each)
        times = starts[which] + self.open_s * rng.random(which.size)
        logs = rng.normal(0.0, 0.15, which.size) + rng.normal(0.0, level, count)[which]
        share = np.minimum(1.0, 0.03 * np.exp(rng.normal(0.0, burst, count) - 0.5 * burst * burst))
        slowed = np.where(rng.random(which.size) < share[which], 1.0 + rng.exponential(0.3, which.size), 1.0)
        durations = np.rint(LEVEL_NS * factor * slowed * np.exp(logs)).astype(np.int64)
        return Sample(durations, (times * NS // width).astype(np.int32), buckets)
