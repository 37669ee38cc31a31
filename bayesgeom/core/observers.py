"""Window observers: exact filters of a process with a hidden state that see only the last w symbols.

A model that predicts well may carry a belief from step to step, or reread the last few symbols. A window observer is
the best predictor of the second kind. Its prior over hidden states is independent of the sequence: uniform, or the
stationary distribution of the chain. The advantage of a model over the window observer of width w is what it gains from
symbols before the last w.

A window that reaches the first symbol uses the initial distribution there, so it equals the exact filter.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

STARTS = ("uniform", "stationary")
_LEAST = 1e-9  # share of the uniform distribution mixed into a prior with zeros, so that every window is possible

Beliefs = Float64[Tensor, "batch query_pos state"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Filter:
    """The exact filter of each sequence, as steps that can start at any scored position.

    Beliefs are given at consecutive scored positions; the integer argument is the index of the first one. The returned
    beliefs need not be normalized.

    Attributes:
        priors: By start, the distribution of the hidden state before the first symbol of a window, per sequence;
            "initial" for the first symbol of the sequence.
        weighed: Returns the beliefs after the first symbol of windows that begin at these positions.
        moved: Returns the beliefs after one more symbol, the one at these positions.
        answers: Returns the predictive over the task's answers for a belief.
        labeled: The labeled matrices, if they are the same in all sequences and steps; see `belief_states`.
    """

    priors: Mapping[str, Float64[Tensor, "#batch state"]]
    weighed: Callable[[Beliefs, int], Beliefs]
    moved: Callable[[Beliefs, int], Beliefs]
    answers: Callable[[Beliefs], Float64[Tensor, "batch query_pos answer"]]
    labeled: Float64[Tensor, "symbol state state"] | None = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class WindowObservers:
    """The filter of a batch of sequences, computed on first access: `draw(of)`, where `of` has one row per sequence."""

    draw: Callable[[Shaped[Tensor, "batch *rest"]], Filter]
    of: Shaped[Tensor, "batch *rest"]

    def rows(self, index: slice | Int64[Tensor, " row"]) -> "WindowObservers":
        """Return the observers of the chosen sequences."""
        return WindowObservers(draw=self.draw, of=self.of[index])

    def and_of(self, others: Sequence["WindowObservers"]) -> "WindowObservers":
        """Return the observers of these sequences followed by others of the same task and length."""
        return WindowObservers(draw=self.draw, of=torch.cat([self.of, *(other.of for other in others)]))

    @cached_property
    def filter(self) -> Filter:
        """The filter of these sequences."""
        return self.draw(self.of)


def exact_beliefs(own: Filter, n: int, length: int, *, discount: float = 1.0) -> Beliefs:
    """Return the exact belief of `n` sequences at each of `length` scored positions.

    With a discount below 1, the belief is raised to this power before each symbol: evidence is forgotten.
    """
    beliefs = [_normalized(own.weighed(own.priors["initial"].expand(n, -1)[:, None, :], 0))]
    for at in range(1, length):
        before = beliefs[-1] if discount == 1 else _normalized(beliefs[-1] ** discount)
        beliefs.append(_normalized(own.moved(before, at)))
    return torch.cat(beliefs, dim=1)


def window_beliefs(own: Filter, exact: Beliefs, start: str) -> Iterator[Beliefs]:
    """Yield the beliefs of the window observer of width w = 0, 1, 2, … up to the number of scored positions.

    Width 0 is the prior alone. Each width is computed from the previous one, for all positions at once. So all widths
    of a sequence of L symbols cost L filter steps over at most L positions.

    Args:
        own: The filter of these sequences.
        exact: The exact beliefs, used for windows that reach the first symbol.
        start: Prior of the windows: one of `STARTS`.

    Yields:
        Beliefs at every scored position.
    """
    length = exact.shape[1]
    prior = own.priors[start].expand(len(exact), -1)[:, None, :]
    yield prior.expand_as(exact)
    belief = _normalized(own.weighed(prior.expand(-1, length - 1, -1), 1))  # windows that begin at the second symbol on
    for width in range(1, length + 1):
        yield torch.cat([exact[:, :width], belief], dim=1)
        if width < length:
            belief = _normalized(own.moved(belief[:, :-1], width + 1))


def full_support(prior: Float64[Tensor, "*batch state"]) -> Float64[Tensor, "*batch state"]:
    """Return the prior mixed with a share of 1e-9 of the uniform distribution if it has zeros.

    A chain that is not yet stationary may be in a state of stationary probability 0. Its symbols must remain possible.
    """
    rules_out = (prior <= 0).any(dim=-1, keepdim=True)
    return torch.where(rules_out, (1 - _LEAST) * prior + _LEAST / prior.shape[-1], prior)


def _normalized(weights: Beliefs) -> Beliefs:
    return weights / weights.sum(dim=-1, keepdim=True)
