"""Overlap of a set of vectors (how far they are from orthogonal), its chance level, and the interval of its mean.

Vectors that are zero or NaN have no direction: every pair with one of them is left out.

The interval is for vectors that are means over sequences. |c| has a kink at 0. Noise of size s in a cosine c near 0
raises |c| on average, by up to 0.8 s. The jackknife does not see this bias: few cosines change sign when one sequence
is left out, and each that does counts n times. Therefore

    weight   w = sign(c) Φ(|c| / s): the sign, times the probability that it is right
    replicates   mean over pairs of |c| + w (c without the group − c), which are smooth in the vectors
    kink   b = mean over pairs of E|c + s Z| − |c|, Z standard normal: the bias if the true cosine were c

The interval is that of the replicates less b, so it still corrects the bias that is smooth in the vectors. If cosines
are spread evenly around 0, b is the bias on average. If they are exactly 0, it is too small by √2 b, so the lower end
is moved by that. There is no interval where b is more than `MOST_KINK` − `FEWER` / n of the distance from center to
upper end: many cosines are then 0 within their noise.

References:
    Welch 1974 (the bound).
    Hotelling 1953 (density of a correlation, here about a known mean).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.special import betainc, hyp2f1
from torch import Tensor

from bayesgeom.core import Reason
from bayesgeom.core.batching import even_slices
from bayesgeom.stats.bootstrap import statistic_interval
from bayesgeom.stats.intervals import Interval

_NEGLIGIBLE = 1e-6  # of a vector's length: rounding error of float32 for a vector that equals the mean
_NODES = 2_000
_AT_ONCE = 2**21  # random numbers drawn together


def pairwise_cosine(vectors: Float[Tensor, "*batch item d"]) -> Float[Tensor, "*batch item item"]:
    """Return the cosine between every two vectors; the diagonal is 1, NaN where a vector has no direction."""
    unit: Tensor = vectors / vectors.norm(dim=-1, keepdim=True)
    return unit @ unit.mT


def centered(vectors: Float[Tensor, "*batch item d"]) -> Float[Tensor, "*batch item d"]:
    """Subtract the mean vector; NaN where only rounding error is left."""
    length = vectors.norm(dim=-1, keepdim=True)
    is_defined = length.isfinite()
    given = vectors if bool(is_defined.all()) else vectors.nan_to_num()
    rest = vectors - given.sum(dim=-2, keepdim=True) / is_defined.sum(dim=-2, keepdim=True)
    # Multiplying is three times faster than filling, on many small frames.
    known: Tensor = torch.where(rest.norm(dim=-1, keepdim=True) <= _NEGLIGIBLE * length, torch.nan, 1.0)
    return cast(Tensor, rest * known)


def coordinates_of(gram: Float[Tensor, "*batch item same_item"]) -> Float[Tensor, "*batch item coordinate"]:
    """Return vectors with these inner products, G = X Xᵀ, in as many dimensions as there are vectors."""
    values, axes = torch.linalg.eigh(gram.double())
    return cast(Tensor, axes * values.clamp_min(0).sqrt()[..., None, :])


def overlap(cosine: Float[Tensor, "*batch item item"]) -> Float[Tensor, "*batch"]:
    """Return the mean |cosine| over distinct pairs: 0 is orthogonal, 1 is parallel."""
    return mean_of_pairs(cosine.abs())


def overlap_max(cosine: Float[Tensor, "*batch item item"]) -> Float[Tensor, "*batch"]:
    """Return the largest |cosine| over distinct pairs; `welch_bound` is its lower bound."""
    if cosine.shape[-1] == 0:
        return cosine.new_full(cosine.shape[:-2], torch.nan)
    is_itself = torch.eye(cosine.shape[-1], dtype=torch.bool, device=cosine.device)
    largest = cosine.abs().masked_fill(is_itself, -1).nan_to_num(nan=-1.0).flatten(-2).amax(dim=-1)
    return largest.masked_fill(largest < 0, torch.nan)


def orthogonality(cosine: Float[Tensor, "*batch item item"]) -> Float[Tensor, "*batch"]:
    """Return 1 − ‖G − I‖ / ‖11ᵀ − I‖ for the Gram matrix G of unit vectors: 1 is orthonormal, 0 is parallel.

    The ratio of norms is the root mean square of the cosines of distinct pairs.
    """
    return 1 - mean_of_pairs(cosine.square()).clamp_min(0).sqrt()


def dimension_utilization(cosine: Float[Tensor, "*batch item item"], d: int) -> Float[Tensor, "*batch"]:
    """Return the participation ratio (Σλ)² / Σλ² of the Gram matrix over min(n, d): 1 if directions are used equally.

    Unit vectors have Σλ = n and Σλ² = ‖G‖², so no eigenvalue is needed.
    """
    n = cosine.diagonal(dim1=-2, dim2=-1).isfinite().sum(dim=-1)
    return n.square() / cosine.square().nansum(dim=(-2, -1)) / n.clamp_max(d)


def welch_bound(n: int, d: int) -> float:
    """Return √((n − d) / (d (n − 1))), a lower bound on the largest and on the RMS |cosine| of n directions in R^d.

    0 if n ≤ d. The mean |cosine| is at least its square.
    """
    return math.sqrt((n - d) / (d * (n - 1))) if n > max(d, 1) else 0.0


def chance_overlap(d: int) -> float:
    """Return the expected |cosine| of two random directions in `d` dimensions: Γ(d/2) / (√π Γ((d+1)/2))."""
    return math.exp(math.lgamma(d / 2) - math.lgamma((d + 1) / 2)) / math.sqrt(math.pi)


@cache
def chance_overlap_centered(n: int, d: int) -> float:
    """Return the expected |cosine| of two of `n` random vectors in `d` dimensions after their mean is removed.

    Removing the mean correlates any two by ρ = −1/(n−1), so a few vectors overlap visibly whatever they encode. Exact
    for Gaussian vectors, by quadrature over θ (r = sin θ) of the density of a correlation r with d degrees of freedom.
    """
    if n < 2:
        return math.nan
    if n == 2 or d == 1:
        return 1.0
    rho = -1 / (n - 1)
    theta = (np.arange(_NODES) + 0.5) / _NODES * math.pi - math.pi / 2
    r = np.sin(theta)
    log_density = (d - 2) * np.log(np.cos(theta)) - (d - 0.5) * np.log1p(-rho * r)
    density = np.exp(log_density - log_density.max()) * hyp2f1(0.5, 0.5, d + 0.5, (1 + rho * r) / 2)
    return float((np.abs(r) * density).sum() / density.sum())


@cache
def chance_overlap_max(n: int, d: int) -> float:
    """Return the expected largest |cosine| among `n` random directions in `d` dimensions: ∫ 1 − F(x)^pairs dx.

    F is the distribution of one |cosine|. Pairs are pairwise but not jointly independent: accurate to 4 %.
    """
    if n < 2:
        return math.nan
    if d == 1:
        return 1.0
    x = (np.arange(_NODES) + 0.5) / _NODES
    return float(1 - (betainc(0.5, (d - 1) / 2, x * x) ** (n * (n - 1) / 2)).mean())


def overlaps(vectors: Float[Tensor, "draw *batch item d"]) -> Float[Tensor, "draw 2 *batch"]:
    """Return the overlap of the vectors, raw and with their mean removed."""
    return overlap(_cosines(vectors))


def _cosines(vectors: Float[Tensor, "draw *batch item d"]) -> Float[Tensor, "draw 2 *batch item item"]:
    """Return the cosines of the vectors, raw and with their mean removed."""
    return torch.stack([pairwise_cosine(x) for x in (vectors, centered(vectors))], dim=1)


def squared_lengths(vectors: Float[Tensor, "*batch item d"]) -> Float64[Tensor, "2 *batch"]:
    """Return the mean squared length of the vectors, raw and with their mean removed, accurate to their precision.

    Example:
        >>> squared_lengths(torch.tensor([[3.0, 4.0], [3.0, 0.0]])).tolist()
        [17.0, 4.0]
    """
    both = (vectors, vectors - vectors.mean(dim=-2, keepdim=True))
    return torch.stack([x.norm(dim=-1).double().square().mean(dim=-1) for x in both])


def projected_overlaps(
    vectors: Float[Tensor, "*batch item width"], d: int, *, n: int, seed: int
) -> Float[Tensor, "draw 2 *batch"]:
    """Return the overlap of the vectors after each of `n` random Gaussian maps to `d` dimensions, raw and centered."""
    shape = (n, *(1,) * (vectors.ndim - 2), vectors.shape[-1], d)
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).to(vectors)
    # One map at a time: a product with all of them copies the vectors as many times.
    return torch.cat([overlaps(vectors @ matrix) for matrix in matrices.split(1)])


@cache
def random_overlaps(n: int, d: int, *, draws: int, seed: int) -> Float64[np.ndarray, "draw 2"]:
    """Draw the overlap of `n` random directions in R^d, raw and centered; NaN for fewer than two.

    The expectations are `chance_overlap` and `chance_overlap_centered`. For 20 directions in 32 dimensions the central
    95 % of draws lie between 0.127 and 0.157.
    """
    if n < 2:
        return np.full((draws, 2), np.nan)
    generator = torch.Generator().manual_seed(seed)
    parts = even_slices(draws, at_most=_AT_ONCE // (n * d))
    sizes = [part.stop - part.start for part in parts]
    samples = [overlaps(torch.randn(size, n, d, generator=generator, dtype=torch.float64)) for size in sizes]
    return torch.cat(samples).numpy()


def cross_fitted_overlap(
    one: Float[Tensor, "*batch item d"], other: Float[Tensor, "*batch item d"]
) -> Float[Tensor, "*batch"]:
    """Return the mean |cosine| of noisy vectors, from two estimates of each with independent noise.

    cos_ij = (x_i·y_j + x_j·y_i) / (2 √(x_i·y_i x_j·y_j)). Noise cancels on average in each product. In the plain cosine
    it lengthens the vectors and makes them less parallel. The absolute value of the remaining noise is positive, so
    this estimate is biased upward where the plain overlap is biased downward. Pairs with x_i·y_i ≤ 0 are left out.
    """
    products = one @ other.mT
    power = products.diagonal(dim1=-2, dim2=-1)
    length = torch.where(power > 0, power, torch.nan).sqrt()
    cosine: Tensor = (products + products.mT) / 2 / (length[..., :, None] * length[..., None, :])
    return overlap(cosine.clamp(-1, 1))


def verdicts(
    lo: Float[np.ndarray, "*axes"],
    hi: Float[np.ndarray, "*axes"],
    level_lo: Float[np.ndarray, "*#axes"],
    level_hi: Float[np.ndarray, "*#axes"],
) -> Float[np.ndarray, "*axes"]:
    """Return −1 where the interval of an overlap lies below that of its chance level, 1 above, 0 where they intersect.

    NaN where either is unknown.
    """
    verdict = np.where(hi < level_lo, -1.0, np.where(lo > level_hi, 1.0, 0.0))
    return np.where(np.isnan(lo + hi + level_lo + level_hi), np.nan, verdict)


def frame_statistics(vectors: Float[Tensor, "*batch item d"]) -> dict[str, Float[Tensor, "*batch"]]:
    """Return all statistics above for each set of vectors, by name; `_centered` with the mean removed."""
    raw, mean_removed = pairwise_cosine(vectors), pairwise_cosine(centered(vectors))
    return {
        "overlap": overlap(raw),
        "overlap_max": overlap_max(raw),
        "overlap_centered": overlap(mean_removed),
        "overlap_centered_max": overlap_max(mean_removed),
        "signed_mean": mean_of_pairs(raw),  # between −1/(n−1) and 1
        "orthogonality": orthogonality(raw),
        "dimension_utilization": dimension_utilization(raw, vectors.shape[-1]),
    }


def frame_chances(n: int, d: int) -> dict[str, float]:
    """Return the chance levels for `n` random directions in R^d.

    Orthogonality and utilization are evaluated at the expected squared cosine, 1/d.
    """
    return {
        "overlap": chance_overlap(d),
        "overlap_max": chance_overlap_max(n, d),
        "overlap_centered": chance_overlap_centered(n, d),
        "signed_mean": 0.0,
        "orthogonality": 1 - d**-0.5,
        "dimension_utilization": n / (1 + (n - 1) / d) / min(n, d) if n else math.nan,
    }


def mean_of_pairs(values: Float[Tensor, "*batch item item"]) -> Float[Tensor, "*batch"]:
    """Return the mean off the diagonal, ignoring NaN. Subtracting the diagonal's sum is faster than a mask."""
    diagonal = values.diagonal(dim1=-2, dim2=-1)
    n = (~diagonal.isnan()).sum(dim=-1)
    return (values.nansum(dim=(-2, -1)) - diagonal.nansum(dim=-1)) / (n * (n - 1))


