"""Products against their factors, each on its own; dependent ones against a sum over all that could be replaced."""

import itertools

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import BayesGeomError
from bayesgeom.stats.information import kl_bits
from bayesgeom.tasks.base import task_from_config, task_from_text
from bayesgeom.tasks.markov import MarkovProcess
from bayesgeom.tasks.process import Mess3, Process
from bayesgeom.tasks.product import Product
from tests.tasks.test_process import random_tensors

A, B = Mess3(x=0.05, a=0.85, length=7), Process(random_tensors(2, 5), initial=(0.5, 0.5, 0.0, 0.0, 0.0), length=7)


def outer(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return (first[..., :, None] * second[..., None, :]).flatten(-2)


@pytest.mark.parametrize("factors", [(A, B), (Product(A, "z1r", length=7), B)], ids=["two", "three"])
def test_belief_and_predictive_are_outer_products_of_the_factors(factors: tuple[MarkovProcess, MarkovProcess]) -> None:
    task = Product(*factors, length=7)
    trials = task.sample(11, seed=0)
    symbols = torch.cat([trials.tokens, trials.labels[:, -1:]], dim=1)
    a, b = (
        factor.trials(own) for factor, own in zip(factors, (symbols // B.d_vocab, symbols % B.d_vocab), strict=True)
    )
    torch.testing.assert_close(trials.belief, outer(a.belief, b.belief), atol=1e-13, rtol=0)
    torch.testing.assert_close(trials.predictive, outer(a.predictive, b.predictive), atol=1e-13, rtol=0)
    unread = [own.baseline_predictives(part)["prior"] for own, part in zip(factors, (a, b), strict=True)]
    baselines = task.baseline_predictives(trials)
    torch.testing.assert_close(baselines["only_a"], outer(a.predictive, unread[1]), atol=1e-13, rtol=0)
    torch.testing.assert_close(baselines["only_b"], outer(unread[0], b.predictive), atol=1e-13, rtol=0)


def test_a_factor_goes_by_its_name_or_its_task() -> None:
    made = Product(Mess3(x=0.05), Process("rrxor", length=3), length=5)
    assert made == Product("mess3:x=0.05", "rrxor", length=5)
    assert made == task_from_text("product:a=mess3:x=0.05,b=rrxor,length=5")
    assert task_from_config(made.config()) == made and [own.length for own in made.factors] == [5, 5]
    assert made.token_labels() == ["x0x0", "x0x1", "x1x0", "x1x1", "x2x0", "x2x1"]
    assert Mess3().factors == () and made.mixing_time == max(own.mixing_time for own in made.factors) == np.inf


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("product:a=dice", r"a of a product must be a process, .*, got dice\."),
        ("product:b=evidence", r"b of a product must be a process, .*, got evidence\."),
        ("product:a=5", r"a must be MarkovProcess .* str, got 5"),
        ("product:a=rrxr", r"no task named 'rrxr'.*Perhaps you meant 'rrxor'"),
        ("product:length=0", "at least 1, got 0"),
        ("product:dependence=-0.1", r"dependence must be between 0 and 1, got -0\.1: .* negative probability"),
        ("product:dependence=1.01", r"dependence must be between 0 and 1, got 1\.01"),
        ("product:dependence=nan", r"dependence must be float, got"),
    ],
)
def test_refusals(text: str, told: str) -> None:
    with pytest.raises(BayesGeomError, match=told):
        task_from_text(text)


@pytest.mark.parametrize("names", [("golden-mean", "sns"), ("sns", "bloch-walk")])
@pytest.mark.parametrize("dependence", [0.2, 1.0])
def test_dependent_factors_are_those_of_all_sequences(names: tuple[str, str], dependence: float) -> None:
    """Every sequence of three pairs, and every way in which some of them were replaced, by hand.

    A sequence's probability is the mean over the sets of replaced steps of the factors' probabilities of what is left.
    """
    task = Product(*names, length=2, dependence=dependence)
    ways, starts = [own.labeled().numpy() for own in task.factors], [own.start().numpy() for own in task.factors]
    sizes = [own.d_vocab for own in task.factors]

    def left(factor: int, shown: tuple[int, ...], replaced: tuple[bool, ...]) -> float:
        state = starts[factor]
        for symbol, is_replaced in zip(shown, replaced, strict=True):
            state = state @ (ways[factor].sum(axis=0) if is_replaced else ways[factor][symbol])
        return float(state.sum())

    pairs = [*itertools.product(range(sizes[0]), range(sizes[1]))]
    joint = np.zeros([task.d_vocab] * 3)
    for tokens in np.ndindex(*joint.shape):
        shown = [tuple(pairs[token][factor] for token in tokens) for factor in (0, 1)]
        for replaced in itertools.product((False, True), repeat=3):
            weight = np.prod([dependence / task.d_vocab if gone else 1 - dependence for gone in replaced])
            joint[tokens] += weight * left(0, shown[0], replaced) * left(1, shown[1], replaced)
    assert joint.sum() == pytest.approx(1)
    symbols = torch.tensor([tokens for tokens in np.ndindex(*joint.shape) if joint[tokens] > 0])
    trials = task.trials(symbols)
    baselines = task.baseline_predictives(trials)
    split = joint.reshape(sizes * 3)
    alone = [split.sum(axis=(1, 3, 5)), split.sum(axis=(0, 2, 4))]  # the marginal process of each factor
    for row, (first, second, _) in enumerate(symbols.tolist()):
        np.testing.assert_allclose(trials.predictive[row, 1], joint[first, second] / joint[first, second].sum())
        a, b = (
            marginal[pairs[first][factor], pairs[second][factor]]
            / marginal[pairs[first][factor], pairs[second][factor]].sum()
            for factor, marginal in enumerate(alone)
        )
        np.testing.assert_allclose(baselines["factored"][row, 1], np.outer(a, b).flatten(), atol=1e-12)
        own = trials.predictive[row, 1].numpy().reshape(sizes)
        before = baselines["prior"][row, 1].numpy().reshape(sizes)
        np.testing.assert_allclose(
            baselines["only_a"][row, 1], np.outer(own.sum(axis=1), before.sum(axis=0)).flatten(), atol=1e-12
        )
    differs = float((baselines["factored"] - trials.predictive).abs().max())
    assert differs > 1e-3 if dependence < 1 else differs < 1e-12  # all noise: nothing is left to depend


def test_without_dependence_nothing_changes() -> None:
    plain, zero = (Product("rrxor", "even", length=6, **given) for given in ({}, {"dependence": 0.0}))
    trials, same = plain.sample(5, seed=3), zero.sample(5, seed=3)
    assert plain == zero and "factored" not in zero.baseline_predictives(same)
    assert torch.equal(
        plain.labeled(),
        torch.stack([torch.kron(x, y) for x in plain.factors[0].labeled() for y in plain.factors[1].labeled()]),
    )
    assert torch.equal(trials.tokens, same.tokens) and torch.equal(trials.belief, same.belief)
    assert "dependence" not in plain.config() and task_from_config(plain.config()) == plain
    assert "random pair" not in plain.in_words()["sentence"]


def test_dependent_pairs_come_as_predicted_and_are_drawn_again_as_such() -> None:
    task = Product("golden-mean", "even", length=3, dependence=0.5)
    assert (
        task
        == task_from_text("product:a=golden-mean,b=even,length=3,dependence=0.5")
        == task_from_config(task.config())
    )
    assert "or, with probability 0.5, a random pair" in task.in_words()["sentence"]
    trials = task.sample(20_000, seed=1)
    came = torch.nn.functional.one_hot(trials.labels, task.d_vocab).double()
    assert float((trials.predictive - came).mean(dim=0).abs().max()) < 5 * 0.5 / 20_000**0.5
    cost = {
        name: float(kl_bits(trials.predictive, baseline.log()).mean())
        for name, baseline in task.baseline_predictives(trials).items()
    }
    assert 0 < cost["factored"] < cost["prior"] and 0 < cost["window_2_uniform"] < cost["window_1_uniform"]
