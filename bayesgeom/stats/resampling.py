"""Statistics of a cloud with reweighted sequences: one value per row of weights.

`weights` hold the share of each sequence in each row, from `jackknife_weights` or `bootstrap_weights`. Every sequence
has the same number of points, which share its weight. Correlations are signed.
"""

import numpy as np
from jaxtyping import Float, Float64, Int, Int64

from bayesgeom.stats.regression import ranks, without_level_means

_ROUNDING = 1e-6  # a variance below this share of the power is rounding error


def order_under_permutation(
    first: Float64[np.ndarray, "*cloud sequence position"],
    entropy: Float64[np.ndarray, "sequence position"],
    level: Int64[np.ndarray, "sequence position"],
    orders: Int64[np.ndarray, "permutation sequence"],
) -> dict[str, Float64[np.ndarray, "permutation *cloud"]]:
    """Return the rank correlations of `resampled_order` with the entropies of whole sequences permuted.

    Positions are not permuted, so that effects of position and the dependence within a sequence are preserved.
    Entropies are ranked and permuted once for all clouds.
    """
    x, y = ranks(first.reshape(-1, entropy.size).T), ranks(entropy.ravel())[:, None]
    inside = [without_level_means(v, level.ravel()) for v in (x, y)]
    by_name = {}
    for name, (a, b) in {"spearman": (x - x.mean(axis=0), y - y.mean()), "partial_spearman": inside}.items():
        length = np.sqrt((a * a).sum(axis=0) * (b * b).sum())
        permuted = b.reshape(entropy.shape)[orders].reshape(len(orders), -1)
        correlations = permuted @ a / np.where(length > 0, length, np.nan)
        by_name[name] = correlations.reshape(len(orders), *first.shape[:-2])
    return by_name


def resampled_order(
    first: Float64[np.ndarray, "sequence position"],
    entropy: Float64[np.ndarray, "sequence position"],
    level: Int64[np.ndarray, "sequence position"],
    weights: Float64[np.ndarray, "draw sequence"],
) -> dict[str, Float64[np.ndarray, " draw"]]:
    """Return the rank correlation of a coordinate with entropy, over all points and within positions, by row."""
    x, y = (without_level_means(ranks(v.ravel())[:, None], level.ravel()).reshape(v.shape) for v in (first, entropy))
    return {
        "spearman": resampled_spearman(first, entropy, weights),
        "partial_spearman": resampled_correlation_at_position(x, y, weights),
    }


def resampled_axis_shares(
    points: Float[np.ndarray, "sequence position d"],
    axes: Float[np.ndarray, "d axis"],
    weights: Float64[np.ndarray, "draw sequence"],
) -> Float64[np.ndarray, "axis draw"]:
    """Return the share of variance along each direction, in each resample; NaN for a resample without variance.

    Directions are fixed. For axes fitted to the same points use `refitted_axis_shares`.
    """
    centered = points - points.mean(axis=(0, 1))
    along = np.asarray(centered @ axes, dtype=np.float64)
    power = (centered**2).sum(axis=2).mean(axis=1, dtype=np.float64)
    total = weights @ power - ((weights @ centered.mean(axis=1, dtype=np.float64)) ** 2).sum(axis=1)
    variance = weights @ (along**2).mean(axis=1) - (weights @ along.mean(axis=1)) ** 2
    return np.asarray(variance.T / np.where(total > _ROUNDING * (weights @ power), total, np.nan))


