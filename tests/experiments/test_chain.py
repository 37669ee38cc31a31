"""The sticky chain: its matrix, its floors, and its exact filter beside enumeration."""

import itertools
import math

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.experiments.em.chain import StickyChain
from bayesgeom.stats.information import NATS_PER_BIT

TWICE, STATED = StickyChain(diagonal="counted twice"), StickyChain(diagonal="as stated")


def test_floors_are_those_of_the_two_readings() -> None:
    assert TWICE.entropy_rate_nats() == pytest.approx(1.829, abs=5e-4)
    assert TWICE.entropy_rate_nats() / NATS_PER_BIT == pytest.approx(2.639, abs=5e-4)
    assert STATED.entropy_rate_nats() == pytest.approx(1.883, abs=5e-4)


def test_self_probabilities_are_the_authors_and_the_stated_one() -> None:
    assert float(TWICE.transition()[3, 3]) == pytest.approx(0.350, abs=5e-4)
    assert float(STATED.transition()[3, 3]) == pytest.approx(0.3, abs=1e-15)


@pytest.mark.parametrize("chain", [TWICE, STATED], ids=["twice", "stated"])
def test_other_symbols_fall_off_with_their_distance_on_the_ring(chain: StickyChain) -> None:
    p = chain.transition()
    torch.testing.assert_close(p.sum(1), torch.ones(8).double(), rtol=0, atol=1e-15)
    row = p[0] / p[0, 1]
    torch.testing.assert_close(
        row[[2, 3, 4, 7]], torch.tensor([1 / 2, 1 / 3, 1 / 4, 1], dtype=torch.float64), rtol=0, atol=1e-14
    )
    for i in range(8):
        torch.testing.assert_close(p[i], p[0].roll(i))


def test_the_filter_is_what_enumeration_says() -> None:
    """Sum over every path of symbols before, weighted by how well it explains the inputs."""
    chain = StickyChain(diagonal="counted twice", n_symbols=3, d_input=2, seed=5)
    inputs = chain.sequence(4, seed=1).inputs
    p, mu, text = chain.transition(), chain.embeddings(), chain.predictive(inputs)
    for t in range(1, 5):
        total = np.zeros(3)
        for path in itertools.product(range(3), repeat=t):
            weight = 1 / 3
            for now, after in itertools.pairwise(path):
                weight *= float(p[now, after])
            for x, symbol in zip(inputs[:t], path, strict=True):
                weight *= math.exp(-0.5 * float((x - mu[symbol]).square().sum()))
            total += weight * p[path[-1]].numpy()
        np.testing.assert_allclose(text[t - 1].numpy(), total / total.sum(), atol=1e-12)


def test_a_long_sequence_meets_the_floor_and_the_matrix() -> None:
    found = TWICE.sequence(6_000, seed=3)
    assert found.floor_nats == pytest.approx(TWICE.entropy_rate_nats(), abs=0.02)
    nearest = torch.cdist(found.inputs, TWICE.embeddings()).argmin(1)  # embeddings lie far apart
    counts = torch.zeros(8, 8).double()
    counts.index_put_((nearest, found.symbols), torch.ones(6_000).double(), accumulate=True)
    torch.testing.assert_close(counts / counts.sum(1, keepdim=True), TWICE.transition(), rtol=0, atol=0.06)


def test_the_input_is_of_the_symbol_before() -> None:
    found = TWICE.sequence(500, seed=3)
    nearest = torch.cdist(found.inputs, TWICE.embeddings()).argmin(1)
    assert float((nearest[1:] == found.symbols[:-1]).double().mean()) > 0.98


def test_sequences_follow_their_seed_and_embeddings_the_chains() -> None:
    one, again, other = (TWICE.sequence(9, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.inputs, again.inputs) and not torch.equal(one.inputs, other.inputs)
    assert torch.equal(TWICE.embeddings(), STATED.embeddings())


@pytest.mark.parametrize("changes", [{"n_symbols": 1}, {"self_probability": 1.0}, {"d_input": 0}])
def test_impossible_chains_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match="a chain needs at least 2 symbols"):
        StickyChain(diagonal="as stated", **changes)  # type: ignore[arg-type]
