"""Ridge, splines and level means against scikit-learn, scipy and loops."""

import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline
from sklearn.linear_model import Ridge

from bayesgeom.stats.regression import (
    even_knots,
    natural_spline,
    ridge,
    split_moments,
    squared_error,
    without_level_means,
)

POINTS, FIT, D, TARGETS = 43, 29, 5, 3


@pytest.fixture
def features(rng: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(rng.normal(size=(POINTS, D)))


@pytest.fixture
def targets(rng: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(rng.normal(size=(POINTS, TARGETS)))


def held_out_r2(features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    x, y = (values - values[:FIT].mean(dim=0) for values in (features, targets))
    m = split_moments(x, y, FIT)
    error = squared_error(ridge(m.fit_gram, m.fit_cross), m.score_gram, m.score_cross, m.score_power)
    return 1 - error / m.score_power


def test_weights_are_scikit_learns(features: torch.Tensor, targets: torch.Tensor) -> None:
    alpha = 0.7 * float(features.pow(2).sum()) / D
    reference = Ridge(alpha=alpha, fit_intercept=False).fit(features.numpy(), targets.numpy())
    weights = ridge(features.T @ features, features.T @ targets, strength=0.7)
    np.testing.assert_allclose(weights.numpy(), reference.coef_.T, atol=1e-10)


def test_features_that_do_not_vary_get_no_weight(targets: torch.Tensor) -> None:
    none = torch.zeros(POINTS, D, dtype=torch.float64)
    assert (ridge(none.T @ none, none.T @ targets) == 0).all()


def test_error_from_moments_is_the_sum_over_held_out_points(features: torch.Tensor, targets: torch.Tensor) -> None:
    m = split_moments(features, targets, FIT)
    weights = ridge(m.fit_gram, m.fit_cross)
    twin = ((targets[FIT:] - features[FIT:] @ weights) ** 2).sum(dim=0)
    torch.testing.assert_close(squared_error(weights, m.score_gram, m.score_cross, m.score_power), twin)


def test_r2_of_no_held_out_points_is_unknown(features: torch.Tensor, targets: torch.Tensor) -> None:
    assert held_out_r2(features[:FIT], targets[:FIT]).isnan().all()


@pytest.mark.parametrize("n_knots", [3, 5])
def test_every_natural_spline_is_in_the_span(n_knots: int, rng: np.random.Generator) -> None:
    knots = even_knots(np.array([4.0, 1.0, 2.5]), n_knots)
    x = np.linspace(1, 4, 97)
    basis = np.column_stack([np.ones(97), natural_spline(x, knots)])
    assert basis.shape == (97, n_knots) and np.linalg.matrix_rank(basis) == n_knots
    spline = CubicSpline(knots, rng.normal(size=n_knots), bc_type="natural")(x)
    fitted = basis @ np.linalg.lstsq(basis, spline, rcond=None)[0]
    np.testing.assert_allclose(fitted, spline, atol=1e-10)


def test_splines_are_straight_beyond_the_knots() -> None:
    knots = even_knots(np.array([0.0, 1.0]), 5)
    for outside in (np.linspace(-3, 0, 11), np.linspace(1, 5, 11)):
        np.testing.assert_allclose(np.diff(natural_spline(outside, knots), n=2, axis=0), 0, atol=1e-9)


def test_a_spline_in_a_constant_is_nothing() -> None:
    x = np.full((2, 3), 4.0)
    assert (natural_spline(x, even_knots(x.ravel(), 5)) == 0).all() and natural_spline(x, np.full(5, 4.0)).shape == (
        2,
        3,
        4,
    )


def test_level_means_are_taken_out(rng: np.random.Generator) -> None:
    values, level = rng.normal(size=(POINTS, 2)), rng.integers(3, size=POINTS)
    residual = without_level_means(values, level)
    for point, column in np.ndindex(values.shape):
        mean = values[level == level[point], column].mean()
        assert residual[point, column] == pytest.approx(values[point, column] - mean, abs=1e-12)


def test_functions_of_the_level_leave_exactly_nothing(rng: np.random.Generator) -> None:
    level = rng.integers(3, size=POINTS)
    values = np.stack([np.sqrt(level + 0.1) * 1e6, np.zeros(POINTS)], axis=1)
    assert (without_level_means(values, level) == 0).all()
