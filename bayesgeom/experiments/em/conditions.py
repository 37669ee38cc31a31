"""The conditions of the comparison, which differ only in step sizes, and one training of all of them.

The EM-like condition uses a tenfold step for the values. Its controls use the tenfold step for everything, for the
output alone or for the routing alone: an effect that they share is not due to the values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float

from bayesgeom.core.errors import InvalidArgument, NonFinite
from bayesgeom.experiments.em.chain import Sequence, StickyChain
from bayesgeom.experiments.em.head import MATRICES, Outcome, Weights, initial_weights, outcome, outcome_and_gradients
from bayesgeom.tasks.base import derived_seed

SMALL, LARGE = 0.01, 0.1
_DATA, _HELD_OUT, _INIT = 0, 1, 2  # branches of a seed


@final
@dataclass(frozen=True, kw_only=True)
class Condition:
    """A name, and the matrices that take the larger step."""

    name: str
    larger: frozenset[str]

    def rate(self, matrix: str) -> float:
        """Return the step size of one matrix."""
        return LARGE if matrix in self.larger else SMALL


BASELINE, EM_LIKE = "SGD 0.01", "EM-like: 0.1 on W_V"
CONDITIONS = (
    Condition(name=BASELINE, larger=frozenset()),
    Condition(name=EM_LIKE, larger=frozenset({"W_V"})),
    Condition(name="SGD 0.1", larger=frozenset(MATRICES)),
    Condition(name="0.1 on W_O", larger=frozenset({"W_O"})),
    Condition(name="0.1 on W_Q and W_K", larger=frozenset({"W_Q", "W_K"})),
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
    chain: StickyChain, *, seed: int, steps: int, length: int, every: int, tick: Callable[[], object]
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
    weights = {name: matrix.expand(len(CONDITIONS), -1, -1).clone() for name, matrix in start.items()}
    rates = {name: torch.tensor([condition.rate(name) for condition in CONDITIONS])[:, None, None] for name in MATRICES}
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


def describe_conditions() -> Mapping[str, Mapping[str, float]]:
    """Return the step sizes of every condition by matrix, for the report's provenance."""
    return {condition.name: {name: condition.rate(name) for name in MATRICES} for condition in CONDITIONS}
