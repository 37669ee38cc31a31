"""One layer of a transformer as the replay computes it: few passes over memory, buffers that are used again.

At some forty positions torch's fused attention spends most of its time outside the products: here all heads are
multiplied at once, and the softmax is exp, mask, and one division of the result.
"""

import math
from collections.abc import Sequence
from typing import final

import torch
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.models.positions import causal_mask, rotated
from bayesgeom.models.transformer import EPS, MLP, MultiHeadAttention, Norm, Transformer, TransformerConfig

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
    ) -> Float[Tensor, "batch query_pos head d_head"]:
        """What the heads write before W_O: softmax(q·k + bias) v over visible keys; q comes divided by √d."""
        if self.config.positions == "rotary":
            q, k = self._rotated(q, rows), self._rotated(k)
        visible, bias = self._mask(k, rows)
        if k.shape[2] > LONGEST or k.device.type != "cpu":
            hidden = torch.zeros_like(visible).masked_fill_(visible == 0, -math.inf)
            mask = hidden if bias is None else (bias + hidden)[:, None]
            z = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
            return rearrange(z, "h b q d -> b q h d").contiguous()
        weights = self._scores(q, k, bias, scratch).exp_().mul_(visible)
        total = weights.sum(dim=-1)
        low, high = (float(end) for end in total.aminmax())
        if not (low > _SMALLEST and high < _LARGEST):  # also where a sum is NaN
            scores = self._scores(q, k, bias, scratch).masked_fill_(visible == 0, -math.inf)
            weights = scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_()
            total = weights.sum(dim=-1)
        summed = scratch.take("summed", tuple(q.shape), q)
        torch.bmm(weights.flatten(0, 1), v.flatten(0, 1), out=summed.flatten(0, 1))
        z = scratch.take("z", (*q.shape[1:3], *q.shape[::3]), q)
        return torch.div(summed.permute(1, 2, 0, 3), total.permute(1, 2, 0)[..., None], out=z)

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


@final
class ReplayLayer:
    """The arithmetic of one block, with norm weights folded into the products that follow."""

    def __init__(self, module: Transformer, index: int) -> None:
        self.config = module.config
        attention, mlp = module.get_submodule(f"blocks.{index}.attn"), module.get_submodule(f"blocks.{index}.mlp")
        ln1, ln2 = module.get_submodule(f"blocks.{index}.ln1"), module.get_submodule(f"blocks.{index}.ln2")
        assert isinstance(attention, MultiHeadAttention) and isinstance(mlp, MLP)
        assert isinstance(ln1, Norm) and isinstance(ln2, Norm)
        self._attention = ReplayAttention(attention)
        with torch.no_grad():
            stacked = torch.cat(
                [attention.W_Q.weight / math.sqrt(self.config.d_head), attention.W_K.weight, attention.W_V.weight]
            )
            self._qkv, self._qkv_bias = self._by_head(*folded(ln1, stacked, None))
            self._in, in_bias = folded(ln2, mlp.W_in.weight, mlp.W_in.bias)
            self._out, self._out_bias = mlp.W_out.weight.T.contiguous(), mlp.W_out.bias.detach()
            self._o = attention.W_O.weight.T.contiguous()
            assert in_bias is not None, "the MLP has biases"
            self._in_bias = in_bias
            # A LayerNorm's mean is linear in its input, so that centring goes into the weights.
            self._mid_in = self._in - self._in.mean(dim=0) if ln2.is_layernorm else self._in
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

    def mid_in(
        self, mid: Float[Tensor, "batch pos d_model"], out: Float[Tensor, "batch pos d_mlp"]
    ) -> Float[Tensor, "batch pos d_mlp"]:
        """What enters the MLP before the norm's scale and the bias, into `out`: linear in `mid`."""
        torch.mm(mid.reshape(-1, self.config.d_model), self._mid_in, out=out.view(-1, self.config.d_mlp))
        return out

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
        return self._product("hidden", self._normed(mid, scratch), self._in, self._in_bias, scratch)

    def _biased(
        self, mid: Float[Tensor, "batch pos d_model"], mid_in: Float[Tensor, "batch pos d_mlp"]
    ) -> Float[Tensor, "batch pos d_mlp"]:
        return torch.addcmul(self._in_bias, mid_in, norm_scale(mid, self.config), out=mid_in)

    def _normed(self, x: Float[Tensor, "batch pos d_model"], scratch: Scratch) -> Float[Tensor, "batch pos d_model"]:
        return normed(x, self.config, scratch)

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
    x: Float[Tensor, "batch pos d_model"], config: TransformerConfig, scratch: Scratch
) -> Float[Tensor, "batch pos d_model"]:
    """The norm without its weights."""
    if config.norm == "layernorm":
        return nn.functional.layer_norm(x, x.shape[-1:], eps=EPS)
    return torch.mul(x, norm_scale(x, config), out=scratch.take("normed", tuple(x.shape), x))


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
