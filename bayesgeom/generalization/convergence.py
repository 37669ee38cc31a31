"""How fast a posterior converges: evidence read until its entropy has come down to where it stays."""

import numpy as np
from jaxtyping import Float

from bayesgeom.generalization.curves import Estimate, first_place, mean_along

LAST_SHARE = 0.25  # of the positions, over which the level is taken that entropy settles at


def settled_bits(entropies_bits: Float[np.ndarray, "sequence position"]) -> float:
    """Mean entropy over the last quarter of the positions: the floor."""
    return float(entropies_bits[:, -_n_last(entropies_bits.shape[1]) :].mean())


def tokens_to_converge(
    entropies_bits: Float[np.ndarray, "sequence position"], threshold_bits: float, *, seed: int
) -> Estimate:
    """The first scored position, counted from 1, at which mean entropy is within the threshold of its floor.

    Infinite where no position is that near. The interval runs from the first position that may be near to the first
    that certainly is, by the intervals of the mean differences from the floor.
    """
    n_positions = entropies_bits.shape[1]
    values = entropies_bits.astype(np.float64)
    away = values - values[:, -_n_last(n_positions) :].mean(axis=1, keepdims=True)
    mean, lo, hi = mean_along(away, seed=seed)
    may_be = np.isnan(lo) | ((lo <= threshold_bits) & (hi >= -threshold_bits))
    is_certain = (lo >= -threshold_bits) & (hi <= threshold_bits)
    return first_place(
        np.arange(1, n_positions + 1), np.abs(mean) <= threshold_bits, may_be, is_certain, np.isfinite(lo)
    )


def _n_last(n_positions: int) -> int:
    return max(1, round(LAST_SHARE * n_positions))
