"""Correlations against slow twins, and their invariances."""

import itertools
import math

import numpy as np
import pytest

from bayesgeom.stats.regression import pearson, ranks, spearman


def slow_rank(x: list[float]) -> list[float]:
    """One plus the number below, plus half the number of others that are equal."""
    return [1 + sum(b < a for b in x) + (sum(b == a for b in x) - 1) / 2 for a in x]


def slow_pearson(x: list[float], y: list[float]) -> float:
    mx, my = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return over / math.sqrt(sum((a - mx) ** 2 for a in x) * sum((b - my) ** 2 for b in y))


def test_pearson_and_spearman_equal_slow_twins(rng: np.random.Generator) -> None:
    x, y = rng.normal(size=(13, 3, 2)), rng.integers(5, size=(13, 3, 2)).astype(float)
    linear, ranked = pearson(x, y), spearman(x, y)
    for i, j in itertools.product(range(3), range(2)):
        a, b = x[:, i, j].tolist(), y[:, i, j].tolist()
        assert linear[i, j] == pytest.approx(slow_pearson(a, b))
        assert ranked[i, j] == pytest.approx(slow_pearson(slow_rank(a), slow_rank(b)))
        assert ranks(y)[:, i, j].tolist() == slow_rank(b)


def test_a_constant_correlates_with_nothing() -> None:
    x = np.arange(5.0)
    assert math.isnan(float(pearson(x, np.ones(5)))) and math.isnan(float(spearman(np.ones(5), x)))
