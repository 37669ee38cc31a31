"""Access to rotated queries and keys, and to the pattern, in attention.

While a site is hooked, a function registered under a bayesgeom name in Hugging Face's attention interface replaces the
model's attention and calls the model's own implementation. If the pattern is hooked, this is the model's
`eager_attention_forward`, which handles soft caps, sinks and scaling. Otherwise it is the implementation that the model
uses.

Some families (Falcon, MPT, GPT-Neo, CodeGen) do not use the interface and call torch's functions themselves. While one
of their sites is hooked, the first product in the attention's forward is that of queries and keys, its softmax is the
pattern, and the next product is that of pattern and values. The adapter verifies this when it attaches a model, as it
does every site.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bayesgeom.core import K_ROT, PATTERN, Q_ROT, Site, V, Z
from bayesgeom.models.adapters.proof import Taps, per_query_head
from bayesgeom.models.config import quiet

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PREFIX = "bayesgeom-"


@final
@dataclass(frozen=True, kw_only=True)
class Handed:
    """Arguments of one call of the interface, besides q and k, that determine the pattern, and the width of q and k.

    `output`: what the call returned; None for attention that calls torch's functions itself.
    """

    value: Float[Tensor, "batch kv_head pos d_head"]
    mask: Shaped[Tensor, "..."] | None
    scaling: float
    softcap: float | None
    d_key: int
    output: Float[Tensor, "batch pos head d_value"] | None = None
    sinks: Float[Tensor, " head"] | None = None  # one additional score per head, without a value


@final
@dataclass(frozen=True, kw_only=True)
class Route:
    """The taps for one layer's calls of the interface. Arguments are appended to `handed` if it is a list.

    `has_z`: whether z is read here, because a gate or a norm stands between it and W_O.
    """

    taps: Taps
    layer: int
    has_z: bool = False
    handed: list[Handed] | None = field(default=None)


_ROUTES: "WeakKeyDictionary[nn.Module, Route]" = WeakKeyDictionary()


@contextlib.contextmanager
def routed(
    hf: "PreTrainedModel", routes: Mapping[nn.Module, Route], *, is_eager: bool, is_forced: bool = False
) -> Iterator[None]:
    """Route the attention of these modules through their taps; afterwards restore the model's implementation.

    With `is_forced`, a model that ignores names of other packages (Falcon) computes eager attention, too.
    """
    former = hf.config._attn_implementation  # noqa: SLF001  (transformers has no public way to read it)
    kernel = "eager" if is_eager else former
    if kernel is None or not _register(kernel):
        yield
        return
    with quiet():
        hf.set_attn_implementation(_PREFIX + kernel)
    if is_forced and is_eager and hf.config._attn_implementation == former:  # noqa: SLF001
        hf.config._attn_implementation = kernel  # noqa: SLF001
    _ROUTES.update(routes)
    try:
        yield
    finally:
        for module in routes:
            _ROUTES.pop(module, None)
        with quiet():
            hf.set_attn_implementation(former)
        if hf.config._attn_implementation != former:  # noqa: SLF001
            hf.config._attn_implementation = former  # noqa: SLF001


def _register(kernel: str) -> bool:
    """Register bayesgeom's name for a kernel in transformers; false if there is no such kernel."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = _PREFIX + kernel
    if name in ALL_ATTENTION_FUNCTIONS:
        return True
    if kernel not in ALL_MASK_ATTENTION_FUNCTIONS or (kernel != "eager" and kernel not in ALL_ATTENTION_FUNCTIONS):
        return False

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,  # transformers' name, because some families pass it by keyword
        **options: Any,
    ) -> Any:
        return _attend(kernel, module, (query, key, value), attention_mask, options)

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[kernel])
    return True


def _attend(
    kernel: str, module: nn.Module, qkv: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, options: dict[str, Any]
) -> tuple[Float[Tensor, "batch pos head d_head"], Tensor | None]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.llama.modeling_llama import eager_attention_forward

    if kernel == "eager":  # the one in the model's own file, if any
        of_module = vars(sys.modules[type(module).__module__])
        forward = of_module.get("eager_attention_forward", eager_attention_forward)
    else:
        forward = ALL_ATTENTION_FUNCTIONS[kernel]
    route = _ROUTES.get(module)
    if route is None:
        out: tuple[Tensor, Tensor | None] = forward(module, *qkv, mask, **options)
        return out
    q, k, v = (
        route.taps.through(site, route.layer, x.transpose(1, 2)).transpose(1, 2)
        for site, x in zip((Q_ROT, K_ROT, V), qkv, strict=True)
    )
    output, pattern = forward(module, q, k, v, mask, **options)
    if pattern is not None and route.taps.is_watched(route.layer, PATTERN):
        passed = route.taps.through(PATTERN, route.layer, pattern)
        if passed is not pattern:
            output = torch.matmul(passed, per_query_head(v, passed.shape[1])).transpose(1, 2).contiguous()
    if route.handed is not None:
        scaling = options.get("scaling")
        route.handed.append(
            Handed(
                value=v,
                mask=mask,
                scaling=q.shape[-1] ** -0.5 if scaling is None else scaling,
                softcap=options.get("softcap"),
                output=output,
                d_key=q.shape[-1],
                sinks=options.get("s_aux"),
            )
        )
    return (route.taps.through(Z, route.layer, output) if route.has_z else output), pattern


