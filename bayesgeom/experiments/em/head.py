"""One isolated causal attention head, and its gradient computed by the gradient laws.

It has no bias, residual, norm or positions. Rows of the attention are computed a few at a time and not stored, so a
sequence of two thousand fits the processor's cache. A leading axis `run` holds independent runs.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from bayesgeom.gradients.attention_laws import (
    agreement,
    key_gradient,
    query_gradient,
    routing_gradient,
    value_gradient,
)

MATRICES = ("W_Q", "W_K", "W_V", "W_O")
D_KEY, D_VALUE, INIT_STD = 10, 15, 0.1
_ROWS = 32  # queries at a time

Weights = dict[str, Float[Tensor, "run d_in d_out"]]


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Mean cross-entropy and mean entropy of the predictions (nats), and accuracy."""

    loss_nats: Float[Tensor, " run"]
    entropy_nats: Float[Tensor, " run"]
    accuracy: Float[Tensor, " run"]


def initial_weights(d_input: int, n_symbols: int, *, seed: int, dtype: torch.dtype = torch.float32) -> Weights:
    """Return one run's matrices, drawn from 0.1 · N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"W_Q": (d_input, D_KEY), "W_K": (d_input, D_KEY), "W_V": (d_input, D_VALUE), "W_O": (D_VALUE, n_symbols)}
    return {name: INIT_STD * torch.randn(1, *shapes[name], generator=generator).to(dtype) for name in MATRICES}


def outcome(weights: Weights, inputs: Float[Tensor, "pos d_input"], symbols: Int64[Tensor, " pos"]) -> Outcome:
    """Return the scores of the head's predictions on one sequence."""
    return _pass(weights, inputs, symbols, gradients=None)


def outcome_and_gradients(
    weights: Weights, inputs: Float[Tensor, "pos d_input"], symbols: Int64[Tensor, " pos"]
) -> tuple[Outcome, Weights]:
    """Return the scores, and the gradient of the loss with respect to every matrix."""
    gradients = {name: torch.zeros_like(matrix) for name, matrix in weights.items()}
    return _pass(weights, inputs, symbols, gradients=gradients), gradients


def _pass(
    weights: Weights, x: Float[Tensor, "pos d_input"], y: Int64[Tensor, " pos"], *, gradients: Weights | None
) -> Outcome:
    q, k, v = (x @ weights[name] for name in ("W_Q", "W_K", "W_V"))
    scale, n_pos = 1 / math.sqrt(q.shape[-1]), len(x)
    pulled = {"W_Q": torch.zeros_like(q), "W_K": torch.zeros_like(k), "W_V": torch.zeros_like(v)}
    totals = torch.zeros(3, len(q), dtype=x.dtype)
    for start in range(0, n_pos, _ROWS):
        here, seen = slice(start, min(start + _ROWS, n_pos)), slice(0, min(start + _ROWS, n_pos))
        pattern = _pattern(q[:, here] * scale, k[:, seen], start)
        mixed = pattern @ v[:, seen]
        log_predicted = (mixed @ weights["W_O"]).log_softmax(dim=-1)
        predicted = log_predicted.exp()
        targets = torch.nn.functional.one_hot(y[here], predicted.shape[-1]).to(predicted)
        totals += torch.stack(
            [
                -(targets * log_predicted).sum((1, 2)),
                -(predicted * log_predicted).sum((1, 2)),
                (predicted.argmax(-1) == y[here]).to(x).sum(-1),
            ]
        )
        if gradients is not None:
            by_logit = (predicted - targets) / n_pos
            upstream = by_logit @ weights["W_O"].mT
            gradients["W_O"] += mixed.mT @ by_logit
            by_score = routing_gradient(pattern, agreement(upstream, v[:, seen]))
            pulled["W_Q"][:, here] = query_gradient(by_score, k[:, seen], scale)
            pulled["W_K"][:, seen] += key_gradient(by_score, q[:, here], scale)
            pulled["W_V"][:, seen] += value_gradient(pattern, upstream)
    if gradients is not None:
        for name, rows in pulled.items():
            gradients[name] += x.T @ rows
    loss, entropy, right = totals / n_pos
    return Outcome(loss_nats=loss, entropy_nats=entropy, accuracy=right)


def _pattern(
    q: Float[Tensor, "run query_pos d_key"], k: Float[Tensor, "run key_pos d_key"], start: int
) -> Float[Tensor, "run query_pos key_pos"]:
    """Return the causal attention of queries from position `start` on."""
    scores = q @ k.mT
    own = scores[..., start:]
    own.masked_fill_(torch.ones(own.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(dim=-1)
