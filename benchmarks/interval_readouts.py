"""Rows of `interval_coverage.py`: linear maps, rank correlations, principal axes, decisions and clusters."""

from collections.abc import Iterator

import numpy as np
import torch
from interval_row import FEW_SIZES, Ends, Row, stacked

from bayesgeom.core.verdict import Reason
from bayesgeom.stats.bootstrap import (
    bootstrap_weights,
    jackknife_weights,
    percentile_interval,
    permutation_p,
    r2_interval,
    statistic_interval,
)
from bayesgeom.stats.clusters import (
    adjusted_rand,
    left_out_silhouettes,
    meetings,
    point_silhouettes,
    resampled_agreement,
)
from bayesgeom.stats.readout import balanced_accuracy
from bayesgeom.stats.regression import ranks, without_level_means
from bayesgeom.stats.resampling import (
    order_under_permutation,
    refitted_axis_shares,
    resampled_correlation_at_position,
    resampled_spearman,
)
from bayesgeom.stats.subspace import cloud_axes, gaussian_first_share, standardized
from examples.replication.thresholds import standardized_axis_shares

CLUSTERED = 500  # points, as in the probe


def fixed_map(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """R² on n held-out sequences of a map that was fitted to as many others; d = 16, 5 positions a sequence."""
    d, found = 16, []
    truth = rng.normal(size=d) / np.sqrt(d)

    def data(size: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(size, 1, d)) + rng.normal(size=(size, 5, d))
        return x, x @ truth + rng.normal(size=(size, 1)) + rng.normal(size=(size, 5))

    x, y = data(64)
    fitted = np.linalg.lstsq(x.reshape(-1, d), y.ravel(), rcond=None)[0]
    error = fitted - truth
    spread = float(2 * truth @ truth + 2)
    own = float(2 * error @ error + 2)
    for _ in range(m):
        x, y = data(n)
        found.append(r2_interval(((y - x @ fitted) ** 2).sum(axis=1), (y**2).sum(axis=1), seed=1))
    return stacked(found), 1 - own / spread


def best_map(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """The interval of the fitted map's R², held against the R² of the best linear map: 160 sequences, d = 128."""
    d, found = 128, []
    for _ in range(m):
        truth = rng.normal(size=d) / np.sqrt(d)
        x = rng.normal(size=(n, d))
        y = x @ truth + 0.5 * rng.normal(size=n)
        half = n // 2
        gram = x[:half].T @ x[:half]
        fitted = np.linalg.solve(gram + 1e-3 * np.trace(gram) / d * np.eye(d), x[:half].T @ y[:half])
        lo, hi = r2_interval((y[half:] - x[half:] @ fitted) ** 2, y[half:] ** 2, seed=1)
        best = float(1 - 0.25 / (truth @ truth + 0.25))
        found.append((float(lo) - best, float(hi) - best))
    lo, hi = np.array(found).T
    return (lo, hi, np.ones(m, dtype=bool)), 0.0


def _correlated(n: int, rng: np.random.Generator, slope: float) -> tuple[np.ndarray, np.ndarray]:
    """Two quantities at 5 positions; within a sequence, both and their noise depend on one another."""
    x = rng.normal(size=(n, 1)) + rng.normal(size=(n, 5))
    return x, slope * x + rng.normal(size=(n, 1)) + rng.normal(size=(n, 5))


def spearman_row(slope: float, *, is_absolute: bool = False) -> Row:
    """Spearman's ρ over all points; the population's is (6/π) asin(r/2) of normal variables."""
    truth = float(6 / np.pi * np.arcsin(slope / np.sqrt(1 + slope**2) / 2))

    def measure(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
        weights, found = jackknife_weights(n), []
        for _ in range(m):
            x, y = _correlated(n, rng, slope)
            if is_absolute:
                lo, hi = percentile_interval(np.abs(resampled_spearman(x, y, bootstrap_weights(n, seed=1, draws=100))))
                found.append((float(lo), float(hi), 1.0))
            else:
                own = statistic_interval(resampled_spearman(x, y, weights), seed=1, scale="correlation")
                found.append((float(own.lo), float(own.hi), float(own.code == Reason.NONE)))
        lo, hi, is_shown = np.array(found, dtype=float).T
        return (lo, hi, is_shown.astype(bool)), truth

    name = "before: percentile bootstrap, |Spearman|" if is_absolute else "Spearman, signed"
    users = "nothing any more" if is_absolute else "value manifold, joint interventions"
    return Row(f"{name}, true value {truth:.2f}", users, measure, sizes=(64, 256) if is_absolute else FEW_SIZES)


def at_position(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """Rank correlation within positions."""
    weights, level, found = jackknife_weights(n), np.tile(np.arange(5), (n, 1)), []

    def inside(v: np.ndarray, level: np.ndarray) -> np.ndarray:
        return without_level_means(ranks(v.ravel())[:, None], level.ravel()).reshape(v.shape)

    big = [v + 3 * np.arange(5) for v in _correlated(40_000, rng, 0.5)]
    levels = np.tile(np.arange(5), (40_000, 1))
    x, y = (inside(v, levels) for v in big)
    truth = float(resampled_correlation_at_position(x, y, np.full((1, 40_000), 1 / 40_000))[0])
    for _ in range(m):
        x, y = (inside(v + 3 * np.arange(5), level) for v in _correlated(n, rng, 0.5))
        found.append(statistic_interval(resampled_correlation_at_position(x, y, weights), seed=1, scale="correlation"))
    return stacked(found), truth


def permutation(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """p-values at a true correlation of 0: "covers" where p > 0.05."""
    level, found = np.tile(np.arange(5), (n, 1)), []
    for _ in range(m):
        x, y = _correlated(n, rng, 0.0)
        orders = np.stack([rng.permutation(n) for _ in range(199)])
        permuted = order_under_permutation(x, y, level, orders)["partial_spearman"]
        own = order_under_permutation(x, y, level, np.arange(n)[None])["partial_spearman"][0]
        found.append(float(permutation_p(np.asarray(own), permuted)))
    p = np.array(found)
    return (np.where(p > 0.05, -1.0, 1.0), np.ones(m), np.ones(m, dtype=bool)), 0.0


def axis_row(name: str, spectrum: np.ndarray) -> Row:
    """Share of PC1 of clouds with this spectrum: 20 dependent positions a sequence."""
    truth = float(spectrum[0] / spectrum.sum())

    def measure(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
        d, weights, found = len(spectrum), jackknife_weights(n, most=20), []
        for _ in range(m):
            noise = rng.normal(size=(n, 1, d)) + rng.normal(size=(n, 20, d))
            points = (noise * np.sqrt(spectrum / 2)).astype(np.float32)
            flat = points.reshape(-1, d) - points.mean(axis=(0, 1))
            axes = np.linalg.eigh((flat.T @ flat).astype(np.float64))[1][:, ::-1][:, :2]
            shares = refitted_axis_shares(points, axes, weights)[:, 0]
            own = statistic_interval(shares, seed=1, scale="share")
            is_apart = shares[0] > 1.25 * gaussian_first_share(n, d)
            found.append((float(own.lo), float(own.hi), bool(own.code == Reason.NONE) and is_apart))
        lo, hi, is_shown = np.array(found, dtype=float).T
        return (lo, hi, is_shown.astype(bool)), truth

    return Row(f"share of PC1, {name} spectrum", "value manifold", measure)


def standardized_shares(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """Share of PC1 + PC2 of standardized values, one point a sequence, of the first 256 sequences."""
    d, used = 48, min(n, 256)
    loadings = rng.normal(size=(2, d)) * np.array([[1.0], [0.7]])
    scale = np.exp(rng.normal(size=d))
    covariance = loadings.T @ loadings + np.eye(d)
    sizes = np.sqrt(np.diag(covariance))
    truth = float(np.linalg.eigvalsh(covariance / np.outer(sizes, sizes))[-2:].sum() / d)
    weights, found = jackknife_weights(used), []
    for _ in range(m):
        points = (rng.normal(size=(used, 2)) @ loadings + rng.normal(size=(used, d))) * scale
        _, axes = cloud_axes(standardized(torch.from_numpy(points)))
        shares = standardized_axis_shares(points, axes[:, :2].numpy(), weights).sum(axis=1)
        found.append(statistic_interval(shares, seed=1, scale="share"))
    return stacked(found), truth


def accuracy_balanced(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """Balanced accuracy of a decision that finds 80 % of the true and 70 % of the false."""
    weights, found = jackknife_weights(n), []
    for _ in range(m):
        truth = rng.random((n, 5, 4)) < 0.3 + 0.4 * rng.random((n, 1, 1))
        decided = np.where(truth, rng.random(truth.shape) < 0.8, rng.random(truth.shape) < 0.3)
        found.append(statistic_interval(balanced_accuracy(decided, truth, weights), seed=1))
    return stacked(found), 0.75


def rand_index(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """Adjusted Rand index of labels that agree at 80 % of the points."""

    def labels(size: int) -> tuple[np.ndarray, np.ndarray]:
        one = rng.integers(4, size=size * 5)
        return one, np.where(rng.random(size * 5) < 0.8, one, rng.integers(4, size=size * 5))

    def hot(label: np.ndarray) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.from_numpy(label), 4).double()

    one, other = labels(100_000)
    truth = float(adjusted_rand(meetings(torch.from_numpy(one)[None, None], hot(other)[:, None])).flatten()[0])
    owner, found = torch.arange(n * 5) // 5, []
    times = torch.from_numpy(jackknife_weights(n) * n)
    for _ in range(m):
        one, other = labels(n)
        drawn = resampled_agreement(torch.from_numpy(one)[None], hot(other), owner, times)
        found.append(statistic_interval(drawn[:, 0].numpy(), seed=1))
    return stacked(found), truth


def silhouette(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """Silhouette of three fixed clusters, of at most 500 points: 5 dependent points a sequence."""
    centers = 2 * np.eye(3, 5)

    def drawn(size: int) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
        labels = rng.integers(3, size=(size, 5))
        points = centers[labels] + 0.5 * (rng.normal(size=(size, 1, 5)) + rng.normal(size=(size, 5, 5)))
        kept = np.sort(rng.permutation(size * 5)[:CLUSTERED])
        some, of = (torch.from_numpy(own.reshape(size * 5, -1)[kept])[None] for own in (points, labels))
        return kept // 5, torch.cdist(some, some), of[..., 0]

    truth = float(np.mean([point_silhouettes(*drawn(5_000)[1:], 3).mean() for _ in range(200)]))
    weights, found = jackknife_weights(n), []
    for _ in range(m):
        owner, distances, labels = drawn(n)
        rows = left_out_silhouettes(distances, labels, 3, weights[:, owner])[:, 0]
        found.append(statistic_interval(rows, seed=1))
    return stacked(found), truth


def overlap_row(name: str, spectrum: np.ndarray, spread: float) -> Row:
    """Overlap of the top 4 directions of a second moment with a span of 8; the span is random if `spread` is infinite.

    Otherwise it is that of the top 8 directions, each with noise of length `spread`. Sequences differ in scale.
    """
    d, k, r = len(spectrum), 8, 4

    def measure(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
        noise = rng.normal(size=(d, k)) / np.sqrt(d)
        span = np.linalg.qr(noise if np.isinf(spread) else np.eye(d)[:, :k] + spread * noise)[0]
        weights, found = jackknife_weights(n, most=64), []
        for _ in range(m):
            own = rng.normal(size=(n, 4, d)) * np.sqrt(spectrum) * np.exp(0.5 * rng.normal(size=(n, 1, 1)))
            grams = (weights @ np.einsum("npd,npe->nde", own, own).reshape(n, -1)).reshape(-1, d, d)
            top = np.linalg.eigh(grams)[1][:, :, -r:]
            found.append(statistic_interval(((span.T @ top) ** 2).sum(axis=(1, 2)) / r, seed=1, scale="share"))
        return stacked(found), float((span[:r] ** 2).sum() / r)

    return Row(f"before: overlap with a span, {name}", "nothing any more", measure, sizes=(32, 64))


def read_out_rows() -> Iterator[Row]:
    """Maps, correlations, axes, decisions and clusters."""
    yield Row("R² of this map, held out", "belief read-out", fixed_map)
    yield spearman_row(0.0)
    yield spearman_row(0.6)
    yield Row("Spearman within positions, signed", "value manifold", at_position)
    yield Row("permutation test at 0: p > 0.05", "value manifold", permutation)
    yield axis_row("spiked", np.r_[64.0, np.ones(63)])
    yield axis_row("1/i", 1 / np.arange(1.0, 65))
    yield axis_row("flat", np.ones(64))
    yield Row("share of PC1 + PC2, standardized values", "pass thresholds", standardized_shares)
    yield Row("balanced accuracy", "belief read-out", accuracy_balanced)
    yield Row("adjusted Rand index, clusters fixed", "belief read-out", rand_index)
    yield Row("silhouette, clusters fixed", "belief read-out, domain separation", silhouette)
