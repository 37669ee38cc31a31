"""Plot coordinates of distributions: a corner per outcome, and each distribution at its weighted mean of the corners.

Three outcomes make a triangle, in which each distribution has its own point. More outcomes make a regular polygon, in
which different distributions may share a point.
"""

import numpy as np
from jaxtyping import Float

MAX_CORNERS = 24  # more corners cannot be distinguished


def corners(n: int) -> Float[np.ndarray, "corner xy"]:
    """Return the corners of a regular polygon of radius 1, the first one on top, then clockwise; a segment for two."""
    if n == 2:
        return np.array([[-1.0, 0.0], [1.0, 0.0]])
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def placed(weights: Float[np.ndarray, "*batch outcome"]) -> Float[np.ndarray, "*batch xy"]:
    """Return Σ_i w_i · corner_i; it may lie outside the polygon if a weight is negative."""
    return np.asarray(weights @ corners(weights.shape[-1]))
