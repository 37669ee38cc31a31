"""Routes the activations of a Hugging Face model through taps, for the duration of a pass.

PyTorch hooks are set on entry for hooked sites, and only these are removed on exit. Weights are not accessed, so this
works with weights that accelerate keeps on another device or on disk.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, final

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from bayesgeom.core import sites as s
from bayesgeom.core.hooks import Hook, hooked
from bayesgeom.models.adapters.proof import Taps
from bayesgeom.models.huggingface.anatomy import Anatomy, first_input
from bayesgeom.models.huggingface.attention import Handed, Route, routed, watched_functions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

By = Literal["interface", "functions", "modules"]  # where a model's attention is reached
_INTERFACE = (s.Q_ROT, s.K_ROT, s.PATTERN)


@final
class SiteHooks:
    """The taps of one model and the hooks that route activations through them.

    `route` says where attention is reached: in Hugging Face's interface, in torch's functions, or in modules. Of
    modules the pattern is read at the attention's dropout, and the scores use the projected queries and keys.
    """

    def __init__(self, hf: "PreTrainedModel", anatomy: Anatomy, route: By) -> None:
        self.anatomy, self.route = anatomy, route
        self._attentions: dict[int, nn.Module] = {
            layer: anatomy.part(layer, parts.attention)
            for layer, parts in enumerate(anatomy.parts)
            if parts.attention is not None
        }
        self._hf = hf
        found: dict[s.Site, list[int]] = {}
        for layer in range(anatomy.n_layers):
            for site in self.possible(layer):
                found.setdefault(site, []).append(layer)
        self.layers = {site: tuple(layers) for site, layers in found.items()}
        self.taps = Taps(self.layers, anatomy.n_layers)
        self.handed: list[list[Handed]] = [[] for _ in anatomy.blocks]
        self._entered: Tensor | None = None  # input of the running block

    def possible(self, layer: int) -> list[s.Site]:
        """Return the sites that this layer has."""
        parts = self.anatomy.parts[layer]
        found = [s.RESID_PRE, s.RESID_POST]
        if parts.writers is not None:
            found += [s.ATTN_OUT, s.MLP_OUT] + [s.RESID_MID] * (parts.mid_reader is not None)
        if parts.output is None:
            return found
        found += [s.Z, *(site for site in (s.Q, s.K) if site in parts.projections)]
        if self.route != "modules":
            return [*found, s.V, *_INTERFACE]
        found += [s.PATTERN] * (parts.dropout is not None)
        return [*found, *parts.projections.keys() & {s.V}, *({s.Q_ROT, s.K_ROT} if s.Q in found else ())]

    @contextlib.contextmanager
    def open(self, *, is_witnessed: bool = False) -> Iterator[None]:
        """Route activations through every hooked tap inside the block; `is_witnessed` fills `handed`."""
        self.handed = [[] for _ in self.anatomy.blocks]
        layers = range(self.taps.n_layers)
        hooks = [hook for layer in layers for hook in (*self._on_block(layer), *self._on_attention(layer))]
        # Calls are counted at the taps; these hooks only lead to them.
        with hooked(self._hf, hooks, by="this model", times=None), self._interface(is_witnessed):
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
            or any(self.taps.is_watched(layer, *_INTERFACE, s.V) for layer in layers)
            or any(self.taps.is_watched(layer, s.Z) for layer in gated)
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
        is_eager = is_witnessed or any(self.taps.is_watched(layer, s.PATTERN) for layer in layers)
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
        if taps.is_watched(layer, s.RESID_PRE, s.RESID_MID, s.MLP_OUT, s.ATTN_OUT):
            yield Hook(part=block, call=self._enter(layer), kind="pre", with_kwargs=True)
        if writers is not None and taps.is_watched(layer, s.ATTN_OUT, s.RESID_MID):
            yield Hook(part=self.anatomy.part(layer, writers[0]), call=self._attention_writes(layer))
        if writers is not None and taps.is_watched(layer, s.MLP_OUT):
            part = self.anatomy.part(layer, writers[1])
            yield Hook(part=part, call=self._output(lambda x: self._mlp_writes(layer, x)))
        if taps.is_watched(layer, s.RESID_POST):
            yield Hook(part=block, call=self._output(lambda x: taps.through(s.RESID_POST, layer, x)))

    def _on_attention(self, layer: int) -> Iterator[Hook]:
        taps, anatomy, parts = self.taps, self.anatomy, self.anatomy.parts[layer]
        if parts.output is not None and not parts.is_gated and taps.is_watched(layer, s.Z):
            yield Hook(part=anatomy.part(layer, parts.output), call=self._z(layer), kind="pre")
        for site, projection in parts.projections.items():
            through = self._projected_sites(site)
            if taps.is_watched(layer, *through):
                part = anatomy.part(layer, projection.path)
                yield Hook(part=part, call=self._projects(layer, site, through))
        if self.route == "modules" and parts.dropout is not None and taps.is_watched(layer, s.PATTERN):
            part = anatomy.part(layer, parts.dropout)
            yield Hook(part=part, call=self._output(lambda x: taps.through(s.PATTERN, layer, x)))

    def _projected_sites(self, site: s.Site) -> tuple[s.Site, ...]:
        """The sites that are read at the projection of this one."""
        if self.route != "modules":
            return () if site == s.V else (site,)
        return {s.Q: (s.Q, s.Q_ROT), s.K: (s.K, s.K_ROT)}.get(site, (site,))

    def _enter(self, layer: int) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
        def enter(
            _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            given = first_input(args, kwargs)
            assert given is not None, "the block ran, and was seen to, when the model was attached"
            self._entered = entered = self.taps.through(s.RESID_PRE, layer, given)
            return ((entered, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": entered})

        return enter

    def _attention_writes(self, layer: int) -> Callable[[nn.Module, object, Any], Any]:
        scale = self.anatomy.parts[layer].write_scale

        def write(given: Tensor) -> Tensor:
            written = _times(given, scale)
            out = self.taps.through(s.ATTN_OUT, layer, written)
            if not self.taps.is_watched(layer, s.RESID_MID):
                return self._given_back(given, written, out, scale)
            assert self._entered is not None, "the block was entered before"
            entered = self._entered.to(out.device)  # accelerate moves it inside the block, after the pre-hook
            mid = entered + out
            passed = self.taps.through(s.RESID_MID, layer, mid)
            # The block adds its input again, so subtract it to arrive at the edited resid_mid.
            if passed is mid and not mid.requires_grad:
                return self._given_back(given, written, out, scale)
            return _times(passed - entered, 1 / scale)

        return self._output(write)

    def _mlp_writes(self, layer: int, given: Shaped[Tensor, "*flat d_model"]) -> Shaped[Tensor, "*flat d_model"]:
        assert self._entered is not None, "the block was entered before"
        scale = self.anatomy.parts[layer].write_scale
        written = _times(given, scale).reshape(self._entered.shape)
        passed = self.taps.through(s.MLP_OUT, layer, written)
        return self._given_back(given, written, passed, scale).reshape(given.shape)

    @staticmethod
    def _given_back(
        given: Shaped[Tensor, "..."], written: Shaped[Tensor, "..."], passed: Shaped[Tensor, "..."], scale: float
    ) -> Shaped[Tensor, "..."]:
        """The output of the part: bit-identical unless a hook changed it or a gradient is taken."""
        return given if passed is written and not passed.requires_grad else _times(passed, 1 / scale)

    def _z(self, layer: int) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
        n_heads = self.anatomy.sizes.n_heads

        def pass_on(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            z = args[0].unflatten(-1, (n_heads, -1))
            return (self.taps.through(s.Z, layer, z).flatten(-2), *args[1:])

        return pass_on

    def _projects(
        self, layer: int, site: s.Site, through: tuple[s.Site, ...]
    ) -> Callable[[nn.Module, object, Any], Any]:
        projection = self.anatomy.parts[layer].projections[site]

        def pass_on(output: Tensor) -> Tensor:
            before = values = projection.take(output)
            for tapped in through:
                values = self.taps.through(tapped, layer, values)
            return output if values is before and not torch.is_grad_enabled() else projection.put(output, values)

        return self._output(pass_on)

    @staticmethod
    def _output(change: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, object, Any], Any]:
        """A forward hook that changes a part's output, or the first of several outputs."""

        def hook(_module: nn.Module, _inputs: object, output: Any) -> Any:
            match output:
                case tuple():
                    return (change(output[0]), *output[1:])
                case list():
                    return [change(output[0]), *output[1:]]
                case _:
                    return change(output)

        return hook


def _times(x: Shaped[Tensor, "..."], factor: float) -> Shaped[Tensor, "..."]:
    """x times the factor; `x` itself if the factor is 1."""
    return x if factor == 1 else x * factor
