"""Coins: one coin out of a bag of known biases is flipped again and again; predict the next side.

Layout: start, flip 1, flip 2, …; every position asks for the flip that follows. With h heads in t flips,

    belief(c) ∝ bias_c^h (1 − bias_c)^(t − h),    P(heads) = Σ_c belief(c) bias_c,    bias_c = c / (n_coins + 1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import Trials
from bayesgeom.tasks.base import WindTunnel, check_parameters

START, TAILS, HEADS = 0, 1, 2


@final
@dataclass(frozen=True, kw_only=True)
class Coins(WindTunnel):
    """A fresh coin per sequence, each of the `n_coins` equally likely; `n_flips` flips, the last one not shown."""

    name: ClassVar[str] = "coins"
    n_coins: int = 9
    n_flips: int = 16

    def __post_init__(self) -> None:
        check_parameters(self)  # 9.0 coins, or "nine"
        if self.n_coins < 2 or self.n_flips < 1:
            raise InvalidArgument(f"coins needs n_coins ≥ 2 and n_flips ≥ 1, got {self.n_coins} and {self.n_flips}.")

    @property
    def d_vocab(self) -> int:
        return 3

    @property
    def n_pos(self) -> int:
        return self.n_flips

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        coin = torch.randint(self.n_coins, (n, 1), generator=generator, device=generator.device)
        draws = torch.rand(n, self.n_flips, generator=generator, device=generator.device)
        return self.trials(torch.where(draws < self._biases(coin), HEADS, TAILS))

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """Nothing is given but the start, so the two are independent."""
        return self.draw(n, generator), self.draw(n, generator)

    def trials(self, flips: Int64[Tensor, "batch flip"]) -> Trials:
        """The trials of given flips."""
        tokens = torch.cat([torch.full_like(flips[:, :1], START), flips[:, :-1]], dim=1)
        belief = self._belief(tokens)
        heads = belief @ self._biases(torch.arange(self.n_coins, device=flips.device))
        sides = torch.tensor([TAILS, HEADS], device=flips.device)
        return Trials(
            tokens=tokens,
            scored=torch.ones_like(tokens, dtype=torch.bool),
            answers=sides,
            predictive=torch.stack([1 - heads, heads], dim=-1),
            belief=belief,
            labels=flips,
            token_sets={"inputs": sides},
            relations={"earlier_flip": (tokens != START)[:, None, :] & self._visible(flips.device)},
        )

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """`uniform` over the two sides; `last_flip`, the posterior after the flip just seen and no other."""
        exact = trials.at_scored(trials.predictive)
        mean, spread = 0.5, self._biases(torch.arange(self.n_coins, device=exact.device)).var(correction=0)
        seen = (trials.tokens == HEADS).double() - (trials.tokens == TAILS).double()
        heads = mean + seen * spread / mean
        return {"uniform": torch.full_like(exact, 0.5), "last_flip": torch.stack([1 - heads, heads], dim=-1)}

    def token_labels(self) -> Sequence[str]:
        return ("start", "tails", "heads")

    def _biases(self, coin: Int64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
        return (coin + 1).double() / (self.n_coins + 1)

    def _belief(self, tokens: Int64[Tensor, "batch pos"]) -> Float64[Tensor, "batch pos coin"]:
        heads, tails = ((tokens == side).cumsum(1).double()[..., None] for side in (HEADS, TAILS))
        bias = self._biases(torch.arange(self.n_coins, device=tokens.device))
        return (heads * bias.log() + tails * torch.log1p(-bias)).softmax(-1)

    def _visible(self, device: torch.device) -> Tensor:
        return torch.ones(self.n_pos, self.n_pos, dtype=torch.bool, device=device).tril()