MOST_KINK, FEWER = 0.7, 6.4  # set on planted keys with other seeds than those of benchmarks/interval_coverage.py
MOST_HELD = 2**24  # numbers
RESIDUAL = 2**0.5  # (0.798 − 0.330) / 0.330: what is left of the bias of |N(0, s²)|, in units of b

Frames = Callable[[], Iterable[Float[Tensor, "draw *batch item d"]]]


def overlap_rows(frames: Frames) -> tuple[Float64[np.ndarray, "row 2 *rest"], Float64[np.ndarray, "2 *rest"]]:
    """Return the replicates of the mean |cosine|, with signs held, and the bias b of the kink.

    The second axis of the replicates and the first of the bias are raw (0) and with the mean removed (1).
    Cosines are computed in float64: pseudo-values multiply their rounding by the number of sequences.

    Args:
        frames: Gives the vectors under each row of `jackknife_weights`, in one or several parts. It is called again
            where the cosines of all parts have more than `MOST_HELD` numbers.

    Example:
        >>> vectors = torch.tensor([[[3.0, 4.0], [4.0, -3.0]], [[3.0, 4.0], [4.0, -2.0]], [[3.0, 4.0], [4.0, -4.0]]])
        >>> rows, kink = overlap_rows(lambda: [vectors])
        >>> bool(rows[0, 0] < 1e-6) and bool(kink[0] > 0.05)
        True
    """
    total = squares = all_of_them = torch.empty(0)
    count, kept, is_held = 0, list[Tensor](), True
    for part in frames():
        cosines = _cosines(part.double())
        is_held = is_held and (count + len(part)) * cosines[0].numel() <= MOST_HELD
        kept = [*kept, cosines] if is_held else []
        if not count:
            all_of_them, cosines = cosines[0], cosines[1:]
            total = squares = torch.zeros_like(all_of_them)
        change = cosines - all_of_them
        total, squares = total + change.nansum(dim=0), squares + change.square().nansum(dim=0)
        count += len(part)
    n = max(1, count - 1)
    noise = ((n - 1) / n * (squares - total.square() / n).clamp_min(0)).sqrt()
    size = all_of_them.abs()
    is_right = torch.special.ndtr(size / noise)
    weight = all_of_them.sign() * torch.where(noise > 0, is_right, 1.0)
    again = kept or (_cosines(part.double()) for part in frames())
    rows = [mean_of_pairs(size + weight * (cosines - all_of_them)) for cosines in again]
    normal = torch.exp(-((size / noise) ** 2) / 2) / (2 * torch.pi) ** 0.5
    kink = mean_of_pairs(torch.where(noise > 0, 2 * (noise * normal - size * (1 - is_right)), 0.0 * size))
    return torch.cat(rows).double().cpu().numpy(), kink.double().cpu().numpy()


def mean_overlap_interval(
    rows: Float[np.ndarray, "row *rest"], kink: Float[np.ndarray, "*rest"], *, seed: int
) -> Interval:
    """Return the 95 % interval of a mean |cosine|, from rows and bias of `overlap_rows`, or of means of both."""
    mean, corrected, most = rows[0], rows[0] - kink, MOST_KINK - FEWER / max(1, len(rows) - 1)
    with np.errstate(invalid="ignore"):
        bounds = statistic_interval(rows - kink, seed=seed, scale="share")
        is_biased = (mean > 0) & ((corrected <= 0) | (kink > most * (bounds.hi - corrected)))
        code = np.where(is_biased & (np.isfinite(bounds.hi) | (corrected <= 0)), int(Reason.BIASED), bounds.code)
    ends = (np.maximum(bounds.lo - RESIDUAL * kink, 0), bounds.hi)
    low, high = (np.where(code == Reason.NONE, end, np.nan) for end in ends)
    return replace(bounds, lo=np.asarray(low), hi=np.asarray(high), code=np.asarray(code))
