"""Markov chains: where they settle and how fast they forget, against chains whose answer is known."""

import math

import numpy as np
import pytest
import torch

from bayesgeom.tasks.markov import mixing_times, stationary


def chain(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_a_settled_chain_stays_settled(rng: np.random.Generator) -> None:
    transition = torch.from_numpy(rng.dirichlet(np.ones(7), size=7))
    settled = stationary(transition)
    assert settled is not None
    torch.testing.assert_close(settled @ transition, settled)
    torch.testing.assert_close(settled, torch.linalg.matrix_power(transition, 200)[3])


def test_transient_states_end_empty() -> None:
    settled = stationary(chain([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8], [0.0, 0.6, 0.4]]))
    assert settled is not None
    torch.testing.assert_close(settled, torch.tensor([0, 3 / 7, 4 / 7], dtype=torch.float64))


def test_the_same_chain_gives_the_same_bits(rng: np.random.Generator) -> None:
    transition, kept = torch.from_numpy(rng.dirichlet(np.ones(5), size=5)), []
    settled = stationary(transition)
    assert settled is not None
    for size in range(1, 60):  # memory is laid out anew each time
        kept.append(torch.zeros(size))
        again = stationary(transition.clone())
        assert again is not None and torch.equal(again, settled)


def test_a_cycle_through_many_states_is_walked_evenly() -> None:
    cycle = torch.roll(torch.eye(37, dtype=torch.float64), 1, dims=1)
    settled = stationary(cycle)
    assert settled is not None
    torch.testing.assert_close(settled, torch.full((37,), 1 / 37).double())


def test_parts_that_never_meet_settle_nowhere() -> None:
    assert stationary(torch.eye(2, dtype=torch.float64)) is None
    assert stationary(chain([[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.1, 0.9], [0, 0, 0.9, 0.1]])) is None
    assert stationary(chain([[0, 1], [1, 0]])) is not None, "periodic, but with one distribution"


def test_memory_of_the_start_falls_to_one_e_th(rng: np.random.Generator) -> None:
    """Two states forget exactly geometrically: after the mixing time, 1/e of the difference between starts is left."""
    for stay, back in ((0.9, 0.2), (0.7, 0.6)):
        transition = chain([[stay, 1 - stay], [back, 1 - back]])
        time = float(mixing_times(transition))
        left = abs(stay - back) ** time  # of the difference between the rows of the t-th power
        assert left == pytest.approx(math.exp(-1))
    many = torch.from_numpy(rng.dirichlet(np.ones(5), size=(3, 2, 5)))
    assert mixing_times(many).shape == (3, 2)
    assert float(mixing_times(many)[2, 1]) == pytest.approx(float(mixing_times(many[2, 1])))


@pytest.mark.parametrize(
    ("rows", "time"),
    [
        ([[0.3, 0.7], [0.3, 0.7]], 0.0),
        ([[1.0]], 0.0),
        ([[0.0, 1.0], [1.0, 0.0]], math.inf),
        ([[1.0, 0.0], [0.0, 1.0]], math.inf),
    ],
)
def test_chains_that_forget_at_once_or_never(rows: list[list[float]], time: float) -> None:
    assert float(mixing_times(chain(rows))) == time
