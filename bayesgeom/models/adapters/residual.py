"""Adapter for bayesgeom's modules without attention: MLP, LSTM and Mamba.

Every block reads the residual stream and writes once into it. Sites are verified by the block's equation:

    MLP    resid_pre + mlp_out = resid_post
    LSTM   resid_pre + state = resid_post
    Mamba  resid_pre + W_out ((C · state + D ∘ x) ∘ SiLU(z)) = resid_post

The equation is checked with noise added at every hook point. So one pass verifies that a site contains what its name
says and that an edit there takes effect. An edit of `state` changes what is read at that position, but not the state
that is carried on, because the recurrence has already run.
"""

from collections.abc import Mapping
from itertools import product
from typing import final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.core.run import (
    ATTN_OUT,
    K_ROT,
    MLP_OUT,
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
from bayesgeom.core.torch_state import alone
from bayesgeom.models.adapters.proof import TOLERANCE, perturbed_pass, sentinel_trials
from bayesgeom.models.base import Model, Replayer
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.models.native.lstm import LSTM, LSTMBlock
from bayesgeom.models.native.mamba import Mamba, MambaBlock
from bayesgeom.models.native.mlp import MLPBlock, PositionwiseMLP
from bayesgeom.models.replay.hooked import PrefixReplay
from bayesgeom.tasks.base import WindTunnel

ResidualModule = PositionwiseMLP | LSTM | Mamba

_STREAM = (RESID_PRE, RESID_POST)
_AMOUNT = 0.3  # standard deviations of the noise in the verification
_HEADS = (Q, K, Q_ROT, K_ROT, V, Z, PATTERN, TOKEN_INPUTS, TOKEN_KEYS, W_K, W_V, W_O)
_NO_HEADS = "it has no attention heads"
_ONE_WRITE = "blocks write once, without attention"
_NO_STATE = "an MLP carries no state"


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
        reasons = dict.fromkeys(_HEADS, _NO_HEADS) | dict.fromkeys((ATTN_OUT, RESID_MID), _ONE_WRITE)
        is_mlp = isinstance(self._module, PositionwiseMLP)
        return reasons | ({STATE: _NO_STATE} if is_mlp else {MLP_OUT: _ONE_WRITE})

    @alone()
    @torch.no_grad()
    def _broken(self) -> dict[Site, str]:
        """The sites that fail the check, each with the reason."""
        trials = sentinel_trials(self.spec.d_vocab, self.spec.n_ctx, self.spec.device)
        n_layers, broken = self.spec.n_layers, dict[Site, str]()
        module = self._module
        places = product(self._points, range(n_layers))
        passages = perturbed_pass(module, lambda: module(trials.tokens), self.point, places, amount=_AMOUNT)
        for layer in range(n_layers):
            silent = [site for site in self._points if len(passages[site, layer].arrived) != 1]
            if silent:
                broken |= dict.fromkeys(silent, f"hook not fired once, layer {layer}")
                continue
            pre, wrote = (passages[site, layer].left[0] for site in (RESID_PRE, self._points[-1]))
            total = pre + _written(self._module.blocks[layer], pre, wrote)
            right = passages[RESID_POST, layer].arrived[0]
            if not bool((total - right).abs().max() <= TOLERANCE * right.abs().max()):
                reason = f"identity {RESID_PRE.name} + update by {self._points[-1].name} = {RESID_POST.name} fails"
                broken |= dict.fromkeys(self._points, f"{reason} in layer {layer}")
        return broken


def _written(
    block: nn.Module, resid: Float[Tensor, "batch pos d_model"], site: Float[Tensor, "batch pos width"]
) -> Float[Tensor, "batch pos d_model"]:
    """The block's update of the stream, given its input and the value of its site."""
    match block:
        case MLPBlock() | LSTMBlock():
            return site
        case MambaBlock():
            written: Tensor = block.mixer.written(block.norm(resid), site)
            return written
    raise AssertionError(
        f"a block must be an MLPBlock, LSTMBlock or MambaBlock, got a {type(block).__name__}: add its update here."
    )


def _spec(module: ResidualModule, name: str, digest: str | None) -> ModelSpec:
    config, weight = module.config, module.embed.weight
    hidden, d_state = _widths(module)
    has_table = isinstance(module, PositionwiseMLP) and module.config.context == "position"
    return ModelSpec(
        name=name,
        architecture=config.name,
        n_layers=config.n_layers,
        d_model=config.d_model,
        d_mlp=hidden,
        d_state=d_state,
        d_vocab=config.d_vocab,
        n_ctx=config.n_ctx if has_table else None,
        n_parameters=sum(parameter.numel() for parameter in module.parameters()),
        dtype=str(weight.dtype).removeprefix("torch."),
        device=str(weight.device),
        weights_hash=digest or weights_hash(module.state_dict()),
    )


def _widths(module: ResidualModule) -> tuple[int, int]:
    """The width of a block's widest activation at one position, and that of its state."""
    match module:
        case PositionwiseMLP(config=config):
            return config.d_mlp, 0
        case LSTM(config=config):
            return 4 * config.d_model, config.d_model
        case Mamba(config=config):
            return 2 * config.d_inner, config.d_inner * config.d_state
