"""Window observers: the exact filter of a process with a hidden state that sees only the last w symbols.

A model that predicts well may carry a belief from step to step, or reread the last few symbols. A window observer does
the second as well as it can be done. It starts from a prior over hidden states that says nothing about the sequence:
uniform, or the stationary distribution of the sequence's own chain. What a model owes to anything before the last w
symbols is its advantage over the window observer of width w.

A window that reaches back to the first symbol knows that the sequence starts there, so it equals the exact filter.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

STARTS = ("uniform", "stationary")
_LEAST = 1e-9  # share of the uniform distribution in a prior that rules states out: a real window is then possible

Beliefs = Float64[Tensor, "batch query_pos state"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Filter:
    """The exact filter of each sequence, in steps that can begin at any scored position.

    Beliefs stand at consecutive scored positions; the integer is the index of the first of them. Steps need not
    normalize.

    Attributes:
        priors: By start, the distribution of the hidden state before the first symbol of a window, per sequence.
        weighed: Beliefs after the first symbol of windows that begin at these positions.
        moved: Beliefs after one more symbol, the one at these positions.
        answers: The predictive over the task's answers that follows from a belief.
    """

    priors: Mapping[str, Float64[Tensor, "#batch state"]]
    weighed: Callable[[Beliefs, int], Beliefs]
    moved: Callable[[Beliefs, int], Beliefs]
    answers: Callable[[Beliefs], Float64[Tensor, "batch query_pos answer"]]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class WindowObservers:
    """The filter of a batch of sequences, made when first read; `draw` makes it of one tensor with a row each."""

    draw: Callable[[Shaped[Tensor, "batch *rest"]], Filter]
    of: Shaped[Tensor, "batch *rest"]

    def rows(self, index: slice | Int64[Tensor, " row"]) -> "WindowObservers":
        """Return those of the chosen sequences."""
        return WindowObservers(draw=self.draw, of=self.of[index])

    def and_of(self, others: Sequence["WindowObservers"]) -> "WindowObservers":
        """Return those of these sequences followed by others of the same task and length."""
        return WindowObservers(draw=self.draw, of=torch.cat([self.of, *(other.of for other in others)]))

    @cached_property
    def filter(self) -> Filter:
        """The filter of these sequences."""
        return self.draw(self.of)


def window_beliefs(own: Filter, exact: Beliefs, start: str) -> Iterator[Beliefs]:
    """Yield the beliefs of the window observer of width w = 0, 1, 2, … up to the number of scored positions.

    Width 0 is the prior alone. All windows of one width are advanced together, and each width from the one before, so
    that all widths of a sequence of L symbols cost L filter steps over at most L positions.

    Args:
        own: The filter of these sequences.
        exact: The exact beliefs, which a window has that reaches the first symbol.
        start: Where windows start: one of `STARTS`.

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
    """Return the prior, with a share of 1e-9 of the uniform one where it rules a state out.

    A chain that has not settled yet may be in a state that the stationary distribution rules out. What it shows there
    must stay possible.
    """
    rules_out = (prior <= 0).any(dim=-1, keepdim=True)
    return torch.where(rules_out, (1 - _LEAST) * prior + _LEAST / prior.shape[-1], prior)


def _normalized(weights: Beliefs) -> Beliefs:
    return weights / weights.sum(dim=-1, keepdim=True)
