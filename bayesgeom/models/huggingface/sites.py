"""The sites of a Hugging Face model: hooks that route activations through taps, and sites that are read from weights.

PyTorch hooks are set on entry for hooked sites, and only these are removed on exit. Weights are not accessed, so this
works with weights that accelerate keeps on another device or on disk.

Static sites are computed with the model's own modules instead of reading parameters. A matrix is a module's output for
the unit vectors minus its output for zero. A norm's weight is half the difference of its outputs for x and −x. This is
correct for any layout, for quantized modules, for norms that multiply by one plus their parameter, and for weights that
accelerate keeps elsewhere.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast, final

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor, nn

from bayesgeom.core import (
    ALL_SITES,
    ATTN_OUT,
    EXPERT_WEIGHTS,
    K_ROT,
    MLP_OUT,
    MLP_POST,
    NORM_WEIGHT,
    PATTERN,
    Q_ROT,
    RESID_MID,
    RESID_POST,
    RESID_PRE,
    ROUTER_LOGITS,
    STATE,
    TOKEN_EMBEDDINGS,
    TOKEN_INPUTS,
    TOKEN_KEYS,
    W_K,
    W_K_GRAM,
    W_O,
    W_V,
    K,
    Q,
    Site,
    V,
    Z,
)
from bayesgeom.core.torch_state import Hook, hooked
from bayesgeom.models.adapters.attention import AttentionCall
from bayesgeom.models.adapters.proof import SUM, Taps, first_input, first_output, input_hook, output_hook
from bayesgeom.models.base import INSIDE_MLP
from bayesgeom.models.huggingface.anatomy import Anatomy, Parts, is_close, routing_of
from bayesgeom.models.huggingface.attention import Route, routed, watched_functions
from bayesgeom.models.huggingface.recurrences import Read, States, routed_states

if TYPE_CHECKING:
    from transformers import PreTrainedModel


By = Literal["interface", "functions", "modules"]  # where a model's attention is reached
_INTERFACE = (Q_ROT, K_ROT, PATTERN)


@final
class SiteHooks:
    """The taps of one model and the hooks that route activations through them.

    `route` says where attention is reached: in Hugging Face's interface, in torch's functions, or in modules. Of
    modules the pattern is read at the attention's dropout, and the scores use the projected queries and keys.
    `layers` holds the layers of each site, static ones included; `absent` why a site is not in all of them.
    """

    def __init__(self, hf: "PreTrainedModel", anatomy: Anatomy, route: By) -> None:
        self.anatomy, self.route = anatomy, route
        self._attentions: dict[int, nn.Module] = {
            layer: anatomy.part(layer, parts.attention)
            for layer, parts in enumerate(anatomy.parts)
            if parts.attention is not None
        }
        self._hf = hf
        self.layers: dict[Site, tuple[int, ...]] = {}
        self.absent: dict[Site, str] = {}
        absent = [_absent_in(parts, route) for parts in anatomy.parts]
        for site in ALL_SITES:
            layers = tuple(layer for layer, reasons in enumerate(absent) if site not in reasons)
            if layers:
                self.layers[site] = layers
            if len(layers) < anatomy.n_layers:
                named = ", ".join(map(str, layers))
                self.absent[site] = f"only in layers {named}" if layers else absent[0][site]
        self.taps = Taps((site for site in self.layers if not site.is_static), anatomy.n_layers)
        self.handed: list[list[AttentionCall]] = [[] for _ in anatomy.blocks]
        self.read_states: dict[int, tuple[Tensor, Tensor]] = {}
        self._entered: Tensor | None = None  # input of the running block

    @contextlib.contextmanager
    def open(self, *, is_witnessed: bool = False) -> Iterator[None]:
        """Route activations through every hooked tap inside the block.

        `is_witnessed` fills `handed` and, with what is read of each layer's states and the layer's own output,
        `read_states`.
        """
        self.handed, self.read_states = [[] for _ in self.anatomy.blocks], {}
        layers = range(self.taps.n_layers)
        kinds = (self._on_block, self._on_attention, self._on_mlp)
        hooks = [hook for layer in layers for kind in kinds for hook in kind(layer)]
        # Calls are counted at the taps; these hooks only lead to them.
        recurrent = ((layer, self.anatomy.parts[layer].recurrence) for layer in layers)
        states = (
            (self.anatomy.part(layer, path), partial(self._states, layer, is_witnessed))
            for layer, path in recurrent
            if path is not None and self.taps.is_watched(layer, STATE)
        )
        routes = routed_states(states)
        with hooked(self._hf, hooks, by="this model", times=None), self._interface(is_witnessed), routes:
            try:
                yield
            finally:
                self._entered = None

    @contextlib.contextmanager
    def _interface(self, is_witnessed: bool) -> Iterator[None]:
        layers = range(self.taps.n_layers)
        gated = [layer for layer in layers if self.anatomy.parts[layer].is_gated]
        if self.route == "modules" or not (
            is_witnessed
            or any(self.taps.is_watched(layer, *_INTERFACE, V) for layer in layers)
            or any(self.taps.is_watched(layer, Z) for layer in gated)
        ):
            yield
            return
        routes = {
            part: Route(
                taps=self.taps,
                layer=layer,
                has_z=self.anatomy.parts[layer].is_gated,
                handed=self.handed[layer] if is_witnessed else None,
            )
            for layer, part in self._attentions.items()
        }
        is_eager = is_witnessed or any(self.taps.is_watched(layer, PATTERN) for layer in layers)
        with contextlib.ExitStack() as stack:
            if self.route == "interface":
                stack.enter_context(routed(self._hf, routes, is_eager=is_eager))
            else:
                if is_eager:
                    stack.enter_context(routed(self._hf, {}, is_eager=True, is_forced=True))
                stack.enter_context(watched_functions(routes, self.anatomy.sizes.n_kv_heads))
            yield

    def _on_block(self, layer: int) -> Iterator[Hook]:
        taps, block, writers = self.taps, self.anatomy.blocks[layer], self.anatomy.parts[layer].writers
        if taps.is_watched(layer, RESID_PRE, RESID_MID, MLP_OUT, ATTN_OUT, *INSIDE_MLP):
            yield input_hook(block, partial(self._enter, layer))
        if writers is not None and taps.is_watched(layer, ATTN_OUT, RESID_MID):
            part = self.anatomy.part(layer, writers[0])
            yield output_hook(part, partial(self._attention_writes, layer))
        if writers is not None and taps.is_watched(layer, MLP_OUT):
            part = self.anatomy.part(layer, writers[1])
            yield output_hook(part, partial(self._mlp_writes, layer))
        if taps.is_watched(layer, RESID_POST):
            yield output_hook(block, partial(taps.through, RESID_POST, layer))

    def _on_mlp(self, layer: int) -> Iterator[Hook]:
        taps, anatomy, parts = self.taps, self.anatomy, self.anatomy.parts[layer]
        if parts.down is not None and taps.is_watched(layer, MLP_POST):
            yield input_hook(anatomy.part(layer, parts.down), partial(self._units, layer))
        if parts.router is not None and taps.is_watched(layer, ROUTER_LOGITS):
            part = anatomy.part(layer, parts.router)
            yield Hook(part=part, call=partial(self._routes, layer), kind="pre", with_kwargs=True)
        if parts.experts is not None and taps.is_watched(layer, EXPERT_WEIGHTS):
            part = anatomy.part(layer, parts.experts)
            yield Hook(part=part, call=partial(self._chooses, layer), kind="pre", with_kwargs=True)

    def _units(self, layer: int, given: Float[Tensor, "*flat d_mlp"]) -> Float[Tensor, "*flat d_mlp"]:
        return self.taps.through(MLP_POST, layer, self._by_position(given)).reshape(given.shape)

    def _routes(
        self, layer: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give the router the input that makes its logits those that left the tap: the nearest one to its own input."""
        given = first_input(args, kwargs)
        assert given is not None, "seen when the model was attached"
        logits = first_output(module.forward(given))
        passed = self.taps.through(ROUTER_LOGITS, layer, before := self._by_position(logits))
        if passed is before:
            return args, kwargs
        width = given.shape[-1]
        unit = torch.eye(width + 1, width, dtype=given.dtype, device=given.device)  # the last row is zero
        rows = first_output(module.forward(unit)).double()
        change = (passed.reshape(logits.shape).double() - logits.double()) @ torch.linalg.pinv(rows[:-1] - rows[-1])
        moved = given + change.reshape(given.shape).to(given)
        return ((moved, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": moved})

    def _chooses(
        self, layer: int, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give the experts the weights that left the tap; every expert then runs on every token."""
        routing = routing_of(args, kwargs)
        assert routing is not None, "seen when the model was attached"
        put, chosen, weights = routing
        n_experts = self.anatomy.parts[layer].n_experts
        # A choice of no expert has the number after the last one.
        dense = weights.new_zeros(len(weights), n_experts + 1).scatter_add(1, chosen.long(), weights)[:, :-1]
        passed = self.taps.through(EXPERT_WEIGHTS, layer, before := self._by_position(dense))
        if passed is before and not torch.is_grad_enabled():
            return args, kwargs
        every = torch.arange(n_experts, device=chosen.device).to(chosen.dtype).expand(len(chosen), -1)
        return put(every.contiguous(), passed.reshape(dense.shape))

    def _states(
        self, layer: int, is_witnessed: bool, states: States, read: Read, output: Float[Tensor, "..."]
    ) -> Float[Tensor, "..."]:
        flat = states.flatten(2)
        passed = self.taps.through(STATE, layer, flat)
        if is_witnessed:
            self.read_states[layer] = read(states), output
        return output if passed is flat and not flat.requires_grad else read(passed.reshape(states.shape))

    def _by_position(self, flat: Shaped[Tensor, "*flat d"]) -> Shaped[Tensor, "batch pos d"]:
        assert self._entered is not None, "the block was entered before"
        return flat.reshape(*self._entered.shape[:2], -1)

    def _on_attention(self, layer: int) -> Iterator[Hook]:
        taps, anatomy, parts = self.taps, self.anatomy, self.anatomy.parts[layer]
        if parts.output is not None and not parts.is_gated and taps.is_watched(layer, Z):
            yield input_hook(anatomy.part(layer, parts.output), partial(self._z, layer))
        for site, projection in parts.projections.items():
            through = self._projected_sites(site)
            if taps.is_watched(layer, *through):
                part = anatomy.part(layer, projection.path)
                yield output_hook(part, partial(self._projects, layer, site, through))
        if self.route == "modules" and parts.dropout is not None and taps.is_watched(layer, PATTERN):
            part = anatomy.part(layer, parts.dropout)
            yield output_hook(part, partial(taps.through, PATTERN, layer))

    def _projected_sites(self, site: Site) -> tuple[Site, ...]:
        """The sites that are read at the projection of this one."""
        if self.route != "modules":
            return () if site == V else (site,)
        return {Q: (Q, Q_ROT), K: (K, K_ROT)}.get(site, (site,))

    def _enter(self, layer: int, given: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        self._entered = self.taps.through(RESID_PRE, layer, given)
        return self._entered

    def _attention_writes(self, layer: int, given: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        scale = self.anatomy.parts[layer].write_scale
        written = _times(given, scale)
        out = self.taps.through(ATTN_OUT, layer, written)
        if not self.taps.is_watched(layer, RESID_MID):
            return self._given_back(given, written, out, scale)
        assert self._entered is not None, "the block was entered before"
        entered = self._entered.to(out.device)  # accelerate moves it inside the block, after the pre-hook
        mid = entered + out
        passed = self.taps.through(RESID_MID, layer, mid)
        # The block adds its input again, so subtract it to arrive at the edited resid_mid.
        if passed is mid and not mid.requires_grad:
            return self._given_back(given, written, out, scale)
        return _times(passed - entered, 1 / scale)

    def _mlp_writes(self, layer: int, given: Shaped[Tensor, "*flat d_model"]) -> Shaped[Tensor, "*flat d_model"]:
        assert self._entered is not None, "the block was entered before"
        scale = self.anatomy.parts[layer].write_scale
        written = _times(given, scale).reshape(self._entered.shape)
        passed = self.taps.through(MLP_OUT, layer, written)
        return self._given_back(given, written, passed, scale).reshape(given.shape)

    @staticmethod
    def _given_back(
        given: Shaped[Tensor, "..."], written: Shaped[Tensor, "..."], passed: Shaped[Tensor, "..."], scale: float
    ) -> Shaped[Tensor, "..."]:
        """The output of the part: bit-identical unless a hook changed it or a gradient is taken."""
        return given if passed is written and not passed.requires_grad else _times(passed, 1 / scale)

    def _z(self, layer: int, given: Float[Tensor, "batch pos width"]) -> Float[Tensor, "batch pos width"]:
        return self.taps.through(Z, layer, given.unflatten(-1, (self.anatomy.sizes.n_heads, -1))).flatten(-2)

    def _projects(
        self, layer: int, site: Site, through: tuple[Site, ...], output: Float[Tensor, "batch pos width"]
    ) -> Float[Tensor, "batch pos width"]:
        projection = self.anatomy.parts[layer].projections[site]
        before = values = projection.take(output)
        for tapped in through:
            values = self.taps.through(tapped, layer, values)
        return output if values is before and not torch.is_grad_enabled() else projection.put(output, values)


def _times(x: Shaped[Tensor, "..."], factor: float) -> Shaped[Tensor, "..."]:
    """x times the factor; `x` itself if the factor is 1."""
    return x if factor == 1 else x * factor


_LARGE = 64.0  # root mean square at which the ε of a norm is negligible


@final
class StaticSites:
    """Embeddings, normed embeddings, and matrices. `scale` multiplies embeddings before the first block."""

    def __init__(self, hf: "PreTrainedModel", anatomy: Anatomy, d_model: int, scale: float) -> None:
        self._hf, self._anatomy, self._d_model, self._scale = hf, anatomy, d_model, scale

    @torch.no_grad()
    def of(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        """Return a site of one layer, for these token ids."""
        anatomy, d_model, parts = self._anatomy, self._d_model, self._anatomy.parts[layer]
        if site in (W_K, W_V):
            kind = K if site == W_K else V
            value = self._matrix(lambda x: self._projected(kind, x, layer), d_model).permute(1, 2, 0)
        elif site == W_O:
            assert parts.output is not None, "it is absent otherwise"
            part, heads = anatomy.part(layer, parts.output), anatomy.sizes
            wide = self._matrix(lambda x: call(part, x), heads.n_heads * (heads.d_value or heads.d_head))
            value = (parts.write_scale * wide).unflatten(0, (heads.n_heads, -1))
        elif site == NORM_WEIGHT:
            value = self._norm_weight(layer)
        else:
            value = self._of_tokens(site, tokens, layer)[0]
        return value.to(tokens.device).float()

    def inputs(self, resid: Float[Tensor, "batch pos d_model"], layer: int) -> Float[Tensor, "batch pos d_model"]:
        """Return the residual stream after the norm, as the input of W_K."""
        path = self._anatomy.parts[layer].key_input
        return call(self._anatomy.part(layer, path), resid) if path else resid

    def projected(
        self, site: Site, resid: Float[Tensor, "batch pos d_model"], layer: int
    ) -> Float[Tensor, "batch pos kv_head d_head"]:
        """Return the keys or values of a residual stream, before rotation and norm."""
        return self._projected(site, self.inputs(resid, layer), layer)

    @torch.no_grad()
    def misnormed(self, layers: Iterable[int]) -> int | None:
        """Return the first of these layers where the input of W_K is not a norm times a weight plus a bias."""
        x = 3 * torch.randn(1, 5, self._d_model, generator=torch.Generator().manual_seed(0), dtype=torch.float32).to(
            self._hf.dtype
        )
        centered = x - x.mean(dim=-1, keepdim=True)
        normed = [part * part.float().square().mean(dim=-1, keepdim=True).rsqrt() for part in (x, centered)]
        for layer in layers:
            odd = (self.inputs(x, layer) - self.inputs(-x, layer)).float() / 2
            weight = self._norm_weight(layer).to(odd.device)
            expected = [weight * part.to(odd) for part in (normed if self._anatomy.parts[layer].key_input else [x])]
            if not any(is_close(odd.to(x.dtype), part) for part in expected):  # to the model's own rounding
                return layer
        return None

    def _of_tokens(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "batch token *rest"]:
        embeddings = embedded(self._hf, tokens[None]) * self._scale
        if site == TOKEN_EMBEDDINGS:
            return embeddings
        return self.inputs(embeddings, layer) if site == TOKEN_INPUTS else self.projected(K, embeddings, layer)

    def _projected(
        self, site: Site, x: Float[Tensor, "batch pos d"], layer: int
    ) -> Float[Tensor, "batch pos kv_head d_head"]:
        projection = self._anatomy.parts[layer].projections[site]
        return projection.take(call(self._anatomy.part(layer, projection.path), x))

    def _norm_weight(self, layer: int) -> Float[Tensor, " d_model"]:
        """Half the difference of the norm's outputs for x and −x, divided by x / rms, for an x of mean zero."""
        if not self._anatomy.parts[layer].key_input:
            return torch.ones(self._d_model)
        x = torch.ones(self._d_model, dtype=torch.float64)
        x[self._d_model // 2 :] = -1
        x = x - x.mean()
        x = (_LARGE * x / x.square().mean().sqrt()).to(self._hf.dtype)
        odd = (self.inputs(x[None, None], layer) - self.inputs(-x[None, None], layer)).float()[0, 0] / 2
        return odd * _LARGE / x.to(odd)

    def _matrix(self, part: Callable[[Tensor], Tensor], width: int) -> Float[Tensor, "width *out"]:
        unit = torch.eye(width + 1, width)[None]  # the last row is zero
        rows = part(unit.to(self._hf.dtype))[0].float()
        return rows[:-1] - rows[-1]


def _absent_in(parts: Parts, route: By) -> dict[Site, str]:
    """The sites that one block does not provide, each with the reason."""
    names = {Q: "query", K: "key", V: "value"}
    unknown = {site: f"no {names[site]} projection found" for site in names if site not in parts.projections}
    reasons = unknown.copy()
    if route != "modules":
        reasons.pop(V, None)  # it is read where attention is reached
    elif Q in unknown:
        reasons |= dict.fromkeys((Q_ROT, K_ROT), unknown[Q])
    if route == "modules" and parts.dropout is None:
        reasons[PATTERN] = "no dropout of the pattern"
    if parts.output is None:
        reasons |= dict.fromkeys((Q, K, Q_ROT, K_ROT, V, Z, PATTERN), "no known attention heads")
    if parts.writers is None:
        reasons |= dict.fromkeys((ATTN_OUT, MLP_OUT, RESID_MID), f"no two parts with {SUM}")
    elif parts.mid_reader is None:
        reasons[RESID_MID] = "attention and MLP are parallel"
    reasons |= _absent_in_mlp(parts)
    if parts.key_input is None or K in unknown:
        reasons |= dict.fromkeys((TOKEN_INPUTS, TOKEN_KEYS, NORM_WEIGHT, W_V), "no key projection or input")
    reasons |= {site: unknown[of] for site, of in ((W_K, K), (W_K_GRAM, K), (W_V, V)) if of in unknown}
    not_w_o = {
        "no writer of its heads": parts.output is None or parts.writers is None,
        "gate or norm before W_O": parts.is_gated,
        "norm after W_O": not parts.is_plain_write,
    }
    reason = next((reason for reason, is_so in not_w_o.items() if is_so), "")
    reasons |= {} if parts.recurrence is not None else {STATE: "no recurrence of a known form"}
    return reasons | ({W_O: reason} if reason else {})


def _absent_in_mlp(parts: Parts) -> dict[Site, str]:
    if parts.experts is None:
        no_mixture = dict.fromkeys((ROUTER_LOGITS, EXPERT_WEIGHTS), "no mixture of experts of a known layout")
        return no_mixture | ({} if parts.down is not None else {MLP_POST: "no plain MLP found"})
    no_router = {} if parts.router is not None else {ROUTER_LOGITS: "no router whose logits are linear in its input"}
    return no_router | {MLP_POST: "each expert has its own hidden units"}


def embedded(hf: "PreTrainedModel", tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_embed"]:
    """Return the token embeddings alone."""
    return call(hf.get_input_embeddings(), tokens)


def call(part: nn.Module, x: Tensor) -> Float[Tensor, "..."]:
    """Return the output of a part for `x`, on the part's device."""
    device = next((p.device for p in part.parameters() if p.device.type != "meta"), x.device)
    return cast(Tensor, part(x.to(device)))
