"""Sequences with common beginnings: a language model runs every different beginning once, by its key-value cache.

The tree of beginnings is cut where sequences part. Between two cuts, every different beginning is one row of a pass,
which continues the cached keys and values of the row before it. Where to cut is a trade-off: a pass more, or tokens
that several rows compute each. The number of tokens decides, with a price for every pass.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from bayesgeom.core import Trials

CACHE_BYTES = 128 * 2**20  # keys and values of the sequences that run together
LEAST_SAVED = 0.2  # share of the tokens that must be saved: passes over few tokens are slower per token
_PASS_TOKENS = {"cpu": 32, "cuda": 2048}  # tokens that cost as much as the fixed part of a pass

# Runs tokens from a position on, after a cache, and returns the logits at some positions and the longer cache.
Continued = Callable[[Tensor, int, Tensor, Any], tuple[Tensor, Any]]


@final
class Prefixes:
    """The passes of one model over sequences with common beginnings, once they were seen to give its own logits.

    Args:
        continued: The model's forward pass after a cache.
        whole: Its whole pass: the logits at the scored positions.
        tolerance: Largest error relative to the largest logit.
        token_bytes: Bytes of the keys and values of a token, over all layers.
    """

    def __init__(
        self, continued: Continued, whole: Callable[[Trials], Tensor], *, tolerance: float, token_bytes: int
    ) -> None:
        self._continued, self._whole, self._tolerance, self._token_bytes = continued, whole, tolerance, token_bytes
        self.is_exact: bool | None = None  # whether they gave those logits; None until it is tried

    @torch.no_grad()
    def logits(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"] | None:
        """Return the logits at the scored positions. None: the model has no such cache, or it would save too little."""
        if self.is_exact is False or len(trials) < 2:
            return None
        ends = trials.ends()
        tokens = trials.tokens[:, : int(ends.max())]
        numbers = beginnings(tokens)
        price = _PASS_TOKENS.get(tokens.device.type, _PASS_TOKENS["cuda"])
        counts = [int(number.max()) + 1 for number in numbers]

        def running(start: int, stop: int) -> int:
            return len(numbers[stop - 1][ends > start].unique())

        cuts, cost = cheapest_cuts(counts, price, running if (ends != ends[0]).any() else None)
        if cost > (1 - LEAST_SAVED) * tokens.numel() + price:
            return None
        order = numbers[-1].argsort(stable=True)  # neighbors have the most in common
        if self.is_exact is None:
            self.is_exact = self._is_proved(trials.rows(order[[0, 0, -1]]), cuts)
        if not self.is_exact:
            return None
        most = max(running(start, stop) for start, stop in pairwise([0, *cuts]))  # beginnings that run together
        at_once = max(1, CACHE_BYTES // (self._token_bytes * tokens.shape[1]) * len(trials) // most)
        parts = [self._by_parts(trials.rows(rows), cuts) for rows in order.split(at_once)]
        return torch.cat([part for part in parts if part is not None])[order.argsort()]

    def _is_proved(self, trials: Trials, cuts: Sequence[int]) -> bool:
        """Whether the passes from cut to cut give the logits of whole passes, on these sequences."""
        logits = self._by_parts(trials, cuts)
        if logits is None:
            return False
        whole = self._whole(trials).double()
        return bool((logits.double() - whole).abs().max() <= self._tolerance * whole.abs().max())

    def _by_parts(self, trials: Trials, cuts: Sequence[int]) -> Float[Tensor, "batch query_pos d_vocab"] | None:
        """Run the parts between two cuts, one after another; None if the model returns no cache of keys and values."""
        numbers, at, ends = beginnings(trials.tokens[:, : cuts[-1]]), trials.scored_positions(), trials.ends()
        cache, row, gathered = None, torch.zeros(len(trials), dtype=torch.int64, device=at.device), None
        for start, stop in pairwise([0, *cuts]):
            # Each different beginning, at the first of its sequences; sequences that have ended run no further.
            runs = (ends > start).nonzero()[:, 0]
            if not len(runs):  # a few of the sequences may all end before the last cut
                break
            _, place = numbers[stop - 1][runs].unique(return_inverse=True)
            first = torch.full((int(place.max()) + 1,), len(trials), device=at.device)
            first = runs[first.scatter_reduce(0, place, torch.arange(len(runs), device=at.device), "amin")]
            if cache is not None:
                cache.batch_select_indices(row[first].cpu())
            row[runs] = place
            is_here = (at >= start) & (at < stop) & (ends > start)[:, None]
            kept = at[is_here].unique()
            logits, cache = self._continued(trials.tokens[first, :stop], start, kept - start, cache)
            if not _is_indexable(cache):
                return None
            if gathered is None:
                gathered = logits.new_empty(*at.shape, logits.shape[-1])
            sequence, query = is_here.nonzero(as_tuple=True)
            gathered[sequence, query] = logits[row[sequence], torch.searchsorted(kept, at[is_here])]
        return gathered


def beginnings(tokens: Int64[Tensor, "batch pos"]) -> list[Int64[Tensor, " batch"]]:
    """Return, for every length from 1 on, the number of each sequence's beginning in their lexicographic order.

    Example:
        >>> [own.tolist() for own in beginnings(torch.tensor([[3, 5], [3, 4], [2, 9]]))]
        [[1, 1, 0], [2, 1, 0]]
    """
    number, numbers = torch.zeros_like(tokens[:, 0]), list[Tensor]()
    width = int(tokens.max()) + 1
    for column in tokens.T:
        if not numbers or int(number.max()) + 1 < len(tokens):  # else each is different, and in order
            _, number = (number * width + column).unique(return_inverse=True)
        numbers.append(number)
    return numbers


def cheapest_cuts(
    counts: Sequence[int], price: int, running: Callable[[int, int], int] | None = None
) -> tuple[list[int], int]:
    """Return the lengths at which to cut, the last one included, and their cost in tokens.

    Args:
        counts: Number of different beginnings of each length from 1 on; it never falls.
        price: What a pass costs without its tokens.
        running: How many of them run from one length to another, if sequences end before. Default: all.

    Example:
        >>> cheapest_cuts([1, 1, 1, 5], price=2)
        ([3, 4], 12)
        >>> cheapest_cuts([5, 5, 5, 5], price=2)
        ([4], 22)
    """
    places = [0, *(length for length, (now, then) in enumerate(pairwise(counts), start=1) if then > now), len(counts)]
    best: dict[int, tuple[int, int]] = {0: (0, 0)}  # cost, and the cut before

    def options(stop: int) -> Iterator[tuple[int, int]]:
        for start in (place for place in places if place < stop):
            rows = counts[stop - 1] if running is None else running(start, stop)
            yield best[start][0] + price + rows * (stop - start), start

    for stop in places[1:]:
        best[stop] = min(options(stop))
    cuts = list[int]()
    stop = places[-1]
    while stop:
        cuts.insert(0, stop)
        stop = best[stop][1]
    return cuts, best[places[-1]][0]


def _is_indexable(cache: Any) -> bool:
    """Whether this is a cache of keys and values alone, whose rows can be chosen."""
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    return type(cache) is DynamicCache and {type(layer) for layer in cache.layers} <= {
        DynamicLayer,
        DynamicSlidingWindowLayer,
    }
