"""The sticky Markov chain on a ring, its noisy inputs, and the exact filter.

A symbol is followed by itself or by another symbol, with lower probability the farther away it is on the ring. The
input at a step is the embedding of the previous symbol plus noise; the task is to predict the current symbol. Two lower
bounds are exact: the entropy rate H(Y | Y₋), which no predictor beats on average, and the loss of the filter that
infers Y₋ from noisy inputs.

References: Agarwal, Dalal & Misra 2025, Paper II, section 5.2; the authors' code adds the nominal self-probability to a
diagonal that the normalizer already contains, so its chain has self-probability 0.350 instead of 0.3.
"""

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.tasks.base import derived_seed

Diagonal = Literal["counted twice", "as stated"]
_EMBEDDING = 0  # branch of the chain's own seed
_FIRST, _STEPS, _NOISE = 0, 1, 2  # branches of a sequence's seed


@final
@dataclass(frozen=True, kw_only=True)
class Sequence:
    """Inputs and labels of one sequence; `floor_nats` is the loss of the exact filter on these symbols."""

    inputs: Float[Tensor, "pos d_input"]
    symbols: Int64[Tensor, " pos"]
    floor_nats: float


@final
@dataclass(frozen=True, kw_only=True)
class StickyChain:
    """Symbols on a ring; `diagonal` "counted twice" is the authors' matrix, "as stated" has self-probability 0.3."""

    diagonal: Diagonal
    n_symbols: int = 8
    self_probability: float = 0.3
    d_input: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_symbols < 2 or self.d_input < 1 or not 0 < self.self_probability < 1:
            raise InvalidArgument(
                f"a chain needs at least 2 symbols and a self-probability between 0 and 1; got {self}."
            )
        if self.diagonal not in ("counted twice", "as stated"):
            raise InvalidArgument(f"diagonal must be 'counted twice' or 'as stated'; got {self.diagonal!r}.")

    def transition(self) -> Float64[Tensor, "before after"]:
        """Return P(next symbol | symbol); rows sum to one."""
        place = torch.arange(self.n_symbols)
        apart = (place[:, None] - place).abs()
        distance = torch.minimum(apart, self.n_symbols - apart).double()
        own = self.self_probability if self.diagonal == "counted twice" else 0.0
        weight = torch.where(distance == 0, own, 1 / distance.clamp_min(1))
        moved = weight / weight.sum(dim=1, keepdim=True)
        return (1 - self.self_probability) * moved + self.self_probability * torch.eye(self.n_symbols).double()

    def entropy_rate_nats(self) -> float:
        """Return H(Y | Y₋) in nats; on a ring all symbols are equally frequent."""
        p = self.transition()
        return float(-torch.xlogy(p, p).sum(dim=1).mean())

    def embeddings(self) -> Float64[Tensor, "symbol d_input"]:
        """Return μ, drawn from N(0, I) with the chain's seed: the same for every sequence."""
        generator = torch.Generator().manual_seed(derived_seed(self.seed, _EMBEDDING))
        return torch.randn(self.n_symbols, self.d_input, generator=generator, dtype=torch.float64)

    def sequence(self, length: int, *, seed: int) -> Sequence:
        """Return `length` inputs x_t = μ(previous symbol) + N(0, I), with the current symbol as label."""
        if length < 2:
            raise InvalidArgument(f"length must be at least 2, got {length}.")
        first, steps, noise = (
            torch.Generator().manual_seed(derived_seed(seed, branch)) for branch in (_FIRST, _STEPS, _NOISE)
        )
        symbols = [int(torch.randint(self.n_symbols, (1,), generator=first))]
        below = self.transition().cumsum(dim=1)
        for chance in torch.rand(length, generator=steps, dtype=torch.float64):
            after = int(torch.searchsorted(below[symbols[-1]], chance))
            symbols.append(min(after, self.n_symbols - 1))  # the last sum can be below 1 by rounding
        path = torch.tensor(symbols)
        noisy = self.embeddings()[path[:-1]]
        inputs = noisy + torch.randn(noisy.shape, generator=noise, dtype=torch.float64)
        return Sequence(inputs=inputs, symbols=path[1:], floor_nats=self._filter_nats(inputs, path[1:]))

    def predictive(self, inputs: Float64[Tensor, "pos d_input"]) -> Float64[Tensor, "pos symbol"]:
        """Return P(current symbol | inputs so far) by the forward algorithm, with Gaussian evidence."""
        evidence = -0.5 * torch.cdist(inputs, self.embeddings()).square()
        log_transition, log_belief = self.transition().log(), torch.full((self.n_symbols,), -math.log(self.n_symbols))
        predicted, log_belief = [], log_belief.double()
        for row in evidence:
            log_belief = (log_belief + row).log_softmax(dim=0)
            log_belief = (log_belief[:, None] + log_transition).logsumexp(dim=0)
            predicted.append(log_belief.exp())
        return torch.stack(predicted)

    def _filter_nats(self, inputs: Float64[Tensor, "pos d_input"], symbols: Int64[Tensor, " pos"]) -> float:
        exact = self.predictive(inputs)
        return float(-exact[torch.arange(len(symbols)), symbols].log().mean())
