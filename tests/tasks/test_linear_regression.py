"""Linear regression in bins: the posterior is a sum over the grid, and conjugate regression in the limit."""

import itertools
import math

import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.tasks.linear_regression import LinearRegression


def normal_share(low: float, high: float, mean: float, sigma: float) -> float:
    return (math.erf((high - mean) / sigma / 2**0.5) - math.erf((low - mean) / sigma / 2**0.5)) / 2


def test_the_posterior_is_the_sum_over_the_grid() -> None:
    task = LinearRegression(n_inputs=3, n_bins=4, n_points=4, n_grid=5, noise=0.7)
    trials, edges = task.sample(6, seed=0), [-math.inf, -1.5, 0.0, 1.5, math.inf]
    weights = [-2.5, -1.25, 0.0, 1.25, 2.5]
    for row in range(6):
        ids = trials.tokens[row].tolist()
        odds = [math.exp(-w * w / 2) for w in weights]
        for point in range(4):
            shares = [odd / sum(odds) for odd in odds]
            x = ids[2 * point] - 1.0
            likely = [[normal_share(low, high, w * x, 0.7) for low, high in itertools.pairwise(edges)] for w in weights]
            exact = [sum(share * own[bin_] for share, own in zip(shares, likely, strict=True)) for bin_ in range(4)]
            assert trials.predictive[row, 2 * point].tolist() == pytest.approx(exact, abs=1e-12)
            assert trials.belief[row, 2 * point].tolist() == pytest.approx(shares, abs=1e-12)
            if point < 3:
                odds = [odd * own[ids[2 * point + 1] - 3] for odd, own in zip(odds, likely, strict=True)]


@pytest.mark.parametrize("n_dims", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_with_fine_bins_and_grid_it_is_conjugate_regression(n_dims: int) -> None:
    task = LinearRegression(n_dims=n_dims, n_inputs=5, n_bins=300, n_points=6, n_grid=101 if n_dims == 1 else 61)
    trials = task.sample(3, seed=1)
    places, outputs = task._read(trials)
    shown, target = task._values()[places][:, :5], task._centers()[outputs][:, :5]
    belief, weights = trials.at_scored(trials.belief)[:, -1], task.weights()
    for row in range(3):
        precision = torch.eye(n_dims).double() + shown[row].T @ shown[row] / task.noise**2
        mean = torch.linalg.solve(precision, shown[row].T @ target[row] / task.noise**2)
        found = belief[row] @ weights
        spread = torch.einsum("h,hi,hj->ij", belief[row], weights - found, weights - found)
        torch.testing.assert_close(found, mean, atol=0.02, rtol=0)
        for at, number in enumerate([""] if n_dims == 1 else ["_1", "_2"]):
            stated, logs = (trials.statistics[f"{name}{number}"][row, -1] for name in ("mean", "log_variance"))
            torch.testing.assert_close(stated, found[at])
            torch.testing.assert_close(logs.exp(), spread[at, at])
        torch.testing.assert_close(spread, torch.linalg.inv(precision), atol=0.01, rtol=0)


def test_each_observer_of_a_pool_is_the_other_s_baseline() -> None:
    pooled, fresh = (LinearRegression(n_points=8, pool=6, pool_seed=3, fresh=fresh) for fresh in (False, True))
    trials = pooled.sample(5, seed=2)
    other = fresh.trials(*pooled._read(trials))
    assert pooled.weights().shape == (6, 1) and trials.belief.shape[2] == 6
    generalizing, memorizing = (
        pooled.baseline_predictives(trials)["generalizing"],
        fresh.baseline_predictives(other)["memorizing"],
    )
    torch.testing.assert_close(generalizing, other.at_scored(other.predictive))
    torch.testing.assert_close(memorizing, trials.at_scored(trials.predictive))


@pytest.mark.parametrize(
    "given",
    [{"n_dims": 3}, {"n_bins": 1}, {"noise": 0.0}, {"noise": 1e300}, {"n_grid": 1}, {"pool": -1}, {"fresh": True}],
)
def test_parameters_out_of_range_are_named(given: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(given))):
        LinearRegression(**given)  # type: ignore[arg-type]
