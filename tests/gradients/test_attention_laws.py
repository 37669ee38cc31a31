"""The gradient laws as functions on arrays, beside slow loops and autograd."""

import numpy as np
import torch
from torch import Tensor

from bayesgeom.gradients.attention_laws import (
    advantage,
    agreement,
    key_gradient,
    query_gradient,
    routing_gradient,
    value_gradient,
)

N_QUERIES, N_KEYS, D = 5, 7, 3


def drawn(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.normal(size=shape))


def test_the_laws_are_autograds_own(rng: np.random.Generator) -> None:
    """Scores from queries and keys, values mixed, any loss of what is mixed."""
    q, k, v = (drawn(rng, 2, n, D).requires_grad_() for n in (N_QUERIES, N_KEYS, N_KEYS))
    scores = q @ k.mT * 0.6
    pattern = scores.softmax(-1)
    mixed = pattern @ v
    loss = (mixed.sin() * drawn(rng, 2, N_QUERIES, D)).sum() + mixed.square().sum()
    by_q, by_k, by_v, by_scores, u = torch.autograd.grad(loss, [q, k, v, scores, mixed])
    with torch.no_grad():
        routing = routing_gradient(pattern, agreement(u, v))
        torch.testing.assert_close(routing, by_scores, rtol=0, atol=1e-14)
        torch.testing.assert_close(value_gradient(pattern, u), by_v, rtol=0, atol=1e-14)
        torch.testing.assert_close(query_gradient(routing, k, 0.6), by_q, rtol=0, atol=1e-14)
        torch.testing.assert_close(key_gradient(routing, q, 0.6), by_k, rtol=0, atol=1e-14)


def test_the_slow_loop_agrees(rng: np.random.Generator) -> None:
    pattern = drawn(rng, N_QUERIES, N_KEYS).softmax(-1)
    u, v = drawn(rng, N_QUERIES, D), drawn(rng, N_KEYS, D)
    b, gain = agreement(u, v), advantage(pattern, agreement(u, v))
    routing, values = routing_gradient(pattern, b), value_gradient(pattern, u)
    for i in range(N_QUERIES):
        expected = sum(float(pattern[i, j]) * float(u[i] @ v[j]) for j in range(N_KEYS))
        for j in range(N_KEYS):
            one = float(u[i] @ v[j])
            assert abs(float(gain[i, j]) - (expected - one)) < 1e-14
            assert abs(float(routing[i, j]) - float(pattern[i, j]) * (one - expected)) < 1e-14
    for j in range(N_KEYS):
        pulled = sum((pattern[i, j] * u[i] for i in range(N_QUERIES)), torch.zeros(D, dtype=torch.float64))
        torch.testing.assert_close(values[j], pulled, rtol=0, atol=1e-14)


def test_advantage_is_zero_on_average_and_scores_only_trade(rng: np.random.Generator) -> None:
    pattern, b = drawn(rng, 4, N_QUERIES, N_KEYS).softmax(-1), drawn(rng, 4, N_QUERIES, N_KEYS)
    assert float((pattern * advantage(pattern, b)).sum(-1).abs().max()) < 1e-14
    assert float(routing_gradient(pattern, b).sum(-1).abs().max()) < 1e-14


def test_a_step_of_descent_moves_attention_toward_the_advantage(rng: np.random.Generator) -> None:
    scores, b = drawn(rng, N_QUERIES, N_KEYS), drawn(rng, N_QUERIES, N_KEYS)
    pattern = scores.softmax(-1)
    after = (scores - 1e-6 * routing_gradient(pattern, b)).softmax(-1)
    lowered = ((pattern - after) * b).sum(-1)
    assert bool((lowered > 0).all())  # what is mixed in agrees less with what raises the loss
