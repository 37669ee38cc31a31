"""Chance levels: scores of Gaussian clouds, random directions, and attention from random scores.

Closed forms where they exist, otherwise a seeded Monte Carlo estimate at the same sizes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import final

import numpy as np
import torch
from jaxtyping import Float64
from scipy.stats import binom, norm
from torch import Tensor

from bayesgeom.stats.information import entropy_bits
from bayesgeom.stats.overlap import chance_overlap
from bayesgeom.stats.pca import standardized

_ROWS = 2_048  # attention rows drawn


@final
@dataclass(frozen=True, kw_only=True)
class Chance:
    """Expected score of data without structure, how often they pass a threshold, and their sizes."""

    expected: float
    passes: float
    sizes: str


@cache
def gaussian_shares(n: int, d: int, *, rank: int, draws: int, seed: int) -> Float64[np.ndarray, "draw component"]:
    """Draw shares of variance in the first 1 … `rank` principal components of n standardized Gaussian points in R^d.

    For the first component about (1 + √(n/d))² / n, where n < d: fewer points have a larger share.
    """
    generator = torch.Generator().manual_seed(seed)
    found = np.empty((draws, rank))
    for draw in range(draws):
        cloud = standardized(torch.randn(n, d, generator=generator, dtype=torch.float32))
        gram = (cloud @ cloud.T if n < d else cloud.T @ cloud).double()
        variances = torch.linalg.eigvalsh(gram).flip(0)
        found[draw] = (variances.cumsum(0) / variances.sum())[:rank].numpy()
    return found


def gaussian_first_share(n: int, d: int) -> float:
    """Return the share of PC1 of n independent standard Gaussian points in R^d: (√n + √d)² / (n d), at most 1.

    Reference: Marchenko & Pastur 1967 (the edge of the spectrum).

    Example:
        >>> round(gaussian_first_share(64, 128), 4)
        0.0455
    """
    return min(1.0, (math.sqrt(n) + math.sqrt(d)) ** 2 / (n * d))


def overlap_below(n: int, d: int, *, frames: int, below: float) -> float:
    """Return the probability that the mean |cosine| of random directions is less than `below`.

    The mean is over the pairs of n directions in R^d and over `frames` sets of directions. Pairs are pairwise
    independent, with E|c| = `chance_overlap` and E c² = 1/d, so the mean is nearly normal.
    """
    mean, pairs = chance_overlap(d), n * (n - 1) / 2 * frames
    if pairs == 0:
        return math.nan
    spread = math.sqrt(max(1 / d - mean**2, 0) / pairs)
    return float(norm.cdf((below - mean) / spread)) if spread else float(mean < below)


def at_least(share: float, of: int, each: float) -> float:
    """Return the probability that at least this share of `of` independent events of probability `each` occurs."""
    return float(binom.sf(math.ceil(share * of) - 1, of, each))


def falls_by_more(visible: Sequence[int], *, rows: int, share: float, seed: int) -> float:
    """Return the probability that entropy falls by more than this share between two layers of standard Gaussian scores.

    `visible` are the numbers of positions that queries see, `rows` the number of attention rows averaged in a layer.
    Both layers have the same expectation. Their difference is nearly normal, with a spread estimated from some rows.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.choice(np.asarray(visible), size=_ROWS)
    scores = torch.from_numpy(rng.normal(size=(_ROWS, int(max(visible)))))
    hidden = torch.arange(scores.shape[1]) >= torch.from_numpy(lengths)[:, None]
    entropy: Tensor = entropy_bits(scores.masked_fill(hidden, -torch.inf).softmax(-1))
    mean, spread = float(entropy.mean()), float(entropy.std())
    if mean == 0:
        return math.nan
    return float(norm.sf(share * mean * math.sqrt(rows) / (math.sqrt(2) * spread))) if spread else 0.0
