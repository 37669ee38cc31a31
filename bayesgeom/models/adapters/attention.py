"""Attention as torch computes it: heads of every call, observed and edited while a module runs.

A call is one of `scaled_dot_product_attention`, alone or inside `nn.MultiheadAttention`, or a product of queries and
keys, its softmax over key positions, and the product of that with values. Queries and keys are seen as they enter the
scores, so after any rotation or norm, and whatever computed them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, Literal, cast, final

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bayesgeom.core import K_ROT, PATTERN, Q_ROT, K, Q, Site, V, Z
from bayesgeom.models.adapters.proof import PerHead, factor_between, per_query_head

ProjectionLayout = Literal["own", "stacked", "grouped", "sharded"]
N_SHARDS = 4  # CodeGen's: it was trained on as many processors


@final
@dataclass(frozen=True, kw_only=True)
class HeadSizes:
    """Numbers of heads and their width."""

    n_heads: int
    n_kv_heads: int
    d_head: int
    d_value: int = 0  # of values and heads' outputs, if other than d_head


@final
@dataclass(frozen=True, kw_only=True)
class Projection:
    """One of q, k and v in the output of the part at `path`.

    `layout`: "own", the whole output; "stacked", all queries, then all keys, then all values; "grouped", for each
    key-value head its queries, its key, its value; "sharded", four parts with queries, then values, then keys of a
    quarter of the heads.
    """

    path: str
    site: Site
    layout: ProjectionLayout
    sizes: HeadSizes

    def take(self, output: Float[Tensor, "batch pos width"]) -> Float[Tensor, "batch pos head d_head"]:
        """Return this projection's part of the output, with heads as an axis."""
        columns = output if self.layout == "own" else output[..., self._columns(output)]
        return rearrange(columns, "b p (h d) -> b p h d", d=self.sizes.d_head)

    def put(
        self, output: Float[Tensor, "batch pos width"], values: Float[Tensor, "batch pos head d_head"]
    ) -> Float[Tensor, "batch pos width"]:
        """Return the output with this projection's part replaced."""
        flat: Tensor = values.flatten(2)
        return flat if self.layout == "own" else output.index_copy(-1, self._columns(output), flat)

    def _columns(self, output: Float[Tensor, "batch pos width"]) -> Int64[Tensor, " column"]:
        """The columns of the output that are this projection's, in the order of heads."""
        s, of_all = self.sizes, torch.arange(output.shape[-1], device=output.device)
        if self.layout == "grouped":
            of_group = {Q: slice(None, -2), K: slice(-2, -1), V: slice(-1, None)}[self.site]
            columns: Tensor = of_all.unflatten(0, (s.n_kv_heads, -1, s.d_head))[:, of_group]
        elif self.layout == "stacked":
            widths = [s.n_heads * s.d_head, s.n_kv_heads * s.d_head, s.n_kv_heads * s.d_head]
            columns = of_all.split(widths)[(Q, K, V).index(self.site)]
        else:
            columns = of_all.unflatten(0, (N_SHARDS, 3, -1))[:, (Q, V, K).index(self.site)]
        return columns.flatten()


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionCall:
    """One call: its heads, and what else determines the pattern.

    Attributes:
        number: Which of the products in its block that of queries and keys is; a fused call counts as one.
        q: Queries, as they enter the scores.
        k: Keys, with each head once.
        v: Values, with each head once.
        z: Outputs of the heads.
        scale: Factor of the products.
        added: Mask and bias of the scores.
        soft_cap: c in c · tanh(scores / c). None: no cap.
        sinks: One additional score per head, without a value, if there are any.
        is_fused: Whether the module forms no pattern.
    """

    number: int
    q: Float[Tensor, "batch pos head d_head"]
    k: Float[Tensor, "batch key_pos kv_head d_head"]
    v: Float[Tensor, "batch key_pos kv_head d_value"]
    z: Float[Tensor, "batch pos head d_value"]
    scale: float
    added: Float[Tensor, "..."] | None
    soft_cap: float | None = None
    sinks: Float[Tensor, " head"] | None = None
    is_fused: bool = False

    @property
    def sizes(self) -> HeadSizes:
        """The numbers of heads and their width."""
        (*_, n_heads, d_head), (*_, n_kv_heads, d_value) = self.q.shape, self.v.shape
        d_value = d_value if d_value != d_head else 0
        return HeadSizes(n_heads=n_heads, n_kv_heads=n_kv_heads, d_head=d_head, d_value=d_value)


