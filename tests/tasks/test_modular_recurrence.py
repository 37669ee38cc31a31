"""Modular recurrence against enumeration over every rule, its Bayes factor, its baselines and its laws."""

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.stats.information import kl_bits
from bayesgeom.tasks.modular_recurrence import ModularRecurrence

SMALL = [
    ModularRecurrence(modulus=5, length=7),
    ModularRecurrence(modulus=3, length=5, rule_share=0.2),
    ModularRecurrence(modulus=4, length=5),  # no prime: several slopes may fit the same differences
]


def enumerated(task: ModularRecurrence, numbers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Belief over noise and rules, and the next number, from the joint of every hypothesis with these numbers."""
    p, k = task.modulus, len(numbers)
    joint, follows = [(1 - task.rule_share) / p**k], []
    for a in range(p):
        for b in range(p):
            fits = all(numbers[t + 1] == (a * numbers[t] + b) % p for t in range(k - 1))
            joint.append(task.rule_share / p**2 * fits / p)
            follows.append((a * numbers[-1] + b) % p)
    belief = np.array(joint) / sum(joint)
    return belief, belief[0] / p + np.bincount(follows, weights=belief[1:], minlength=p)


@pytest.mark.parametrize("task", SMALL, ids=str)
def test_belief_and_predictive_by_enumeration(task: ModularRecurrence) -> None:
    trials = task.sample(13, seed=1)
    for row, numbers in enumerate(trials.tokens.tolist()):
        for t in range(task.length):
            belief, predictive = enumerated(task, numbers[: t + 1])
            np.testing.assert_allclose(trials.belief[row, t].numpy(), belief, atol=1e-14)
            np.testing.assert_allclose(trials.predictive[row, t].numpy(), predictive, atol=1e-14)


def test_the_odds_for_a_rule_are_those_of_the_paper() -> None:
    """(number of rules that fit) · p^(k−3): 1, 1, 1, 17, 289, … where no number comes twice in a row."""
    task = ModularRecurrence()
    numbers = torch.tensor([[2]])
    for _ in range(5):
        numbers = torch.cat([numbers, (3 * numbers[:, -1:] + 5) % 17], dim=1)
    belief = task.trials(torch.cat([numbers, numbers[:, :1]], dim=1)).belief[0]
    odds = belief[:, 1:].sum(1) / belief[:, 0]
    np.testing.assert_allclose(odds.numpy(), [1, 1, 1, 17, 289, 4913], rtol=1e-12)
    assert [(row > 0).sum().item() for row in belief[:, 1:]] == [289, 17, 1, 1, 1, 1]
    misfit = task.trials(torch.tensor([[2, 11, 4, 16, 1]])).belief[0]
    assert misfit[3, 0] == 1 and task.n_hypotheses == misfit.shape[1] == 290


def test_long_sequences_do_not_overflow() -> None:
    trials = ModularRecurrence(modulus=11, length=400).sample(2, seed=2)
    assert trials.belief.isfinite().all() and trials.predictive.isfinite().all()


def test_baselines_by_enumeration() -> None:
    task = SMALL[0]
    trials = task.sample(11, seed=4)
    baselines = task.baseline_predictives(trials)
    assert list(baselines) == ["uniform", "prior_odds"]
    assert (baselines["uniform"] == 1 / 5).all()
    for row, numbers in enumerate(trials.tokens.tolist()):
        for t in range(task.length):
            belief, _ = enumerated(task, numbers[: t + 1])
            follows = np.array([(a * numbers[t] + b) % 5 for a in range(5) for b in range(5)])
            fits = np.bincount(follows, weights=belief[1:] > 0, minlength=5)
            twin = 0.5 / 5 + 0.5 * fits / fits.sum() if fits.sum() else np.full(5, 1 / 5)
            np.testing.assert_allclose(baselines["prior_odds"][row, t].numpy(), twin, atol=1e-14)
    exact = trials.predictive
    cost = {name: float(kl_bits(exact, baseline.log()).mean()) for name, baseline in baselines.items()}
    assert cost["uniform"] > cost["prior_odds"] > 0


def test_relations_match_a_loop_over_tokens() -> None:
    task = SMALL[0]
    trials = task.sample(7, seed=5)
    for row, numbers in enumerate(trials.tokens.tolist()):
        for t in range(task.length):
            same = {s for s in range(t) if numbers[s] == numbers[t]}
            twin = {
                "after_same_number": {s + 1 for s in same},
                "same_number": same,
                "current_number": {t},
                "previous_number": {t - 1} & set(range(t)),
                "earlier_number": set(range(t - 1)),
            }
            assert trials.relations.keys() == twin.keys()
            for name, places in twin.items():
                assert set(trials.relations[name][row, t].nonzero()[:, 0].tolist()) == places, (name, row, t)


def test_pairs_have_the_same_start_and_kind() -> None:
    task = ModularRecurrence(length=9)
    original, donor = task.sample_pair(40, seed=6)
    assert torch.equal(original.tokens[:, 0], donor.tokens[:, 0])
    follows = [trials.belief[:, -1, 0] < 0.5 for trials in (original, donor)]
    assert torch.equal(*follows) and 5 < int(follows[0].sum()) < 35
    assert not torch.equal(original.tokens, donor.tokens)


@pytest.mark.parametrize("parameters", [{"modulus": 1}, {"length": 0}, {"rule_share": 0.0}, {"rule_share": 1.0}])
def test_impossible_parameters_are_refused(parameters: dict[str, float]) -> None:
    ((name, value),) = parameters.items()
    with pytest.raises(InvalidArgument, match=rf"modulus ≥ 2, length ≥ 1 and 0 < rule_share < 1, got .*{name}={value}"):
        ModularRecurrence(**parameters)
