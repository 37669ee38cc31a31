"""Chance level of the share of the first principal component."""

import math


def gaussian_first_share(n: int, d: int) -> float:
    """Return the share of PC1 of n independent standard Gaussian points in R^d: (√n + √d)² / (n d), at most 1.

    Reference: Marchenko & Pastur 1967 (the edge of the spectrum).

    Example:
        >>> round(gaussian_first_share(64, 128), 4)
        0.0455
    """
    return min(1.0, (math.sqrt(n) + math.sqrt(d)) ** 2 / (n * d))
