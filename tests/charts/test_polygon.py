"""Corners of regular polygons, and distributions at the mean of their corners."""

import numpy as np
import pytest

from bayesgeom.charts.polygon import corners, placed


@pytest.mark.parametrize("n", [3, 5, 8])
def test_corners_are_evenly_spaced_on_a_circle_from_the_top(n: int) -> None:
    found = corners(n)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1)
    np.testing.assert_allclose(found[0], [0, 1], atol=1e-15)
    sides = np.linalg.norm(found - np.roll(found, 1, axis=0), axis=1)
    np.testing.assert_allclose(sides, 2 * np.sin(np.pi / n))
    assert found[1, 0] > 0, "clockwise"


def test_certainty_is_a_corner_and_indifference_the_center() -> None:
    np.testing.assert_allclose(placed(np.eye(5)), corners(5))
    np.testing.assert_allclose(placed(np.full((2, 3), 1 / 3)), np.zeros((2, 2)), atol=1e-15)
    np.testing.assert_allclose(placed(np.array([[0.25, 0.75]])), [[0.5, 0]])


def test_a_triangle_holds_each_belief_at_one_place(rng: np.random.Generator) -> None:
    beliefs = rng.dirichlet(np.ones(3), size=31)
    with_one = np.concatenate([corners(3), np.ones((3, 1))], axis=1)
    back = np.concatenate([placed(beliefs), np.ones((31, 1))], axis=1) @ np.linalg.inv(with_one)
    np.testing.assert_allclose(back, beliefs, atol=1e-12)
