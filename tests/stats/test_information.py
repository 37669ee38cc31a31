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


def test_entropy_of_a_coin() -> None:
    assert float(entropy_bits(torch.tensor([0.25, 0.75]))) == pytest.approx(2 - 0.75 * math.log2(3), abs=1e-6)


def test_entropy_lies_between_zero_and_its_most(distributions: Tensor) -> None:
    entropies = entropy_bits(distributions)
    assert entropies.min() >= 0 and entropies.max() <= math.log2(7)


def test_entropy_adds_over_independent_draws(positives: Tensor) -> None:
    p, q = positives[:, 0], positives[:, 1]
    joint = (p[:, :, None] * q[:, None, :]).flatten(1)
    torch.testing.assert_close(entropy_bits(joint), entropy_bits(p) + entropy_bits(q), atol=1e-12, rtol=0)


def test_kl_from_uniform_is_what_entropy_lacks(distributions: Tensor) -> None:
    uniform = torch.full_like(distributions, 1 / 7)
    lacking = math.log2(7) - entropy_bits(distributions)
    torch.testing.assert_close(kl_bits(distributions, uniform.log()), lacking, atol=1e-12, rtol=0)


def test_kl_is_zero_only_between_equals(distributions: Tensor, positives: Tensor) -> None:
    assert kl_bits(distributions, distributions.log()).abs().max() < 1e-12
    assert kl_bits(distributions, positives.log()).min() > 0


def test_kl_tells_exact_from_model() -> None:
    exact, model = torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.75])
    assert float(kl_bits(exact, model.log())) == pytest.approx(1 - math.log2(3) / 2, abs=1e-6)
    assert float(kl_bits(model, exact.log())) == pytest.approx(0.75 * math.log2(3) - 1, abs=1e-6)


def test_kl_is_infinite_where_the_model_excludes_what_happens_and_only_there() -> None:
    exact = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    model = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert kl_bits(exact, model.log()).tolist() == [math.inf, 0.0]


def test_total_variation_is_a_distance(distributions: Tensor, positives: Tensor) -> None:
    p, q, r = distributions, positives, positives.flip(0)
    assert torch.equal(total_variation(p, q), total_variation(q, p))
    assert total_variation(p, p).tolist() == torch.zeros(5, 3).tolist()
    assert (total_variation(p, q) <= total_variation(p, r) + total_variation(r, q) + 1e-12).all()


def test_total_variation_is_the_most_any_event_can_differ(positives: Tensor) -> None:
    p, q = positives[0, 0], positives[0, 1]
    events = [[bool(event >> outcome & 1) for outcome in range(7)] for event in range(2**7)]
    most = max(abs(float(p[event].sum() - q[event].sum())) for event in events)
    assert float(total_variation(p, q)) == pytest.approx(most, abs=1e-12)


def test_jensen_shannon_is_symmetric_and_at_most_one_bit(distributions: Tensor, positives: Tensor) -> None:
    js = jensen_shannon_bits(distributions, positives)
    torch.testing.assert_close(js, jensen_shannon_bits(positives, distributions), atol=1e-12, rtol=0)
    assert js.min() > 0 and js.max() < 1
    assert jensen_shannon_bits(distributions, distributions).abs().max() < 1e-12


def test_disjoint_distributions_are_one_apart() -> None:
    p, q = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 0.2, 0.3, 0.5])
    assert float(total_variation(p, q)) == pytest.approx(1, abs=1e-6)
    assert float(jensen_shannon_bits(p, q)) == pytest.approx(1, abs=1e-6)


def test_pinsker(distributions: Tensor, positives: Tensor) -> None:
    bound = (kl_bits(distributions, positives.log()) * math.log(2) / 2).sqrt()
    assert (total_variation(distributions, positives) <= bound).all()


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
