"""Sticky Markov: a walk on a ring that likes to stay, seen through noise; predict the next symbol.

From each of `n_states` places the chain stays with probability `self_probability` and otherwise moves to another place,
in inverse proportion to its distance on the ring. What is shown is the place, or with probability `noise` any symbol,
all alike. The place is hidden, so the observer must carry its belief through the chain: transport. The difficulty axis
is `mixing_time`, which grows with `self_probability`.

The paper's chain has 8 places and, without hiding, self_probability 0.35: its nominal 0.3 is 0.350 in effect, since the
diagonal takes part in the normalization before 0.3 is added. Here the number is what it says. That chain forgets in 1.3
steps, so that a predictor of the last two symbols is within 0.0005 bits of the exact one at any noise: nothing is
carried. Hence the stickier default. Without noise the predictive is the last symbol's row, and nothing is inferred.

Reference: Aggarwal, Dalal & Misra 2025, the second paper of the trilogy, section 5.2 (the chain).
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.tasks.base import check_parameters
from bayesgeom.tasks.markov import MarkovProcess, check_process


@final
@dataclass(frozen=True, kw_only=True)
class StickyMarkov(MarkovProcess):
    """`length` symbols of one fixed ring; its belief is over places, its predictive over symbols."""

    name: ClassVar[str] = "sticky-markov"
    n_states: int = 8
    self_probability: float = 0.8
    noise: float = 0.3
    length: int = 20

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.n_states < 2 or self.length < 1:
            raise InvalidArgument(
                f"a sticky chain needs n_states ≥ 2 and length ≥ 1, got {self.n_states} and {self.length}."
            )
        if not (0 <= self.self_probability <= 1 and 0 <= self.noise <= 1):
            raise InvalidArgument(
                f"self_probability and noise are probabilities, got {self.self_probability} and {self.noise}."
            )
        check_process(self, n_states=self.n_states, on=("n_states", "length"))

    @property
    def d_vocab(self) -> int:
        return self.n_states

    @property
    def n_pos(self) -> int:
        return self.length

    def chain(self) -> Float64[Tensor, "state state"]:
        """Where the chain goes from each place."""
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
        """Uniform, which is stationary on a ring."""
        return torch.full((self.n_states,), 1 / self.n_states, dtype=torch.float64)