def pattern_of(
    q: Float[Tensor, "batch pos head d_head"],
    k: Float[Tensor, "batch key_pos kv_head d_head"],
    scale: float,
    added: Float[Tensor, "..."] | None,
    soft_cap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
) -> PerHead:
    """Return the pattern of queries and keys, at least in float32; what else it needs is as in `AttentionCall`."""
    scores = scale * products(q, k).to(torch.promote_types(q.dtype, torch.float32))
    scores = scores if soft_cap is None else soft_cap * (scores / soft_cap).tanh()
    scores = scores if added is None else scores + added.to(scores)
    if sinks is None:
        return scores.softmax(-1)
    each = sinks.to(scores).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat([scores, each], dim=-1).softmax(-1)[..., :-1]


def causal(n_pos: int, like: Tensor) -> Float[Tensor, "query_pos key_pos"]:
    """Return what plain causal attention adds to its scores: −∞ for later keys."""
    return like.new_full((n_pos, n_pos), -torch.inf).triu(1)


def products(
    q: Float[Tensor, "batch pos head d_head"], k: Float[Tensor, "batch key_pos kv_head d_head"]
) -> Float[Tensor, "batch head pos key_pos"]:
    """Return the products of queries and keys."""
    return einsum(q, per_query_head(k.transpose(1, 2), q.shape[2]), "b q h d, b h k d -> b h q k")


def weighted(
    pattern: PerHead, v: Float[Tensor, "batch key_pos kv_head d_value"]
) -> Float[Tensor, "batch pos head d_value"]:
    """Return the values that a pattern weights."""
    values = per_query_head(v.transpose(1, 2), pattern.shape[1])
    return einsum(pattern, values.to(pattern), "b h q k, b h k d -> b q h d")


_PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "baddbmm", "einsum"})
_FUSED, _OF_MODULE = "scaled_dot_product_attention", "multi_head_attention_forward"
_MASKED = -1e3  # scores below are masked
_whole = functional.multi_head_attention_forward
# The same function, which does not ask the mode whether to run, so that the mode sees the calls inside.
_INSIDE = FunctionType(_whole.__code__, {**vars(functional), "has_torch_function": lambda _args: False})
_INSIDE.__defaults__, _INSIDE.__kwdefaults__ = _whole.__defaults__, _whole.__kwdefaults__


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Scores:
    """A product that may be that of queries and keys."""

    number: int
    q: Tensor
    k: Tensor
    shape: tuple[int, ...]
    capped: tuple[Tensor, Tensor] | None = None  # input and output of a tanh


