"""The head's gradient, written out by the laws, is autograd's; and rows at a time change nothing."""

import pytest
import torch
from torch import Tensor

from bayesgeom.experiments.em import head
from bayesgeom.experiments.em.chain import StickyChain
from bayesgeom.experiments.em.head import MATRICES, initial_weights, outcome, outcome_and_gradients

CHAIN = StickyChain(diagonal="counted twice")


def plain_loss(weights: dict[str, Tensor], inputs: Tensor, symbols: Tensor) -> Tensor:
    """The definition: the whole attention at once, one run."""
    q, k, v = (inputs @ weights[name] for name in ("W_Q", "W_K", "W_V"))
    scores = q @ k.T / 10**0.5
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    pattern = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.nn.functional.cross_entropy(pattern @ v @ weights["W_O"], symbols)


@pytest.mark.parametrize("length", [7, 71])
def test_gradients_are_autograds(length: int) -> None:
    asked = CHAIN.sequence(length, seed=2)
    one, two = (initial_weights(20, 8, seed=seed, dtype=torch.float64) for seed in (1, 2))
    weights = {
        name: 5 * torch.cat([one[name], two[name]]) for name in MATRICES
    }  # larger, so that attention is not flat
    found, gradients = outcome_and_gradients(weights, asked.inputs, asked.symbols)
    for run in range(2):
        own = {name: weights[name][run].clone().requires_grad_() for name in MATRICES}
        loss = plain_loss(own, asked.inputs, asked.symbols)
        loss.backward()
        assert abs(float(loss.detach() - found.loss_nats[run])) < 1e-12
        for name in MATRICES:
            torch.testing.assert_close(gradients[name][run], own[name].grad, rtol=0, atol=1e-12)


def test_rows_at_a_time_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, weights = CHAIN.sequence(71, seed=2), initial_weights(20, 8, seed=1, dtype=torch.float64)
    before, gradients = outcome_and_gradients(weights, asked.inputs, asked.symbols)
    monkeypatch.setattr(head, "_ROWS", 11)
    after, others = outcome_and_gradients(weights, asked.inputs, asked.symbols)
    for name, value in vars(before).items():
        torch.testing.assert_close(vars(after)[name], value, rtol=0, atol=1e-13)
    for name in MATRICES:
        torch.testing.assert_close(others[name], gradients[name], rtol=0, atol=1e-13)


def test_a_head_that_knows_nothing_is_uniform() -> None:
    asked, weights = CHAIN.sequence(31, seed=2), initial_weights(20, 8, seed=1)
    silent = weights | {"W_O": torch.zeros_like(weights["W_O"])}
    found = outcome(silent, asked.inputs.float(), asked.symbols)
    expected = torch.tensor([8.0]).log()
    torch.testing.assert_close(found.loss_nats, expected)
    torch.testing.assert_close(found.entropy_nats, expected)
