"""Linear-Gaussian states: the grid filter equals direct integration, and the Kalman filter as bins shrink."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.tasks.linear_gaussian import LinearGaussian
from tests.shape_checks import ARE_ON


def integrated(task: LinearGaussian, decay: float, noise: float, seen: list[int]) -> np.ndarray:
    """P(next bin | bins) as an integral over every path of the state, with Gauss–Legendre nodes."""
    nodes, weights = np.polynomial.legendre.leggauss(300)
    x, w, step = 9 * nodes, 9 * weights, math.sqrt(1 - decay**2)
    edges = np.array([-np.inf, *np.linspace(-3, 3, task.n_bins + 1)[1:-1], np.inf])
    shows = np.diff(norm.cdf((edges - x[:, None]) / noise), axis=1)
    moves = norm.pdf(x, decay * x[:, None], step) * w
    joint = norm.pdf(x) * w * shows[:, seen[0]]
    for symbol in seen[1:]:
        joint = np.einsum("i,ij,j->j", joint, moves, shows[:, symbol])
    following = np.einsum("i,ij,jb->b", joint, moves, shows)
    return np.asarray(following / following.sum())


def test_the_predictive_is_the_integral_over_states() -> None:
    task = LinearGaussian(decay=(0.0, 0.5, 0.97), noise=(0.2, 1.3), n_bins=7, length=3)
    trials = task.sample(11, seed=1)
    for row in range(11):
        decay_at, noise_at = (trials.tokens[row, :2] - torch.tensor([7, 10])).tolist()
        decay, noise = (0.0, 0.5, 0.97)[decay_at], (0.2, 1.3)[noise_at]
        for step in range(3):
            exact = integrated(task, decay, noise, trials.tokens[row, 2 : 3 + step].tolist())
            np.testing.assert_allclose(trials.predictive[row, 2 + step].numpy(), exact, atol=1e-9, rtol=0)


def test_as_bins_shrink_the_belief_is_that_of_the_kalman_filter() -> None:
    task = LinearGaussian(decay=0.8, noise=0.7, n_bins=1_000, length=6)
    trials = task.sample(17, seed=2)
    is_inside = ((trials.tokens > 0) & (trials.tokens < 999)).all(dim=1)
    trials = trials.rows(is_inside.nonzero()[:, 0])
    observed = (trials.tokens.double() + 0.5) * 6 / 1_000 - 3
    mean, variance = torch.zeros(len(trials), dtype=torch.float64), 1.0
    for step in range(6):
        gain = variance / (variance + 0.49)
        mean, variance = mean + gain * (observed[:, step] - mean), (1 - gain) * variance
        torch.testing.assert_close(trials.statistics["mean"][:, step], mean, atol=1e-5, rtol=0)
        spread = trials.statistics["log_variance"][:, step].exp()
        torch.testing.assert_close(spread, torch.full_like(spread, variance), atol=1e-5, rtol=0)
        mean, variance = 0.8 * mean, 0.64 * variance + 0.36
    baselines = task.baseline_predictives(trials)
    torch.testing.assert_close(baselines["kalman"], trials.predictive, atol=1e-6, rtol=0)


def test_the_gain_settles() -> None:
    task = LinearGaussian(decay=(0.5, 0.95), noise=(0.4, 2.0), length=150)
    found = task.baseline_predictives(task.sample(11, seed=3))
    torch.testing.assert_close(found["steady_gain"][:, -1], found["kalman"][:, -1], atol=1e-9, rtol=0)
    assert float((found["steady_gain"][:, 0] - found["kalman"][:, 0]).abs().max()) > 0.01


def test_a_header_changes_nothing_but_what_is_known() -> None:
    named, fixed = LinearGaussian(length=9), LinearGaussian(decay=0.9, noise=0.3, length=9)
    observed = fixed.sample(5, seed=4)
    header = torch.tensor([[17, 19]]).expand(5, -1)
    trials = named.trials(header - torch.tensor([16, 19]), torch.cat([observed.tokens, observed.labels[:, -1:]], dim=1))
    if not ARE_ON:  # checks of annotations refuse a list
        assert LinearGaussian(decay=[0.7, 0.9, 0.97], length=9) == named  # type: ignore[arg-type]
    assert torch.equal(trials.tokens[:, :2], header) and named.token_labels()[17:20:2] == ["decay=0.9", "noise=0.3"]
    torch.testing.assert_close(trials.at_scored(trials.predictive), observed.predictive, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    "given",
    [
        {"n_bins": 1},
        {"length": 0},
        *({"decay": wrong} for wrong in (1.0, -0.1, (), (0.5, 0.5), (0.5, 2.0))),
        *({"noise": wrong} for wrong in (0.0, 1e9, (1.0, -1.0))),
    ],
)
def test_parameters_out_of_range_are_named(given: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(given))):
        LinearGaussian(**given)  # type: ignore[arg-type]
