"""One isolated causal attention head, the conditions that train it, and one training of all of them.

The head has no bias, residual, norm or positions; the gradient laws compute its gradient. Rows of the attention are
computed a few at a time and not stored, so a sequence of two thousand fits the processor's cache. A leading axis `run`
holds independent runs.

The conditions differ only in step sizes. The EM-like condition uses a tenfold step for the values. Its controls use the
tenfold step for everything, for the output alone or for the routing alone: an effect that they share is not due to the
values. `BY_MATRIX` steps one matrix at a time. Queries and keys act through their product, so √10 for each is a tenfold
step of the product.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument, NonFinite
from bayesgeom.gradients.attention_laws import (
    agreement,
    key_gradient,
    query_gradient,
    routing_gradient,
    value_gradient,
)
from bayesgeom.tasks.base import derived_seed
from examples.replication.em.chain import Sequence, StickyChain

MATRICES = ("W_Q", "W_K", "W_V", "W_O")
D_KEY, D_VALUE, INIT_STD = 10, 15, 0.1
_ROWS = 32  # queries at a time
SMALL, LARGE = 0.01, 0.1  # step sizes
_DATA, _HELD_OUT, _INIT = 0, 1, 2  # branches of a seed

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


@final
@dataclass(frozen=True, kw_only=True)
class Condition:
    """A name, the matrices that take the larger step, and that step."""

    name: str
    larger: frozenset[str]
    step: float = LARGE

    def rate(self, matrix: str) -> float:
        """Return the step size of one matrix."""
        return self.step if matrix in self.larger else SMALL


BASELINE, EM_LIKE = "SGD 0.01", "EM-like: 0.1 on W_V"
_ROUTING = frozenset({"W_Q", "W_K"})
_BOTH = (Condition(name=BASELINE, larger=frozenset()), Condition(name=EM_LIKE, larger=frozenset({"W_V"})))
CONDITIONS = (
    *_BOTH,
    Condition(name="SGD 0.1", larger=frozenset(MATRICES)),
    Condition(name="0.1 on W_O", larger=frozenset({"W_O"})),
    Condition(name="0.1 on W_Q and W_K", larger=_ROUTING),
)
BY_MATRIX = (
    *_BOTH,
    Condition(name="0.1 on W_Q", larger=frozenset({"W_Q"})),
    Condition(name="0.1 on W_K", larger=frozenset({"W_K"})),
    Condition(name="0.0316 on W_Q and W_K", larger=_ROUTING, step=math.sqrt(SMALL * LARGE)),
    Condition(name="0.1 on W_V and W_O", larger=frozenset({"W_V", "W_O"})),
)


@final
@dataclass(frozen=True, kw_only=True)
class Curves:
    """Losses of one seed (nats), before every update and after the last; held-out losses at recorded steps only."""

    loss: Float[np.ndarray, "condition step"]
    held_out: Float[np.ndarray, "condition record"]
    entropy: Float[np.ndarray, " condition"]
    accuracy: Float[np.ndarray, " condition"]
    held_out_accuracy: Float[np.ndarray, " condition"]
    floors: tuple[float, float]  # loss of the exact filter on the two sequences


def recorded_steps(steps: int, every: int) -> list[int]:
    """Return the steps at which the held-out sequence is scored: every `every` steps, and the last."""
    return [*range(0, steps, every), steps]


def learned(
    chain: StickyChain,
    *,
    seed: int,
    steps: int,
    length: int,
    every: int,
    tick: Callable[[], object],
    conditions: tuple[Condition, ...] = CONDITIONS,
) -> Curves:
    """Train all conditions from the same initial weights on one sequence; `tick` is called after every step.

    Raises:
        InvalidArgument: `steps` or `every` is below 1.
        NonFinite: A loss is not finite.
    """
    if steps < 1 or every < 1:
        raise InvalidArgument(f"steps and every must be at least 1; got {steps} and {every}.")
    data, unseen = (chain.sequence(length - 1, seed=derived_seed(seed, branch)) for branch in (_DATA, _HELD_OUT))
    start = initial_weights(chain.d_input, chain.n_symbols, seed=derived_seed(seed, _INIT))
    weights = {name: matrix.expand(len(conditions), -1, -1).clone() for name, matrix in start.items()}
    rates = {name: torch.tensor([condition.rate(name) for condition in conditions])[:, None, None] for name in MATRICES}
    due, losses, held_out = set(recorded_steps(steps, every)), [], []
    for step in range(steps):
        if step in due:
            held_out.append(_scored(weights, unseen))
        now, gradients = outcome_and_gradients(weights, data.inputs.float(), data.symbols)
        losses.append(now.loss_nats)
        weights = {name: matrix - rates[name] * gradients[name] for name, matrix in weights.items()}
        tick()
    last, elsewhere = _scored(weights, data), _scored(weights, unseen)
    loss = torch.stack([*losses, last.loss_nats], dim=1).double().numpy()
    if not np.isfinite(loss).all():
        raise NonFinite(f"the loss of a condition is not finite with seed {seed}; use fewer steps.")
    return Curves(
        loss=loss,
        held_out=torch.stack([*(o.loss_nats for o in held_out), elsewhere.loss_nats], dim=1).double().numpy(),
        entropy=last.entropy_nats.double().numpy(),
        accuracy=last.accuracy.double().numpy(),
        held_out_accuracy=elsewhere.accuracy.double().numpy(),
        floors=(data.floor_nats, unseen.floor_nats),
    )


def steps_to(losses: Float[np.ndarray, " record"], at: Float[np.ndarray, " record"], threshold: float) -> float:
    """Return the first step at which the loss is at most `threshold`, interpolated linearly between records.

    NaN if it never is, or if it is at the first record.
    """
    reached = np.flatnonzero(losses <= threshold)
    if not len(reached) or reached[0] == 0:
        return float("nan")
    i = int(reached[0])
    share = (losses[i - 1] - threshold) / (losses[i - 1] - losses[i])
    return float(at[i - 1] + share * (at[i] - at[i - 1]))


def _scored(weights: Weights, on: Sequence) -> Outcome:
    return outcome(weights, on.inputs.float(), on.symbols)


def describe_conditions(conditions: tuple[Condition, ...]) -> Mapping[str, Mapping[str, float]]:
    """Return the step sizes of every condition by matrix, for the report's provenance."""
    return {condition.name: {name: condition.rate(name) for name in MATRICES} for condition in conditions}
