"""Shares of variance of standardized coordinates, refitted under every row of weights."""

import numpy as np
import pytest

from bayesgeom.stats.bootstrap import jackknife_weights
from examples.replication.thresholds import standardized_axis_shares
from tests.stats.test_resampling import SEQUENCES, WEIGHTS


def test_standardized_shares_are_those_of_each_row_alone(rng: np.random.Generator) -> None:
    """Coordinate 2 never varies; 4 varies in one sequence only, so not at all in the row that leaves it out."""
    points = rng.normal(size=(SEQUENCES, 7)) @ rng.normal(size=(7, 7)) + 50
    points[:, 2], points[:, 4] = 3.0, np.r_[9.0, np.full(SEQUENCES - 1, 2.0)]
    start, weights = rng.normal(size=(7, 2)), np.concatenate([jackknife_weights(SEQUENCES), WEIGHTS])
    found = standardized_axis_shares(points, start, weights, steps=200)
    for own, row in zip(found, weights, strict=True):
        centered = points - row @ points
        size = np.sqrt(row @ centered**2)
        unit = (centered * np.sqrt(row)[:, None])[:, size > 1e-9] / size[size > 1e-9]
        twin = np.linalg.eigvalsh(unit.T @ unit)[::-1][:2] / unit.shape[1]
        assert own == pytest.approx(twin, abs=1e-10)


def test_standardized_shares_of_one_coordinate_or_none() -> None:
    points, axes = np.full((5, 3), 0.1), np.eye(3)[:, :2]
    assert np.isnan(standardized_axis_shares(points, axes, jackknife_weights(5))).all()
    points[:, 1] = np.arange(5)
    (found,) = standardized_axis_shares(points, axes[:, ::-1], np.full((1, 5), 1 / 5))
    assert found == pytest.approx([1.0, 0.0], abs=1e-15)
