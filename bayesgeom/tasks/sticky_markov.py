"""Sticky Markov: predict the next symbol of a noisy walk on a ring that stays in place with high probability.

In each of `n_states` states the chain stays with probability `self_probability`. Otherwise it moves to another state,
with probability inversely proportional to the distance on the ring. The symbol is the state, or with probability
`noise` uniform over all symbols. The state is hidden, so the observer must carry its belief through the chain (belief
transport). The difficulty axis is `mixing_time`, which grows with `self_probability`.

The paper's chain has 8 states, no noise and a self-probability of 0.35: its nominal 0.3 becomes 0.350 because the
diagonal takes part in the normalization before 0.3 is added. Here `self_probability` is the effective value. The
paper's chain forgets in 1.3 steps, so a predictor from the last two symbols is within 0.0005 bits of the exact one at
any noise, and no belief needs to be carried. The default is therefore stickier. Without noise the predictive is the row
of the last symbol, and nothing is inferred.

References:
    Aggarwal, Dalal & Misra 2025, the second paper of the trilogy, section 5.2 (the chain).
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.core import InvalidArgument
from bayesgeom.tasks.base import check_parameters
from bayesgeom.tasks.markov import MarkovProcess, check_length


@final
@dataclass(frozen=True, kw_only=True)
class StickyMarkov(MarkovProcess):
    """`length` symbols of one fixed ring; the belief is over states, the predictive over symbols.

    Args:
        n_states: Number of states and of symbols.
        self_probability: Probability to stay in a state.
        noise: Probability that a symbol is drawn uniformly instead of showing the state.
        length: Symbols in a sequence; each is a scored position.

    Raises:
        InvalidArgument: A parameter has the wrong type or is out of range; the message states the range.

    Example:
        >>> from bayesgeom import tasks
        >>> trials = tasks.StickyMarkov(n_states=5, length=7).sample(2, seed=0)
        >>> trials.at_scored(trials.predictive).shape
        torch.Size([2, 7, 5])
    """

    name: ClassVar[str] = "sticky-markov"
    sentence: ClassVar[str] = (
        "A hidden walk on a ring of {task.n_states} states that mostly stays; after each noisy symbol "
        "the model predicts the next one."
    )
    n_states: int = 8
    self_probability: float = 0.8
    noise: float = 0.3
    length: int = 20

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.n_states < 2:
            raise InvalidArgument(f"a sticky chain needs n_states ≥ 2, got {self.n_states}.")
        if not (0 <= self.self_probability <= 1 and 0 <= self.noise <= 1):
            raise InvalidArgument(
                f"self_probability and noise must be probabilities, got {self.self_probability} and {self.noise}."
            )
        check_length(self)

    @property
    def d_vocab(self) -> int:
        return self.n_states

    def chain(self) -> Float64[Tensor, "state state"]:
        """Return the transition matrix."""
        place = torch.arange(self.n_states)
        apart = (place[:, None] - place[None, :]).abs()
        distance = torch.minimum(apart, self.n_states - apart).double()
        weight = torch.where(distance > 0, 1 / distance.clamp_min(1), 0.0)
        same = torch.eye(self.n_states, dtype=torch.float64)
        return self.self_probability * same + (1 - self.self_probability) * weight / weight.sum(1, keepdim=True)

    def labeled(self) -> Float64[Tensor, "symbol state state"]:
        shows = (1 - self.noise) * torch.eye(self.n_states, dtype=torch.float64) + self.noise / self.n_states
        return torch.einsum("ij,jx->xij", self.chain(), shows)

    def start(self) -> Float64[Tensor, " state"]:
        """Return the uniform distribution, which is stationary on a ring."""
        return torch.full((self.n_states,), 1 / self.n_states, dtype=torch.float64)
