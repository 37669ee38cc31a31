"""Entropy and divergences: closed forms, laws, zeros, and scipy's word for it."""

import math

import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
import torch
from torch import Tensor

from bayesgeom.stats.information import entropy_bits, jensen_shannon_bits, kl_bits, total_variation


@pytest.fixture
def distributions(rng: np.random.Generator) -> Tensor:
    """Random distributions, some entries zero."""
    p = rng.dirichlet(np.full(7, 0.3), size=(5, 3)) * (rng.random((5, 3, 7)) > 0.2)
    return torch.from_numpy(p / p.sum(-1, keepdims=True))


@pytest.fixture
def positives(rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.dirichlet(np.ones(7), size=(5, 3)))


def point_masses(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)


def test_entropy_against_scipy(distributions: Tensor) -> None:
    twin = scipy.stats.entropy(distributions.numpy(), base=2, axis=-1)
    np.testing.assert_allclose(entropy_bits(distributions).numpy(), twin, atol=1e-12)


def test_kl_against_scipy(distributions: Tensor, positives: Tensor) -> None:
    twin = scipy.stats.entropy(distributions.numpy(), positives.numpy(), base=2, axis=-1)
    np.testing.assert_allclose(kl_bits(distributions, positives.log()).numpy(), twin, atol=1e-12)


def test_jensen_shannon_against_scipy(distributions: Tensor, positives: Tensor) -> None:
    twin = scipy.spatial.distance.jensenshannon(distributions.numpy(), positives.numpy(), base=2, axis=-1) ** 2
    np.testing.assert_allclose(jensen_shannon_bits(distributions, positives).numpy(), twin, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5, 20])
def test_uniform_has_most_entropy_and_a_point_mass_none(n: int) -> None:
    assert float(entropy_bits(torch.full((n,), 1 / n, dtype=torch.float64))) == pytest.approx(math.log2(n), abs=1e-12)
    assert entropy_bits(point_masses(n)).tolist() == [0.0] * n


def test_kl_is_infinite_where_the_model_excludes_what_happens_and_only_there() -> None:
    exact = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    model = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert kl_bits(exact, model.log()).tolist() == [math.inf, 0.0]


def test_total_variation_is_the_most_any_event_can_differ(positives: Tensor) -> None:
    p, q = positives[0, 0], positives[0, 1]
    events = [[bool(event >> outcome & 1) for outcome in range(7)] for event in range(2**7)]
    most = max(abs(float(p[event].sum() - q[event].sum())) for event in events)
    assert float(total_variation(p, q)) == pytest.approx(most, abs=1e-12)


def test_nan_stays_nan() -> None:
    p, q = torch.tensor([math.nan, 0.5]), torch.tensor([0.5, 0.5])
    measured = (
        entropy_bits(p),
        kl_bits(p, q.log()),
        kl_bits(q, p.log()),
        total_variation(p, q),
        jensen_shannon_bits(p, q),
    )
    assert all(math.isnan(float(value)) for value in measured)
