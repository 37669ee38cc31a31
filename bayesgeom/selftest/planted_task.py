"""The task of the planted networks: the exact posterior at each position depends only on that position's token.

A token encodes an answer, its probability, and two nuisance values that do not affect the posterior:

    token = (answer a, level l, nuisance g, nuisance k), uniform over all combinations,
    P(a | token) = LEVELS[l], the other answers share the rest equally.

So all moments at a position are finite sums over `n_tokens` tokens and can be computed exactly. Entropy depends on the
level alone; averaged over answers, belief and entropy are uncorrelated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import Trials
from bayesgeom.stats.information import entropy_bits
from bayesgeom.tasks.base import WindTunnel

LEVELS = (0.4, 0.55, 0.7, 0.85, 0.97)  # probability of the named answer
N_ANSWERS, N_G, N_K = 3, 5, 3


@final
@dataclass(frozen=True, kw_only=True)
class PlantedTask(WindTunnel):
    """Independent tokens; the two sequences of a pair share the nuisance and differ in answer and level.

    With `shares_nuisance=False` donors draw their own nuisance, so a swap can transfer it.
    """

    name: ClassVar[str] = "planted"
    length: int = 7
    shares_nuisance: bool = True

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InvalidArgument(f"length must be a positive integer, got {self.length}.")

    @property
    def n_tokens(self) -> int:
        """Number of input tokens; the ids of the answers follow."""
        return N_ANSWERS * len(LEVELS) * N_G * N_K

    @property
    def d_vocab(self) -> int:
        return self.n_tokens + N_ANSWERS

    @property
    def n_pos(self) -> int:
        return self.length

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        return self.trials(self._parts(n, N_ANSWERS * len(LEVELS), generator), self._nuisance(n, generator))

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        nuisance = self._nuisance(n, generator)
        original = self.trials(self._parts(n, N_ANSWERS * len(LEVELS), generator), nuisance)
        others = nuisance if self.shares_nuisance else self._nuisance(n, generator)
        return original, self.trials(self._parts(n, N_ANSWERS * len(LEVELS), generator), others)

    def trials(self, posterior: Int64[Tensor, "batch pos"], nuisance: Int64[Tensor, "batch pos"]) -> Trials:
        """Return the sequences of given (answer, level) and (g, k) pairs, each pair encoded as one number."""
        tokens = posterior * (N_G * N_K) + nuisance
        predictive = beliefs()[tokens.cpu()].to(tokens.device)
        first = self.n_tokens
        return Trials(
            tokens=tokens,
            scored=torch.ones_like(tokens, dtype=torch.bool),
            answers=torch.arange(first, first + N_ANSWERS, device=tokens.device),
            predictive=predictive,
            belief=predictive,
            labels=posterior // len(LEVELS) + first,
            token_sets={"inputs": torch.arange(first, device=tokens.device)},
            relations={},
        )

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return `uniform` over the answers."""
        return {"uniform": torch.full_like(trials.at_scored(trials.predictive), 1 / N_ANSWERS)}

    def token_labels(self) -> Sequence[str]:
        named = [f"a{a}l{level}g{g}k{k}" for a, level, g, k in factors().tolist()]
        return [*named, *(f"answer {answer}" for answer in range(N_ANSWERS))]

    def every_token(self) -> Trials:
        """Return every token once, as sequences of one position: the exact distribution of a position."""
        tokens = torch.arange(self.n_tokens)[:, None]
        return self.trials(tokens // (N_G * N_K), tokens % (N_G * N_K))

    def _parts(self, n: int, n_values: int, generator: torch.Generator) -> Int64[Tensor, "batch pos"]:
        return torch.randint(n_values, (n, self.length), generator=generator, device=generator.device)

    def _nuisance(self, n: int, generator: torch.Generator) -> Int64[Tensor, "batch pos"]:
        return self._parts(n, N_G * N_K, generator)


def factors() -> Int64[Tensor, "token 4"]:
    """Return answer, level, g and k of every token."""
    return torch.cartesian_prod(*(torch.arange(size) for size in (N_ANSWERS, len(LEVELS), N_G, N_K)))


def beliefs() -> Float64[Tensor, "token answer"]:
    """Return the exact posterior at every token."""
    answer, level = factors()[:, 0], factors()[:, 1]
    named = torch.tensor(LEVELS, dtype=torch.float64)[level, None]
    is_named = torch.nn.functional.one_hot(answer, N_ANSWERS).double()
    return is_named * named + (1 - is_named) * (1 - named) / (N_ANSWERS - 1)


def entropies() -> Float64[Tensor, " token"]:
    """Return the exact entropy at every token, in bits."""
    return entropy_bits(beliefs())
