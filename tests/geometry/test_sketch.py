"""Wide clouds on fewer coordinates: what lies along leading axes is kept, and narrow clouds stay as they are."""

import numpy as np
import torch

from bayesgeom.geometry.sketch import leading_coordinates


def test_sketch_of_a_low_rank_cloud_is_exact(rng: np.random.Generator) -> None:
    flat = rng.normal(size=(53, 7)) @ rng.normal(size=(7, 211))
    points = torch.from_numpy(flat - flat[:29].mean(0))
    along = leading_coordinates(points, 11, n_fit=29, seed=0)
    assert along.shape == (53, 11)
    torch.testing.assert_close(along @ along.T, points @ points.T)


def test_leading_axes_come_first(rng: np.random.Generator) -> None:
    strong = rng.normal(size=(97, 3)) @ np.linalg.qr(rng.normal(size=(211, 3)))[0].T
    points = torch.from_numpy(30 * strong + 0.1 * rng.normal(size=(97, 211)))
    along = leading_coordinates(points, 5, n_fit=61, seed=1)
    lost = points.square().sum() - along.square().sum()
    assert 0 < float(lost / points.square().sum()) < 0.01


def test_narrow_clouds_stay_as_they_are(rng: np.random.Generator) -> None:
    points = torch.from_numpy(rng.normal(size=(13, 5)))
    assert leading_coordinates(points, 5, n_fit=7, seed=0) is points
    wide = torch.from_numpy(rng.normal(size=(13, 11)))
    one, again, other = (leading_coordinates(wide, 5, n_fit=7, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one, again) and not torch.equal(one, other)
