"""Coverage of every interval in use, on planted data whose true value is known.

Each row draws data sets, computes the interval that the package reports, and counts how often it holds the truth:
1,000 data sets for means, 200 for statistics that take longer, of 64, 256 and 2,000 sequences. Columns:

- shown: share of the data sets that have an interval;
- coverage where shown: how many of these intervals hold the truth. A reader meets no other intervals, so this decides;
- wrong, of all: intervals that do not hold the truth, as a share of all data sets, shown or not. A rule that withholds
  often is seldom wrong by this count, so it decides nothing.

The two differ because withholding selects. Of the samples of a heavy-tailed population, a rule on the tail keeps those
that look light-tailed, and these underestimate the mean. A rule on the number of failures keeps samples with too many.
No rule that sees only the sample can undo that, so the intervals that are shown have to allow for it.

Verdicts:

- passes: the 95 % binomial interval of the coverage, where an interval is shown, meets 92–97 %;
- no interval: no data set shows one, and the reason that the report gives is printed;
- withheld: fewer than 5 % of the data sets show one, and the upper end of the 95 % binomial interval of "wrong,
  of all" is at most 5 %. How many of those shown hold the truth is printed;
- FAILS: anything else, with what is wrong. Such a statistic must not have an interval at that size.

Rare failures are the case in which a rule cannot do better. With 8 failures among 64 sequences an interval is shown,
and with 7 it is not. At a rate of 5 % one data set in 70 has 8 or more, and its interval lies above 5 %. The same
sample at a rate of 12 % has a correct interval. A higher limit moves the problem to a higher rate. Given that it is
shown, no interval can cover there. What a reader risks is the share of all data sets that show a wrong interval, and
"withheld" demands that it is below the 5 % that any 95 % interval risks.

The script is not named `coverage.py`. Its folder comes first on the search path of every script in it, so `import
coverage` there, as in numba, would import this script instead of the package of that name.

Rows that begin with "before" are what is no longer reported, for comparison. Every row has a seed of its own.

    python benchmarks/interval_coverage.py              # all rows, some minutes on a quiet machine; printed as they end
    python benchmarks/interval_coverage.py --quick      # fewer data sets, 64 and 256 sequences, no shipped model: 1 min
    python benchmarks/interval_coverage.py --rows mean  # rows whose name holds this text
"""

import argparse
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

import numpy as np
import torch
from scipy.stats import binomtest

from bayesgeom.core.sites import K
from bayesgeom.generalization.convergence import tokens_to_converge
from bayesgeom.generalization.curves import WHOLE, critical_length, mean_along
from bayesgeom.geometry.chance import gaussian_first_share
from bayesgeom.geometry.clusters import adjusted_rand, meetings, resampled_agreement
from bayesgeom.geometry.cosine import overlaps, random_overlaps, squared_lengths
from bayesgeom.geometry.mean_overlap import mean_overlap_interval, overlap_rows
from bayesgeom.geometry.readout import balanced_accuracy
from bayesgeom.models.resolve import as_model, task_of
from bayesgeom.probes.base import planted_run, planted_trials
from bayesgeom.probes.key_overlap import MAX_NOISE, KeyOverlap
from bayesgeom.probes.key_report import RANDOM_DIRECTIONS
from bayesgeom.probes.pass_thresholds import MAX_SEQUENCES, OVERLAP
from bayesgeom.probes.qk_alignment import WHY_NO_ORDER, trend_of
from bayesgeom.results.estimate import Estimate
from bayesgeom.stats.bootstrap import (
    MAX_GROUPS,
    bootstrap_weights,
    jackknife_weights,
    linearized_draws,
    mean_interval,
    percentile_interval,
    permutation_p,
    r2_interval,
    ratio_interval,
    seed_interval,
    statistic_interval,
)
from bayesgeom.stats.correlation import ranks
from bayesgeom.stats.intervals import BIASED, CONSTANT, FEW, FINE, HEAVY, MISSING, Interval
from bayesgeom.stats.memory import WindowScores, effective_memory
from bayesgeom.stats.pca import cloud_axes, standardized
from bayesgeom.stats.regression import without_level_means
from bayesgeom.stats.resampling import (
    order_under_permutation,
    refitted_axis_shares,
    resampled_correlation_at_position,
    resampled_spearman,
    standardized_axis_shares,
)

