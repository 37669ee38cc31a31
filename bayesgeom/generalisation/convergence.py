"""How fast a posterior converges: evidence read until its entropy has come down to where it stays."""

import numpy as np
from jaxtyping import Float

from bayesgeom.generalisation.curves import Estimate, first_place, resampled_means

LAST_SHARE = 0.25  # of the positions, over which the level is taken that entropy settles at


def settled_bits(entropies_bits: Float[np.ndarray, "sequence position"]) -> float:
    """Mean entropy over the last quarter of the positions: the floor."""
    return float(entropies_bits[:, -_n_last(entropies_bits.shape[1]) :].mean())


def tokens_to_converge(
    entropies_bits: Float[np.ndarray, "sequence position"], threshold_bits: float, *, seed: int
) -> Estimate:
    """The first scored position, counted from 1, at which mean entropy is within the threshold of its floor.

    Sequences are resampled whole, and the floor with them. Infinite where no position is that near.
    """
    means = resampled_means(entropies_bits, seed=seed)
    floor = means[:, -_n_last(means.shape[1]) :].mean(axis=1, keepdims=True)
    is_near = np.abs(means - floor) <= threshold_bits
    return first_place(np.where(is_near.any(axis=1), is_near.argmax(axis=1) + 1.0, np.inf), len(entropies_bits))


def _n_last(n_positions: int) -> int:
    return max(1, round(LAST_SHARE * n_positions))
