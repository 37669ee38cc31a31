"""Estimates from samples: means, smooth statistics, and the level of untrained networks."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from bayesgeom.results.estimate import Baseline, Estimate
from bayesgeom.stats.bootstrap import mean_interval, statistic_interval
from bayesgeom.stats.intervals import Interval, Scale

UNTRAINED = "untrained networks"


def mean_estimate(
    per_sequence: Float[np.ndarray, "sequence *rest"],
    *,
    seed: int,
    baselines: Sequence[Baseline] = (),
    resampled: str = "sequences",
) -> Estimate:
    """Return the mean over sequences with its bootstrap-t interval."""
    found = mean_interval(per_sequence, seed=seed)
    return with_interval(
        per_sequence.mean(axis=0), found, n=len(per_sequence), baselines=baselines, resampled=resampled
    )


def smooth_estimate(
    replicates: Float[np.ndarray, "replicate *rest"],
    *,
    seed: int,
    n: int,
    baselines: Sequence[Baseline] = (),
    scale: Scale = "plain",
) -> Estimate:
    """Return a smooth statistic with its interval, from its values under `jackknife_weights(n)`."""
    found = statistic_interval(replicates, seed=seed, scale=scale)
    return with_interval(replicates[0], found, n=n, baselines=baselines)


def with_interval(
    value: Float[np.ndarray, "*rest"] | float,
    interval: Interval,
    *,
    n: int,
    baselines: Sequence[Baseline] = (),
    resampled: str = "sequences",
) -> Estimate:
    """Return an estimate whose interval says itself why it is withheld; the reason is kept of scalars."""
    low, high = interval
    why_not = interval.why_not() if np.ndim(value) == 0 else ""
    return Estimate.of(value, (low, high), n=n, baselines=baselines, resampled=resampled, why_not=why_not)


def of_untrained(found: Sequence[Float[np.ndarray, "*axes"] | float], name: str = UNTRAINED) -> tuple[Baseline, ...]:
    """Return the mean over untrained networks, with the least and the most; nothing where there are none."""
    if not len(found):
        return ()
    stacked = np.asarray(found, dtype=np.float64)
    return (Baseline.of("baseline", name, stacked.mean(axis=0), low=stacked.min(axis=0), high=stacked.max(axis=0)),)