LOW, HIGH = 0.92, 0.97
RISK = 0.05  # share of all data sets that may show a wrong interval
ROUNDING = 1e-9
SIZES = (64, 256, 2_000)
QUICK_SIZES, QUICK_MANY, QUICK_FEW = (64, 256), 200, 20
POOL = 4_096  # sequences behind the KL of a shipped model
CHECKPOINTS = ("hmm-s5", "bijection-v20", "bijection-v20-repeats")
REASONS = {
    MISSING: "a value is missing",
    CONSTANT: "all at 0 or at 1",
    FEW: "too few sequences differ",
    HEAVY: "heavy tail",
    BIASED: "bias larger than the uncertainty",
}
Ends = tuple[np.ndarray, np.ndarray, np.ndarray]  # lower and upper ends; code of each, or whether one is shown


@final
@dataclass(frozen=True)
class Row:
    """A statistic, who reports it, and how to draw `count` data sets of n sequences: their intervals and the truth."""

    name: str
    used_by: str
    measure: Callable[[int, int, np.random.Generator], tuple[Ends, float]]
    is_cheap: bool = False
    sizes: tuple[int, ...] = SIZES
    why: str = "components are not told apart"  # where a row gives no code for showing no interval


def shown(interval: Interval) -> Ends:
    """Both ends, and the code of each interval."""
    return interval.lo, interval.hi, interval.code


def stacked(intervals: list[Interval]) -> Ends:
    """One interval per data set."""
    parts = zip(*(shown(own) for own in intervals), strict=True)
    lo, hi, code = (np.array([float(x) for x in part]) for part in parts)
    return lo, hi, code.astype(int)


def mean_row(name: str, draw: Callable[[np.random.Generator, tuple[int, int]], np.ndarray], truth: float) -> Row:
    """The bootstrap-t interval of a mean."""
    return Row(f"mean, {name}", "", lambda n, m, rng: (shown(mean_interval(draw(rng, (n, m)), seed=1)), truth), True)


