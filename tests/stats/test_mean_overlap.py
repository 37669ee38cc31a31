"""The interval of the mean |cosine| of noisy means: against a loop over pairs, and on planted keys."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from bayesgeom.core.verdict import Reason
from bayesgeom.stats.bootstrap import jackknife_weights
from bayesgeom.stats.overlap import mean_overlap_interval, overlap_rows

ITEMS, WIDTH = 20, 32


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    return float(x @ y) / math.sqrt(float(x @ x) * float(y @ y))


def slow(vectors: np.ndarray) -> tuple[list[float], float]:
    """One pair at a time."""
    groups = len(vectors) - 1
    rows, kinks = [[] for _ in vectors], []
    for i in range(vectors.shape[1]):
        for j in range(i):
            all_of_them, *others = [cosine(own[i], own[j]) for own in vectors]
            deviations = np.array(others) - np.mean(others)
            noise = math.sqrt((groups - 1) / groups * float(deviations @ deviations))
            size = abs(all_of_them)
            kinks.append(float(np.abs(all_of_them + noise * norm.ppf((np.arange(4_000) + 0.5) / 4_000)).mean()) - size)
            weight = math.copysign(norm.cdf(size / noise), all_of_them)
            for row, own in zip(rows, [all_of_them, *others], strict=True):
                row.append(size + weight * (own - all_of_them))
    return [float(np.mean(row)) for row in rows], float(np.mean(kinks))


def test_rows_and_kink_equal_a_loop_over_pairs_in_one_part_or_several(rng: np.random.Generator) -> None:
    vectors = rng.normal(size=(1, 2, 5, 7)) + 0.1 * rng.normal(size=(12, 2, 5, 7))
    tensor = torch.from_numpy(vectors)
    found_rows, found_kink = overlap_rows(lambda: [tensor])
    rows_in_parts, kink_in_parts = overlap_rows(lambda: tensor.split(5))
    for head in range(2):
        raw, less = vectors[:, head], vectors[:, head] - vectors[:, head].mean(axis=1, keepdims=True)
        for which, own in enumerate((raw, less)):
            rows, kink = slow(own)
            np.testing.assert_allclose(found_rows[:, which, head], rows, atol=1e-12)
            assert found_kink[which, head] == pytest.approx(kink, abs=1e-4)
    np.testing.assert_allclose(rows_in_parts, found_rows, atol=1e-12)
    np.testing.assert_allclose(kink_in_parts, found_kink, atol=1e-12)


def test_without_noise_there_is_no_kink_and_no_change() -> None:
    vectors = torch.eye(7, dtype=torch.float64)[:5].expand(12, 5, 7)
    rows, kink = overlap_rows(lambda: [vectors])
    assert not kink[0].any() and not rows[:, 0].any()


def frame(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Random keys; `orthogonal` makes them so, `half` the first ten of them."""
    random = rng.normal(size=(ITEMS, WIDTH))
    left, _, right = np.linalg.svd(random, full_matrices=False)
    n_orthogonal = {"random": 0, "half": ITEMS // 2, "orthogonal": ITEMS}[kind]
    return np.concatenate([(left @ right * math.sqrt(WIDTH))[:n_orthogonal], random[n_orthogonal:]])


def replicates(means: np.ndarray, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    keys = means + rng.normal(size=(n, ITEMS, WIDTH)) + rng.normal(size=(n, 1, WIDTH))
    drawn = torch.from_numpy(np.tensordot(jackknife_weights(n), keys, axes=1))
    rows, kink = overlap_rows(lambda: [drawn])
    return rows[:, 0], kink[0]


@pytest.mark.parametrize(("kind", "n"), [("random", 64), ("half", 128)])
def test_intervals_of_keys_that_are_nearly_orthogonal_hold_the_truth_or_are_withheld(kind: str, n: int) -> None:
    """With the plain jackknife, 11, 30 and 5 % or more of these data sets show an interval without the truth."""
    rng, m, shown, wrong = np.random.default_rng(17), 120, 0, 0
    for _ in range(m):
        means = frame(kind, rng)
        truth = np.mean([abs(cosine(means[i], means[j])) for i in range(ITEMS) for j in range(i)])
        rows, kink = replicates(means, n, rng)
        own = mean_overlap_interval(rows, np.asarray(kink), seed=1)
        is_shown = int(own.code) in (Reason.NONE, Reason.CONSERVATIVE)
        shown, wrong = shown + is_shown, wrong + (is_shown and not float(own.lo) <= truth <= float(own.hi))
    # 3 to 6 % are expected where all are shown: 13 of 120 or more would happen in less than 2 % of seeds at 6 %.
    assert wrong <= 12
    assert (shown > 0.8 * m) if kind == "random" else (shown < 0.5 * m)


def test_a_mean_that_the_kink_dominates_is_biased() -> None:
    rng = np.random.default_rng(5)
    rows, kink = replicates(frame("orthogonal", rng), 64, rng)
    assert int(mean_overlap_interval(rows, np.asarray(kink), seed=1).code) == Reason.BIASED
