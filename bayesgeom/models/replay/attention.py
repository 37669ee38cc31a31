"""Reused buffers of a replayed layer, and attention in few passes over memory.

At about forty positions torch's fused attention spends most of its time outside the products. Here all heads are
multiplied at once, and the softmax is an exp, a mask, and one product with the result. Buffers and their views are
created once per shape, because a dozen views take as long as a small product.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, final

import torch
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.models.native.positions import causal_mask, rotated
from bayesgeom.models.native.transformer import MultiHeadAttention

Made = TypeVar("Made")

LONGEST = 128  # positions; the fused kernel is faster for longer sequences
MOST_MADE = 1_000  # cached views; a battery needs about a hundred
_SMALLEST, _LARGEST = 1e-25, 1e25  # sums of exponentials that need no shift by the maximum


@final
class Scratch:
    """Named buffers that grow to the largest requested shape: a new large buffer costs a page fault per 4 KiB."""

    def __init__(self) -> None:
        self._stored: dict[str, Tensor] = {}
        self._made: dict[Hashable, Any] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Float[Tensor, "*shape"]:
        """Return an uninitialized buffer. The next `take` of the same name returns the same memory."""
        return self.once((name, shape), lambda: self._grown(name, math.prod(shape), like).view(shape))

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return the result of `make`, cached by key: buffers of this object and views of them."""
        found: Made | None = self._made.get(key)
        if found is not None:
            return found
        made = make()
        if len(self._made) >= MOST_MADE:
            self._made.clear()
        self._made[key] = made
        return made

    def _grown(self, name: str, size: int, like: Tensor) -> Float[Tensor, " size"]:
        stored = self._stored.get(name)
        if stored is None or stored.numel() < size:
            stored = self._stored[name] = like.new_empty(size)
            self._made.clear()  # views would keep the smaller buffer alive
        return stored[:size]


@final
@dataclass(frozen=True, kw_only=True)
class HeadBuffers:
    """Queries (divided by √d_head), keys, values and outputs of some sequences, and buffers for intermediates.

    Intermediate buffers are allocated on first use: long sequences do not need one of size query × position.
    """

    q: Float[Tensor, "head batch query_pos d_head"]
    k: Float[Tensor, "head batch pos d_head"]
    v: Float[Tensor, "head batch pos d_head"]
    out: Float[Tensor, "batch query_pos head d_head"]
    scratch: Scratch

    @cached_property
    def scores(self) -> Float[Tensor, "head batch query_pos pos"]:
        """Scores, then weights."""
        return self.scratch.take("scores", (*self.q.shape[:3], self.k.shape[2]), self.q)

    @cached_property
    def total(self) -> Float[Tensor, "head batch query_pos"]:
        """Sums of weights, then their reciprocals."""
        return self.scratch.take("total", tuple(self.q.shape[:3]), self.q)

    @cached_property
    def summed(self) -> Float[Tensor, "head batch query_pos d_head"]:
        """Weighted sums of values."""
        return self.scratch.take("summed", tuple(self.q.shape), self.q)

    @cached_property
    def score_product(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, transposed keys and scores, one matrix per head and sequence."""
        return self.q.flatten(0, 1), self.k.flatten(0, 1).transpose(1, 2), self.scores.flatten(0, 1)

    @cached_property
    def value_product(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weights, values and weighted sums, one matrix per head and sequence."""
        return self.scores.flatten(0, 1), self.v.flatten(0, 1), self.summed.flatten(0, 1)

    @cached_property
    def normalized(self) -> tuple[Tensor, Tensor]:
        """The factors of `out` in its layout: weighted sums, and `total`."""
        return self.summed.permute(1, 2, 0, 3), self.total.permute(1, 2, 0)[..., None]


@final
class ReplayAttention:
    """Causal attention of one layer, at all positions or at some rows. Masks and biases are cached per length."""

    def __init__(self, module: MultiHeadAttention) -> None:
        self.module, self.config = module, module.config
        self._masks: dict[tuple[int, tuple[int, ...] | None], tuple[Tensor, Tensor | None]] = {}

    def z(self, heads: HeadBuffers, rows: Int64[Tensor, " query_pos"] | None) -> None:
        """Compute the heads' outputs before W_O into `heads.out`: softmax(q·k + bias) v over visible keys."""
        if self.config.positions == "rotary":
            heads = replace(heads, q=self._rotated(heads.q, rows), k=self._rotated(heads.k))
        visible, bias = self._mask(heads.k, rows)
        if heads.k.shape[2] > LONGEST or heads.k.device.type != "cpu":
            hidden = torch.zeros_like(visible).masked_fill_(visible == 0, -math.inf)
            mask = hidden if bias is None else (bias + hidden)[:, None]
            z = nn.functional.scaled_dot_product_attention(heads.q, heads.k, heads.v, attn_mask=mask, scale=1.0)
            heads.out.copy_(rearrange(z, "h b q d -> b q h d"))
            return
        torch.sum(self._scores(heads, bias).exp_().mul_(visible), dim=-1, out=heads.total)
        low, high = (float(end) for end in heads.total.aminmax())
        if not (low > _SMALLEST and high < _LARGEST):  # also where a sum is NaN
            scores = self._scores(heads, bias).masked_fill_(visible == 0, -math.inf)
            torch.sum(scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_(), dim=-1, out=heads.total)
        weights, values, summed = heads.value_product
        torch.bmm(weights, values, out=summed)
        heads.total.reciprocal_()
        torch.mul(*heads.normalized, out=heads.out)

    def _scores(
        self, heads: HeadBuffers, bias: Float[Tensor, "head query_pos pos"] | None
    ) -> Float[Tensor, "head batch query_pos pos"]:
        queries, keys, scores = heads.score_product
        torch.bmm(queries, keys, out=scores)
        return heads.scores if bias is None else heads.scores.add_(bias[:, None])

    def _rotated(
        self, x: Float[Tensor, "head batch pos d_head"], rows: Int64[Tensor, " pos"] | None = None
    ) -> Float[Tensor, "head batch pos d_head"]:
        turned = rotated(rearrange(x, "h b p d -> b p h d"), rows)
        return rearrange(turned, "b p h d -> h b p d").contiguous()

    def _mask(
        self, like: Float[Tensor, "head batch pos d_head"], rows: Int64[Tensor, " query_pos"] | None
    ) -> tuple[Float[Tensor, "query_pos pos"], Float[Tensor, "head query_pos pos"] | None]:
        """The mask (1 for a visible key, 0 otherwise) and the bias that is added to the scores."""
        n_pos = like.shape[2]
        key = (n_pos, None if rows is None else tuple(rows.tolist()))
        if key not in self._masks:
            visible = causal_mask(n_pos, like).to(like.dtype)
            bias = self.module.score_bias(n_pos, like)
            bias = None if bias is None else bias * visible
            if rows is not None:
                visible, bias = visible[rows], None if bias is None else bias[:, rows]
            self._masks[key] = visible, bias
        return self._masks[key]
