"""Dirichlet–Markov chains: counting equals integration over matrices, and a pool is weighed by its likelihood."""

import itertools

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.stats.information import kl_bits
from bayesgeom.tasks.dirichlet_markov import DirichletMarkov


def test_counting_equals_integration_over_matrices() -> None:
    """Two symbols: each row is one number, which Gauss–Jacobi nodes integrate exactly."""
    task = DirichletMarkov(n_symbols=2, concentration=1.0, length=6)
    trials = task.sample(9, seed=0)
    nodes, weights = np.polynomial.legendre.leggauss(12)
    share, weights = (nodes + 1) / 2, weights / 2
    for row, step in itertools.product(range(9), range(6)):
        seen = trials.tokens[row, : step + 1].tolist()
        likely = np.ones_like(share)
        for one, following in itertools.pairwise(seen):
            if one == seen[-1]:  # the other row cancels
                likely = likely * (share if following else 1 - share)
        exact = float((weights * likely * share).sum() / (weights * likely).sum())
        assert float(trials.predictive[row, step, 1]) == pytest.approx(exact, abs=1e-12)


def test_a_pool_is_weighed_by_the_likelihood_of_its_chains() -> None:
    task = DirichletMarkov(n_symbols=3, length=7, pool=5, pool_seed=4)
    trials, chains = task.sample(8, seed=1), task.chains()
    for row in range(8):
        likely = torch.ones(5, dtype=torch.float64)
        for step, (one, following) in enumerate(itertools.pairwise([*trials.tokens[row].tolist(), 0])):
            torch.testing.assert_close(trials.belief[row, step], likely / likely.sum())
            mixed = (likely / likely.sum() @ chains[:, one])[None, None]
            assert float(kl_bits(mixed, trials.predictive[row, step].log()[None, None])) < 1e-12
            likely = likely * chains[:, one, following]


def test_the_other_observer_is_a_baseline_on_old_and_new_chains() -> None:
    pooled, fresh = (DirichletMarkov(length=48, pool=4, fresh=fresh) for fresh in (False, True))
    for task, other in ((pooled, "generalizing"), (fresh, "memorizing")):
        trials = task.sample(200, seed=2)
        baselines = task.baseline_predictives(trials)
        costs = {name: float(kl_bits(trials.predictive, p.log()).mean()) for name, p in baselines.items()}
        assert costs[other] > 0.1 and costs["unigram"] > 0.1
    symbols = torch.nn.functional.pad(pooled.sample(3, seed=5).tokens, (0, 1))
    memory, new = pooled.trials(symbols), fresh.trials(symbols)
    torch.testing.assert_close(fresh.baseline_predictives(new)["memorizing"], memory.predictive)
    torch.testing.assert_close(pooled.baseline_predictives(memory)["generalizing"], new.predictive)


def test_a_symbol_between_kept_ones_is_drawn_from_both_sides() -> None:
    task = DirichletMarkov(n_symbols=2, length=3, concentration=1.0)
    one = task.trials(torch.tensor([[0, 0, 1, 0]]).repeat(20_000, 1))
    found = task.replace_evidence(one, torch.tensor([True, False, True]), torch.Generator().manual_seed(0))
    assert bool((found.tokens[:, [0, 2]] == one.tokens[:, [0, 2]]).all())
    between = float(found.tokens[:, 1].double().mean())
    through_one, through_zero = 1 / 2 * 1 / 2, 1 / 2 * 1 / 3  # 0→1→1, and 0→0→1 from a row that has seen 0→0
    assert between == pytest.approx(through_one / (through_one + through_zero), abs=0.02)


@pytest.mark.parametrize(
    "given", [{"pool": -1}, {"concentration": 0.0}, {"concentration": 1e308}, {"n_symbols": 1}, {"fresh": True}]
)
def test_parameters_out_of_range_are_named(given: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(given))):
        DirichletMarkov(**given)  # type: ignore[arg-type]


def test_an_edited_copy_of_the_pool_changes_no_posterior() -> None:
    task = DirichletMarkov(n_symbols=3, length=5, pool=2)
    before = task.sample(2, seed=0)
    task.chains().zero_()
    assert torch.equal(task.sample(2, seed=0).predictive, before.predictive)
