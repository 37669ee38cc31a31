"""Distributions in the plane: a corner per outcome, and each distribution at the mean of the corners it weighs.

Three outcomes make a triangle, in which a distribution has exactly one place. More of them make a regular polygon, in
which distributions that differ may share a place.
"""

import numpy as np
from jaxtyping import Float

MAX_CORNERS = 24  # beyond this, corners cannot be told apart


def corners(n: int) -> Float[np.ndarray, "corner xy"]:
    """The corners of a regular polygon of radius 1, the first one on top, then clockwise; a segment for two."""
    if n == 2:
        return np.array([[-1.0, 0.0], [1.0, 0.0]])
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def placed(weights: Float[np.ndarray, "*batch outcome"]) -> Float[np.ndarray, "*batch xy"]:
    """Σ_i w_i · corner_i; outside the polygon where a weight is negative."""
    return np.asarray(weights @ corners(weights.shape[-1]))
