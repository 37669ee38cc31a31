"""One layer of a transformer for the replay: few passes over memory, and reused buffers."""

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
from bayesgeom.models.native.transformer import EPS, MLP, MultiHeadAttention, Norm, Transformer, TransformerConfig

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

        def grown() -> Tensor:
            stored, size = self._stored.get(name), math.prod(shape)
            if stored is None or stored.numel() < size:
                stored = self._stored[name] = like.new_empty(size)
                self._made.clear()  # views would keep the smaller buffer alive
            return stored[:size].view(shape)

        return self.once((name, shape), grown)

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


ATTENTION_ROWS = 500  # rows per thread, so that q, k, v and scores stay in its cache: saves 3 % of a replay
_LINE = 16  # float32 numbers per cache line: rows that start on a line are written faster


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
            weight, bias = self._by_head(*folded(ln1, stacked, None))
            parts = [slice(None)], [slice(attention.config.n_heads), slice(attention.config.n_heads, None)]
            # All positions: q, k and v in one product. Some rows: q at these rows, k and v at all positions.
            self._projections = {
                whole: [(weight[part], None if bias is None else bias[part]) for part in of]
                for whole, of in zip((True, False), parts, strict=True)
            }
            into_mlp, in_bias = folded(ln2, mlp.W_in.weight, mlp.W_in.bias)
            self._out, self._out_bias = mlp.W_out.weight.T.contiguous(), mlp.W_out.bias.detach()
            self._o = attention.W_O.weight.T.contiguous()
            assert in_bias is not None, "the MLP has biases"
            self._in_bias, self._in_with_bias = in_bias, torch.cat([into_mlp, in_bias[None]])
            # A LayerNorm's mean is linear in its input, so centering can be folded into the weights.
            self._mid_in = into_mlp - into_mlp.mean(dim=0) if ln2.is_layernorm else into_mlp
            self._heads_in_with_bias = torch.cat([self._o @ self._mid_in, in_bias[None]])

    def z(
        self, resid: Float[Tensor, "batch pos d_model"], rows: Int64[Tensor, " query_pos"] | None, scratch: Scratch
    ) -> Float[Tensor, "batch query_pos head d_head"]:
        """Return the head outputs at all positions, or at `rows` only; a few sequences at a time."""
        n_query = resid.shape[1] if rows is None else len(rows)
        n_parts = 1
        if resid.device.type == "cpu":
            at_once = ATTENTION_ROWS * torch.get_num_threads()
            n_parts = max(1, min(len(resid), len(resid) * resid.shape[1] // at_once))
        key = ("rooms", *resid.shape, n_query, rows is None, n_parts)
        for part in scratch.once(key, lambda: self._rooms(resid, n_query, rows is None, n_parts, scratch)):
            normed(resid[part.where], self.config, scratch, out=part.x)
            if rows is not None:
                torch.index_select(part.x, 1, rows, out=part.query_rows)
            for (weight, bias), (x, out) in zip(self._projections[rows is None], part.products, strict=True):
                if bias is None:
                    torch.bmm(x, weight, out=out)
                else:
                    torch.baddbmm(bias, x, weight, out=out)
            self._attention.z(part.heads, rows)
        return scratch.take("z", (len(resid), n_query, self.config.n_heads, self.config.d_head), resid)

    def attn_out(
        self, z: Float[Tensor, "batch pos head d_head"], scratch: Scratch
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return the sum of the heads' updates to the residual stream."""
        return self._product("attn_out", z.flatten(2), self._o, None, scratch)

    def mlp_out(self, mid: Float[Tensor, "batch pos d_model"], scratch: Scratch) -> Float[Tensor, "batch pos d_model"]:
        """Return the MLP's update to the residual stream."""
        hidden = torch.ops.aten.gelu_(self._pre(mid, scratch))
        return self._product("mlp_out", hidden, self._out, self._out_bias, scratch)

    def mid_in(
        self, mid: Float[Tensor, "batch pos d_model"], out: Float[Tensor, "batch pos d_mlp"]
    ) -> Float[Tensor, "batch pos d_mlp"]:
        """Compute the MLP's input before the norm's scale and the bias, into `out`. It is linear in `mid`."""
        torch.mm(mid.reshape(-1, self.config.d_model), self._mid_in, out=out.view(-1, self.config.d_mlp))
        return out

    def mlp_out_of(
        self, mid: Float[Tensor, "batch pos d_model"], mid_in: Float[Tensor, "batch pos d_mlp"], scratch: Scratch
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return the MLP's update given the precomputed product `mid_in`, which is not modified."""
        hidden = scratch.take("hidden", tuple(mid_in.shape), mid)
        torch.addcmul(self._in_bias, mid_in, norm_scale(mid, self.config, scratch), out=hidden)
        return self._product("mlp_out", torch.ops.aten.gelu_(hidden), self._out, self._out_bias, scratch)

    def add_attn_out(
        self, resid: Float[Tensor, "batch pos d_model"], z: Float[Tensor, "batch pos head d_head"]
    ) -> None:
        """Add the heads' updates to `resid`, in place."""
        resid.view(-1, self.config.d_model).addmm_(z.reshape(-1, self.config.d_model), self._o)

    def add_mlp_out(self, mid: Float[Tensor, "batch pos d_model"], scratch: Scratch) -> None:
        """Add the MLP's update to `mid`, in place."""
        self._add_activated(mid, self._pre(mid, scratch))

    def add_heads(
        self,
        resid: Float[Tensor, "batch pos d_model"],
        substitute: Float[Tensor, "batch pos head d_head"],
        z: Float[Tensor, "batch pos head d_head"],
        heads: tuple[int, ...],
        scratch: Scratch,
    ) -> Float[Tensor, "row heads_times_d_head"]:
        """Add the update of (substitute − z) of these heads to `resid`, in place, and return the difference."""
        if len(heads) == 1:  # a slice is a view; indexing by a list would copy
            substitute, z = (x[:, :, heads[0] : heads[0] + 1] for x in (substitute, z))
        else:
            substitute, z = (x[:, :, list(heads)] for x in (substitute, z))
        change = torch.sub(substitute, z, out=scratch.take("change", tuple(z.shape), z)).flatten(2).flatten(0, 1)
        resid.view(-1, self.config.d_model).addmm_(change, self._o[self._columns(heads)])
        return change

    def add_heads_and_mlp(
        self,
        mid: Float[Tensor, "batch pos d_model"],
        mid_in: Float[Tensor, "batch pos d_mlp"],
        substitute: Float[Tensor, "batch pos head d_head"],
        z: Float[Tensor, "batch pos head d_head"],
        heads: tuple[int, ...],
        scratch: Scratch,
    ) -> None:
        """Apply `add_heads`, then add the MLP's update. `mid_in` belongs to the old `mid` and is not modified.

        With W the MLP's first matrix and s the norm's new scale, s (mid + change) W + b is the sum of s mid_in and the
        product of (s change, 1) with (W_O W, b). That product is only as wide as the heads.
        """
        change = self.add_heads(mid, substitute, z, heads, scratch)
        scale = norm_scale(mid, self.config, scratch)
        scaled = scratch.take("change and one", (len(change), change.shape[1] + 1), mid)
        torch.mul(change, scale.flatten(0, 1), out=scaled[:, :-1])
        scaled[:, -1:] = 1
        hidden = scratch.take("hidden", tuple(mid_in.shape), mid)
        weight = self._heads_in_with_bias[[*self._columns(heads), -1]]
        torch.mm(scaled, weight, out=hidden.view(-1, self.config.d_mlp))
        self._add_activated(mid, hidden.addcmul_(mid_in, scale))

    def _columns(self, heads: tuple[int, ...]) -> list[int]:
        """Columns of these heads in the concatenated z."""
        width = self.config.d_head
        return [head * width + column for head in heads for column in range(width)]

    def _add_activated(self, mid: Float[Tensor, "batch pos d_model"], pre: Float[Tensor, "batch pos d_mlp"]) -> None:
        hidden = torch.ops.aten.gelu_(pre).flatten(0, 1)
        mid.add_(self._out_bias).view(-1, self.config.d_model).addmm_(hidden, self._out)

    def _rooms(
        self, resid: Float[Tensor, "batch pos d_model"], n_query: int, is_whole: bool, n_parts: int, scratch: Scratch
    ) -> list["_Room"]:
        """Buffers for the heads' outputs of a batch of this shape, a few sequences at a time."""
        n_pos, n_heads, width = resid.shape[1], self.config.n_heads, self.config.d_head
        out, rooms, start = scratch.take("z", (len(resid), n_query, n_heads, width), resid), [], 0
        for own in out.tensor_split(n_parts):
            n = len(own)
            x = scratch.take("normed", (n, n_pos, resid.shape[2]), resid)
            query_rows = x if is_whole else scratch.take("query_rows", (n, n_query, resid.shape[2]), resid)
            # Contiguous per head, which is fastest for the products of attention.
            if is_whole:
                every = scratch.take("qkv", (3 * n_heads, n, n_pos, width), resid)
                q, k, v = every.chunk(3)
                targets = [(x, every)]
            else:
                q = scratch.take("q", (n_heads, n, n_query, width), resid)
                both = scratch.take("kv", (2 * n_heads, n, n_pos, width), resid)
                k, v = both.chunk(2)
                targets = [(query_rows, q), (x, both)]
            products = [(of.flatten(0, 1).expand(len(into), -1, -1), into.flatten(1, 2)) for of, into in targets]
            heads = HeadBuffers(q=q, k=k, v=v, out=own, scratch=scratch)
            rooms.append(
                _Room(where=slice(start, start + n), x=x, query_rows=query_rows, products=products, heads=heads)
            )
            start += n
        return rooms

    def _by_head(
        self, weight: Float[Tensor, "d_model all"], bias: Float[Tensor, " all"] | None
    ) -> tuple[Float[Tensor, "part d_model d_head"], Float[Tensor, "part 1 d_head"] | None]:
        width = self.config.d_head
        parted = rearrange(weight, "m (part d) -> part m d", d=width).contiguous()
        return parted, None if bias is None else rearrange(bias, "(part d) -> part 1 d", d=width)

    def _pre(self, mid: Float[Tensor, "batch pos d_model"], scratch: Scratch) -> Float[Tensor, "batch pos d_mlp"]:
        # The bias is a row of the weights times a column of ones, which saves one pass over memory.
        d_model = self.config.d_model
        wide = scratch.take("normed and one", (*mid.shape[:-1], _LINE * (d_model // _LINE + 1)), mid)
        normed(mid, self.config, scratch, out=wide[..., :d_model])
        wide[..., d_model] = 1
        return self._product("hidden", wide[..., : d_model + 1], self._in_with_bias, None, scratch)

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
    x: Float[Tensor, "batch pos d_model"],
    config: TransformerConfig,
    scratch: Scratch,
    *,
    out: Float[Tensor, "batch pos d_model"] | None = None,
) -> Float[Tensor, "batch pos d_model"]:
    """Return the norm without the parts that `folded` puts into the weights; written into `out` if given."""
    if config.norm == "layernorm":
        found = nn.functional.layer_norm(x, x.shape[-1:], eps=EPS)
        return found if out is None else out.copy_(found)
    into = scratch.take("normed", tuple(x.shape), x) if out is None else out
    return torch.mul(x, norm_scale(x, config, scratch), out=into)


def norm_scale(
    x: Float[Tensor, "batch pos d_model"], config: TransformerConfig, scratch: Scratch
) -> Float[Tensor, "batch pos 1"]:
    """Return the norm's factor; without √d_model for an RMSNorm, which `folded` puts into the weights."""
    if config.norm == "layernorm":
        return x.var(dim=-1, keepdim=True, correction=0).add_(EPS).rsqrt_()
    # Σx² from the 2-norm reads memory once.
    scale = scratch.take("scale", (*x.shape[:-1], 1), x)
    torch.linalg.vector_norm(x, dim=-1, keepdim=True, out=scale)
    return scale.square_().add_(EPS * x.shape[-1]).rsqrt_()


def folded(
    norm: Norm, weight: Float[Tensor, "b a"], bias: Float[Tensor, " b"] | None
) -> tuple[Float[Tensor, "a b"], Float[Tensor, " b"] | None]:
    """Return weights and bias with the preceding norm folded in, for x @ weight + bias with the bare normed x."""
    if not norm.is_layernorm:
        return (weight * norm.w).T.mul(math.sqrt(len(norm.w))).contiguous(), None if bias is None else bias.detach()
    offset = weight @ norm.b
    return (weight * norm.w).T.contiguous(), offset if bias is None else offset + bias


@final
@dataclass(frozen=True, kw_only=True)
class _Room:
    """Buffers for the heads of some sequences of a batch."""

    where: slice  # rows of the batch
    x: Float[Tensor, "batch pos d_model"]  # normed
    query_rows: Float[Tensor, "batch query_pos d_model"]  # the rows of x at query positions
    products: list[tuple[Tensor, Tensor]]  # input and output of each product for q, k and v
    heads: HeadBuffers
