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

import math
from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any, cast, final

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import (
    ALL_SITES,
    ATTN_OUT,
    K_ROT,
    MLP_OUT,
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
    W_O,
    W_V,
    K,
    ModelSpec,
    Q,
    Site,
    Trials,
    V,
    Z,
    untrained,
)
from bayesgeom.core.torch_state import EVERY_MODULE, Hook, alone, hooked
from bayesgeom.models.adapters.proof import Functions, examined, perturbed_pass, sentinel_trials
from bayesgeom.models.base import Model, Replayer
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.models.native.lstm import LSTM
from bayesgeom.models.native.mamba import Mamba, MambaBlock
from bayesgeom.models.native.mlp import PositionwiseMLP
from bayesgeom.models.native.positions import PositionalPrior, causal_mask
from bayesgeom.models.native.transformer import MLP, Block, MultiHeadAttention, Norm, Transformer
from bayesgeom.models.replay.hooked import PrefixReplay
from bayesgeom.models.replay.transformer import Replay
from bayesgeom.tasks.base import WindTunnel

POINTS: Mapping[Site, tuple[str, ...]] = {
    RESID_PRE: ("hook_resid_pre",),
    RESID_MID: ("hook_resid_mid",),
    RESID_POST: ("hook_resid_post",),
    ATTN_OUT: ("hook_attn_out",),
    MLP_OUT: ("hook_mlp_out",),
    Q: ("attn.hook_q",),
    K: ("attn.hook_k",),
    Q_ROT: ("attn.hook_rot_q", "attn.hook_q"),  # without rotation the scores use q and k themselves
    K_ROT: ("attn.hook_rot_k", "attn.hook_k"),
    V: ("attn.hook_v",),
    Z: ("attn.hook_z",),
    PATTERN: ("attn.hook_pattern",),
}
# Classes of the last layer and how they compute; a subclass or a patched class may combine positions.
_BUILT_FROM: Mapping[type[nn.Module], Any] = {
    kind: kind.forward
    for kind in (Transformer, Block, MultiHeadAttention, PositionalPrior, MLP, Norm, nn.Linear, HookPoint)
}
_STATIC = tuple(site for site in ALL_SITES if site.is_static)


