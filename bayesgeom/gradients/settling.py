"""When a distance to the last snapshot has settled, and how much later one does than another.

    settled step    the first snapshot from which on the distance is at most a tenth of the first one's

The last snapshot is at distance 0 from itself, whatever came before, and so says nothing: what only it has within a
tenth had not settled when training ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float

from bayesgeom.stats.bootstrap import NEVER, Crossing, times_later

SETTLED = 0.1  # share of the first distance at which something counts as settled


def settling(steps: Sequence[int], distance: Float[np.ndarray, " step"]) -> Crossing:
    """Between which snapshots a distance came within a tenth of its first for good; `NEVER` where nothing moves.

    Where it had not before the last snapshot, the step is NaN, and `before` the last one but one.
    """
    outside = np.flatnonzero(~(distance[:-1] <= SETTLED * distance[0]))
    if len(outside) == 0:
        return NEVER
    at = int(outside[-1])
    is_over = at + 2 == len(steps)
    return Crossing(step=float("nan") if is_over else float(steps[at + 1]), before=float(max(steps[at], 1)))


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
