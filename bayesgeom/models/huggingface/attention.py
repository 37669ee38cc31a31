"""Access to rotated queries and keys, and to the pattern, in attention.

While a site is hooked, a function registered under a bayesgeom name in Hugging Face's attention interface replaces the
model's attention and calls the model's own implementation. If the pattern is hooked, this is the model's
`eager_attention_forward`, which handles soft caps, sinks and scaling. Otherwise it is the implementation that the model
uses.

Some families (Falcon, MPT, GPT-Neo, CodeGen) do not use the interface and call torch's functions themselves. While one
of their sites is hooked, the first product in the attention's forward is that of queries and keys (`AttentionWatch`).
The adapter verifies this when it attaches a model, as it does every site.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final
from weakref import WeakKeyDictionary

from jaxtyping import Float
from torch import Tensor, nn

from bayesgeom.core import K_ROT, PATTERN, Q_ROT, V, Z
from bayesgeom.models.adapters.attention import AttentionCall, AttentionWatch, weighted
from bayesgeom.models.adapters.proof import Taps
from bayesgeom.models.config import quiet

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PREFIX = "bayesgeom-"


@final
@dataclass(frozen=True, kw_only=True)
class Route:
    """The taps for one layer's calls of the interface. Arguments are appended to `handed` if it is a list.

    `has_z`: whether z is read here, because a gate or a norm stands between it and W_O.
    """

    taps: Taps
    layer: int
    has_z: bool = False
    handed: list[AttentionCall] | None = field(default=None)


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
        route.taps.through(site, route.layer, x.transpose(1, 2)) for site, x in zip((Q_ROT, K_ROT, V), qkv, strict=True)
    )
    output, pattern = forward(module, *(x.transpose(1, 2) for x in (q, k, v)), mask, **options)
    if pattern is not None and route.taps.is_watched(route.layer, PATTERN):
        passed = route.taps.through(PATTERN, route.layer, pattern)
        output = output if passed is pattern else weighted(passed, v).contiguous()
    if route.handed is not None:
        scale = q.shape[-1] ** -0.5 if options.get("scaling") is None else options["scaling"]
        known: dict[str, Any] = {"added": mask, "soft_cap": options.get("softcap"), "sinks": options.get("s_aux")}
        route.handed.append(AttentionCall(number=0, q=q, k=k, v=v, z=output, scale=scale, **known))
    return (route.taps.through(Z, route.layer, output) if route.has_z else output), pattern


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
    def hear(call: AttentionCall) -> None:
        if route.handed is not None and call.number == 0 and not call.is_fused:
            route.handed.append(call)

    def run(*args: Any, **kwargs: Any) -> Any:
        watch = AttentionWatch(
            0,
            through=lambda site, x: route.taps.through(site, route.layer, x),
            is_watched=lambda site: site != Z and route.taps.is_watched(route.layer, site),  # z enters W_O
            heard=None if route.handed is None else hear,
        )
        watch.begin(0, n_kv_heads)
        with watch:
            return forward(*args, **kwargs)

    return run