def refitted_axis_shares(
    points: Float[np.ndarray, "sequence position d"],
    axes: Float[np.ndarray, "d axis"],
    weights: Float64[np.ndarray, "row sequence"],
    *,
    steps: int = 2,
    covariance: Float64[np.ndarray, "d d"] | None = None,
) -> Float64[np.ndarray, "row axis"]:
    """Return the share of variance along each principal axis, with the axes refitted under each row of weights.

    The share of a sample's first principal axis is biased upward. With `jackknife_weights`, the jackknife removes that
    bias to first order, which requires refitted axes. They are found by block power iteration from the axes of all
    points, which are close. NaN where nothing varies.

    A row's second moments are those of all points at the row's largest weight, minus the missing weight of its lighter
    sequences. The cost of a row is therefore proportional to the sequences that it leaves out. `covariance` is that of
    all points, if it is known.
    """
    n_positions, (d, n_axes) = points.shape[1], axes.shape
    centered = points - points.mean(axis=(0, 1))
    flat = centered.reshape(-1, d)
    means = weights.astype(centered.dtype) @ centered.mean(axis=1)
    power = weights @ np.einsum("spd,spd->s", centered, centered, dtype=np.float64) / n_positions
    most = weights.max(axis=1)
    missing = [
        (centered[row < top].reshape(-1, d), np.repeat(top - row[row < top], n_positions).astype(flat.dtype)[:, None])
        for row, top in zip(weights, most, strict=True)
    ]
    gram = flat.T @ flat if covariance is None else (covariance * len(flat)).astype(flat.dtype)
    top = most.astype(flat.dtype)[:, None, None]

    def applied(basis: Float[np.ndarray, "row d axis"]) -> Float[np.ndarray, "row d axis"]:
        product = top * (gram @ basis)
        for image, (rows, share), along in zip(product, missing, basis, strict=True):
            image -= rows.T @ (share * (rows @ along))
        return np.asarray(product / n_positions - means[:, :, None] * (means[:, None] @ basis))

    basis = np.broadcast_to(axes.astype(flat.dtype), (len(weights), d, n_axes))
    for _ in range(steps):
        basis = np.linalg.qr(applied(basis))[0]
    along = basis.transpose(0, 2, 1).astype(np.float64) @ applied(basis).astype(np.float64)
    variances = np.linalg.eigvalsh((along + along.transpose(0, 2, 1)) / 2)[:, ::-1]
    total = power - (means.astype(np.float64) ** 2).sum(axis=1)
    return np.asarray(variances / np.where(total > _ROUNDING * power, total, np.nan)[:, None])


def resampled_spearman(
    x: Float[np.ndarray, "sequence position"],
    y: Float[np.ndarray, "sequence position"],
    weights: Float64[np.ndarray, "draw sequence"],
) -> Float64[np.ndarray, " draw"]:
    """Return Spearman's correlation in each resample, with new ranks. Ties get their mean rank; NaN if constant."""
    owner, share = np.repeat(np.arange(len(x)), x.shape[1]), weights / x.shape[1]
    (rank_x, spread_x), (rank_y, spread_y) = (_weighted_ranks(v.ravel(), owner, share) for v in (x, y))
    together = (share[:, owner] * rank_x * rank_y).sum(axis=1)
    return np.asarray(together / np.sqrt(np.where((spread_x > 0) & (spread_y > 0), spread_x * spread_y, np.nan)))


def _weighted_ranks(
    values: Float[np.ndarray, " point"], owner: Int[np.ndarray, " point"], weights: Float64[np.ndarray, "draw sequence"]
) -> tuple[Float64[np.ndarray, "draw point"], Float64[np.ndarray, " draw"]]:
    """Return Σ_{j below i} w_j + ½ Σ_{j tied with i} w_j − ½, which has weighted mean 0, and its weighted variance."""
    levels, level = np.unique(values, return_inverse=True)
    order = level.argsort(kind="stable")
    sizes = np.bincount(level, minlength=len(levels))
    mass = np.add.reduceat(weights[:, owner[order]], np.cumsum(sizes) - sizes, axis=1)
    middle = mass.cumsum(axis=1) - mass / 2 - 0.5
    spread = (mass * middle**2).sum(axis=1)
    return middle[:, level], np.where(spread > 1e-15, spread, 0.0)


def resampled_correlation_at_position(
    x: Float[np.ndarray, "sequence position"],
    y: Float[np.ndarray, "sequence position"],
    weights: Float64[np.ndarray, "draw sequence"],
) -> Float64[np.ndarray, " draw"]:
    """Return the pooled correlation within positions, Σ_p cov(x_p, y_p) / √(Σ_p var(x_p) Σ_p var(y_p)), per resample.

    With ranks for x and y it resamples the partial rank correlation, with the ranks of the full sample.
    """
    mean_x, mean_y = weights @ x, weights @ y
    pairs = ((x, y, mean_x, mean_y), (x, x, mean_x, mean_x), (y, y, mean_y, mean_y))
    together, spread_x, spread_y = (weights @ (a * b).sum(axis=1) - (ma * mb).sum(axis=1) for a, b, ma, mb in pairs)
    scale = np.where((spread_x > 1e-12) & (spread_y > 1e-12), spread_x * spread_y, np.nan)
    return np.asarray(together / np.sqrt(scale))
