"""Estimates from samples: means, smooth statistics, and the level of untrained networks."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from bayesgeom.results.estimate import Baseline, Estimate, codes_of
from bayesgeom.stats.bootstrap import mean_interval, statistic_interval
from bayesgeom.stats.intervals import UNBOUNDED, Bounds, Interval, Scale

UNTRAINED = "untrained networks"


def mean_estimate(
    per_sequence: Float[np.ndarray, "sequence *rest"],
    *,
    seed: int,
    baselines: Sequence[Baseline] = (),
    resampled: str = "sequences",
    bounds: Bounds = UNBOUNDED,
) -> Estimate:
    """Return the mean over sequences with its bootstrap-t interval; `bounds` are those of a value."""
    found = mean_interval(per_sequence, seed=seed, bounds=bounds)
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
    bounds: Bounds = UNBOUNDED,
) -> Estimate:
    """Return a smooth statistic with its interval, from its values under `jackknife_weights(n)`.

    `bounds` are those of a mean over sequences: see `statistic_interval`.
    """
    found = statistic_interval(replicates, seed=seed, scale=scale, bounds=bounds)
    return with_interval(replicates[0], found, n=n, baselines=baselines)


def with_interval(
    value: Float[np.ndarray, "*rest"] | float,
    interval: Interval,
    *,
    n: int,
    baselines: Sequence[Baseline] = (),
    resampled: str = "sequences",
) -> Estimate:
    """Return an estimate with this interval, and the reason of each entry whose interval is withheld."""
    ends = (interval.lo, interval.hi)
    return Estimate.of(value, ends, n=n, baselines=baselines, resampled=resampled, reason=interval.code)


def of_untrained(found: Sequence[Float[np.ndarray, "*axes"] | float], name: str = UNTRAINED) -> tuple[Baseline, ...]:
    """Return the mean over untrained networks, with minimum and maximum, as a baseline; empty without any."""
    if not len(found):
        return ()
    stacked = np.asarray(found, dtype=np.float64)
    return (Baseline.of("baseline", name, stacked.mean(axis=0), low=stacked.min(axis=0), high=stacked.max(axis=0)),)


def stacked(found: Sequence[Estimate], baselines: Sequence[Baseline] | None = None) -> Estimate:
    """Stack estimates of one shape along a new first axis; each entry keeps its reason.

    Baselines and interval ends that only some of them have are NaN for the others.

    Args:
        found: The estimates.
        baselines: Baselines of the result, instead of the estimates' own.
    """
    unknown = np.full(found[0].value.shape, np.nan)
    kinds = {own.name: own.kind for part in found for own in part.baselines}

    def along(levels: Sequence[Float[np.ndarray, "*rest"] | None]) -> Float[np.ndarray, "part *rest"] | None:
        stored = [unknown if level is None else level for level in levels]
        return None if all(level is None for level in levels) else np.stack(stored)

    def baseline(name: str) -> Baseline:
        own = [next((level for level in part.baselines if level.name == name), None) for part in found]
        value = along([None if level is None else level.value for level in own])
        low = along([None if level is None else level.low for level in own])
        high = along([None if level is None else level.high for level in own])
        assert value is not None, "one of the parts has this baseline"
        return Baseline.of(kinds[name], name, value, low=low, high=high)

    low, high = along([own.low for own in found]), along([own.high for own in found])
    return Estimate.of(
        np.stack([own.value for own in found]),
        None if low is None or high is None else (low, high),
        resampled=next((own.resampled for own in found if own.resampled), ""),
        n=max(own.n for own in found),
        baselines=[baseline(name) for name in kinds] if baselines is None else baselines,
        reason=np.stack([codes_of(own) for own in found]),
    )
