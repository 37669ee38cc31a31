"""Adapters for bayesgeom's own architectures, whose modules have transformer-lens hook points.

When a model is attached, one pass adds noise at every hook point and checks the equations between them (see `proof`).
So a site contains what its name says, and an edit there takes effect; a site whose equation fails is withheld. Every
block of an MLP, LSTM or Mamba reads the residual stream and writes once into it:

    MLP    resid_pre + mlp_out = resid_post
    LSTM   resid_pre + state = resid_post
    Mamba  resid_pre + W_out ((C · state + D ∘ x) ∘ SiLU(z)) = resid_post

An edit of `state` changes what is read at that position, but not the state that is carried on, because the recurrence
has already run.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, cast, final

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from bayesgeom.core import (
    ALL_SITES,
    ATTN_OUT,
    K_ROT,
    MLP_OUT,
    MLP_POST,
    NORM_WEIGHT,
    PATTERN,
    Q_ROT,
    RESID_MID,
    RESID_POST,
    RESID_PRE,
    STATE,
    TOKEN_EMBEDDINGS,
    TOKEN_INPUTS,
    TOKEN_KEYS,
    W_K,
    W_K_GRAM,
    W_O,
    W_V,
    InvalidArgument,
    K,
    ModelSpec,
    Q,
    Site,
    Trials,
    V,
    Z,
)
from bayesgeom.core.run import untrained_hash
from bayesgeom.core.torch_state import Hook, holding_lock, hooked, structure_of
from bayesgeom.models.adapters.attention import causal, pattern_of
from bayesgeom.models.adapters.proof import Claim, Functions, PerHead, Side, examined, perturbed_pass, sentinel_trials
from bayesgeom.models.base import Model, Reattachable, Replayer, Withheld
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.models.native.lstm import LSTM
from bayesgeom.models.native.mamba import Mamba, MambaBlock
from bayesgeom.models.native.mlp import PositionwiseMLP
from bayesgeom.models.native.positions import PositionalPrior
from bayesgeom.models.native.transformer import MLP, Block, MultiHeadAttention, Norm, Transformer, TransformerConfig
from bayesgeom.models.replay.hooked import prefix_replayer
from bayesgeom.tasks.base import WindTunnel

POINTS: Mapping[Site, tuple[str, ...]] = {site: site.hook_points for site in ALL_SITES if site.hook_points}
# Classes of the parts and how they compute; a subclass or a patched class may compute something else.
_BUILT_FROM: Mapping[type[nn.Module], Any] = {
    kind: {name: function for name, function in vars(kind).items() if inspect.isfunction(function)}
    for kind in (Transformer, Block, MultiHeadAttention, PositionalPrior, MLP, Norm, HookPoint)
} | {kind: {"forward": kind.forward} for kind in (nn.Linear, nn.Embedding, nn.ModuleList)}
_STATIC = tuple(site for site in ALL_SITES if site.is_static)
ResidualModule = PositionwiseMLP | LSTM | Mamba
_HEADS = (Q, K, Q_ROT, K_ROT, V, Z, PATTERN, TOKEN_INPUTS, TOKEN_KEYS, NORM_WEIGHT, W_K, W_K_GRAM, W_V, W_O)


class _NativeModel(Reattachable, ABC):
    """A model of this package's own architectures."""

    module: Transformer | ResidualModule

    def __init__(
        self, module: Any, *, name: str | None = None, task: WindTunnel | None = None, digest: str | None = None
    ) -> None:
        name = name or module.config.name
        check_weights(module, name)
        self.module, self.task, self.structure = module, task, structure_of(module)
        self.spec = _spec(module, name, digest)
        self._points = self._located()
        self.withheld = Withheld(self._broken())

    @abstractmethod
    def _located(self) -> dict[Site, str]:
        """Return the path of each site's hook point within a block."""

    @abstractmethod
    def _broken(self) -> dict[Site, str]:
        """Return the sites that fail the check or are absent, each with the reason."""

    @property
    @final
    def sites(self) -> frozenset[Site]:
        return frozenset({*self._points, *_STATIC} - self.withheld.keys())

    @final
    def point(self, site: Site, layer: int) -> nn.Module:
        return self.module.get_submodule(f"blocks.{layer}.{self._points[site]}")

    @final
    def digest(self) -> str:
        check_weights(self.module, self.spec.name)
        return weights_hash(self.module.state_dict())

    @final
    def attached_again(self, digest: str) -> Model:
        return type(self)(self.module, name=self.spec.name, task=self.task, digest=digest)

    @final
    def untrained_copy(self, seed: int) -> Model:
        n, config = self.spec.n_layers, self.module.config
        if isinstance(config, TransformerConfig):
            config = replace(config, top_attention_off=min(n, config.top_attention_off))
        module = replace(config, n_layers=n).build(seed=seed).to(self.spec.device)
        name, digest = f"{self.spec.name} at initialization {seed}", untrained_hash(seed)
        return type(self)(module, name=name, task=self.task, digest=digest)

    @final
    def replayer(self) -> Replayer:
        return prefix_replayer(self, tuple(self.module.blocks))


