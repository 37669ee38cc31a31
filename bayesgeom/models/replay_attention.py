"""What a replayed layer works with: buffers that are used again, and attention in few passes over memory.

At some forty positions torch's fused attention spends most of its time outside the products: here all heads are
multiplied at once, and the softmax is exp, mask, and one division of the result.
"""

import math
from typing import final

import torch
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.models.positions import causal_mask, rotated
from bayesgeom.models.transformer import MultiHeadAttention

LONGEST = 128  # positions; beyond, the fused kernel is faster
_SMALLEST, _LARGEST = 1e-25, 1e25  # sums of exponentials that need no shift by the maximum


@final
class Scratch:
    """Named buffers, grown to the largest shape asked for: fresh large ones cost a page fault per 4 KiB."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Float[Tensor, "*shape"]:
        """An uninitialised buffer; the next `take` of this name gives the same memory."""
        size, held = math.prod(shape), self._held.get(name)
        if held is None or held.numel() < size:
            held = self._held[name] = like.new_empty(size)
        return held[:size].view(shape)


@final
class ReplayAttention:
    """Causal attention of one layer, at all positions or at some rows. Masks and biases are made once per length."""

    def __init__(self, module: MultiHeadAttention) -> None:
        self.module, self.config = module, module.config
        self._masks: dict[tuple[int, tuple[int, ...] | None], tuple[Tensor, Tensor | None]] = {}

    def z(
        self,
        q: Float[Tensor, "head batch query_pos d_head"],
        k: Float[Tensor, "head batch pos d_head"],
        v: Float[Tensor, "head batch pos d_head"],
        rows: Int64[Tensor, " query_pos"] | None,
        scratch: Scratch,
        out: Float[Tensor, "batch query_pos head d_head"],
    ) -> None:
        """What the heads write before W_O, into `out`: softmax(q·k + bias) v over visible keys; q comes over √d."""
        if self.config.positions == "rotary":
            q, k = self._rotated(q, rows), self._rotated(k)
        visible, bias = self._mask(k, rows)
        if k.shape[2] > LONGEST or k.device.type != "cpu":
            hidden = torch.zeros_like(visible).masked_fill_(visible == 0, -math.inf)
            mask = hidden if bias is None else (bias + hidden)[:, None]
            z = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
            out.copy_(rearrange(z, "h b q d -> b q h d"))
            return
        weights = self._scores(q, k, bias, scratch).exp_().mul_(visible)
        total = weights.sum(dim=-1)
        low, high = (float(end) for end in total.aminmax())
        if not (low > _SMALLEST and high < _LARGEST):  # also where a sum is NaN
            scores = self._scores(q, k, bias, scratch).masked_fill_(visible == 0, -math.inf)
            weights = scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_()
            total = weights.sum(dim=-1)
        summed = scratch.take("summed", tuple(q.shape), q)
        torch.bmm(weights.flatten(0, 1), v.flatten(0, 1), out=summed.flatten(0, 1))
        torch.div(summed.permute(1, 2, 0, 3), total.permute(1, 2, 0)[..., None], out=out)

    def _scores(
        self,
        q: Float[Tensor, "head batch query_pos d_head"],
        k: Float[Tensor, "head batch pos d_head"],
        bias: Float[Tensor, "head query_pos pos"] | None,
        scratch: Scratch,
    ) -> Float[Tensor, "head batch query_pos pos"]:
        scores = scratch.take("scores", (*q.shape[:3], k.shape[2]), q)
        torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), out=scores.flatten(0, 1))
        return scores if bias is None else scores.add_(bias[:, None])

    def _rotated(
        self, x: Float[Tensor, "head batch pos d_head"], rows: Int64[Tensor, " pos"] | None = None
    ) -> Float[Tensor, "head batch pos d_head"]:
        turned = rotated(rearrange(x, "h b p d -> b p h d"), rows)
        return rearrange(turned, "b p h d -> h b p d").contiguous()

    def _mask(
        self, like: Float[Tensor, "head batch pos d_head"], rows: Int64[Tensor, " query_pos"] | None
    ) -> tuple[Float[Tensor, "query_pos pos"], Float[Tensor, "head query_pos pos"] | None]:
        """1 where a key may be seen, 0 elsewhere; what is added to the scores."""
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
