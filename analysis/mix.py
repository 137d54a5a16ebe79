"""A kernel of several strata: judged at one mix, and each large stratum by itself.

The chance of a false REGRESSED is split: AT_ONE_MIX of it goes to the standardised ratio, which is what a change of all
launches shows in, the rest in equal parts to the strata that are tested (weighted Bonferroni: Holm, Scand. J. Statist.
6 (1979) 65, section 5; its first step is all that "any of them" needs).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kdiff.analysis.controls import Adjusted
from kdiff.analysis.decision import Decidable, smallest_level
from kdiff.analysis.interval import RatioLimits
from kdiff.analysis.quantiles import Ordered, quantile
from kdiff.analysis.sample import Sample
from kdiff.analysis.strata import MIN_REST, REST, Stratum, Support, standardise, together
from kdiff.analysis.verdict import Policy

AT_ONE_MIX: Final = 0.8
"""The share of a kernel's error rate that the standardised ratio has where strata are tested beside it."""
LARGE: Final = 0.25
"""Of the launches or of the time of a window: strata that hold it bar a PASS each by itself."""
LEAST_SHARE: Final = 0.01
"""Of the launches or of the time of a window: strata that hold it are tested."""

Windows = tuple[Sample, Sample]


@dataclass(frozen=True, eq=False)
class Mix:
    """What is judged of a kernel of several strata.

    Attributes:
        support: its strata.
        standardised: both windows at the mix of the before window; None where no stratum is common.
        strata: both windows of each common stratum.
        apart: strata of the after window that are not common: both windows, None for one that has none of it before.
        why: why the windows cannot be compared, one sentence; '' where they can.
    """

    support: Support
    standardised: Windows | None
    strata: Mapping[Stratum, Windows]
    why: str = ""
    apart: Mapping[Stratum, tuple[Sample | None, Sample]] = field(default_factory=dict)

    @classmethod
    def of(cls, support: Support, before: Mapping[Stratum, Sample], after: Mapping[Stratum, Sample], why: str) -> Mix:
        """From the samples of each stratum as they were read; `why` as above."""
        old, new = _grouped(support, before), _grouped(support, after)
        common = [stratum for stratum in support.common if stratum in old and stratum in new]
        if not common:
            return cls(support, None, {}, why)
        apart = {stratum: (old.get(stratum), new[stratum]) for stratum in support.apart if stratum in new}
        return cls(support, standardise(old, new, common), {s: (old[s], new[s]) for s in common}, why, apart)

    def slow_apart(self, value: float, margin: float, q: float) -> dict[Stratum, float]:
        """The strata that are not compared and have launches after that ran for longer than `value` ns and the margin.

        With the share of all launches after that did. Of a stratum that has a few launches before, MIN_REST, only those
        count that are slower than its own quantile then, too.
        """
        found = {}
        for stratum, (old, new) in self.apart.items():
            known = old is not None and old.size >= MIN_REST
            bar = max(value, float(quantile(old.ordered, q)) if known and old is not None else 0.0) * (1.0 + margin)
            slow = int(new.ordered.counts[new.ordered.values > bar].sum())
            if slow:
                found[stratum] = slow / self.support.totals[1]
        return found

    def holding(self, least: float) -> list[Stratum]:
        """Common strata that hold this share of the launches or of the time of a window; none where it is only one."""
        if len(self.strata) < 2:
            return []
        held: set[Stratum] = set()
        for side in (0, 1):
            times = {stratum: spent_ns(windows[side].ordered) for stratum, windows in self.strata.items()}
            every = sum(times.values())
            held |= {s for s, time in times.items() if time >= least * every > 0.0}
            held |= {s for s in self.strata if self.support.share(s)[side] >= least}
        return [stratum for stratum in self.strata if stratum in held]


