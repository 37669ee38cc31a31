"""One layer of a transformer as the replay computes it: few passes over memory, buffers that are used again."""

import math
from collections.abc import Sequence
from typing import final

import torch
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.models.replay_attention import ReplayAttention, Scratch
from bayesgeom.models.transformer import EPS, MLP, MultiHeadAttention, Norm, Transformer, TransformerConfig

ONES = 8  # columns beside the normed input, of which the first meets the bias; rows stay aligned


@final
class ReplayLayer:
    """The arithmetic of one block, with norm weights folded into the products that follow."""

    def __init__(self, module: Transformer, index: int) -> None:
        self.config = module.config
        attention, mlp = module.get_submodule(f"blocks.{index}.attn"), module.get_submodule(f"blocks.{index}.mlp")
        ln1, ln2 = module.get_submodule(f"blocks.{index}.ln1"), module.get_submodule(f"blocks.{index}.ln2")
        assert isinstance(attention, MultiHeadAttention) and isinstance(mlp, MLP)
        assert isinstance(ln1, Norm) and isinstance(ln2, Norm)
        self._attention = ReplayAttention(module.config)
        with torch.no_grad():
            stacked = torch.cat(
                [attention.W_Q.weight / math.sqrt(self.config.d_head), attention.W_K.weight, attention.W_V.weight]
            )
            self._qkv, self._qkv_bias = self._by_head(*folded(ln1, stacked, None))
            weight, bias = folded(ln2, mlp.W_in.weight, mlp.W_in.bias)
            assert bias is not None, "the MLP has biases"
            # The bias is one more row of the weights, met by a column of ones: to add it apart is a pass over memory.
            self._in, self._in_bias = nn.functional.pad(torch.cat([weight, bias[None]]), (0, 0, 0, ONES - 1)), bias
            self._out, self._out_bias = mlp.W_out.weight.T.contiguous(), mlp.W_out.bias.detach()
            self._o = attention.W_O.weight.T.contiguous()
            # A LayerNorm's mean is linear in its input, so that centring goes into the weights.
            self._mid_in = weight - weight.mean(dim=0) if ln2.is_layernorm else weight
            self._heads_in = self._o @ self._mid_in

    def z(
        self, resid: Float[Tensor, "batch pos d_model"], rows: Int64[Tensor, " query_pos"] | None, scratch: Scratch
    ) -> Float[Tensor, "batch query_pos head d_head"]:
        """Head outputs at all positions, or at `rows` alone."""
        n_heads, x = self.config.n_heads, self._normed(resid, scratch)
        if rows is None:
            q, k, v = self._heads_of(x, slice(None), scratch).chunk(3)
        else:
            asked = torch.index_select(x, 1, rows, out=scratch.take("asked", (len(x), len(rows), x.shape[2]), x))
            q = self._heads_of(asked, slice(0, n_heads), scratch)
            k, v = self._heads_of(x, slice(n_heads, None), scratch).chunk(2)
        return self._attention.z(q, k, v, rows, scratch)

    def attn_out(
        self, z: Float[Tensor, "batch pos head d_head"], scratch: Scratch
    ) -> Float[Tensor, "batch pos d_model"]:
        """What the heads write together."""
        return self._product("attn_out", z.flatten(2), self._o, None, scratch)

    def mlp_out(self, mid: Float[Tensor, "batch pos d_model"], scratch: Scratch) -> Float[Tensor, "batch pos d_model"]:
        """What the MLP writes."""
        hidden = torch.ops.aten.gelu_(self._pre(mid, scratch))
        return self._product("mlp_out", hidden, self._out, self._out_bias, scratch)

    def mid_in(self, mid: Float[Tensor, "batch pos d_model"], scratch: Scratch) -> Float[Tensor, "batch pos d_mlp"]:
        """What enters the MLP before the norm's scale and the bias: linear in `mid`."""
        return self._product("hidden", mid, self._mid_in, None, scratch)

    def mlp_out_of(
        self, mid: Float[Tensor, "batch pos d_model"], mid_in: Float[Tensor, "batch pos d_mlp"], scratch: Scratch
    ) -> Float[Tensor, "batch pos d_model"]:
        """What the MLP writes where the product with `mid` is known. Overwrites `mid_in`."""
        hidden = torch.ops.aten.gelu_(self._biased(mid, mid_in))
        return self._product("mlp_out", hidden, self._out, self._out_bias, scratch)

    def add_attn_out(
        self, resid: Float[Tensor, "batch pos d_model"], z: Float[Tensor, "batch pos head d_head"]
    ) -> None:
        """Add what the heads write together to `resid`, in place."""
        resid.view(-1, self.config.d_model).addmm_(z.reshape(-1, self.config.d_model), self._o)

    def add_mlp_out(self, mid: Float[Tensor, "batch pos d_model"], scratch: Scratch) -> None:
        """Add what the MLP writes to `mid`, in place."""
        self._add_activated(mid, self._pre(mid, scratch))

    def add_mlp_out_of(self, mid: Float[Tensor, "batch pos d_model"], mid_in: Float[Tensor, "batch pos d_mlp"]) -> None:
        """Add what the MLP writes where the product with `mid` is known. Overwrites `mid_in`."""
        self._add_activated(mid, self._biased(mid, mid_in))

    def add_heads(
        self,
        written: Sequence[Float[Tensor, "batch pos _"]],
        substitute: Float[Tensor, "batch pos head d_head"],
        z: Float[Tensor, "batch pos head d_head"],
        heads: tuple[int, ...],
    ) -> None:
        """Add what (substitute − z) of these heads changes, in place: in the residual, and in `mid_in` where given."""
        width = self.config.d_head
        for head in heads:
            change = (substitute[:, :, head] - z[:, :, head]).flatten(0, 1)
            for values, weight in zip(written, (self._o, self._heads_in), strict=False):
                values.view(-1, weight.shape[1]).addmm_(change, weight[head * width : (head + 1) * width])

    def _add_activated(self, mid: Float[Tensor, "batch pos d_model"], pre: Float[Tensor, "batch pos d_mlp"]) -> None:
        hidden = torch.ops.aten.gelu_(pre).flatten(0, 1)
        mid.add_(self._out_bias).view(-1, self.config.d_model).addmm_(hidden, self._out)

    def _heads_of(
        self, x: Float[Tensor, "batch pos d_model"], chosen: slice, scratch: Scratch
    ) -> Float[Tensor, "part batch pos d_head"]:
        """Queries, keys and values, head by head, each contiguous: what products of attention are fastest on."""
        weight = self._qkv[chosen]
        out = scratch.take(f"heads from {chosen.start}", (len(weight), *x.shape[:2], weight.shape[2]), x)
        every = x.flatten(0, 1).expand(len(weight), -1, -1)
        if self._qkv_bias is None:
            torch.bmm(every, weight, out=out.flatten(1, 2))
        else:
            torch.baddbmm(self._qkv_bias[chosen], every, weight, out=out.flatten(1, 2))
        return out

    def _by_head(
        self, weight: Float[Tensor, "d_model all"], bias: Float[Tensor, " all"] | None
    ) -> tuple[Float[Tensor, "part d_model d_head"], Float[Tensor, "part 1 d_head"] | None]:
        width = self.config.d_head
        parted = rearrange(weight, "m (part d) -> part m d", d=width).contiguous()
        return parted, None if bias is None else rearrange(bias, "(part d) -> part 1 d", d=width)

    def _pre(self, mid: Float[Tensor, "batch pos d_model"], scratch: Scratch) -> Float[Tensor, "batch pos d_mlp"]:
        x = scratch.take("with ones", (*mid.shape[:-1], mid.shape[-1] + ONES), mid)
        x[..., self.config.d_model :] = 1.0
        normed(mid, self.config, x[..., : self.config.d_model])
        return self._product("hidden", x, self._in, None, scratch)

    def _biased(
        self, mid: Float[Tensor, "batch pos d_model"], mid_in: Float[Tensor, "batch pos d_mlp"]
    ) -> Float[Tensor, "batch pos d_mlp"]:
        return torch.addcmul(self._in_bias, mid_in, norm_scale(mid, self.config), out=mid_in)

    def _normed(self, x: Float[Tensor, "batch pos d_model"], scratch: Scratch) -> Float[Tensor, "batch pos d_model"]:
        return normed(x, self.config, scratch.take("normed", tuple(x.shape), x))

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


