"""What a product's vectors have of each factor's belief, against least squares position by position."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles

from bayesgeom.core.errors import TaskMismatch
from bayesgeom.core.run import RESID_POST
from bayesgeom.diagnosis.run import diagnose
from bayesgeom.measurements.base import planted_run
from bayesgeom.measurements.belief_factors import FACTORED, JOINT, RANDOM_PAIRS, BeliefFactors, BeliefFactorsReport
from bayesgeom.models.native.transformer import TransformerConfig
from bayesgeom.models.resolve import as_model
from bayesgeom.report.estimate import UNTRAINED
from bayesgeom.tasks.process import Mess3
from bayesgeom.tasks.product import Product

NAMES = ("factored_share", "belief_dimension", "factor_angle")


def measured(points: torch.Tensor, task: Product, n: int) -> BeliefFactorsReport:
    return BeliefFactors().measure(planted_run(task.sample(n, seed=0), {RESID_POST: points}))


def fitted(points: np.ndarray, beliefs: np.ndarray) -> np.ndarray:
    """The part of the points that is linear in the beliefs, both without their means by position."""
    x, y = (own - own.mean(axis=0) for own in (points, beliefs))
    x, y = (own.reshape(-1, own.shape[-1]) for own in (x, y))
    return np.asarray(y @ np.linalg.lstsq(y, x, rcond=1e-10)[0])


def axes_for(cloud: np.ndarray, share: float) -> float:
    """How many principal axes hold this share, between whole numbers by the line through the two shares."""
    held = np.cumsum(np.linalg.svd(cloud, compute_uv=False) ** 2) / (cloud**2).sum()
    for n, (before, after) in enumerate(pairwise([0.0, *held])):
        if after >= share:
            return float(n + (share - before) / (after - before))
    raise AssertionError


@pytest.mark.parametrize("names", [("mess3:x=0.05,a=0.85", "golden-mean"), ("bloch-walk", "z1r")])
def test_share_dimension_and_angle_are_those_of_least_squares(names: tuple[str, str], rng: np.random.Generator) -> None:
    task = Product(*names, length=7)
    trials = task.sample(53, seed=0)
    sizes = trials.factor_sizes
    both = trials.belief.unflatten(2, sizes).numpy()
    a, b, joint = both.sum(3), both.sum(2), trials.belief.numpy()
    points = sum(own @ rng.normal(size=(own.shape[-1], 11)) for own in (a, b, joint))
    points = points + 0.1 * rng.normal(size=points.shape) + rng.normal(size=(7, 11))  # noise, and the position
    report = measured(torch.from_numpy(points)[None], task, 53)
    share, dimension, degrees = (report.estimate(name) for name in NAMES)
    whole, main = fitted(points, joint), fitted(points, np.concatenate([a, b], axis=2))
    assert float(share.value[0, 0]) == pytest.approx((main**2).sum() / (whole**2).sum(), abs=1e-4)
    assert float(dimension.value[0, 0]) == pytest.approx(axes_for(whole, 0.95), abs=1e-3)
    centered = np.concatenate([a, b], axis=2) - np.concatenate([a, b], axis=2).mean(axis=0)
    design = centered.reshape(-1, sum(sizes))
    maps = np.linalg.lstsq(design, (points - points.mean(axis=0)).reshape(-1, 11), rcond=1e-10)[0]
    spans = []
    for own in (slice(0, sizes[0]), slice(sizes[0], None)):
        _, lengths, rows = np.linalg.svd(design[:, own] @ maps[own], full_matrices=False)
        spans.append(rows[lengths**2 > 0.01 * (lengths**2).sum()].T)
    assert float(degrees.value[0, 0]) == pytest.approx(np.rad2deg(subspace_angles(*spans).min()), abs=0.1)
    assert (share.ends[0] <= share.value).all() and (share.value <= share.ends[1]).all()
    for own in (share, dimension):
        level = own.baseline(JOINT)
        assert level.low is not None and level.high is not None
        assert 0 < float(level.low[0, 0]) < float(level.value[0, 0]) < float(level.high[0, 0])
    assert float(dimension.baseline(FACTORED).value[0, 0]) == pytest.approx(axes_for(design, 0.95), abs=1e-3)


def test_a_product_is_measured_and_other_tasks_are_not() -> None:
    task = Product(length=8)
    config = TransformerConfig(d_vocab=task.d_vocab, n_ctx=8, n_layers=2, n_heads=1, d_model=14, d_mlp=7)
    report = diagnose(as_model(config.build(seed=0)), task, probes=[BeliefFactors()], n=64)["belief_factors"]
    assert isinstance(report, BeliefFactorsReport)
    for name in NAMES:
        own = report.estimate(name)
        assert np.isfinite(own.value).all() and np.isfinite(own.baseline(UNTRAINED).value).all()
        assert any(line.metric == name for line in report.headlines())
    assert np.isfinite(report.factor_angle.baseline(RANDOM_PAIRS).value).all()
    assert len(report.panels()) == len(NAMES)
    with pytest.raises(TaskMismatch, match=r"requires a belief over independent factors, which task 'mess3' does"):
        diagnose(as_model(config.build(seed=0)), Mess3(length=8), probes=[BeliefFactors()], n=64)
