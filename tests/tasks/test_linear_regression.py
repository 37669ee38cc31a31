"""Linear regression in bins: the posterior is a sum over the grid, and conjugate regression in the limit."""

import itertools
import math

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from scipy.special import log_ndtr, logsumexp

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.stats.information import kl_bits, log_bin_probabilities
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


@pytest.mark.parametrize("center", [-40.0, -20.0, -8.3, -0.3, 0.0, 0.4, 8.3, 20.0, 40.0])
@pytest.mark.parametrize("width", [1e-3, 0.7, 5.0])
def test_bins_in_the_tails_keep_their_digits(center: float, width: float) -> None:
    """A log near −800 has an error of 1e-13, and a bin of 0.001 standard deviations 40 times as much."""
    edges = torch.tensor([center - width / 2, center + width / 2], dtype=torch.float64)
    with mpmath.workdps(1_000):
        low, high = (mpmath.ncdf(edge) for edge in edges.tolist())
        exact = [float(mpmath.log(share)) for share in (low, high - low, 1 - high)]
    for mean, deviation in ((0.0, 1.0), (3.0, 0.25)):
        found = log_bin_probabilities(mean + deviation * edges, *torch.tensor([[mean], [deviation]]).double())
        assert found[0].tolist() == pytest.approx(exact, abs=1e-11 if deviation == 1 else 1e-10)


def logs_of_memorizing(task: LinearRegression, places: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """The log-predictive of the observer that knows the pool, from logs of tails alone."""
    pool = np.random.default_rng(task.pool_seed).normal(size=(task.pool, task.n_dims))
    inputs = np.array(list(itertools.product(np.linspace(-1, 1, task.n_inputs), repeat=task.n_dims)))
    edges = np.r_[-np.inf, np.linspace(-3, 3, task.n_bins + 1)[1:-1], np.inf]
    x = (edges - (inputs @ pool.T)[..., None]) / task.noise
    low, high = x[..., :-1], x[..., 1:]
    tails = log_ndtr(-np.abs(np.stack([low, high])))  # beyond each edge, on the far side from the mean
    larger, smaller = tails.max(axis=0), tails.min(axis=0)
    inside = np.log1p(-np.exp(larger) - np.exp(smaller))
    table = np.where(low * high < 0, inside, larger + np.log(-np.expm1(smaller - larger)))
    seen = np.cumsum(table[places, :, outputs], axis=1) - table[places, :, outputs]
    belief = seen - logsumexp(seen, axis=2, keepdims=True)
    return np.asarray(logsumexp(belief[..., None] + table[places], axis=2))


@pytest.mark.parametrize(("noise", "n_dims", "bits"), [(0.1, 1, 8.6120), (0.05, 1, None), (0.1, 2, None)])
def test_an_observer_of_the_wrong_pool_is_wrong_by_its_own_tails(noise: float, n_dims: int, bits: float | None) -> None:
    task = LinearRegression(n_dims=n_dims, n_grid=11 if n_dims == 2 else 31, pool=4, noise=noise, fresh=True)
    trials = task.sample(256, seed=0)
    found = task.baseline_predictives(trials)["memorizing"].log()
    exact = torch.from_numpy(logs_of_memorizing(task, *(own.numpy() for own in task._read(trials))))
    is_possible = exact > math.log(1e-290)  # others are 1e-300, so that they have a log
    torch.testing.assert_close(found[is_possible], exact[is_possible], atol=1e-9, rtol=1e-9)
    if bits is not None:
        assert float(kl_bits(trials.at_scored(trials.predictive), found).mean()) == pytest.approx(bits, abs=1e-4)


@pytest.mark.parametrize("noise", [1e-100, 1e-6, 1000.0])
def test_beliefs_are_distributions_at_the_limits_of_the_noise(noise: float) -> None:
    for pool, fresh in ((0, False), (3, False), (3, True)):
        task = LinearRegression(noise=noise, pool=pool, fresh=fresh)
        trials = task.sample(7, seed=1)
        for own in (trials.at_scored(trials.belief), *task.baseline_predictives(trials).values()):
            torch.testing.assert_close(own.sum(dim=2), torch.ones_like(own[..., 0]))


@pytest.mark.parametrize(
    "given",
    [
        {"n_dims": 3},
        {"n_bins": 1},
        {"noise": 0.0},
        {"noise": 1e-101},
        {"noise": 1e300},
        {"n_grid": 1},
        {"pool": -1},
        {"fresh": True},
    ],
)
def test_parameters_out_of_range_are_named(given: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(given))):
        LinearRegression(**given)  # type: ignore[arg-type]
