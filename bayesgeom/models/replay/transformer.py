"""Replay: recompute a transformer from an edited activation on, and reuse everything that the edit cannot change.

A baseline pass keeps the input of each layer and the update of each part. An edit of a head's z at layer l changes the
residual by (z′ − z) W_O of that head; an edit of an MLP's output starts after the MLP. Later layers are computed in
full, except that the last one and the output are computed at the scored rows only.

Norm weights are folded into the matrices that follow, and q, k and v share one product. This gives the same numbers up
to rounding with few passes over memory and reused buffers. The module itself is not modified.
"""

import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.core import (
    ATTN_OUT,
    MLP_OUT,
    MLP_POST,
    RESID_MID,
    RESID_POST,
    RESID_PRE,
    Edit,
    InvalidArgument,
    Reference,
    Replace,
    Site,
    Trials,
    Z,
)
from bayesgeom.models.base import INSIDE_MLP, STAGES, BaselinePass, Model, Variant, entry
from bayesgeom.models.native.positions import causal_mask, rotated
from bayesgeom.models.native.transformer import EPS, MLP, MultiHeadAttention, Norm, Transformer, TransformerConfig
from bayesgeom.models.replay.hooked import PlainLoop, warn_of_full_passes

CLOSE = 1e-5  # tolerance of a baseline in float32, relative to the largest logit
LONGEST = 128  # positions; the fused kernel is faster for longer sequences
MOST_VIEWS = 1_000  # cached views; a battery needs about a hundred
_SMALLEST, _LARGEST = 1e-25, 1e25  # sums of exponentials that need no shift by the maximum


@final
class Scratch:
    """Named buffers that grow to the largest requested shape: a new large buffer costs a page fault per 4 KiB."""

    def __init__(self) -> None:
        self._stored: dict[str, Tensor] = {}
        self._views: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Float[Tensor, "*shape"]:
        """Return an uninitialized buffer. The next `take` of the same name returns the same memory."""
        view = self._views.get((name, shape))
        if view is None:
            stored, size = self._stored.get(name), math.prod(shape)
            if stored is None or stored.numel() < size:
                stored = self._stored[name] = like.new_empty(size)
                self._views.clear()  # views would keep the smaller buffer alive
            if len(self._views) >= MOST_VIEWS:
                self._views.clear()
            view = self._views[name, shape] = stored[:size].view(shape)
        return view


@final
class ReplayAttention:
    """Causal attention of one layer, at all positions or at some rows. Masks and biases are cached per length."""

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
        *,
        out: Float[Tensor, "batch query_pos head d_head"],
    ) -> None:
        """Write the heads' outputs before W_O into `out`: softmax(q·k + bias) v over visible keys.

        Queries are divided by √d_head already. A long sequence needs no buffer of size query × position.
        """
        if self.config.positions == "rotary":
            q, k = self._rotated(q, rows), self._rotated(k)
        visible, bias = self._mask(k, rows)
        if k.shape[2] > LONGEST or k.device.type != "cpu":
            hidden = torch.zeros_like(visible).masked_fill_(visible == 0, -math.inf)
            mask = hidden if bias is None else (bias + hidden)[:, None]
            z = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
            out.copy_(rearrange(z, "h b q d -> b q h d"))
            return
        scores = scratch.take("scores", (*q.shape[:3], k.shape[2]), q)
        total = scratch.take("total", tuple(q.shape[:3]), q)
        torch.sum(_scores(q, k, bias, out=scores).exp_().mul_(visible), dim=-1, out=total)
        low, high = (float(end) for end in total.aminmax())
        if not (low > _SMALLEST and high < _LARGEST):  # also where a sum is NaN
            _scores(q, k, bias, out=scores).masked_fill_(visible == 0, -math.inf)
            torch.sum(scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_(), dim=-1, out=total)
        summed = scratch.take("summed", tuple(q.shape), q)
        torch.bmm(scores.flatten(0, 1), v.flatten(0, 1), out=summed.flatten(0, 1))
        torch.mul(summed.permute(1, 2, 0, 3), total.reciprocal_().permute(1, 2, 0)[..., None], out=out)

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


