"""Rows of `interval_coverage.py`: means of skewed populations, and ratios of means."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from interval_row import FEW_SIZES, SIZES, Ends, Row, inside, shown

from bayesgeom.models.resolve import as_model, task_of
from bayesgeom.stats.bootstrap import (
    bootstrap_weights,
    jackknife_weights,
    mean_interval,
    percentile_interval,
    r2_interval,
    ratio_interval,
    seed_interval,
    statistic_interval,
)

POOL = 4_096  # sequences behind the KL of a shipped model
CHECKPOINTS = ("hmm-s5", "bijection-v20", "bijection-v20-repeats")
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def mean_row(name: str, draw: Callable[[np.random.Generator, tuple[int, int]], np.ndarray], truth: float) -> Row:
    """The bootstrap-t interval of a mean."""

    def measure(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
        return shown(mean_interval(draw(rng, (n, m)), seed=1)), truth

    return Row(f"mean, {name}", "", measure, True, sizes=FEW_SIZES)


def background_row(share: float, background: float, *, is_r2: bool = False) -> Row:
    """Failures of exponential size in a share of the sequences, on a background that hides how rare they are."""

    def measure(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
        failures = (rng.random((n, m)) < share) * rng.exponential(size=(n, m))
        errors, mean = background * rng.exponential(size=(n, m)) + failures, background + share
        if is_r2:
            return shown(r2_interval(errors, rng.gamma(4.0, 0.25, (n, m)), seed=1)), 1 - mean
        return shown(mean_interval(errors, seed=1)), mean

    of = "R² with errors in" if is_r2 else "mean, failures in"
    name = f"{of} {100 * share:g}%, background {background:g}"
    return Row(name, "", measure, True, limit=f"{(1 - share) ** SIZES[0]:.0%} of the samples hold no failure")


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
    for n_answers, share in ((1, 0.5), (6, 0.3), (6, 0.8), (19, 0.8)):
        yield (
            f"paired accuracies of {n_answers} answers, {100 * share:g}% may differ",
            lambda rng, size, k=n_answers, p=share: _accuracies(rng, size, k, p),
            0.1 * share,
        )
    for name, pool in of_models.items():
        yield f"KL of {name}", lambda rng, size, p=pool: p[rng.integers(len(p), size=size)], float(pool.mean())


def _paired(rng: np.random.Generator, size: tuple[int, int], sigma: float) -> np.ndarray:
    return 0.1 + rng.lognormal(0, sigma, size) - rng.lognormal(0, sigma, size)


def _accuracies(rng: np.random.Generator, size: tuple[int, int], n_answers: int, share: float) -> np.ndarray:
    """Differences of two models' accuracies, most of which are tied."""
    one, other = (rng.binomial(n_answers, rate, size) / n_answers for rate in (0.7, 0.8))
    return (rng.random(size) < share) * (other - one)


def ratio(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """Correlated lognormal numerators and denominators, as an extrapolation ratio or a ratio to baseline KL."""
    shared = rng.normal(size=(n, m))
    above, below = (np.exp(0.7 * shared + 0.7 * rng.normal(size=(n, m))) for _ in range(2))
    return shown(ratio_interval(3 * above, below, seed=1, is_positive=True)), 3.0


def ratio_row(name: str, above: Draw, below: Draw) -> Row:
    """A ratio of two independent means whose sequences are unequal: of 1 and 1, as KL beyond over KL within."""

    def measure(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
        interval = ratio_interval(above(rng, (n, m)), below(rng, (n, m)), seed=1, is_positive=True)
        return shown(interval), 1.0

    return Row(f"ratio of means, {name}", "length, ablation", measure, True, sizes=(12, *FEW_SIZES))


def ratio_rows() -> Iterator[Row]:
    """The tails that KL within and beyond the training length have, on either side."""

    def even(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
        return rng.gamma(4.0, 0.25, size)

    def lognormal(sigma: float) -> Draw:
        return lambda rng, size: rng.lognormal(-(sigma**2) / 2, sigma, size)

    for sigma in (1.5, 2.0):
        yield ratio_row(f"denominators lognormal σ = {sigma}", even, lognormal(sigma))
        yield ratio_row(f"numerators lognormal σ = {sigma}", lognormal(sigma), even)
    yield ratio_row("both lognormal σ = 1.5", lognormal(1.5), lognormal(1.5))


def slope(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """Movement toward the donor, Σ moved / Σ distance: sequences with a small distance count little."""
    target = rng.normal(size=(n, m)) * rng.lognormal(0, 0.5, (n, m))
    moved = 0.6 * target + 0.5 * rng.normal(size=(n, m))
    return shown(ratio_interval(moved * target, target**2, seed=1)), 0.6


def in_band(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """Accuracy in a band of confidence: one point per sequence on average, from 0 to many."""
    known = rng.binomial(8, rng.beta(0.5, 3.5, (n, m)))
    hits = rng.binomial(known, rng.beta(9.0, 1.0, (n, m))).astype(float)
    interval = ratio_interval(hits, known.astype(float), seed=1)
    return inside(hits.sum(axis=0) / known.sum(axis=0), interval, (0.0, 1.0)), 0.9


def accuracy(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """Correct answers over known ones, both counted per sequence."""
    known = rng.integers(0, 8, size=(n, m))
    return shown(ratio_interval(rng.binomial(known, 0.8).astype(float), known.astype(float), seed=1)), 0.8


def share_closed(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """1 − KL / context-free KL."""
    own, free = rng.lognormal(-3, 1, (n, m)), rng.gamma(4.0, 0.25, (n, m))
    return shown(r2_interval(own, free, seed=1)), float(1 - np.exp(-2.5))


def reduction(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """1 − last / first attention entropy."""
    first, last = rng.gamma(9.0, 1 / 3, (n, m)), rng.gamma(2.0, 0.25, (n, m))
    weights = jackknife_weights(n)
    return shown(statistic_interval(1 - (weights @ last) / (weights @ first), seed=1)), float(1 - 0.5 / 3)


def over_seeds(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """Student's interval over trainings."""
    lo, hi = seed_interval(rng.normal(size=(n, m)))
    return (lo, hi, np.isfinite(lo)), 0.0


def mean_rows(named: Iterable[tuple[str, Draw, float]]) -> Iterator[Row]:
    """Means of these populations, and ratios of means: all are cheap."""
    for name, draw, truth in named:
        yield mean_row(name, draw, truth)
    for share in (0.02, 0.05, 0.1):
        for background in (0.01, 0.1):
            yield background_row(share, background)
            yield background_row(share, background, is_r2=True)
    yield Row("ratio of correlated lognormal means", "length, ablation", ratio, True)
    yield from ratio_rows()
    yield Row("movement, a ratio of signed sums", "interventions", slope, True)
    yield Row("accuracy where known", "comparison", accuracy, True)
    yield Row("accuracy in a band of confidence", "belief read-out", in_band, True, is_at_least=True)
    yield Row("share of the gap closed", "comparison", share_closed, True)
    yield Row("reduction, 1 − last / first", "attention entropy", reduction, True)
    yield Row("mean over trainings", "dynamics, replication, EM", over_seeds, True, sizes=(3, 5))
