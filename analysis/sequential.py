"""Evidence for a slower tail that may be looked at after every stretch of time: an e-process.

Before the watch a threshold is fixed that at most 1 - q of a kernel's launches exceed unless it got slower by more than
the tolerance. Each stretch bets against that: with y the share of its launches that exceed the threshold, the wealth is
multiplied by 1 + b (y / (1 - q) - 1). If the kernel is not slower, whatever came before, the wealth is not expected to
grow, so that it ever reaches W has a probability of at most 1 / W (Ville 1939; Shafer 2021, Testing by betting; Waudby-
Smith & Ramdas 2024): no allowance for the number of looks is needed. Of several bets the mean is as good a one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

BETS: Final = (0.03, 0.1, 0.3)
"""Shares of the wealth that a stretch may lose: a small bet finds small changes, a large one finds large ones soon."""


@dataclass(slots=True)
class EProcess:
    """The evidence that more than 1 - q of the launches exceed a threshold.

    Attributes:
        q: the quantile that is judged, in (0, 1).
        wealth: shape (3,), of each bet; 1 at first.
        stretches: how many with launches were seen.
        launches, above: how many launches were seen, and how many of them exceeded the threshold.
    """

    q: float
    wealth: NDArray[np.float64] = field(default_factory=lambda: np.ones(len(BETS)))
    stretches: int = 0
    launches: int = 0
    above: int = 0

    @property
    def value(self) -> float:
        """The e-value: by chance it ever reaches 1 / alpha with a probability of at most alpha."""
        return float(self.wealth.mean())

    def see(self, above: int, launches: int) -> float:
        """One more stretch, of which `above` of `launches` exceed the threshold; the e-value after it.

        Raises:
            ValueError: if there are more above than launches, or a negative count.
        """
        if not 0 <= above <= launches:
            raise ValueError(f"{above} of {launches} launches cannot be above")
        if launches:
            self.stretches += 1
            self.launches += launches
            self.above += above
            gain = above / launches / (1.0 - self.q) - 1.0
            # Far beyond any limit it must not overflow, nor fall to 0, from which it could not rise.
            self.wealth = np.clip(self.wealth * (1.0 + np.array(BETS) * gain), 1e-300, 1e300)
        return self.value
