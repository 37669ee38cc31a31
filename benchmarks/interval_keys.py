"""Rows of `interval_coverage.py`: overlap of the mean keys of tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from interval_row import Ends, Row

from bayesgeom.core.run import K
from bayesgeom.core.verdict import Reason
from bayesgeom.measurements.base import planted_run, planted_trials
from bayesgeom.measurements.key_overlap import MAX_NOISE, RANDOM_DIRECTIONS, KeyOverlap
from bayesgeom.stats.bootstrap import MAX_GROUPS, jackknife_weights, linearized_draws, percentile_interval
from bayesgeom.stats.overlap import mean_overlap_interval, overlap_rows, overlaps, random_overlaps, squared_lengths
from examples.replication.thresholds import MAX_SEQUENCES, OVERLAP


@final
@dataclass(frozen=True)
class Keys:
    """20 keys in d dimensions: a shared offset plus own parts of size `apart`; the first `n_orthogonal` are orthogonal.

    With small own parts the keys are nearly parallel, without an offset they are random directions.
    """

    d: int = 32
    apart: float = 1.0
    offset: float = 0.7
    n_orthogonal: int = 0

    def drawn(self, rng: np.random.Generator) -> np.ndarray:
        """Mean keys of one data set."""
        means = self.apart * rng.normal(size=(20, self.d)) + self.offset
        left, _, right = np.linalg.svd(rng.normal(size=(20, self.d)), full_matrices=False)
        means[: self.n_orthogonal] = (left @ right * np.sqrt(self.d))[: self.n_orthogonal]
        return np.asarray(means)

    def shown(self, means: np.ndarray, n: int, noise: float, rng: np.random.Generator) -> np.ndarray:
        """The keys of n sequences, each of which shows every token once."""
        return means + noise * (rng.normal(size=(n, 20, self.d)) + rng.normal(size=(n, 1, self.d)))


def key_overlap_row(
    label: str, noise: float, planted: Keys, *, is_centered: bool = False, why: str = "mean keys are noise in part"
) -> Row:
    """Mean |cosine| of 20 mean keys, as each sequence shows every token once with noise; or without the mean key."""
    at = int(is_centered)

    def measure(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
        weights, found, n_groups = torch.from_numpy(jackknife_weights(n)), [], min(n, MAX_GROUPS)
        for _ in range(m):
            means = planted.drawn(rng)
            keys = planted.shown(means, n, noise, rng)
            drawn = torch.tensordot(weights, torch.from_numpy(keys), dims=1)
            spread = squared_lengths(drawn - drawn[:1])[at, 1:].sum() * (n_groups - 1) / n_groups
            rows, kink = overlap_rows(partial(iter, [drawn]))
            own = mean_overlap_interval(rows[:, at], kink[at], seed=1)
            is_shown = bool(own.code == Reason.NONE) and float(spread / squared_lengths(drawn[0])[at]) <= MAX_NOISE
            truth = float(overlaps(torch.from_numpy(means)[None])[0, at])
            found.append((float(own.lo) - truth, float(own.hi) - truth, is_shown))
        lo, hi, is_shown = np.array(found, dtype=float).T
        return (lo, hi, is_shown.astype(bool)), 0.0

    kind = "centered key overlap" if is_centered else "key overlap"
    return Row(f"{kind}, mean |cos| of mean keys{label}", "key overlap, dynamics", measure, why=why)


def below_row(label: str, noise: float, planted: Keys) -> Row:
    """Verdict "below" of an overlap without an interval, where the true overlap is not below.

    The level is that of random directions, by the report's verdict, and the truth itself, by the rule of that verdict.
    Each such verdict is wrong, so it is counted as an interval that misses the truth.
    """
    least, _ = percentile_interval(random_overlaps(20, planted.d, draws=400, seed=0))

    def measure(n: int, m: int, rng: np.random.Generator) -> tuple[Ends, float]:
        trials = planted_trials(np.ones((n, 1, 1)), np.tile(np.arange(20), (n, 1)), token_sets={"inputs": range(20)})
        is_wrong = np.zeros(m, dtype=bool)
        for i in range(m):
            truth, means = -1.0, np.empty(0)
            while truth < least[0]:
                means = planted.drawn(rng)
                truth = float(overlaps(torch.from_numpy(means)[None])[0, 0])
            keys = planted.shown(means, n, noise, rng)
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


def key_rows() -> Iterator[Row]:
    """Overlap of keys, with its verdict where there is no interval."""
    near = str(Reason.BIASED)
    yield key_overlap_row("", 1.0, Keys())
    yield key_overlap_row(", twice the noise", 2.0, Keys())
    yield key_overlap_row(", six times the noise", 6.0, Keys())
    yield key_overlap_row(", nearly parallel", 1.0, Keys(apart=0.1), why=near)
    for d in (16, 32, 64):
        yield key_overlap_row(f", random directions, d = {d}", 1.0, Keys(d=d, offset=0.0))
        yield key_overlap_row(f", random directions, d = {d}, twice the noise", 2.0, Keys(d=d, offset=0.0))
    yield key_overlap_row(", just above random directions", 1.0, Keys(offset=0.2))
    yield key_overlap_row(", just above random directions, twice the noise", 2.0, Keys(offset=0.2))
    for share, n_orthogonal in (("half", 10), ("three quarters", 15), ("all", 20)):
        yield key_overlap_row(f", {share} orthogonal", 1.0, Keys(offset=0.0, n_orthogonal=n_orthogonal), why=near)
    centered_row = partial(key_overlap_row, is_centered=True)
    yield centered_row("", 1.0, Keys())
    yield centered_row(", twice the noise", 2.0, Keys())
    yield centered_row(", six times the noise", 6.0, Keys())
    yield centered_row(", nearly parallel", 1.0, Keys(apart=0.1))
    yield centered_row(", random directions, d = 16", 1.0, Keys(d=16, offset=0.0))
    yield centered_row(", half orthogonal", 1.0, Keys(offset=0.0, n_orthogonal=10))
    for noise in (1.0, 2.0, 6.0):
        yield below_row(f"random directions, d = 32, noise {noise:g}", noise, Keys(offset=0.0))
    yield below_row("just above random directions, d = 32, noise 2", 2.0, Keys(offset=0.2))
    yield below_row("far above random directions, d = 32, noise 30", 30.0, Keys())