@final
class HookedModel(Model):
    """The `Model` of a bayesgeom `Transformer`."""

    def __init__(
        self,
        module: Transformer,
        *,
        name: str = "transformer",
        task: WindTunnel | None = None,
        digest: str | None = None,
    ) -> None:
        self.module, self.task = module, task
        self._transformer = module
        self.spec = _spec(module, name, digest)
        known = {name.removeprefix("blocks.0.") for name in module.hook_dict if name.startswith("blocks.0.")}
        existing = {site: [path for path in paths if path in known] for site, paths in POINTS.items()}
        self._points = {site: paths[0] for site, paths in existing.items() if paths}
        self.withheld = self._broken()

    @property
    def sites(self) -> frozenset[Site]:
        return frozenset({*self._points, *_STATIC} - self.withheld.keys())

    def point(self, site: Site, layer: int) -> nn.Module:
        return self._transformer.get_submodule(f"blocks.{layer}.{self._points[site]}")

    @torch.no_grad()
    def static(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        attention, norm = self._attention(layer), self._transformer.get_submodule(f"blocks.{layer}.ln1")
        assert isinstance(norm, Norm)
        embedded: Tensor = self._transformer.embed(tokens)
        inputs: Tensor = norm(embedded)
        if site == TOKEN_KEYS:
            return einsum(inputs, self._heads(attention.W_K.weight), "token m, h d m -> token h d")
        found: Mapping[Site, Tensor] = {
            TOKEN_EMBEDDINGS: embedded,
            TOKEN_INPUTS: inputs,
            NORM_WEIGHT: norm.w.detach(),
            W_K: self._heads(attention.W_K.weight),
            W_V: self._heads(attention.W_V.weight),
            W_O: self._heads(attention.W_O.weight.T),
        }
        return found[site]

    @alone()
    def logits(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        if (at := trials.even_positions) is not None and self._is_plain():
            return cast(Tensor, self._transformer(trials.tokens, at))
        return trials.at_scored(self._transformer(trials.tokens))

    def untrained_copy(self, seed: int) -> "HookedModel":
        module = self._transformer.config.build(seed=seed).to(self.spec.device)
        assert isinstance(module, Transformer)
        return HookedModel(
            module, name=f"{self.spec.name} at initialization {seed}", task=self.task, digest=untrained(seed)
        )

    @alone()
    def replayer(self) -> Replay:
        # A copy of the module would call hooks of every module, too, so these are refused whatever they do.
        if (foreign := self.foreign_hooks()) and (EVERY_MODULE in foreign or not self._is_unedited()):
            effect = "may change" if EVERY_MODULE in foreign else "change"
            raise InvalidArgument(
                f"{', '.join(foreign[:4])} of {self.spec.name}: forward hooks that bayesgeom did not set {effect} the "
                f"logits. Ablations and interventions compute layers themselves and would ignore them: remove "
                f"the hooks."
            )
        return Replay(self._transformer)

    def _is_plain(self) -> bool:
        """Whether a pass may leave out positions that no logit depends on: no part has a hook or was replaced."""
        parts = [
            self._transformer,
            *self._transformer.blocks[-1].modules(),
            *self._transformer.ln_final.modules(),
        ]
        as_built = all(
            _BUILT_FROM.get(type(part)) is type(part).forward
            and not ("forward" in vars(part) or part._backward_hooks)
            and not part._backward_pre_hooks  # noqa: SLF001  (no public list)
            for part in parts
        )
        return as_built and not self.foreign_hooks()

    def _is_unedited(self) -> bool:
        """Whether the module returns the same logits as a copy without hooks."""
        tokens = sentinel_trials(self.spec.d_vocab, self.spec.n_ctx, self.spec.device).tokens
        bare = self._transformer.config.build(seed=0).to(self.spec.device)
        bare.load_state_dict(self._transformer.state_dict())
        with torch.no_grad():
            return torch.equal(bare.eval()(tokens), self._transformer(tokens))

    @alone()
    def _broken(self) -> dict[Site, str]:
        """The sites that fail the check, each with the reason."""
        module, given = self._transformer, dict[int, Tensor]()
        trials = sentinel_trials(self.spec.d_vocab, self.spec.n_ctx, self.spec.device)

        def keep(layer: int, _module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            given[layer] = inputs[0]

        def forward() -> None:
            readers = [module.get_submodule(f"blocks.{layer}.ln2") for layer in range(self.spec.n_layers)]
            hooks = [Hook(part=part, call=partial(keep, layer), kind="pre") for layer, part in enumerate(readers)]
            with hooked(module, hooks, by=self.spec.name, times=None):
                module(trials.tokens)

        places = product(self._points, range(self.spec.n_layers))
        passages = perturbed_pass(module, forward, self.point, places)
        functions = Functions(written=self._attn_out, pattern=self._pattern, mid_given=given.get)
        return examined(passages, functions, self.spec, trials.tokens.shape[1])[0]

    def _attn_out(self, z: Float[Tensor, "batch pos head d_head"], layer: int) -> Float[Tensor, "batch pos d_model"]:
        return rearrange(z, "b p h d -> b p (h d)") @ self._attention(layer).W_O.weight.T

    def _pattern(
        self, q: Float[Tensor, "batch pos head d_head"], k: Float[Tensor, "batch pos head d_head"], layer: int
    ) -> Float[Tensor, "batch head query_pos key_pos"]:
        scores = self.spec.score_scale * einsum(q, k, "b q h d, b k h d -> b h q k")
        bias = self._attention(layer).score_bias(q.shape[1], scores)
        scores = scores if bias is None else scores + bias
        return scores.masked_fill(~causal_mask(q.shape[1], q), -torch.inf).softmax(-1)

    def _attention(self, layer: int) -> MultiHeadAttention:
        attention = self._transformer.get_submodule(f"blocks.{layer}.attn")
        assert isinstance(attention, MultiHeadAttention)
        return attention

    def _heads(self, weight: Float[Tensor, "hd m"]) -> Float[Tensor, "head d_head m"]:
        return rearrange(weight.detach(), "(h d) m -> h d m", h=self.spec.n_heads)


ResidualModule = PositionwiseMLP | LSTM | Mamba
_STREAM = (RESID_PRE, RESID_POST)
_HEADS = (Q, K, Q_ROT, K_ROT, V, Z, PATTERN, TOKEN_INPUTS, TOKEN_KEYS, W_K, W_V, W_O)


@final
class ResidualModel(Model):
    """The `Model` of a bayesgeom MLP, LSTM or Mamba."""

    def __init__(
        self,
        module: ResidualModule,
        *,
        name: str | None = None,
        task: WindTunnel | None = None,
        digest: str | None = None,
    ) -> None:
        self.module, self.task = module, task
        self._module = module
        self.spec = _spec(module, name or module.config.name, digest)
        self._points = (*_STREAM, MLP_OUT if isinstance(module, PositionwiseMLP) else STATE)
        self.withheld: Mapping[Site, str] = self._absent() | self._broken()

    @property
    def sites(self) -> frozenset[Site]:
        return frozenset({*self._points, TOKEN_EMBEDDINGS} - self.withheld.keys())

    def point(self, site: Site, layer: int) -> nn.Module:
        return self._module.get_submodule(f"blocks.{layer}.hook_{site.name}")

    @torch.no_grad()
    def static(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        assert site == TOKEN_EMBEDDINGS, "no other static site exists"
        module = self._module
        embedded: Tensor = module.entering(tokens) if isinstance(module, PositionwiseMLP) else module.embed(tokens)
        return embedded

    @alone()
    def logits(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        return trials.at_scored(self._module(trials.tokens))

    def untrained_copy(self, seed: int) -> "ResidualModel":
        module = self._module.config.build(seed=seed).to(self.spec.device)
        assert isinstance(module, PositionwiseMLP | LSTM | Mamba)
        return ResidualModel(
            module, name=f"{self.spec.name} at initialization {seed}", task=self.task, digest=untrained(seed)
        )

    def replayer(self) -> Replayer:
        return PrefixReplay(self, tuple(self._module.blocks))

    def _absent(self) -> dict[Site, str]:
        absent = (ATTN_OUT, RESID_MID, *{STATE, MLP_OUT}.difference(self._points))
        once = dict.fromkeys(absent, "blocks write once, without attention")
        return dict.fromkeys(_HEADS, "it has no attention heads") | once

    @alone()
    @torch.no_grad()
    def _broken(self) -> dict[Site, str]:
        """The sites that fail the check, each with the reason."""
        trials, module = sentinel_trials(self.spec.d_vocab, self.spec.n_ctx, self.spec.device), self._module
        places = product(self._points, range(self.spec.n_layers))
        passages = perturbed_pass(module, lambda: module(trials.tokens), self.point, places)
        functions = Functions(once=(self._points[-1], self._written))
        return examined(passages, functions, self.spec, trials.tokens.shape[1])[0]

    def _written(
        self, resid: Float[Tensor, "batch pos d_model"], site: Float[Tensor, "batch pos width"], layer: int
    ) -> Float[Tensor, "batch pos d_model"]:
        """The block's update of the stream, given its input and the value of its site."""
        block = self._module.blocks[layer]
        written: Tensor = block.mixer.written(block.norm(resid), site) if isinstance(block, MambaBlock) else site
        return written


def of_native(module: nn.Module, *, name: str | None = None, **known: Any) -> Model | None:
    """Return the model of a module of this package; None for any other module."""
    match module:
        case Transformer():
            return HookedModel(module, name=name or "transformer", **known)
        case PositionwiseMLP() | LSTM() | Mamba():
            return ResidualModel(module, name=name, **known)
    return None


def _spec(module: Transformer | ResidualModule, name: str, digest: str | None) -> ModelSpec:
    config, weight = module.config, module.embed.weight
    return ModelSpec(
        name=name,
        architecture=config.name,
        n_layers=config.n_layers,
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