def normed(
    x: Float[Tensor, "batch pos d_model"], config: TransformerConfig, out: Float[Tensor, "batch pos d_model"]
) -> Float[Tensor, "batch pos d_model"]:
    """The norm without its weights, written to `out`."""
    if config.norm == "layernorm":
        return out.copy_(nn.functional.layer_norm(x, x.shape[-1:], eps=EPS))
    return torch.mul(x, norm_scale(x, config), out=out)


def norm_scale(x: Float[Tensor, "batch pos d_model"], config: TransformerConfig) -> Float[Tensor, "batch pos 1"]:
    """What the norm multiplies by."""
    if config.norm == "layernorm":
        return x.var(dim=-1, keepdim=True, correction=0).add_(EPS).rsqrt_()
    # Σx²/d from the 2-norm: one pass to read.
    square: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
    return square.add_(EPS).rsqrt_()


def folded(
    norm: Norm, weight: Float[Tensor, "b a"], bias: Float[Tensor, " b"] | None
) -> tuple[Float[Tensor, "a b"], Float[Tensor, " b"] | None]:
    """Weights of the product that follows an affine norm, as seen from the bare normed input, ready for x @ weight."""
    folded = (weight * norm.w).T.contiguous()
    if not norm.is_layernorm:
        return folded, None if bias is None else bias.detach()
    offset = weight @ norm.b
    return folded, offset if bias is None else offset + bias
