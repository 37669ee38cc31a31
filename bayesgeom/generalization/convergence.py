"""Convergence of a posterior: the number of observations until its entropy reaches its floor."""

import numpy as np
from jaxtyping import Float

from bayesgeom.generalization.curves import first_place, mean_along
from bayesgeom.report.estimate import Estimate

LAST_SHARE = 0.25  # share of the positions, at the end, over which the floor of the entropy is averaged


def floor_bits(entropies_bits: Float[np.ndarray, "sequence position"]) -> float:
    """Return the floor: mean entropy over the last quarter of the positions."""
    return float(entropies_bits[:, -_n_last(entropies_bits.shape[1]) :].mean())


def tokens_to_converge(
    entropies_bits: Float[np.ndarray, "sequence position"], threshold_bits: float, *, seed: int
) -> Estimate:
    """Return the first scored position, counted from 1, at which mean entropy is within the threshold of its floor.

    Infinite if there is no such position. The interval runs from the first position that may be as near to the first
    that certainly is, by the intervals of the mean differences from the floor: see `curves.first_place`.
    """
    n_positions, values = entropies_bits.shape[1], entropies_bits.astype(np.float64)
    mean = values.mean(axis=0)
    is_there = np.abs(mean - mean[-_n_last(n_positions) :].mean()) <= threshold_bits
    away = mean_along(values - values[:, -_n_last(n_positions) :].mean(axis=1, keepdims=True), seed=seed)
    low, high = away.ends
    may_be = is_there | np.isnan(low) | ((low <= threshold_bits) & (high >= -threshold_bits))
    is_certain = is_there & (low >= -threshold_bits) & (high <= threshold_bits)
    at = np.arange(1, n_positions + 1)
    return first_place(at, is_there, may_be, is_certain, np.isfinite(low), n=len(values))


def _n_last(n_positions: int) -> int:
    return max(1, round(LAST_SHARE * n_positions))