def percentile_row(name: str, draw: Callable[[np.random.Generator, tuple[int, int]], np.ndarray], truth: float) -> Row:
    """What the percentile bootstrap would cover: for comparison, no longer reported."""

    def measure(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
        lo, hi = percentile_interval(bootstrap_weights(n, seed=1) @ draw(rng, (n, m)))
        return (lo, hi, np.ones(m, dtype=bool)), truth

    return Row(f"before: percentile bootstrap, mean, {name}", "nothing any more", measure, True)


def pools(kept: Path | None) -> dict[str, np.ndarray]:
    """Mean KL of each sequence under shipped models: the skewness that intervals meet in practice."""
    if kept is not None and kept.exists():
        return dict(np.load(kept))
    found = {}
    for name in CHECKPOINTS:
        model = as_model(name)
        run = model.run(task_of(model, None).stream(POOL, seed=123), seed=0)
        found[name] = run.behavior.kl_bits.mean(axis=1, dtype=np.float64)
    if kept is not None:
        np.savez(kept, **found)
    return found


def populations(of_models: dict[str, np.ndarray]) -> Iterator[tuple[str, Callable[..., np.ndarray], float]]:
    """Name, sampler and true mean."""
    yield "normal", lambda rng, size: rng.normal(1, 1, size), 1.0
    yield "exponential", lambda rng, size: rng.exponential(size=size), 1.0
    for sigma in (1.0, 1.5, 2.0, 2.5, 3.0):
        yield (
            f"lognormal σ = {sigma}",
            lambda rng, size, s=sigma: rng.lognormal(0, s, size),
            float(np.exp(sigma**2 / 2)),
        )
    yield "gamma, shape 0.3", lambda rng, size: rng.gamma(0.3, size=size), 0.3
    yield "Weibull, shape 0.5", lambda rng, size: rng.weibull(0.5, size), 2.0
    yield "Pareto, index 3", lambda rng, size: 1 + rng.pareto(3, size), 1.5
    yield "Pareto, index 1.5 (infinite variance)", lambda rng, size: 1 + rng.pareto(1.5, size), 3.0
    for share in (0.3, 0.1, 0.075, 0.05, 0.02, 0.01):
        yield f"failures in {100 * share:g}%", lambda rng, size, p=share: (rng.random(size) < p) * 1.0, share
        yield (
            f"failures in {100 * share:g}%, of exponential size",
            lambda rng, size, p=share: (rng.random(size) < p) * rng.exponential(size=size),
            share,
        )
    yield "paired difference, lognormal σ = 1", lambda rng, size: _paired(rng, size, 1.0), 0.1
    yield "paired difference, lognormal σ = 2", lambda rng, size: _paired(rng, size, 2.0), 0.1
    for name, pool in of_models.items():
        yield f"KL of {name}", lambda rng, size, p=pool: p[rng.integers(len(p), size=size)], float(pool.mean())


def _paired(rng: np.random.Generator, size: tuple[int, int], sigma: float) -> np.ndarray:
    return 0.1 + rng.lognormal(0, sigma, size) - rng.lognormal(0, sigma, size)


def ratio(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """Correlated lognormal numerators and denominators, as an extrapolation ratio or a ratio to baseline KL."""
    shared = rng.normal(size=(n, m))
    above, below = (np.exp(0.7 * shared + 0.7 * rng.normal(size=(n, m))) for _ in range(2))
    return shown(ratio_interval(3 * above, below, seed=1)), 3.0


def accuracy(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """Correct answers over known ones, both counted per sequence."""
    known = rng.integers(0, 8, size=(n, m))
    return shown(ratio_interval(rng.binomial(known, 0.8).astype(float), known.astype(float), seed=1)), 0.8


def share_closed(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """1 − KL / context-free KL."""
    own, free = rng.lognormal(-3, 1, (n, m)), rng.gamma(4.0, 0.25, (n, m))
    return shown(r2_interval(own, free, seed=1)), float(1 - np.exp(-2.5))


def over_seeds(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """Student's interval over trainings."""
    lo, hi = seed_interval(rng.normal(size=(n, m)))
    return (lo, hi, np.isfinite(lo)), 0.0


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
                found.append((float(own.lo), float(own.hi), float(own.code == FINE)))
        lo, hi, is_shown = np.array(found, dtype=float).T
        return (lo, hi, is_shown.astype(bool)), truth

    name = "before: percentile bootstrap, |Spearman|" if is_absolute else "Spearman, signed"
    users = "nothing any more" if is_absolute else "value manifold, joint interventions"
    return Row(f"{name}, true value {truth:.2f}", users, measure, sizes=(64, 256) if is_absolute else SIZES)


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
            found.append((float(own.lo), float(own.hi), bool(own.code == FINE) and is_apart))
        lo, hi, is_shown = np.array(found, dtype=float).T
        return (lo, hi, is_shown.astype(bool)), truth

    return Row(f"share of PC1, {name} spectrum", "value manifold", measure)


def standardized_shares(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """Share of PC1 + PC2 of standardized values, one point a sequence, of the first 256 sequences."""
    d, used = 48, min(n, MAX_SEQUENCES)
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


def layers_apart(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """What draws of the share of six layers with an overlap below 0.2 cover: for comparison, no longer reported."""
    used, found, upper = min(n, MAX_SEQUENCES), [], np.triu_indices(8, 1)
    means = rng.normal(size=(6, 8, 24)) + np.array([0.0, 0.25, 0.35, 0.4, 0.45, 0.8])[:, None, None]
    weights = jackknife_weights(used)

    def overlaps(keys: np.ndarray) -> np.ndarray:
        unit = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
        return np.asarray(np.abs(unit @ unit.swapaxes(-1, -2))[..., upper[0], upper[1]].mean(axis=-1))

    for _ in range(m):
        keys = means + rng.normal(size=(used, 6, 8, 24)) + rng.normal(size=(used, 6, 1, 24))
        drawn = linearized_draws(overlaps(np.tensordot(weights, keys, axes=1)), seed=1)
        found.append(percentile_interval((drawn < OVERLAP).mean(axis=1)))
    lo, hi = np.array(found).T
    return (lo, hi, np.ones(m, dtype=bool)), float((overlaps(means) < OVERLAP).mean())


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


def planted_keys(rng: np.random.Generator, *, d: int, apart: float, offset: float, n_orthogonal: int) -> np.ndarray:
    """20 keys: a shared offset plus own parts of size `apart`; the first `n_orthogonal` are orthogonal instead."""
    means = apart * rng.normal(size=(20, d)) + offset
    left, _, right = np.linalg.svd(rng.normal(size=(20, d)), full_matrices=False)
    means[:n_orthogonal] = (left @ right * np.sqrt(d))[:n_orthogonal]
    return np.asarray(means)


def key_overlap_row(
    label: str,
    noise: float,
    *,
    d: int = 32,
    apart: float = 1.0,
    offset: float = 0.7,
    n_orthogonal: int = 0,
    is_centered: bool = False,
    why: str = "mean keys are noise in part",
) -> Row:
    """Mean |cosine| of 20 mean keys, as each sequence shows every token once with noise; or with the mean key removed.

    With small own parts the keys are nearly parallel, without an offset they are random directions.
    """

    at = int(is_centered)

    def measure(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
        weights, found, n_groups = torch.from_numpy(jackknife_weights(n)), [], min(n, MAX_GROUPS)
        for _ in range(m):
            means = planted_keys(rng, d=d, apart=apart, offset=offset, n_orthogonal=n_orthogonal)
            keys = means + noise * (rng.normal(size=(n, 20, d)) + rng.normal(size=(n, 1, d)))
            drawn = torch.tensordot(weights, torch.from_numpy(keys), dims=1)
            spread = squared_lengths(drawn - drawn[:1])[at, 1:].sum() * (n_groups - 1) / n_groups
            rows = overlap_rows(partial(iter, [drawn]))
            own = mean_overlap_interval(rows.rows[:, at], rows.kink[at], seed=1)
            is_shown = bool(own.code == FINE) and float(spread / squared_lengths(drawn[0])[at]) <= MAX_NOISE
            truth = float(overlaps(torch.from_numpy(means)[None])[0, at])
            found.append((float(own.lo) - truth, float(own.hi) - truth, is_shown))
        lo, hi, is_shown = np.array(found, dtype=float).T
        return (lo, hi, is_shown.astype(bool)), 0.0

    kind = "centered key overlap" if is_centered else "key overlap"
    return Row(f"{kind}, mean |cos| of mean keys{label}", "key overlap, dynamics", measure, why=why)


def below_row(label: str, noise: float, *, d: int, offset: float = 0.0) -> Row:
    """Verdict "below" of an overlap without an interval, where the true overlap is not below.

    The level is that of random directions, by the report's verdict, and the truth itself, by the rule of that verdict.
    Each such verdict is wrong, so it is counted as an interval that misses the truth.
    """
    least, _ = percentile_interval(random_overlaps(20, d, draws=400, seed=0))

    def measure(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
        trials = planted_trials(np.ones((n, 1, 1)), np.tile(np.arange(20), (n, 1)), token_sets={"inputs": range(20)})
        is_wrong = np.zeros(m, dtype=bool)
        for i in range(m):
            truth, means = -1.0, np.empty(0)
            while truth < least[0]:
                means = planted_keys(rng, d=d, apart=1.0, offset=offset, n_orthogonal=0)
                truth = float(overlaps(torch.from_numpy(means)[None])[0, 0])
            keys = means + noise * (rng.normal(size=(n, 20, d)) + rng.normal(size=(n, 1, d)))
            run = planted_run(trials, {K: torch.from_numpy(keys).float()[None, :, :, None, :]})
            report = KeyOverlap().measure(run)
            own = report.overlap.value
            at_most = np.maximum(own + 2 * np.abs(report.overlap_bias), report.cross_fitted_overlap)
            is_below = (own < report.level(RANDOM_DIRECTIONS)) & (at_most < truth)
            is_below |= report.verdict(RANDOM_DIRECTIONS) == -1
            is_wrong[i] = (is_below & np.isnan(report.overlap.ends[0])).any()
        return (np.full(m, -np.inf), np.full(m, -1.0), is_wrong), 0.0

    why = "no such verdict is given"
    return Row(f"verdict below without an interval, {label}", "key overlap", measure, sizes=(64, 256), why=why)


def reduction(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """1 − last / first attention entropy."""
    first, last = rng.gamma(9.0, 1 / 3, (n, m)), rng.gamma(2.0, 0.25, (n, m))
    weights = jackknife_weights(n)
    return shown(statistic_interval(1 - (weights @ last) / (weights @ first), seed=1)), float(1 - 0.5 / 3)


def trend_row(name: str, profile: np.ndarray) -> Row:
    """Interval of Spearman of layer with a mean per layer: for comparison, no longer reported."""
    layers = np.arange(len(profile))
    truth = float(np.corrcoef(layers, np.argsort(np.argsort(profile)))[0, 1])

    def measure(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
        weights, ends = jackknife_weights(n), []
        for _ in range(m):
            values = profile + rng.normal(size=(n, 1)) + rng.normal(size=(n, len(profile)))
            drawn = ranks(linearized_draws(weights @ values, seed=1).T)
            order = layers - layers.mean()
            centered = drawn - drawn.mean(axis=0)
            trend = order @ centered / np.sqrt((order @ order) * (centered**2).sum(axis=0))
            ends.append(percentile_interval(trend))
        lo, hi = np.array(ends).T
        return (lo, hi, np.ones(m, dtype=bool)), truth

    return Row(f"before: Spearman of layer with value, {name}", "nothing any more", measure)


THRESHOLD, NEAR = 0.1 * 1.1**14.5, 0.1


def errors_that_grow(n: int, rng: np.random.Generator) -> np.ndarray:
    """Errors at 30 positions; the mean of the 16th is the first above the threshold."""
    return np.asarray(0.1 * 1.1 ** np.arange(30) * rng.gamma(0.5, 2.0, (n, 1)) * rng.gamma(2.0, 0.5, (n, 30)))


def entropies_that_fall(n: int, rng: np.random.Generator) -> np.ndarray:
    """Entropies at 40 positions."""
    return np.asarray(_FALL * rng.gamma(9.0, 1 / 9, (n, 1)) + 0.3 * rng.normal(size=(n, 40)))


_FALL = 0.5 + 1.5 * 0.85 ** np.arange(40)
_NEAR_FLOOR = float(np.argmax(np.abs(_FALL - _FALL[-10:].mean()) <= NEAR) + 1)


def as_reported(estimates: list[Estimate]) -> Ends:
    """The intervals of reported estimates."""
    lo, hi = np.array([own.ends for own in estimates]).T
    return lo, hi, np.isfinite(lo)


def first_above(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """The first of 30 positions whose mean error exceeds a threshold: the 16th."""
    places = np.arange(1, 31)
    return as_reported([critical_length(errors_that_grow(n, rng), places, THRESHOLD) for _ in range(m)]), 16.0


def converged(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """The first of 40 positions whose mean entropy is within 0.1 bits of its floor."""
    return as_reported([tokens_to_converge(entropies_that_fall(n, rng), NEAR) for _ in range(m)]), _NEAR_FLOOR


def first_place_bounds(may_be: np.ndarray, is_certain: np.ndarray) -> tuple[float, float]:
    """From the first place that may qualify to the first that certainly does, counted from 1."""
    low, high = (float(own.argmax() + 1) if own.any() else np.inf for own in (may_be, is_certain))
    return low, high


def bounds_above(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """What bounds of the first position above a threshold would cover: for comparison, no longer reported."""
    found = []
    for _ in range(m):
        low, high = mean_along(errors_that_grow(n, rng), seed=1).ends
        found.append(first_place_bounds(~np.isfinite(low) | (high > THRESHOLD), low > THRESHOLD))
    lo, hi = np.array(found).T
    return (lo, hi, np.ones(m, dtype=bool)), 16.0


def bounds_converged(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """The same of tokens to converge."""
    found = []
    for _ in range(m):
        values = entropies_that_fall(n, rng)
        low, high = mean_along(values - values[:, -10:].mean(axis=1, keepdims=True), seed=1).ends
        found.append(first_place_bounds((low <= NEAR) & (high >= -NEAR), (low >= -NEAR) & (high <= NEAR)))
    lo, hi = np.array(found).T
    return (lo, hi, np.ones(m, dtype=bool)), _NEAR_FLOOR


def no_order(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """Spearman of layer with a mean per layer, as it is reported."""
    profiles = (np.array([0.0, 0.6, 1.4, 2.1, 2.9, 3.6]) + rng.normal(size=(n, 1, 6)) for _ in range(m))
    one = np.zeros(1, dtype=bool)
    return as_reported([trend_of(values.mean(axis=0), one, n=n)[0] for values in profiles]), 1.0


def memory(n: int, m: int, rng: np.random.Generator, factor: float = 4.0) -> tuple[Ends, float]:
    """The effective memory of a planted predictor that is as good as the observer of three symbols on average.

    Each observer is `factor` times as good as the narrower one.
    """
    found = []
    for _ in range(m):
        levels = 0.3 * factor ** -np.arange(8)
        observers = levels[:, None] * rng.gamma(0.7, 1 / 0.7, n) * rng.gamma(4.0, 0.25, (8, n))
        observers[-1] = 0.0
        own = observers[3] + 0.5 * levels[3] * rng.normal(size=n)
        along = np.zeros((2, 1, 1))
        both = np.stack([2 * observers, observers])
        scores = WindowScores(kl_bits=both, kl_bits_by_position=along, entropy_error_bits=along)
        found.append(effective_memory(scores, own[:, None], seed=1).symbols_ends)
    lo, hi = np.array(found).T
    return (lo, hi, np.isfinite(lo) & np.isfinite(hi)), 3.0


def all_rows(kept: Path | None, *, is_quick: bool) -> Iterator[Row]:
    """Means first, which are cheap, then the rest; the KL of shipped models last, since it takes the models a while."""
    named = list(populations({}))
    for name, draw, truth in named:
        yield mean_row(name, draw, truth)
    yield Row("ratio of correlated lognormal means", "length, ablation", ratio, True)
    yield Row("accuracy where known", "comparison", accuracy, True)
    yield Row("share of the gap closed", "comparison", share_closed, True)
    yield Row("reduction, 1 − last / first", "attention entropy", reduction, True)
    yield Row("mean over trainings", "dynamics, replication, EM", over_seeds, True, sizes=(3, 5))
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
    yield key_overlap_row("", 1.0)
    yield key_overlap_row(", twice the noise", 2.0)
    yield key_overlap_row(", six times the noise", 6.0)
    yield key_overlap_row(", nearly parallel", 1.0, apart=0.1, why=REASONS[BIASED])
    for d in (16, 32, 64):
        yield key_overlap_row(f", random directions, d = {d}", 1.0, d=d, offset=0.0)
        yield key_overlap_row(f", random directions, d = {d}, twice the noise", 2.0, d=d, offset=0.0)
    yield key_overlap_row(", just above random directions", 1.0, offset=0.2)
    yield key_overlap_row(", just above random directions, twice the noise", 2.0, offset=0.2)
    for share, n_orthogonal in (("half", 10), ("three quarters", 15), ("all", 20)):
        yield key_overlap_row(f", {share} orthogonal", 1.0, offset=0.0, n_orthogonal=n_orthogonal, why=REASONS[BIASED])
    centered_row = partial(key_overlap_row, is_centered=True)
    yield centered_row("", 1.0)
    yield centered_row(", twice the noise", 2.0)
    yield centered_row(", six times the noise", 6.0)
    yield centered_row(", nearly parallel", 1.0, apart=0.1)
    yield centered_row(", random directions, d = 16", 1.0, d=16, offset=0.0)
    yield centered_row(", half orthogonal", 1.0, offset=0.0, n_orthogonal=10)
    for noise in (1.0, 2.0, 6.0):
        yield below_row(f"random directions, d = 32, noise {noise:g}", noise, d=32)
    yield below_row("just above random directions, d = 32, noise 2", 2.0, d=32, offset=0.2)
    yield below_row("far above random directions, d = 32, noise 30", 30.0, d=32, offset=0.7)
    memory_users, no_gain = "calibration, length, comparison", "an observer's gain has none"
    yield Row("effective memory", memory_users, memory, True, why=no_gain)
    yield Row("effective memory, observers alike", memory_users, partial(memory, factor=1.02), True, why=no_gain)
    yield Row("Spearman of layer with value", "query–key alignment", no_order, why=WHY_NO_ORDER)
    yield Row("first position above a threshold", "length", first_above, why=WHOLE)
    yield Row("tokens to converge", "sweep", converged, why=WHOLE)
    yield trend_row("distinct layers", np.array([0.0, 0.6, 1.4, 2.1, 2.9, 3.6]))
    yield trend_row("two layers alike", np.array([0.0, 0.05, 0.3, 0.25, 0.6, 0.9]))
    yield Row("before: bounds of the first position above a threshold", "nothing any more", bounds_above)
    yield Row("before: share of layers with keys apart", "nothing any more", layers_apart)
    yield Row("before: bounds of tokens to converge", "nothing any more", bounds_converged)
    for name, draw, truth in named:
        if any(word in name for word in ("σ = 2.0", "failures in 1%", "failures in 5%")):
            yield percentile_row(name, draw, truth)
    yield spearman_row(0.0, is_absolute=True)
    yield Row("before: R² of the best linear map, d = 128", "nothing any more", best_map, sizes=(160,))
    if is_quick:
        return
    for name, draw, truth in list(populations(pools(kept)))[len(named) :]:
        yield mean_row(name, draw, truth)
        yield percentile_row(name, draw, truth)


def verdict(covered: int, n_shown: int, m: int, why: str) -> str:
    """By the rule in this file's docstring; `why` is the most frequent reason for showing no interval."""
    if not n_shown:
        return f"no interval: {why}"
    if n_shown < 0.05 * m:
        most = binomtest(n_shown - covered, m).proportion_ci(0.95, method="wilson").high
        text = f"in all but {n_shown / m:.1%}, of which {covered} of {n_shown} hold the truth: {why}"
        return f"withheld {text}" if most <= RISK else f"FAILS: wrong in up to {most:.1%} of all; withheld {text}"
    reach = binomtest(covered, n_shown).proportion_ci(0.95, method="wilson")
    if reach.low <= HIGH and reach.high >= LOW:
        return "passes"
    text = "covers too often" if reach.low > HIGH else "covers too seldom"
    return f"FAILS: {text}" + (f"; withheld elsewhere: {why}" if n_shown < m else "")


def measured(row: Row, n: int, m: int) -> str:
    """One line of the table."""
    rng = np.random.default_rng((zlib.crc32(row.name.encode()), n))
    (lo, hi, code), truth = row.measure(n, m, rng)
    is_shown = code if code.dtype == bool else code == FINE
    # An end that equals the true value, as of ranks, differs from it by rounding.
    slack = ROUNDING * abs(truth)
    holds = is_shown & (lo <= truth + slack) & (truth <= hi + slack)
    covered, n_shown = int(holds.sum()), int(is_shown.sum())
    why = row.why
    if n_shown < m and code.dtype != bool:
        why = REASONS[int(np.bincount(code[~is_shown]).argmax())]
    cover = f"{covered / n_shown:.3f}" if n_shown else "–"
    wrong = f"{(n_shown - covered) / m:.3f}"
    text = verdict(covered, n_shown, m, why)
    return f"| {row.name:58s} | {n} | {n_shown / m:.0%} | {cover} | {wrong} | {text} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--many", type=int, default=1_000, help="data sets of rows that are cheap")
    parser.add_argument("--few", type=int, default=200, help="data sets of the other rows")
    parser.add_argument("--kept", type=Path, help="an .npz file that keeps the KL of shipped models between runs")
    parser.add_argument("--rows", nargs="+", default=[""], help="only rows whose name contains one of these texts")
    parser.add_argument("--quick", action="store_true", help="fewer data sets, fewer sizes, no shipped model")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    many, few = (QUICK_MANY, QUICK_FEW) if arguments.quick else (arguments.many, arguments.few)
    started, failed, n_rows = time.perf_counter(), 0, 0
    print(f"| {'statistic':58s} | n | shown | coverage where shown | wrong, of all | |")
    print("|---|---|---|---|---|---|", flush=True)
    for row in all_rows(arguments.kept, is_quick=arguments.quick):
        if not any(text in row.name for text in arguments.rows):
            continue
        for n in row.sizes:
            if arguments.quick and row.sizes == SIZES and n not in QUICK_SIZES:
                continue
            line = measured(row, n, many if row.is_cheap else few)
            print(line, flush=True)
            is_reported = not row.name.startswith("before")
            n_rows, failed = n_rows + is_reported, failed + (is_reported and "FAILS" in line)
    print(f"\n{failed} of {n_rows} rows fail; {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