@final
class HookedModel(_NativeModel):
    """The `Model` of a bayesgeom `Transformer`."""

    module: Transformer

    def _located(self) -> dict[Site, str]:
        parts, every = dict(self.module.named_modules()), range(self.spec.n_layers)
        existing = {
            site: [path for path in paths if all(f"blocks.{layer}.{path}" in parts for layer in every)]
            for site, paths in POINTS.items()
        }
        return {site: paths[0] for site, paths in existing.items() if paths}

    @torch.no_grad()
    def static(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        embedded: Tensor = self.module.embed(tokens)
        if site == TOKEN_EMBEDDINGS:
            return embedded
        attention, norm = self._attention(layer), self.module.get_submodule(f"blocks.{layer}.ln1")
        assert isinstance(norm, Norm), "else the site is withheld"
        inputs: Tensor = norm(embedded)
        if site == TOKEN_KEYS:
            return einsum(inputs, self._heads(attention.W_K.weight), "token m, h d m -> token h d")
        activations: Mapping[Site, Tensor] = {
            TOKEN_INPUTS: inputs,
            NORM_WEIGHT: norm.w.detach(),
            W_K: self._heads(attention.W_K.weight),
            W_V: self._heads(attention.W_V.weight),
            W_O: self._heads(attention.W_O.weight.T),
        }
        return activations[site]

    @holding_lock()
    def logits(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        if (at := trials.even_positions) is not None and self._is_plain():
            return cast(Tensor, self.module(trials.tokens, at))
        return trials.at_scored(self.module(trials.tokens))

    def _is_plain(self) -> bool:
        """Whether a pass may leave out positions that no logit depends on: no part has a hook or was replaced."""
        last, norm = self.module.blocks[-1], self.module.ln_final
        is_built = type(last) is Block and all(
            (known := _BUILT_FROM.get(type(part))) is not None
            and all(vars(type(part)).get(name, function) is function for name, function in known.items())
            and not (known.keys() & vars(part).keys() or part._backward_hooks or part._backward_pre_hooks)  # noqa: SLF001  (no public list)
            for part in (self.module, *last.modules(), *norm.modules())
        )
        return is_built and not self.foreign_hooks()

    def _has_known_parts(self, layer: int) -> bool:
        """Whether weights of this layer's attention can be read: its parts are of the classes of this package."""
        parts = dict(self.module.blocks[layer].named_modules())
        linear = all(isinstance(parts.get(f"attn.{name}"), nn.Linear) for name in ("W_Q", "W_K", "W_V", "W_O"))
        return linear and isinstance(parts.get("attn"), MultiHeadAttention) and isinstance(parts.get("ln1"), Norm)

    @holding_lock()
    def _broken(self) -> dict[Site, str]:
        module, given = self.module, dict[int, Tensor]()
        trials = sentinel_trials(self.spec.d_vocab, self.spec.n_ctx, self.spec.device)

        def keep(layer: int, _module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            given[layer] = inputs[0]

        def forward() -> None:
            blocks = map(dict, map(nn.Module.named_children, module.blocks))
            readers = [(layer, parts["ln2"]) for layer, parts in enumerate(blocks) if "ln2" in parts]
            hooks = [Hook(part=part, call=partial(keep, layer), kind="pre") for layer, part in readers]
            with hooked(module, hooks, by=self.spec.name, times=None):
                module(trials.tokens)

        places = product(self._points, range(self.spec.n_layers))
        passages = perturbed_pass(module, forward, self.point, places)
        functions = Functions(mid_given=given.get)
        if is_readable := all(map(self._has_known_parts, range(self.spec.n_layers))):
            functions = replace(functions, written=self._attn_out, projected=self._projected, pattern=self._pattern)
        broken, _ = examined(passages, functions, self.spec, trials.tokens.shape[1], equations=self._equations)
        if TOKEN_KEYS in broken:  # k is not this norm times W_K
            broken |= dict.fromkeys((W_K, W_K_GRAM), broken[TOKEN_KEYS])
        absent = {site: "not every block has its hook point" for site in POINTS if site not in self._points}
        of_weights = () if is_readable else (site for site in _STATIC if site != TOKEN_EMBEDDINGS)
        return broken | absent | dict.fromkeys(of_weights, "a part of the attention was replaced")

    def _projected(
        self, site: Site, resid: Float[Tensor, "batch pos d_model"], layer: int
    ) -> Float[Tensor, "batch pos head d_head"]:
        attention, norm = self._attention(layer), self.module.get_submodule(f"blocks.{layer}.ln1")
        weight = self._heads((attention.W_K if site == K else attention.W_V).weight)
        return cast(Tensor, einsum(norm(resid), weight, "b p m, h d m -> b p h d"))

    def _attn_out(self, z: Float[Tensor, "batch pos head d_head"], layer: int) -> Float[Tensor, "batch pos d_model"]:
        return rearrange(z, "b p h d -> b p (h d)") @ self._attention(layer).W_O.weight.T

    def _equations(self, arrived: Side, left: Side, layer: int) -> Iterator[Claim]:
        if {MLP_POST, MLP_OUT} <= arrived.keys():
            out = self.module.get_submodule(f"blocks.{layer}.mlp.W_out")(left[MLP_POST])
            yield Claim("W_out mlp_post + b = mlp_out", (MLP_POST,), arrived[MLP_OUT], out)

    def _pattern(
        self, q: Float[Tensor, "batch pos head d_head"], k: Float[Tensor, "batch pos head d_head"], layer: int
    ) -> PerHead:
        bias, later = self._attention(layer).score_bias(q.shape[1], q), causal(q.shape[1], q)
        return pattern_of(q, k, self.spec.score_scale, later if bias is None else later + bias)

    def _attention(self, layer: int) -> MultiHeadAttention:
        attention = self.module.get_submodule(f"blocks.{layer}.attn")
        assert isinstance(attention, MultiHeadAttention)
        return attention

    def _heads(self, weight: Float[Tensor, "hd m"]) -> Float[Tensor, "head d_head m"]:
        return rearrange(weight.detach(), "(h d) m -> h d m", h=self.spec.n_heads)


@final
class ResidualModel(_NativeModel):
    """The `Model` of a bayesgeom MLP, LSTM or Mamba."""

    module: ResidualModule

    def _located(self) -> dict[Site, str]:
        update = MLP_OUT if isinstance(self.module, PositionwiseMLP) else STATE
        return {site: f"hook_{site.name}" for site in (RESID_PRE, RESID_POST, update)}

    @torch.no_grad()
    def static(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        assert site == TOKEN_EMBEDDINGS, "no other static site exists"
        module = self.module
        return cast(Tensor, module.entering(tokens) if isinstance(module, PositionwiseMLP) else module.embed(tokens))

    @holding_lock()
    def logits(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        return trials.at_scored(self.module(trials.tokens))

    @holding_lock()
    @torch.no_grad()
    def _broken(self) -> dict[Site, str]:
        trials, module = sentinel_trials(self.spec.d_vocab, self.spec.n_ctx, self.spec.device), self.module
        places = product(self._points, range(self.spec.n_layers))
        passages = perturbed_pass(module, lambda: module(trials.tokens), self.point, places)
        broken, _ = examined(passages, Functions(), self.spec, trials.tokens.shape[1], equations=self._equations)
        absent = {ATTN_OUT, RESID_MID, STATE, MLP_OUT}.difference(self._points)
        once = dict.fromkeys(absent, "blocks write once, without attention")
        return dict.fromkeys(_HEADS, "it has no attention heads") | once | broken

    def _equations(self, arrived: Side, left: Side, layer: int) -> Iterator[Claim]:
        """The block's update of the stream, which follows from its input and its site."""
        site, block = [*self._points][-1], self.module.blocks[layer]
        if {RESID_PRE, site, RESID_POST} <= arrived.keys():
            resid, value = left[RESID_PRE], left[site]
            update = block.mixer.written(block.norm(resid), value) if isinstance(block, MambaBlock) else value
            equation = f"resid_pre + update by {site.name} = resid_post"
            yield Claim(equation, (RESID_PRE, site, RESID_POST), arrived[RESID_POST], resid + update)


def of_native(module: nn.Module, **known: Any) -> Model | None:
    """Return the model of a module of this package; None for any other module."""
    if isinstance(module, Transformer):
        return HookedModel(module, **known)
    return ResidualModel(module, **known) if isinstance(module, ResidualModule) else None


def check_weights(module: Transformer | ResidualModule, name: str) -> None:
    """Check that a module has blocks, and weights of one dtype that hold numbers.

    Raises:
        InvalidArgument: It does not.
    """
    weights = {
        entry: tensor for entry, tensor in module.state_dict(keep_vars=True).items() if tensor.is_floating_point()
    }
    if hollow := [entry for entry, tensor in weights.items() if tensor.device.type == "meta"]:
        raise InvalidArgument(
            f"{hollow[0]} of {name} is on torch's meta device: the model has shapes but no weights. Load its weights, "
            f"or build it outside of torch.device('meta')."
        )
    if len(dtypes := {str(tensor.dtype).removeprefix("torch.") for tensor in weights.values()}) > 1:
        raise InvalidArgument(
            f"{name} has weights in {' and '.join(sorted(dtypes))}: convert all of them to one, for example with "
            f"module.float()."
        )
    if not len(module.blocks):
        raise InvalidArgument(f"{name} has no blocks; a model needs at least one to be measured.")


def _spec(module: Transformer | ResidualModule, name: str, digest: str | None) -> ModelSpec:
    config, weight = module.config, next(module.parameters())
    return ModelSpec(
        name=name,
        architecture=config.name,
        n_layers=len(module.blocks),
        d_model=config.d_model,
        d_vocab=config.d_vocab,
        n_parameters=sum(parameter.numel() for parameter in module.parameters()),
        dtype=str(weight.dtype).removeprefix("torch."),
        device=str(weight.device),
        weights_hash=digest or weights_hash(module.state_dict()),
        **_sizes(module),
    )


def _sizes(module: Transformer | ResidualModule) -> dict[str, Any]:
    """The sizes of a spec that depend on the architecture: the context, heads, and widths of a block."""
    match module:
        case Transformer(config=config):
            return {
                "n_heads": config.n_heads,
                "n_kv_heads": config.n_heads,
                "d_head": config.d_head,
                "d_mlp": config.d_mlp,
                "n_ctx": config.n_ctx if config.positions == "learned" else None,
                "score_scale": 1 / math.sqrt(config.d_head),
            }
        case PositionwiseMLP(config=config):
            return {"d_mlp": config.d_mlp, "n_ctx": config.n_ctx if config.context == "position" else None}
        case LSTM(config=config):
            return {"d_mlp": 4 * config.d_model, "d_state": config.d_model, "n_ctx": None}
        case Mamba(config=config):
            return {"d_mlp": 2 * config.d_inner, "d_state": config.d_inner * config.d_state, "n_ctx": None}