_PRODUCTS = frozenset({"matmul", "__matmul__"})
_FUSED, _SOFTMAX = "scaled_dot_product_attention", "softmax"
_MASKED = -1e3  # scores below are masked


@contextlib.contextmanager
def watched_functions(routes: Mapping[nn.Module, Route], n_kv_heads: int) -> Iterator[None]:
    """Route the products and the softmax inside these modules through their taps."""
    former = {module: vars(module).get("forward") for module in routes}  # accelerate sets one of its own
    try:
        for module, route in routes.items():
            vars(module)["forward"] = _watched(module.forward, route, n_kv_heads)
        yield
    finally:
        for module, forward in former.items():
            vars(module).pop("forward", None)
            vars(module).update({} if forward is None else {"forward": forward})


def _watched(forward: Callable[..., Any], route: Route, n_kv_heads: int) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with _Watch(route, n_kv_heads):
            return forward(*args, **kwargs)

    return run


@final
class _Watch(TorchFunctionMode):
    """One forward pass of one attention."""

    def __init__(self, route: Route, n_kv_heads: int) -> None:
        super().__init__()
        self._route, self._n_kv_heads = route, n_kv_heads
        self._qk: tuple[Tensor, Tensor] | None = None
        self._scores: Tensor | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given, name = kwargs or {}, func.__name__
        if name in _PRODUCTS and len(args) == 2 and _is_wide(args):
            if self._qk is None:
                return func(*self._entering(*args), **given)
            if self._scores is not None:
                return self._leaving(func, *args)
        if name == _SOFTMAX and self._qk is not None and self._scores is None and _is_wide(args[:1]):
            self._scores = args[0]
            return self._through(PATTERN, func(*args, **given))
        if name == _FUSED and self._qk is None and len(args) >= 3 and _is_wide(args[:3]):
            q, k = self._entering(args[0], args[1].transpose(-1, -2))
            return func(q, k.transpose(-1, -2), self._heads(V, args[2]), *args[3:], **given)
        return func(*args, **given)

    def _entering(
        self, q: Float[Tensor, "batch head query_pos d"], k: Float[Tensor, "batch kv_head d key_pos"]
    ) -> tuple[Float[Tensor, "batch head query_pos d"], Float[Tensor, "batch kv_head d key_pos"]]:
        """Queries and transposed keys, as they enter the product."""
        q, k = self._heads(Q_ROT, q), self._heads(K_ROT, k.transpose(-1, -2)).transpose(-1, -2)
        self._qk = (q, k)
        return q, k

    def _leaving(
        self, product: Callable[..., Any], pattern: Float[Tensor, "batch head query_pos key_pos"], v: Tensor
    ) -> Float[Tensor, "batch head query_pos d"]:
        """The product of pattern and values."""
        v = self._heads(V, v)
        out: Tensor = product(pattern, v)
        assert self._qk is not None and self._scores is not None, "products come before"
        is_plain = self._scores.shape[-1] == self._qk[1].shape[-1]  # no sinks
        if self._route.handed is not None and is_plain:
            scaling, mask = _scaled(*self._qk, self._scores)
            values = self._of_kv_heads(v)
            d_key = self._qk[0].shape[-1]
            self._route.handed.append(Handed(value=values, mask=mask, scaling=scaling, softcap=None, d_key=d_key))
        self._scores = None
        return out

    def _heads(self, site: Site, x: Float[Tensor, "batch _ pos d"]) -> Float[Tensor, "batch _ pos d"]:
        """An activation after its tap, where each key and value head occurs once."""
        if not self._route.taps.is_watched(self._route.layer, site):
            return x
        heads = x if site == Q_ROT else self._of_kv_heads(x)
        passed = self._through(site, heads.transpose(1, 2)).transpose(1, 2)
        return passed.repeat_interleave(x.shape[1] // heads.shape[1], dim=1)

    def _of_kv_heads(self, x: Float[Tensor, "batch _ pos d"]) -> Float[Tensor, "batch kv_head pos d"]:
        return x[:, :: max(1, x.shape[1] // self._n_kv_heads)]

    def _through(self, site: Site, x: Tensor) -> Float[Tensor, "..."]:
        return self._route.taps.through(site, self._route.layer, x)


def _is_wide(args: tuple[Any, ...]) -> bool:
    return bool(args) and all(isinstance(x, Tensor) and x.ndim == 4 for x in args)


def _scaled(
    q: Float[Tensor, "batch head query_pos d"],
    k: Float[Tensor, "batch kv_head d key_pos"],
    scores: Float[Tensor, "batch head query_pos key_pos"],
) -> tuple[float, Float[Tensor, "1 head query_pos key_pos"]]:
    """The factor of q·k in the scores, and what is added: it must be the same in all sequences.

    The factor follows from the differences between two sequences; what is added, from the first one.
    """
    products, wide = torch.matmul(q.double(), k.double()), scores.double()
    is_seen = (wide > _MASKED).all(dim=0)
    apart, between = (x[0] - x[-1] for x in (products, wide))
    factor = float((apart * between)[is_seen].sum() / apart[is_seen].square().sum().clamp_min(1e-30))
    added = (wide[:1] - factor * products[:1]).masked_fill(~is_seen, -torch.inf)
    return factor, added
