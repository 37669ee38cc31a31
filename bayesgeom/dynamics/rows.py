"""Intervals of what is measured at a snapshot: of all sequences, and without each group of them."""

import numpy as np
from jaxtyping import Float

from bayesgeom.stats.bootstrap import statistic_interval
from bayesgeom.stats.intervals import Interval, Scale


def interval_of(rows: Float[np.ndarray, "row *rest"], *, seed: int, scale: Scale = "plain") -> Interval:
    """Return the interval of a number, NaN for one that has an estimate alone.

    Args:
        rows: As in `measure.Measured`: the estimate, then the same without each group of sequences, then NaN.
        seed: Of the resamples.
        scale: As in `statistic_interval`.
    """
    known = np.isfinite(rows).reshape(len(rows), -1).any(axis=1)
    n_rows = max(2, int(np.flatnonzero(known).max(initial=0)) + 1)
    return statistic_interval(rows[:n_rows], seed=seed, scale=scale)
