"""Causal graphs: the exact answers equal a numerical integral over conditional probabilities, graph by graph."""

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.tasks.causal_graph import CausalGraph

N_DRAWN = 150_000


@pytest.mark.parametrize(("n_variables", "n_graphs"), [(2, 3), (3, 25), (4, 543)])
def test_all_acyclic_graphs_are_there(n_variables: int, n_graphs: int) -> None:
    assert len(CausalGraph(n_variables=n_variables, n_rows=1).graphs()) == n_graphs


def test_answers_equal_integrals_over_all_conditional_probabilities(rng: np.random.Generator) -> None:
    """For two variables, from definitions: each row by its factors, and the intervention by cutting the cause's."""
    task = CausalGraph(n_variables=2, n_rows=4, concentration=0.8)
    trials = task.sample(5, seed=3)
    rows, given = (own for own in task._read(trials))
    for sequence in range(5):
        weights, answers = [], []
        for parents in task.graphs().tolist():
            # the probability of 1 by variable and by the value of the other one
            theta = rng.beta(0.8, 0.8, size=(N_DRAWN, 2, 2))
            if not parents[0]:
                theta[:, 0, 1] = theta[:, 0, 0]
            if not parents[1]:
                theta[:, 1, 1] = theta[:, 1, 0]
            likely = np.ones(N_DRAWN)
            for row, which in zip(rows[sequence].tolist(), given.set_variable[sequence].tolist(), strict=True):
                for k in range(2):
                    if k != which:
                        share = theta[:, k, row[1 - k]]
                        likely = likely * (share if row[k] else 1 - share)
            cause, value = int(given.cause[sequence, -1]), int(given.cause_value[sequence, -1])
            weights.append(likely.mean())
            answers.append(float((likely * theta[:, 1 - cause, value]).mean() / likely.mean()))
        belief = np.array(weights) / sum(weights)
        at = int(trials.scored_positions()[0, -1])
        assert trials.belief[sequence, at].numpy() == pytest.approx(belief, abs=0.01)
        assert float(trials.predictive[sequence, at, 1]) == pytest.approx(float(belief @ answers), abs=0.01)


def test_seeing_is_not_doing() -> None:
    task = CausalGraph(n_rows=24, concentration=0.2)
    trials = task.sample(64, seed=0)
    baselines = task.baseline_predictives(trials)
    apart = (baselines["conditional"] - trials.at_scored(trials.predictive)).abs().amax(dim=2)
    assert float(apart.mean()) > 0.03


@pytest.mark.parametrize(
    "given", [{"n_variables": 5}, {"n_rows": 0}, {"intervened": 1.2}, {"concentration": 0.0}, {"concentration": 1e14}]
)
def test_parameters_out_of_range_are_named(given: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(given))):
        CausalGraph(**given)  # type: ignore[arg-type]


def test_an_edited_copy_of_the_graphs_changes_no_posterior() -> None:
    task = CausalGraph(n_variables=2, n_rows=2)
    before = task.sample(2, seed=0)
    task.graphs()[:] = 0
    assert torch.equal(task.sample(2, seed=0).belief.nan_to_num(), before.belief.nan_to_num())


def test_a_large_concentration_leaves_the_graph_unknown() -> None:
    trials = CausalGraph(n_variables=2, concentration=1e6).sample(3, seed=0)
    assert float((trials.at_scored(trials.belief) - 1 / 3).abs().max()) < 1e-4
