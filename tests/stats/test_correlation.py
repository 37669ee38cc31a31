"""Correlations against slow twins, their invariances, and what a third variable explains."""

import itertools
import math

import numpy as np
import pytest

from bayesgeom.stats.correlation import partial_spearman, pearson, ranks, spearman


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


def test_spearman_sees_order_alone(rng: np.random.Generator) -> None:
    x, y = rng.normal(size=17), rng.normal(size=17)
    assert float(spearman(x, np.exp(3 * x))) == pytest.approx(1)
    assert float(spearman(x, -(x**3))) == pytest.approx(-1)
    assert float(spearman(np.exp(x), y)) == pytest.approx(float(spearman(x, y)))
    assert float(spearman(x, y)) == pytest.approx(float(spearman(y, x)))
    assert abs(float(pearson(x, np.exp(3 * x)))) < 1


def test_a_constant_correlates_with_nothing() -> None:
    x = np.arange(5.0)
    assert math.isnan(float(pearson(x, np.ones(5)))) and math.isnan(float(spearman(np.ones(5), x)))


def test_partial_spearman_equals_a_loop_over_levels(rng: np.random.Generator) -> None:
    given = rng.integers(3, size=41).astype(float)
    x, y = rng.normal(size=41) + given, rng.normal(size=41) - given
    rx, ry = slow_rank(x.tolist()), slow_rank(y.tolist())
    for r in (rx, ry):
        means = {g: np.mean([a for a, b in zip(r, given, strict=True) if b == g]) for g in set(given)}
        r[:] = [a - means[g] for a, g in zip(r, given, strict=True)]
    assert partial_spearman(x, y, given) == pytest.approx(slow_pearson(rx, ry))


def test_partial_spearman_removes_what_the_third_explains(rng: np.random.Generator) -> None:
    given = np.repeat(np.arange(7.0), 101)
    x, y = given + 0.3 * rng.normal(size=707), given + 0.3 * rng.normal(size=707)
    assert float(spearman(x, y)) > 0.9 and abs(partial_spearman(x, y, given)) < 0.1
    shared = rng.normal(size=707)
    assert partial_spearman(given + shared, 3 * given + shared, given) > 0.5


@pytest.mark.parametrize("is_x", [True, False])
def test_a_function_of_the_third_is_not_identified(rng: np.random.Generator, is_x: bool) -> None:
    given, free = rng.integers(5, size=53).astype(float), rng.normal(size=53)
    pair = (given**2, free) if is_x else (free, given**2)
    assert math.isnan(partial_spearman(*pair, given))
