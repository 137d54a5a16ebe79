"""The verdicts: which there are, how sure they must be, and what kernels' verdicts make of a run.

A verdict is a statement about one quantile (p99 unless the policy says otherwise). The other quantiles are shown
beside it and gate nothing: a slow median does not show at p99, nor the reverse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kdiff.analysis.quantiles import Quantiles

if TYPE_CHECKING:
    from kdiff.analysis.controls import Common
    from kdiff.analysis.report import MixReport

MIN_EXCEEDANCES = 20
"""Launches above the quantile that a window must hold (2,000 launches at p99)."""
MIN_EFFECTIVE_EXCEEDANCES = 6.0
"""The same after the allowance for autocorrelation, which is itself an estimate and so gets slack."""
MIN_BUCKETS = 30
"""Buckets with launches that a window must have for its autocorrelation to be estimated."""
MIN_EVEN_BUCKETS = 20.0
"""The same when unequal buckets count for less: (sum n_t)^2 / sum n_t^2."""
RAN_ONLY = "The kernel ran only in"
"""How the reason of NEW and of GONE begins."""
QUANTA = 2
"""Ticks of the timer that no verdict may rest on: each end of an execution is read to a tick."""


class Verdict(StrEnum):
    """What is said of a kernel, or of a run."""

    REGRESSED = "REGRESSED"
    PASS = "PASS"
    IMPROVED = "IMPROVED"
    INCONCLUSIVE = "INCONCLUSIVE"
    CONFOUNDED = "CONFOUNDED"
    MIX_NOT_COMPARABLE = "MIX_NOT_COMPARABLE"
    NOT_ENOUGH_DATA = "NOT_ENOUGH_DATA"
    NEW = "NEW"
    GONE = "GONE"
    RENAME_SUSPECTED = "RENAME_SUSPECTED"


NOT_COMPARED = frozenset({Verdict.NEW, Verdict.GONE, Verdict.RENAME_SUSPECTED})
"""Of kernels that were not compared: they decide nothing by themselves."""

UNDECIDED = (Verdict.INCONCLUSIVE, Verdict.CONFOUNDED, Verdict.MIX_NOT_COMPARABLE, Verdict.NOT_ENOUGH_DATA)
"""Of kernels that were compared without an answer; of several a run has the first."""


@dataclass(frozen=True)
class Policy:
    """What is judged and how sure a verdict must be.

    Attributes:
        tolerance: M, the slowdown that is accepted (0.05 is 5%).
        quantile: the quantile that is judged.
        alpha_regressed: chance of a REGRESSED kernel in a run where none got slower than the tolerance.
        alpha_pass: chance that a kernel slower than the tolerance passes.

    Raises:
        ValueError: if a value is outside its range.
    """

    tolerance: float = 0.05
    quantile: float = 0.99
    alpha_regressed: float = 0.01
    alpha_pass: float = 0.05

    def __post_init__(self) -> None:
        if not (self.tolerance >= 0.0 and math.isfinite(self.tolerance)):
            raise ValueError(f"the tolerance is a finite number >= 0, not {self.tolerance}")
        if not 0.0 < self.quantile < 1.0:
            raise ValueError(f"the quantile lies in (0, 1), not {self.quantile}")
        for alpha in (self.alpha_regressed, self.alpha_pass):
            if not 0.0 < alpha < 0.5:
                raise ValueError(f"an error rate lies in (0, 0.5), not {alpha}")


@dataclass(frozen=True)
class Judgement:
    """A verdict with the numbers it rests on.

    Attributes:
        verdict: the verdict.
        n_before, n_after: launches in each window.
        quantiles_before, quantiles_after: in ns; None for a window without launches.
        value_before, value_after: the judged quantile in ns; None for a window without launches.
        ratio: after / before of the judged quantile, None unless both windows have launches.
        ci: limits of the ratio at level 1 - 2 alpha_pass (90%): the kernel passes exactly when the upper one is at most
            1 + margin. The upper one may be inf and the lower one 0.
        p_regressed: one-sided p-value of "the ratio is at most 1 + margin", before the allowance for the number of
            kernels; None where no verdict is possible.
        margin: the tolerance, or 2 ticks of the timer if that is more.
        quantum_ns: the tick of the timer seen in the data; 1 if none shows.
        reasons: sentences for people.
        adjusted_ratio, adjusted_ci: of the ratio beyond what the control kernels share, see controls; None where the
            verdict is not adjusted. `p_regressed` is then of both ratios.
        common: what the control kernels of its measure did; None where there are too few.
        mix: what it was compared at, where it has several strata; `value_*`, `ratio` and `ci` are then at one mix.
    """

    verdict: Verdict
    n_before: int
    n_after: int
    quantiles_before: Quantiles | None
    quantiles_after: Quantiles | None
    value_before: int | None
    value_after: int | None
    ratio: float | None
    ci: tuple[float, float] | None
    p_regressed: float | None
    margin: float
    quantum_ns: int
    reasons: tuple[str, ...]
    adjusted_ratio: float | None = None
    adjusted_ci: tuple[float, float] | None = None
    common: Common | None = None
    mix: MixReport | None = None


def values_needed(quantile: float) -> int:
    """How many launches a window needs for this quantile: 2,000 for a p99."""
    return math.ceil(round(MIN_EXCEEDANCES / (1.0 - quantile), 6))


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on a run.

    REGRESSED if any kernel is; else the first of UNDECIDED that any kernel is; else PASS. A kernel that is NEW
    or GONE, or perhaps renamed, fails nothing beside others that were compared. But where nothing was compared (all NEW
    or GONE, as after a rename, or no kernel at all) a PASS would say that someone looked: the run is INCONCLUSIVE.
    """
    seen = set(verdicts)
    for verdict in (Verdict.REGRESSED, *UNDECIDED):
        if verdict in seen:
            return verdict
    return Verdict.PASS if seen & {Verdict.PASS, Verdict.IMPROVED} else Verdict.INCONCLUSIVE
