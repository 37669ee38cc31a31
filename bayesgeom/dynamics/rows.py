"""Intervals over sequences for the numbers of a snapshot, and estimates over trainings."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from bayesgeom.core.verdict import Reason
from bayesgeom.report.estimate import Baseline, Estimate
from bayesgeom.stats.bootstrap import statistic_interval
from bayesgeom.stats.intervals import Interval, Scale
from bayesgeom.stats.overlap import mean_overlap_interval


def interval_of(rows: Float[np.ndarray, "row *rest"], *, seed: int, scale: Scale = "plain") -> Interval:
    """Return the interval of a number; NaN if only the estimate is known.

    Args:
        rows: As in `measure.Measured`: the estimate, then the same without each group of sequences, then NaN.
        seed: Seed of the resamples.
        scale: As in `statistic_interval`.
    """
    return statistic_interval(_known(rows), seed=seed, scale=scale)


def overlap_interval_of(
    rows: Float[np.ndarray, "row *rest"], kink: Float[np.ndarray, "*rest"], *, seed: int
) -> Interval:
    """Return the interval of a key overlap, from rows and bias of `stats.overlap.overlap_rows`."""
    return mean_overlap_interval(_known(rows), kink, seed=seed)


def _known(rows: Float[np.ndarray, "row *rest"]) -> Float[np.ndarray, "known_row *rest"]:
    """Return the rows without those that are NaN at the end, at least two."""
    known = np.isfinite(rows).reshape(len(rows), -1).any(axis=1)
    return rows[: max(2, int(np.flatnonzero(known).max(initial=0)) + 1)]


def over_trainings(value: Any, ends: tuple[Any, Any], *, n: int, baselines: Sequence[Baseline] = ()) -> Estimate:
    """Return an estimate over `n` trainings, without an interval for a single one."""
    reason = Reason.ONE_TRAINING if n < 2 else None
    return Estimate.of(value, ends, resampled="trainings", n=n, baselines=baselines, reason=reason)