class Mixed(Decidable):
    """A kernel that is REGRESSED if it is so at one mix or any of its strata is, and passes at one mix only.

    `strata` are those that are tested, each with enough data; `large` ones, these or not, may not be slower where it
    passes. `raw` are all of them as they are shown.
    """

    def __init__(
        self,
        at_one_mix: Decidable,
        every: Mapping[Stratum, Decidable],
        named: Collection[Stratum],
        large: Collection[Stratum] = (),
    ) -> None:
        """`every`: all common strata; `named`: those to be tested."""
        self.at_one_mix = at_one_mix
        self.every = every
        self.raw = every
        self.large = large
        self.strata = {stratum: every[stratum] for stratum in named if not every[stratum].lack}
        self.margin = at_one_mix.margin
        # A stratum that has enough data can be worse though all of them at one mix have not.
        self.lack = () if self.strata else at_one_mix.lack

    def beyond(self, common: Adjusted) -> Mixed:
        """The same with what is common to the control kernels taken from each ratio."""
        every = {stratum: Adjusted(pair, common.shift, common.n) for stratum, pair in self.every.items()}
        found = Mixed(common, every, tuple(self.strata), self.large)
        found.raw = self.raw
        return found

    def limits(self, level: float) -> RatioLimits:
        """Of the standardised ratio."""
        return self.at_one_mix.limits(level)

    def regressed_at(self, level: float) -> bool:
        """Whether any of them is above its margin beyond doubt, all of them together at `level`."""
        whole = not self.at_one_mix.lack and self.at_one_mix.regressed_at(level * (AT_ONE_MIX if self.strata else 1.0))
        return whole or bool(self.worse_at(level * (1.0 - AT_ONE_MIX)))

    def passes_at(self, level: float) -> bool:
        """Whether the standardised ratio is at most the margin beyond doubt, and no stratum is shown to be above it."""
        return not self.at_one_mix.lack and self.at_one_mix.passes_at(level) and not self.barring(level)

    def p_regressed(self) -> float:
        """As Decidable; above 1/2 that of the standardised ratio, with which a kernel passes."""
        if self.regressed_at(0.5) or self.at_one_mix.lack:
            return smallest_level(self.regressed_at)
        return 1.0 - smallest_level(self.at_one_mix.passes_at)

    def worse_at(self, level: float) -> list[Stratum]:
        """The strata that are above their margin, with a chance of at most `level` that any is named falsely (Holm)."""
        left = dict(self.strata)
        found: list[Stratum] = []
        while left:
            named = [stratum for stratum, pair in left.items() if pair.regressed_at(level / len(left))]
            if not named:
                break
            found += named
            for stratum in named:
                del left[stratum]
        return found

    def barring(self, level: float) -> list[Stratum]:
        """The strata that bar a PASS: those of `worse_at`, and large ones that are above their margin each at `level`.

        A false one costs no more than a verdict, so that a large one need not have what a verdict of its own needs.
        """
        large = [stratum for stratum in self.large if self.every[stratum].regressed_at(level)]
        return list(dict.fromkeys([*self.worse_at(level), *large]))

    @property
    def worst(self) -> Stratum | None:
        """The tested stratum that is slower most surely: by its lower 5% limit less its margin."""
        lows = {stratum: pair.limits(0.05).low - pair.bar for stratum, pair in self.strata.items()}
        return max(lows, key=lambda stratum: (lows[stratum], stratum), default=None)

    def decided_by(self, worst: Stratum, policy: Policy) -> bool:
        """Whether `worst` is what shows a regression, and the standardised ratio does not."""
        whole = self.at_one_mix
        seen = not whole.lack and whole.regressed_at(policy.alpha_pass)
        return not seen and self.strata[worst].regressed_at(policy.alpha_pass)


def _grouped(support: Support, read: Mapping[Stratum, Sample]) -> dict[Stratum, Sample]:
    """The samples by the strata that `support` tells apart."""
    groups: dict[Stratum, list[Sample]] = {}
    for stratum, sample in read.items():
        name = support.of.get(stratum)
        if name is not None and sample.size:
            groups.setdefault(REST if name in support.rest else name, []).append(sample)
    return {stratum: together(samples) for stratum, samples in groups.items()}


def spent_ns(ordered: Ordered) -> float:
    """The sum of the durations."""
    return float((ordered.values.astype(np.float64) * ordered.counts).sum())
