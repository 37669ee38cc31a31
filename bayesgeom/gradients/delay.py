"""The delay between the steps from which on two distances are stable."""

from dataclasses import dataclass
from typing import final

import numpy as np

from bayesgeom.core.text import number_text
from bayesgeom.dynamics.threshold_steps import ThresholdStep, times_later


@final
@dataclass(frozen=True)
class Lag:
    """Ratio of the steps from which on values and routing are stable, with the bounds that snapshots allow.

    The ratio and unknown bounds are NaN if either is not stable before the last snapshot.
    """

    ratio: float
    least: float
    most: float

    @property
    def verdict(self) -> str:
        """The verdict on which is stable later: open where the spacing of snapshots allows the same step."""
        if np.isnan(self.ratio):
            return "cannot say which is stable later, as not both were stable before the last snapshot"
        if self.least > 1:
            return "values are stable later than routing"
        return "routing is stable later than values" if self.most < 1 else "cannot say which is stable later"

    @property
    def reach(self) -> str:
        """The bounds in words."""
        if np.isfinite(self.least):
            least = number_text(self.least)
            return f"{least} … {number_text(self.most)}" if np.isfinite(self.most) else f"{least} or more"
        return f"{number_text(self.most)} or less" if np.isfinite(self.most) else "anything"


def lag(values: ThresholdStep, routing: ThresholdStep) -> Lag:
    """Return how much later the first is stable than the second."""
    return Lag(*times_later(values, routing))
