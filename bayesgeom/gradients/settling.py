"""How much later one distance settles than another."""

from dataclasses import dataclass
from typing import final

import numpy as np

from bayesgeom.stats.crossings import Crossing, times_later


@final
@dataclass(frozen=True)
class Lag:
    """How many times later values settle than routing; `least` and `most` are what the spacing of snapshots allows.

    NaN: the ratio where either has not settled, and the bound that is then unknown.
    """

    ratio: float
    least: float
    most: float

    @property
    def verdict(self) -> str:
        """Which of the two settles later, or that it cannot be said. Each settles after the snapshot before."""
        if np.isnan(self.ratio):
            return "cannot say which settles later, as not both settled before the last snapshot"
        if self.least >= 1:
            return "values settle later than routing"
        return "routing settles later than values" if self.most <= 1 else "cannot say which settles later"

    @property
    def reach(self) -> str:
        """The bounds in words."""
        if np.isfinite(self.least):
            return f"{self.least:.2f} … {self.most:.2f}" if np.isfinite(self.most) else f"{self.least:.2f} or more"
        return f"{self.most:.2f} or less" if np.isfinite(self.most) else "anything"


def lag(values: Crossing, routing: Crossing) -> Lag:
    """How much later the first settles than the second."""
    return Lag(*times_later(values, routing))
