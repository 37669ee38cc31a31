"""Convergence of a posterior: the number of observations until its entropy reaches its floor."""

import numpy as np
from jaxtyping import Float

from bayesgeom.generalization.curves import first_place
from bayesgeom.results.estimate import Estimate

LAST_SHARE = 0.25  # share of the positions, at the end, over which the floor of the entropy is averaged


def floor_bits(entropies_bits: Float[np.ndarray, "sequence position"]) -> float:
    """Return the floor: mean entropy over the last quarter of the positions."""
    return float(entropies_bits[:, -_n_last(entropies_bits.shape[1]) :].mean())


def tokens_to_converge(entropies_bits: Float[np.ndarray, "sequence position"], threshold_bits: float) -> Estimate:
    """Return the first scored position, counted from 1, at which mean entropy is within the threshold of its floor.

    Infinite if there is no such position. It has no interval: see `curves.first_place`.
    """
    n_positions = entropies_bits.shape[1]
    mean = entropies_bits.astype(np.float64).mean(axis=0)
    is_there = np.abs(mean - mean[-_n_last(n_positions) :].mean()) <= threshold_bits
    return first_place(np.arange(1, n_positions + 1), is_there, n=len(entropies_bits))


def _n_last(n_positions: int) -> int:
    return max(1, round(LAST_SHARE * n_positions))
