"""One layer of a transformer as the replay computes it: few passes over memory, buffers that are used again."""

import math
from typing import final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.models.transformer import (
    EPS,
    MLP,
    MultiHeadAttention,
    Norm,
    Transformer,
    alibi_bias,
    causal_mask,
    rotated,
)


@final
class Scratch:
    """Named buffers, made once per shape: fresh large ones cost a page fault per 4 KiB.

    With `is_kept=False` each is made anew.
    """

    def __init__(self, *, is_kept: bool = True) -> None:
        self._is_kept = is_kept
        self._held: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Float[Tensor, "*shape"]:
        """An uninitialised buffer; the next `take` of the same name and shape gives the same memory."""
        if not self._is_kept:
            return like.new_empty(shape)
        if (name, shape) not in self._held:
            self._held[name, shape] = like.new_empty(shape)
        return self._held[name, shape]


@final
class ReplayLayer:
    """The arithmetic of one block, with norm weights folded into the products that follow."""

    def __init__(self, module: Transformer, index: int) -> None:
        self.config = module.config
        attention, mlp = module.get_submodule(f"blocks.{index}.attn"), module.get_submodule(f"blocks.{index}.mlp")
        ln1, ln2 = module.get_submodule(f"blocks.{index}.ln1"), module.get_submodule(f"blocks.{index}.ln2")
        assert isinstance(attention, MultiHeadAttention) and isinstance(mlp, MLP)
        assert isinstance(ln1, Norm) and isinstance(ln2, Norm)
        with torch.no_grad():
            stacked = torch.cat([attention.W_Q.weight, attention.W_K.weight, attention.W_V.weight])
            self._qkv, self._qkv_bias = _folded(ln1, stacked, None)
            self._in, self._in_bias = _folded(ln2, mlp.W_in.weight, mlp.W_in.bias)
            self._out, self._out_bias = mlp.W_out.weight.T.contiguous(), mlp.W_out.bias.detach()
            self._o = attention.W_O.weight.T.contiguous()

    def z(
        self, resid: Float[Tensor, "batch pos d_model"], rows: Int64[Tensor, " query_pos"] | None, scratch: Scratch
    ) -> Float[Tensor, "batch query_pos head d_head"]:
        """Head outputs at all positions, or at `rows` alone."""
        d, n_heads = self.config.d_model, self.config.n_heads
        x = self._normed(resid, scratch)
        if rows is None:
            q, k, v = self._product("qkv", x, self._qkv, self._qkv_bias, scratch).split(d, dim=-1)
        else:
            q = self._product("q", x[:, rows], self._qkv[:, :d], self._qkv_bias[:d], scratch)
            k, v = self._product("kv", x, self._qkv[:, d:], self._qkv_bias[d:], scratch).split(d, dim=-1)
        q, k, v = (part.unflatten(-1, (n_heads, -1)) for part in (q, k, v))
        if self.config.positions == "rotary":
            q, k = rotated(q, rows), rotated(k)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        mask = self._mask(resid, rows)
        z = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return z.transpose(1, 2)

    def attn_out(
        self, z: Float[Tensor, "batch pos head d_head"], scratch: Scratch
    ) -> Float[Tensor, "batch pos d_model"]:
        """What the heads write together."""
        return self._product("attn_out", z.flatten(2), self._o, None, scratch)

    def mlp_out(self, mid: Float[Tensor, "batch pos d_model"], scratch: Scratch) -> Float[Tensor, "batch pos d_model"]:
        """What the MLP writes."""
        hidden = self._product("hidden", self._normed(mid, scratch), self._in, self._in_bias, scratch)
        torch.ops.aten.gelu_(hidden)
        return self._product("mlp_out", hidden, self._out, self._out_bias, scratch)

    def add_heads(
        self,
        mid: Float[Tensor, "batch pos d_model"],
        substitute: Float[Tensor, "batch pos head d_head"],
        z: Float[Tensor, "batch pos head d_head"],
        heads: tuple[int, ...],
    ) -> None:
        """Add (substitute − z) W_O of these heads to `mid`, in place."""
        width = self.config.d_head
        for head in heads:
            change = (substitute[:, :, head] - z[:, :, head]).flatten(0, 1)
            mid.view(-1, self.config.d_model).addmm_(change, self._o[head * width : (head + 1) * width])

    def _normed(self, x: Float[Tensor, "batch pos d_model"], scratch: Scratch) -> Float[Tensor, "batch pos d_model"]:
        if self.config.norm == "layernorm":
            return nn.functional.layer_norm(x, x.shape[-1:], eps=EPS)
        # Σx²/d + ε from the 2-norm: one pass to read, one to write.
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(EPS)
        return torch.mul(x, square.rsqrt_(), out=scratch.take("normed", tuple(x.shape), x))

    def _product(
        self,
        name: str,
        x: Float[Tensor, "batch pos a"],
        weight: Float[Tensor, "a b"],
        bias: Float[Tensor, " b"] | None,
        scratch: Scratch,
    ) -> Float[Tensor, "batch pos b"]:
        out = scratch.take(name, (*x.shape[:-1], weight.shape[1]), x)
        flat, rows = out.view(-1, weight.shape[1]), x.reshape(-1, len(weight))
        if bias is None:
            torch.mm(rows, weight, out=flat)
        else:
            torch.addmm(bias, rows, weight, out=flat)
        return out

    def _mask(self, like: Tensor, rows: Int64[Tensor, " query_pos"] | None) -> Float[Tensor, "..."] | None:
        """What is added to the scores; nothing where plain causality says it all."""
        n_pos = like.shape[1]
        if rows is None and self.config.positions != "alibi":
            return None
        visible = causal_mask(n_pos, like)
        bias = torch.zeros(1, n_pos, n_pos, dtype=like.dtype, device=like.device)
        if self.config.positions == "alibi":
            bias = alibi_bias(self.config.n_heads, n_pos, like)
        bias = bias.masked_fill(~visible, -math.inf)
        return bias if rows is None else bias[:, rows]


def _folded(
    norm: Norm, weight: Float[Tensor, "b a"], bias: Float[Tensor, " b"] | None
) -> tuple[Float[Tensor, "a b"], Float[Tensor, " b"]]:
    """Weights of the product that follows an affine norm, as seen from the bare normed input, ready for x @ weight."""
    offset = weight @ norm.b if norm.is_layernorm else weight.new_zeros(len(weight))
    return (weight * norm.w).T.contiguous(), (offset if bias is None else offset + bias).detach()