@final
class AttentionWatch(TorchFunctionMode):
    """Leads the heads of one attention after the other through functions, and reports every call.

    Args:
        n: Number of sequences in the pass; 0: arrays that join heads with sequences are no heads.
        through: Returns what replaces an activation: heads have axes batch, position, head, width.
        is_watched: Whether this site has a hook; where the pattern has one, a fused call computes it.
        heard: Is given every call; None where its arguments need not be known.
    """

    def __init__(
        self,
        n: int,
        through: Callable[[Site, Tensor], Tensor] = lambda _site, x: x,
        is_watched: Callable[[Site], bool] = lambda _site: False,
        heard: Callable[[AttentionCall], None] | None = None,
    ) -> None:
        super().__init__()
        self.is_off = False  # while hooks run that are not the module's own code
        self._n, self._through, self._is_watched, self._heard = n, through, is_watched, heard
        self.begin()

    def begin(self, number: int | None = None, n_kv_heads: int = 0) -> None:
        """Begin a block, whose queries and keys enter the product of this number; None: it is not known."""
        self._number, self._n_kv_heads, self.n_products = number, n_kv_heads, 0
        self._scores: _Scores | None = None
        self._softmax: Tensor | None = None  # its input

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given, name = kwargs or {}, func.__name__
        if self.is_off:
            return func(*args, **given)
        if name == _OF_MODULE:
            with self:
                return _INSIDE(*args, **given)
        first: Any = args[0] if args else given.get("query", given.get("input"))
        if name == _FUSED and first.ndim in (3, 4):
            return self._fused(func, args, given)
        if name in _PRODUCTS and (axes := _axes_of(name, args, self._n)) is not None:
            return self._product(func, args, given, axes)
        output = func(*args, **given)
        if self._scores is not None and isinstance(output, Tensor) and output.shape == self._scores.shape:
            if name == "tanh":
                self._scores = replace(self._scores, capped=(first.clone(), output.clone()))
            elif name == "softmax" and (args[1:2] or (given.get("dim"),))[0] in (-1, output.ndim - 1):
                if self.is_chosen(self._scores.number):
                    output = self._through(PATTERN, _as_heads(output, self._n)).reshape(output.shape)
                self._softmax = _as_heads(first, self._n).clone()
        return output

    def is_chosen(self, number: int) -> bool:
        """Return whether this product of the block is the one whose heads are led through functions."""
        return number == self._number

    def _product(
        self, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any], axes: tuple[str, str, str]
    ) -> Tensor:
        """Run a product of two arrays with heads: of queries and keys, of pattern and values, or another one."""
        at = int(func.__name__ in ("einsum", "baddbmm"))  # the first argument is an equation, or what is added
        (left, right), (a, b, out) = args[at : at + 2], axes

        def product(left: Tensor, right: Tensor) -> Tensor:
            return cast(Tensor, func(*args[:at], left, right, *args[at + 2 :], **given))

        if self._softmax is not None and self._scores is not None and left.shape == self._scores.shape:
            is_chosen, width = self.is_chosen(self._scores.number), out.strip(a)
            of_v, of_z = a[0] + a[3] + a[1] + width, a[0] + a[2] + a[1] + width
            right = self._heads(V, right, b, of_v) if is_chosen else right
            z = product(left, right)
            if self._heard is not None:
                self._heard(self._explicit(self._split(right, b, of_v), self._split(z, out, of_z)))
            self._scores = self._softmax = None
            return self._heads(Z, z, out, of_z) if is_chosen else z
        number, self.n_products = self.n_products, self.n_products + 1
        shared, is_swapped = next(iter(set(a) & set(b) - set(out))), out[2] not in a
        pair = [(right, b), (left, a)] if is_swapped else [(left, a), (right, b)]
        orders = [out[0] + out[at] + out[1] + shared for at in (2, 3)]
        each = [(*of, order, site) for of, order, site in zip(pair, orders, (Q_ROT, K_ROT), strict=True)]
        q, k = (self._heads(site, x, of, order) if self.is_chosen(number) else x for x, of, order, site in each)
        scores = product(k, q) if is_swapped else product(q, k)
        if self._softmax is None and scores.shape[-1] == scores.shape[-2]:
            q, k = (self._split(x, of, order) for x, (_, of, order, _) in zip((q, k), each, strict=True))
            self._scores = _Scores(number=number, q=q, k=k, shape=scores.shape)
        return scores

    def _fused(self, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> Tensor:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        known = {**dict(zip(names, args, strict=False)), **given}
        whole, axes, order = [known.pop(name) for name in names[:3]], "bhpd", "bphd"
        number, self.n_products = self.n_products, self.n_products + 1
        is_chosen = self.is_chosen(number)
        if is_chosen:
            whole = [self._heads(site, x, axes, order) for site, x in zip((Q_ROT, K_ROT, V), whole, strict=True)]
        q, k, v = (self._split(x, axes, order) for x in whole)
        scale, added = known.get("scale"), _added(known, q, k)
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        if is_chosen and self._is_watched(PATTERN):
            pattern = self._through(PATTERN, pattern_of(q, k, scale, added))
            z = weighted(pattern, v).to(v.dtype).transpose(1, 2).reshape(*whole[0].shape[:-1], v.shape[-1])
        else:
            z = func(*whole, **known)
        if self._heard is not None:
            heads = self._split(z, axes, order)
            self._heard(_call(number, q, k, v, heads, scale=scale, added=added, is_fused=True))
        return self._heads(Z, z, axes, order) if is_chosen else z

    def _explicit(self, v: Tensor, z: Tensor) -> AttentionCall:
        """Return the call of an attention that formed its pattern, whose scale and mask follow from its scores."""
        assert self._scores is not None and self._softmax is not None, "they come before"
        q, k, capped = self._scores.q, self._scores.k, self._scores.capped
        plain, scale = products(q, k).double(), 1.0
        if capped is not None:
            before, after = (_as_heads(x, self._n).double() for x in capped)
            scale, plain = scaled(plain, before)[0], after
        factor, added = scaled(plain, self._softmax.double())
        cap = None if capped is None else factor
        return _call(self._scores.number, q, k, v, z, scale=factor * scale, added=added, soft_cap=cap)

    def _heads(self, site: Site, x: Tensor, axes: str, order: str) -> Tensor:
        """Return an activation after its function, which sees each key and value head once."""
        if not self._is_watched(site):
            return x
        heads = self._split(x, axes, order)
        group = heads.shape[2] // self._n_kv_heads if site in (K_ROT, V) else 1
        passed = self._through(site, heads[:, :, ::group]).repeat_interleave(group, dim=2)
        return passed.permute([order.index(axis) for axis in axes]).reshape(x.shape)

    def _split(self, x: Tensor, axes: str, order: str) -> Float[Tensor, "_ _ _ _"]:
        """Return an array with heads as an axis of its own, and its axes in this order."""
        return _as_heads(x, self._n).permute([axes.index(axis) for axis in order])


def _axes_of(name: str, args: tuple[Any, ...], n: int) -> tuple[str, str, str] | None:
    """Return the axes of both factors and of a product of two arrays with four axes, or three that join two; or None.

    The product has axes sequence, head, and two more.
    """
    if name == "einsum" and isinstance(args[0], str) and len(args) == 3 and "->" in args[0] and "." not in args[0]:
        left, _, out = args[0].replace(" ", "").partition("->")
        a, _, b = left.partition(",")
        is_plain = len(a) == len(b) == len(out) == 4 and len(set(a) & set(b) - set(out)) == 1 and len(set(out)) == 4
        return (a, b, out) if is_plain and out[0] in a and out[0] in b else None
    given = args[1:3] if name == "baddbmm" else args[:2]
    if name == "einsum" or len(given) != 2 or not all(isinstance(x, Tensor) for x in given):
        return None
    is_flat = n > 0 and all(x.ndim == 3 and x.shape[0] % n == 0 for x in given)
    return ("bhqd", "bhdk", "bhqk") if is_flat or all(x.ndim == 4 for x in given) else None


def _as_heads(x: Tensor, n: int) -> Float[Tensor, "a b c d"]:
    """Return an array with heads as an axis of its own."""
    return x if x.ndim == 4 else x.unflatten(0, (n, -1))


def _call(number: int, q: Tensor, k: Tensor, v: Tensor, z: Tensor, **known: Any) -> AttentionCall:
    """Return a call, with copies of its heads, and each of keys and values once."""
    by = _distinct(k, v)
    q, k, v, z = (x.clone() for x in (q, k[:, :, ::by], v[:, :, ::by], z))
    return AttentionCall(number=number, q=q, k=k, v=v, z=z, **known)


def _distinct(k: Float[Tensor, "batch pos head d"], v: Float[Tensor, "batch pos head d_value"]) -> int:
    """Return how many neighboring heads share their keys and values."""
    n = k.shape[2]

    def is_shared(by: int) -> bool:
        return all(bool((x.unflatten(2, (-1, by)) == x[:, :, ::by, None]).all()) and bool(x.any()) for x in (k, v))

    return next((by for by in range(n, 1, -1) if n % by == 0 and is_shared(by)), 1)


def _added(known: dict[str, Any], q: Tensor, k: Tensor) -> Float[Tensor, "..."] | None:
    """Return the mask of a fused call as what it adds to the scores."""
    mask = known.get("attn_mask")
    if known.get("is_causal"):
        mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril()
    if mask is None or mask.dtype != torch.bool:
        return None if mask is None else mask.clone()
    return q.new_zeros(mask.shape).masked_fill(~mask, -torch.inf)


def scaled(
    plain: Float[Tensor, "batch head pos key_pos"], scores: Float[Tensor, "batch head pos key_pos"]
) -> tuple[float, Float[Tensor, "1 head pos key_pos"]]:
    """Return the factor of products in scores, and what is added: it must be the same in all sequences.

    The factor follows from the differences between two sequences; what is added, from the first one.
    """
    is_seen = (scores > _MASKED).all(dim=0)
    apart, between = (x[0] - x[-1] for x in (plain, scores))
    factor = factor_between(between[is_seen], apart[is_seen])
    return factor, (scores[:1] - factor * plain[:1]).masked_fill(~is_seen, -torch.inf)