def _scores(
    q: Float[Tensor, "head batch query_pos d_head"],
    k: Float[Tensor, "head batch pos d_head"],
    bias: Float[Tensor, "head query_pos pos"] | None,
    *,
    out: Float[Tensor, "head batch query_pos pos"],
) -> Float[Tensor, "head batch query_pos pos"]:
    torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), out=out.flatten(0, 1))
    return out if bias is None else out.add_(bias[:, None])


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
            weight, bias = folded(ln1, stacked, None)
            width = self.config.d_head
            self._qkv = rearrange(weight, "m (part d) -> part m d", d=width).contiguous()
            self._qkv_bias = None if bias is None else rearrange(bias, "(part d) -> part 1 d", d=width)
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
        n_heads, width, n_pos = self.config.n_heads, self.config.d_head, resid.shape[1]
        n_query = n_pos if rows is None else len(rows)
        out = scratch.take("z", (len(resid), n_query, n_heads, width), resid)
        n_parts = 1
        if resid.device.type == "cpu":
            at_once = ATTENTION_ROWS * torch.get_num_threads()
            n_parts = max(1, min(len(resid), len(resid) * n_pos // at_once))
        for part, target in zip(resid.tensor_split(n_parts), out.tensor_split(n_parts), strict=True):
            self._attention.z(*self._qkv_of(part, rows, scratch), rows, scratch, out=target)
        return out

    def received(
        self,
        resid: Float[Tensor, "batch pos d_model"],
        changed: Iterable[Float[Tensor, "batch pos d_model"]],
        rows: Int64[Tensor, " query_pos"] | None,
        scratch: Scratch,
    ) -> Iterator[Float[Tensor, "input batch query_pos head d_head"]]:
        """Yield, for each changed residual, the head outputs if q, k or v alone is computed from it."""
        kept = self._qkv_of(resid, rows, scratch, "unchanged ")
        n_query, n_heads, width = kept[0].shape[2], self.config.n_heads, self.config.d_head
        for other in changed:
            out = other.new_empty(3, len(other), n_query, n_heads, width)
            new = self._qkv_of(other, rows, scratch)
            for at in range(3):
                q, k, v = (new[i] if i == at else kept[i] for i in range(3))
                self._attention.z(q, k, v, rows, scratch, out=out[at])
            yield out

    def _qkv_of(
        self,
        resid: Float[Tensor, "batch pos d_model"],
        rows: Int64[Tensor, " query_pos"] | None,
        scratch: Scratch,
        name: str = "",
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, at `rows` only if given, keys and values: contiguous per head, which is fastest for attention."""
        n_heads = self.config.n_heads
        x = normed(resid, self.config, scratch, out=scratch.take("normed", tuple(resid.shape), resid))
        if rows is None:
            q, k, v = self._projected(f"{name}qkv", x, slice(None), scratch).chunk(3)
            return q, k, v
        queries = scratch.take("query_rows", (len(x), len(rows), x.shape[2]), x)
        torch.index_select(x, 1, rows, out=queries)
        q = self._projected(f"{name}q", queries, slice(n_heads), scratch)
        k, v = self._projected(f"{name}kv", x, slice(n_heads, None), scratch).chunk(2)
        return q, k, v

    def _projected(
        self, name: str, x: Float[Tensor, "batch pos d_model"], part: slice, scratch: Scratch
    ) -> Float[Tensor, "part batch pos d_head"]:
        """Some of the queries, keys and values of all heads, in one product."""
        weight = self._qkv[part]
        out = scratch.take(name, (len(weight), *x.shape[:2], self.config.d_head), x)
        rows, into = x.flatten(0, 1).expand(len(weight), -1, -1), out.flatten(1, 2)
        if self._qkv_bias is None:
            torch.bmm(rows, weight, out=into)
        else:
            torch.baddbmm(self._qkv_bias[part], rows, weight, out=into)
        return out

    def attn_out(
        self, z: Float[Tensor, "batch pos head d_head"], scratch: Scratch
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return the sum of the heads' updates to the residual stream."""
        return self._product("attn_out", z.flatten(2), self._o, None, scratch)

    def hidden(self, mid: Float[Tensor, "batch pos d_model"], scratch: Scratch) -> Float[Tensor, "batch pos d_mlp"]:
        """Return the MLP's hidden units."""
        hidden = scratch.take("hidden", (*mid.shape[:-1], self.config.d_mlp), mid)
        return self.hidden_of(mid, self.mid_in(mid, hidden), scratch)

    def mid_in(
        self, mid: Float[Tensor, "batch pos d_model"], out: Float[Tensor, "batch pos d_mlp"]
    ) -> Float[Tensor, "batch pos d_mlp"]:
        """Compute the MLP's input before the norm's scale and the bias, into `out`. It is linear in `mid`."""
        torch.mm(mid.reshape(-1, self.config.d_model), self._mid_in, out=out.view(-1, self.config.d_mlp))
        return out

    def hidden_of(
        self, mid: Float[Tensor, "batch pos d_model"], mid_in: Float[Tensor, "batch pos d_mlp"], scratch: Scratch
    ) -> Float[Tensor, "batch pos d_mlp"]:
        """Return the MLP's hidden units given the precomputed product `mid_in`, which is not modified."""
        hidden = scratch.take("hidden", tuple(mid_in.shape), mid)
        torch.addcmul(self._in_bias, mid_in, norm_scale(mid, self.config, scratch), out=hidden)
        activated: Tensor = torch.ops.aten.gelu_(hidden)
        return activated

    def out_of(self, hidden: Float[Tensor, "batch pos d_mlp"], scratch: Scratch) -> Float[Tensor, "batch pos d_model"]:
        """Return the MLP's update to the residual stream, given its hidden units."""
        return self._product("mlp_out", hidden, self._out, self._out_bias, scratch)

    def add_units(
        self,
        written: Float[Tensor, "batch pos d_model"],
        change: Float[Tensor, "batch pos unit"],
        units: tuple[int, ...] | None,
    ) -> None:
        """Add to the MLP's update, in place, a change of these hidden units, or of all: of rank one for one unit."""
        weight = self._out if units is None else self._out[list(units)]
        written.view(-1, self.config.d_model).addmm_(change.flatten(0, 1), weight)

    def add_attn_out(
        self, resid: Float[Tensor, "batch pos d_model"], z: Float[Tensor, "batch pos head d_head"]
    ) -> None:
        """Add the heads' updates to `resid`, in place."""
        resid.view(-1, self.config.d_model).addmm_(z.reshape(-1, self.config.d_model), self._o)

    def add_mlp_out(self, mid: Float[Tensor, "batch pos d_model"], scratch: Scratch) -> None:
        """Add the MLP's update to `mid`, in place."""
        # The bias is a row of the weights times a column of ones, which saves one pass over memory.
        d_model = self.config.d_model
        wide = scratch.take("normed and one", (*mid.shape[:-1], _LINE * (d_model // _LINE + 1)), mid)
        normed(mid, self.config, scratch, out=wide[..., :d_model])
        wide[..., d_model] = 1
        if mid.dtype != torch.float32:  # kernels of bfloat16 read the unused columns, too, and NaN times 0 is NaN
            wide[..., d_model + 1 :] = 0
        self._add_activated(mid, self._product("hidden", wide[..., : d_model + 1], self._in_with_bias, None, scratch))

    def add_heads_and_mlp(
        self,
        mid: Float[Tensor, "batch pos d_model"],
        mid_in: Float[Tensor, "batch pos d_mlp"],
        substitute: Float[Tensor, "batch pos head d_head"],
        z: Float[Tensor, "batch pos head d_head"],
        heads: tuple[int, ...],
        scratch: Scratch,
    ) -> None:
        """Add to `mid`, in place, the update of (substitute − z) of these heads, then the MLP's.

        `mid_in` belongs to the old `mid` and is not modified. With W the MLP's first matrix and s the norm's new scale,
        s (mid + change) W + b is the sum of s mid_in and the product of (s change, 1) with (W_O W, b). That product is
        only as wide as the heads.
        """
        # A slice is a view; indexing by a list would copy.
        index = slice(heads[0], heads[0] + 1) if len(heads) == 1 else list(heads)
        substitute, z = substitute[:, :, index], z[:, :, index]
        change = torch.sub(substitute, z, out=scratch.take("change", tuple(z.shape), z)).flatten(2).flatten(0, 1)
        columns = self._columns(heads)
        mid.view(-1, self.config.d_model).addmm_(change, self._o[columns])
        scale = norm_scale(mid, self.config, scratch)
        scaled = scratch.take("change and one", (len(change), change.shape[1] + 1), mid)
        torch.mul(change, scale.flatten(0, 1), out=scaled[:, :-1])
        scaled[:, -1:] = 1
        hidden = scratch.take("hidden", tuple(mid_in.shape), mid)
        torch.mm(scaled, self._heads_in_with_bias[[*columns, -1]], out=hidden.view(-1, self.config.d_mlp))
        self._add_activated(mid, hidden.addcmul_(mid_in, scale))

    def _columns(self, heads: tuple[int, ...]) -> list[int]:
        """Columns of these heads in the concatenated z."""
        width = self.config.d_head
        return [head * width + column for head in heads for column in range(width)]

    def _add_activated(self, mid: Float[Tensor, "batch pos d_model"], pre: Float[Tensor, "batch pos d_mlp"]) -> None:
        hidden = torch.ops.aten.gelu_(pre).flatten(0, 1)
        mid.add_(self._out_bias).view(-1, self.config.d_model).addmm_(hidden, self._out)

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
        values = nn.functional.layer_norm(x, x.shape[-1:], eps=EPS)
        return values if out is None else out.copy_(values)
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
class Replay:
    """Replays variants of one transformer. Weights are read once, at construction.

    The logits of every baseline are compared with the model's own: all sequences of the first, some of each later one.
    From the first difference on, every variant runs a full pass.
    """

    def __init__(self, model: Model, module: Transformer) -> None:
        self.model, self.module, self.n_layers = model, module, len(module.blocks)
        self._loop, self._is_equal, self._is_first = PlainLoop(model), True, True
        self.layers = [ReplayLayer(module, layer) for layer in range(self.n_layers)]
        self.scratch = Scratch()
        self._mid_in_of: weakref.ref[BaselinePass] | None = None
        self._mid_in: dict[int, Tensor] = {}
        output = module.embed if module.config.tied else module.unembed
        with torch.no_grad():
            self._output, self._output_bias = folded(module.ln_final, output.weight, None)

    @torch.no_grad()
    def baseline(self, trials: Trials, also: Sequence[Site] = ()) -> BaselinePass:
        """Run one unedited pass and keep its activations; hidden units of the MLPs if `also` names them.

        Raises:
            InvalidArgument: Sequences have different scored positions.
        """
        positions = trials.scored_positions()
        rows = positions[0]
        if not bool((positions == rows).all()):
            other = int((positions != rows).any(dim=1).nonzero()[0, 0])
            raise InvalidArgument(
                f"replay needs every sequence to score the same positions; sequence 0 scores {rows.tolist()[:8]}, "
                f"sequence {other} scores {positions[other].tolist()[:8]}. Run the model instead."
            )
        if self._is_equal:
            baseline = self._recomputed(trials, rows, has_units=MLP_POST in also)
            # Of later baselines an eighth: their parts are those of the first.
            compared = slice(0, None if self._is_first else max(1, len(trials) // 8))
            expected, self._is_first = self.model.logits(trials.rows(compared)), False
            allowed = max(CLOSE, 8 * torch.finfo(expected.dtype).eps) * expected.abs().max()
            self._is_equal = bool(((baseline.logits[compared] - expected).abs() <= allowed).all())
            if self._is_equal:
                return baseline
            warn_of_full_passes(self.model.spec.name, "a part of it computes something else than its weights say")
        return self._loop.baseline(trials, also)

    def _recomputed(self, trials: Trials, rows: Int64[Tensor, " query_pos"], *, has_units: bool) -> BaselinePass:
        stored: dict[tuple[Site, int], Tensor] = {}
        mid_ins: dict[int, Tensor] = {}
        resid = self.module.embedded(trials.tokens)
        for index, layer in enumerate(self.layers):
            stored[RESID_PRE, index] = resid
            stored[Z, index] = layer.z(resid, None, self.scratch).clone()
            stored[ATTN_OUT, index] = layer.attn_out(stored[Z, index], self.scratch).clone()
            stored[RESID_MID, index] = resid + stored[ATTN_OUT, index]
            # Use the product from which edits of heads start, so that an edit without effect is bit-exact.
            mid_ins[index] = layer.mid_in(stored[RESID_MID, index], self._wide_buffer(f"mid_in {index}", resid))
            hidden = layer.hidden_of(stored[RESID_MID, index], mid_ins[index], self.scratch)
            if has_units:
                stored[MLP_POST, index] = hidden.clone()
            stored[MLP_OUT, index] = layer.out_of(hidden, self.scratch).clone()
            stored[RESID_POST, index] = resid = stored[RESID_MID, index] + stored[MLP_OUT, index]
        mid_ins[self.n_layers - 1] = mid_ins[self.n_layers - 1].index_select(1, rows)
        baseline = BaselinePass(trials=trials, rows=rows, stored=stored, logits=self._logits(resid[:, rows]))
        self._mid_in_of, self._mid_in = weakref.ref(baseline), mid_ins
        return baseline

    @torch.no_grad()
    def logits(
        self, baseline: BaselinePass, variants: Sequence[Variant], reference: Reference
    ) -> Float[Tensor, "variant batch query_pos d_vocab"]:
        """Return the logits at the scored rows under each variant. All variants must have the same `entry`."""
        if not self._is_equal:
            return self._loop.logits(baseline, variants, reference)
        first, stage = entry(variants[0])
        assert all(entry(variant) == (first, stage) for variant in variants), "variants of one batch share their entry"
        places = frozenset((edit.site, edit.layer) for variant in variants for edit in variant)
        batch = _Batch(replay=self, baseline=baseline, variants=variants, reference=reference, places=places)
        resid = batch.first_layer(first, stage)
        for index in range(first + 1, self.n_layers):
            resid = batch.whole_layer(index, resid)
        logits = self._logits(resid)
        return rearrange(logits, "(variant batch) p v -> variant batch p v", variant=len(variants))

    @torch.no_grad()
    def heads_received(
        self, baseline: BaselinePass, layer: int, changes: Iterable[Float[Tensor, "batch pos d_model"]]
    ) -> Iterator[Float[Tensor, "input batch pos head d_head"]]:
        """Yield, for each change of a layer's input, the head outputs if it reaches q, k or v alone."""
        resid, rows = baseline.stored[RESID_PRE, layer], baseline.rows if layer == self.n_layers - 1 else None
        if self._is_equal:
            yield from self.layers[layer].received(resid, (resid + change for change in changes), rows, self.scratch)
        else:
            yield from self._loop.heads_received(baseline, layer, changes)

    @torch.no_grad()
    def mlp_received(
        self, baseline: BaselinePass, layer: int, changes: Iterable[Float[Tensor, "batch pos d_model"]]
    ) -> Iterator[Float[Tensor, "batch pos d_model"]]:
        """Yield, for each change of the input of a layer's MLP, what the MLP writes."""
        if not self._is_equal:
            yield from self._loop.mlp_received(baseline, layer, changes)
            return
        mid = baseline.stored[RESID_MID, layer]
        for change in changes:
            changed = mid + change
            if layer == self.n_layers - 1:
                changed = changed[:, baseline.rows].contiguous()
            part = self.layers[layer]
            yield part.out_of(part.hidden(changed, self.scratch), self.scratch).clone()

    def _logits(self, resid: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_vocab"]:
        x = normed(resid, self.module.config, self.scratch)
        return x @ self._output if self._output_bias is None else x @ self._output + self._output_bias

    def mid_in(self, baseline: BaselinePass, index: int) -> Float[Tensor, "batch pos d_mlp"]:
        """Return a baseline's MLP input before the norm's scale and the bias; in the last layer at scored rows only.

        It is cached for the most recent baseline only, in reused buffers, because it is the largest activation.
        """
        if self._mid_in_of is None or self._mid_in_of() is not baseline:
            self._mid_in_of, self._mid_in = weakref.ref(baseline), {}
        if index not in self._mid_in:
            mid = baseline.stored[RESID_MID, index]
            if index == self.n_layers - 1:
                mid = mid.index_select(1, baseline.rows)
            self._mid_in[index] = self.layers[index].mid_in(mid, self._wide_buffer(f"mid_in {index}", mid))
        return self._mid_in[index]

    def _wide_buffer(self, name: str, resid: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_mlp"]:
        return self.scratch.take(name, (len(resid), resid.shape[1], self.module.config.d_mlp), resid)


@final
@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Variants with the same entry, stacked along the batch axis."""

    replay: Replay
    baseline: BaselinePass
    variants: Sequence[Variant]
    reference: Reference
    places: frozenset[tuple[Site, int]]

    def first_layer(self, index: int, stage: int) -> Float[Tensor, "stacked pos d_model"]:
        """Return the output of the entry layer; parts before the entry come from the baseline."""
        if stage == STAGES[RESID_PRE]:
            return self.whole_layer(index, self._stacked(RESID_PRE, index, cut=False))
        if stage == STAGES[RESID_POST]:
            return self._edited(RESID_POST, index, self._stacked(RESID_POST, index))
        if stage == INSIDE_MLP[MLP_POST]:
            written = self._edited(MLP_OUT, index, self._after_units(index))
            return self._edited(RESID_POST, index, self._stacked(RESID_MID, index).add_(written))
        if stage == STAGES[MLP_OUT]:
            written = self._edited(MLP_OUT, index, self._stacked(MLP_OUT, index))
            return self._edited(RESID_POST, index, self._stacked(RESID_MID, index).add_(written))
        if self._has_heads_alone(index):
            return self._edited(RESID_POST, index, self._after_heads(index))
        return self._after_mid(index, self._mid(index))

    def whole_layer(
        self, index: int, resid: Float[Tensor, "stacked pos d_model"]
    ) -> Float[Tensor, "stacked query_pos d_model"]:
        """Compute one full layer; the last one at scored rows only. Overwrites `resid`."""
        layer, scratch, rows = self.replay.layers[index], self.replay.scratch, self._rows(index)
        resid = self._edited(RESID_PRE, index, resid, is_whole=True)
        mid = self._at(rows, "queries of resid", resid)
        if self._is_replaced(ATTN_OUT, index):
            mid.add_(self._edited(ATTN_OUT, index, scratch.take("attn_out", tuple(mid.shape), mid)))
        else:
            z = self._edited(Z, index, layer.z(resid, rows, scratch))
            if (ATTN_OUT, index) in self.places:
                mid.add_(self._edited(ATTN_OUT, index, layer.attn_out(z, scratch)))
            else:
                layer.add_attn_out(mid, z)
        return self._after_mid(index, self._edited(RESID_MID, index, mid))

    def _after_mid(self, index: int, mid: Float[Tensor, "stacked pos d_model"]) -> Float[Tensor, "stacked pos d_model"]:
        """Apply the MLP's part of a layer, in place."""
        layer, scratch = self.replay.layers[index], self.replay.scratch
        if self._is_replaced(MLP_OUT, index):
            mid.add_(self._edited(MLP_OUT, index, scratch.take("mlp_out", tuple(mid.shape), mid)))
        elif not self.places.isdisjoint({(MLP_POST, index), (MLP_OUT, index)}):
            hidden = self._edited(MLP_POST, index, layer.hidden(mid, scratch))
            mid.add_(self._edited(MLP_OUT, index, layer.out_of(hidden, scratch)))
        else:
            layer.add_mlp_out(mid, scratch)
        return self._edited(RESID_POST, index, mid)

    def _after_heads(self, index: int) -> Float[Tensor, "stacked pos d_model"]:
        """The layer's output with some heads' z replaced, by updates of rank d_head to the residual and MLP input."""
        layer, reference = self.replay.layers[index], _Cut(self.reference, self._rows(index))
        z, mid = self._base(Z, index), self._stacked(RESID_MID, index)
        mid_in, scratch = self.replay.mid_in(self.baseline, index), self.replay.scratch
        for variant, stacked in zip(self.variants, mid.chunk(len(self.variants)), strict=True):
            (edit,) = _at(variant, Z, index)
            assert isinstance(edit, Replace) and edit.heads is not None, "checked by _has_heads_alone"
            layer.add_heads_and_mlp(stacked, mid_in, edit.substitute(z, reference), z, edit.heads, scratch)
        return mid

    def _after_units(self, index: int) -> Float[Tensor, "stacked pos d_model"]:
        """The MLP's update with some of its hidden units replaced."""
        layer, reference = self.replay.layers[index], _Cut(self.reference, self._rows(index))
        written, base = self._stacked(MLP_OUT, index), self._base(MLP_POST, index)
        for variant, stacked in zip(self.variants, written.chunk(len(self.variants)), strict=True):
            edits = _at(variant, MLP_POST, index)
            if len(edits) == 1 and isinstance(edits[0], Replace) and (units := edits[0].units) is not None:
                # A slice is a view; indexing by a list would copy.
                at = slice(units[0], units[0] + 1) if len(units) == 1 else list(units)
                layer.add_units(stacked, edits[0].substitute(base, reference)[..., at].to(base) - base[..., at], units)
            else:
                edited = base
                for edit in edits:
                    edited = edit.applied(edited, reference)
                layer.add_units(stacked, edited - base, None)
        return written

    def _mid(self, index: int) -> Float[Tensor, "stacked pos d_model"]:
        """The residual after attention, with edits of z and attn_out of this layer applied."""
        layer, reference = self.replay.layers[index], _Cut(self.reference, self._rows(index))
        mid = self._stacked(RESID_MID, index)
        before, written, z = (self._base(site, index) for site in (RESID_PRE, ATTN_OUT, Z))
        for variant, stacked in zip(self.variants, mid.chunk(len(self.variants)), strict=True):
            edited, at_z = z, _at(variant, Z, index)
            for edit in at_z:
                edited = edit.applied(edited, reference)
            if any(self._is_every_head(edit) for edit in at_z):
                # Subtracting heads that dominate the sum would leave its rounding error: start from resid_pre.
                layer.add_attn_out(stacked.copy_(before), edited)
            elif at_z:
                layer.add_attn_out(stacked, edited - z)
            for number, edit in enumerate(_at(variant, ATTN_OUT, index)):
                # Use the baseline's attn_out if it is unchanged, so that an edit without effect is exact.
                current = stacked - before if at_z or number else written
                torch.add(before, edit.applied(current, reference), out=stacked)
        return self._edited(RESID_MID, index, mid)

    def _edited(
        self, site: Site, index: int, values: Float[Tensor, "stacked pos *rest"], *, is_whole: bool = False
    ) -> Float[Tensor, "stacked pos *rest"]:
        """Apply each variant's edits of this site to its part of the stack, in place."""
        if (site, index) not in self.places:
            return values
        reference = _Cut(self.reference, None if is_whole else self._rows(index))
        for variant, stacked in zip(self.variants, values.chunk(len(self.variants)), strict=True):
            for edit in _at(variant, site, index):
                stacked.copy_(edit.applied(stacked, reference))
        return values

    def _has_heads_alone(self, index: int) -> bool:
        """Whether each variant's only edit before this layer's output replaces some, but not all, heads."""
        for variant in self.variants:
            edits = [edit for edit in variant if edit.layer == index and edit.site != RESID_POST]
            if (
                len(edits) != 1
                or not isinstance(edits[0], Replace)
                or edits[0].heads is None
                or self._is_every_head(edits[0])
            ):
                return False
        return True

    def _is_every_head(self, edit: Edit) -> bool:
        """Whether the edit names every head. An edit of the whole activation does not count: "nothing" is exact."""
        heads = edit.heads if isinstance(edit, Replace) else None
        return heads is not None and len(set(heads)) == self.replay.module.config.n_heads

    def _is_replaced(self, site: Site, index: int) -> bool:
        """Whether every variant replaces the whole output of this site, so that it need not be computed."""
        return (site, index) in self.places and all(
            any(
                isinstance(edit, Replace) and edit.heads is None and edit.is_constant
                for edit in _at(variant, site, index)
            )
            for variant in self.variants
        )

    def _rows(self, index: int) -> Int64[Tensor, " query_pos"] | None:
        return self.baseline.rows if index == self.replay.n_layers - 1 else None

    def _base(self, site: Site, index: int) -> Float[Tensor, "batch pos *rest"]:
        return self._at(self._rows(index), f"queries of {site.name}", self.baseline.stored[site, index])

    def _at(
        self, rows: Int64[Tensor, " query_pos"] | None, name: str, values: Float[Tensor, "batch pos *rest"]
    ) -> Float[Tensor, "batch query_pos *rest"]:
        if rows is None:
            return values
        out = self.replay.scratch.take(name, (len(values), len(rows), *values.shape[2:]), values)
        return torch.index_select(values, 1, rows, out=out)

    def _stacked(self, site: Site, index: int, *, cut: bool = True) -> Float[Tensor, "stacked pos *rest"]:
        """One copy per variant."""
        values = self._base(site, index) if cut else self.baseline.stored[site, index]
        shape = (len(self.variants) * len(values), *values.shape[1:])
        stacked = self.replay.scratch.take(f"stacked {site.name}", shape, values)
        stacked.unflatten(0, (len(self.variants), -1)).copy_(values.expand(len(self.variants), *values.shape))
        return stacked


def _at(variant: Variant, site: Site, index: int) -> list[Edit]:
    """The edits of one site of one layer, in their order."""
    return [edit for edit in variant if (edit.site, edit.layer) == (site, index)]


@final
@dataclass(frozen=True)
class _Cut:
    """A reference, reduced to the rows that a layer computes."""

    whole: Reference
    rows: Int64[Tensor, " query_pos"] | None

    def mean(self, site: Site, layer: int) -> Float[Tensor, "*axes"]:
        values = self.whole.mean(site, layer)
        return values if self.rows is None else values[self.rows]

    def donor(self, site: Site, layer: int) -> Float[Tensor, "*axes"]:
        values = self.whole.donor(site, layer)
        return values if self.rows is None else values.index_select(1, self.rows)
