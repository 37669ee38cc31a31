"""Rows of `interval_coverage.py`: what is read off curves over positions, layers or window widths."""

from collections.abc import Iterator
from functools import partial

import numpy as np
from interval_row import Ends, Row, stacked

from bayesgeom.core.run import WindowScores
from bayesgeom.generalization.curves import critical_length, discontinuity, mean_along, tokens_to_converge
from bayesgeom.measurements.qk_alignment import trend_of
from bayesgeom.report.estimate import Estimate
from bayesgeom.stats.bootstrap import (
    jackknife_weights,
    linearized_draws,
    percentile_interval,
    seed_interval,
    statistic_interval,
)
from bayesgeom.stats.regression import ranks
from bayesgeom.stats.windows import equivalent_window
from examples.replication.settling import fall, largest_fall

THRESHOLD, NEAR = 0.1 * 1.1**14.5, 0.1


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


def fall_row(drop: float, *, n_trainings: int, is_left_out: bool = False) -> Row:
    """Largest fall of a curve over 14 snapshots, which rises to 1 and ends lower by `drop`, or stays level at 0.

    Trainings differ by 0.05 at each snapshot, and sequences by 1. All trainings of a data set have the same sequences,
    and the true value is the fall on these. No longer reported: one training with an interval over sequences, and
    trainings that are each measured between steps chosen on all others (`is_left_out`).
    """
    curve = np.minimum(np.linspace(0, 2, 14), 1.0)
    curve[-4:] -= drop

    def of_one(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
        weights, found = jackknife_weights(n), []
        for _ in range(m):
            rows = weights @ (curve + rng.normal(size=(n, 1)) + rng.normal(size=(n, len(curve))))
            start, end = largest_fall(rows[0])
            found.append(statistic_interval(rows[:, start] - rows[:, end], seed=1))
        return stacked(found), drop

    def of_several(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
        found = []
        for _ in range(m):
            on_these = curve + rng.normal(size=len(curve)) / np.sqrt(n)
            drawn = on_these + 0.05 * rng.normal(size=(n_trainings, len(curve)))
            if is_left_out:
                steps = [largest_fall(np.delete(drawn, run, axis=0).mean(axis=0)) for run in range(n_trainings)]
                falls = np.array([own[a] - own[b] for own, (a, b) in zip(drawn, steps, strict=True)])
                true = np.mean([on_these[a] - on_these[b] for a, b in steps])
                found.append((*seed_interval(falls), true))
            else:
                own = fall(drawn)
                found.append((own.lo, own.hi, on_these[own.start] - on_these[own.end]))
        lo, hi, truth = np.array(found, dtype=float).T
        return (lo - truth, hi - truth, np.isfinite(lo)), 0.0  # what falls between the chosen steps

    text = f"ends {drop:g} lower" if drop else "no fall"
    if n_trainings == 1:
        return Row(f"before: largest fall of one training, {text}", "nothing any more", of_one, sizes=(64, 256))
    if is_left_out:
        name = f"before: largest fall, {n_trainings} trainings, {text}"
        return Row(name, "nothing any more", of_several, is_cheap=True, sizes=(256, 2000))
    return Row(f"largest fall, {n_trainings} trainings, {text}", "dynamics", of_several, is_cheap=True)


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
    return as_reported([critical_length(errors_that_grow(n, rng), places, THRESHOLD, seed=1) for _ in range(m)]), 16.0


def converged(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """The first of 40 positions whose mean entropy is within 0.1 bits of its floor."""
    return as_reported([tokens_to_converge(entropies_that_fall(n, rng), NEAR, seed=1) for _ in range(m)]), _NEAR_FLOOR


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


def order(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """Spearman of layer with a mean per layer, as it is reported."""
    profiles = (np.array([0.0, 0.6, 1.4, 2.1, 2.9, 3.6]) + rng.normal(size=(n, 1, 6)) for _ in range(m))
    one = np.zeros(1, dtype=bool)
    return as_reported(
        [trend_of(np.tensordot(jackknife_weights(n), values, axes=1), one, n=n, seed=1)[0] for values in profiles]
    ), 1.0


def memory(n: int, m: int, rng: np.random.Generator, factor: float = 4.0) -> tuple[Ends, float]:
    """The equivalent window of a planted predictor that is as good as the observer of three symbols on average.

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
        window = equivalent_window(scores, own[:, None], seed=1)
        found.append((window.symbols, window.most_symbols))
    lo, hi = np.array(found).T
    return (lo, hi, np.isfinite(lo) & np.isfinite(hi)), 3.0


def jump(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
    """The discontinuity at the training length, 15 of 30 positions: the mean error doubles there."""
    places, growth = np.arange(1, 31), np.where(np.arange(30) < 15, 1.0, 2.0)
    means = growth * 0.1 * 1.1 ** np.arange(30)
    truth = float(discontinuity(means[None].repeat(2, axis=0), places, 15, seed=1))
    return as_reported([discontinuity(growth * errors_that_grow(n, rng), places, 15, seed=1) for _ in range(m)]), truth


def curve_rows() -> Iterator[Row]:
    """What is read off curves: memory, orders of layers, first places."""
    users, no_gain = "calibration, length, comparison", "an observer's gain has none"
    yield Row("equivalent window", users, memory, True, why=no_gain)
    yield Row("equivalent window, observers alike", users, partial(memory, factor=1.02), True, why=no_gain)
    yield Row("discontinuity at the training length", "length", jump)
    yield Row("Spearman of layer with value", "query–key alignment", order, is_at_least=True)
    yield Row("first position above a threshold", "length", first_above, is_at_least=True)
    yield Row("tokens to converge", "sweep", converged, is_at_least=True)
    for n_trainings in (3, 5):
        for drop in (0.0, 0.1, 0.5):
            yield fall_row(drop, n_trainings=n_trainings)
