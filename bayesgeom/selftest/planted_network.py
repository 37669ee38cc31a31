"""A planted network as a module, and as a `Model`."""

from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from bayesgeom.core import run as s
from bayesgeom.core.run import ModelSpec, Site, Trials
from bayesgeom.models.base import Model
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.models.replay.hooked import PlainLoop
from bayesgeom.tasks.base import WindTunnel

_POINTS: Mapping[Site, str] = {
    s.RESID_PRE: "hook_resid_pre",
    s.MLP_OUT: "hook_mlp_out",
    s.RESID_POST: "hook_resid_post",
}


@final
class PlantedBlock(nn.Module):
    """resid_pre → + W_out ReLU(W_in resid_pre + b) → resid_post."""

    def __init__(self, d_model: int, d_hidden: int) -> None:
        super().__init__()
        self.W_in, self.W_out = nn.Linear(d_model, d_hidden), nn.Linear(d_hidden, d_model, bias=False)
        self.hook_resid_pre, self.hook_mlp_out, self.hook_resid_post = HookPoint(), HookPoint(), HookPoint()

    def forward(self, resid: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        resid = self.hook_resid_pre(resid)
        post: Tensor = self.hook_resid_post(resid + self.hook_mlp_out(self.W_out(self.W_in(resid).relu())))
        return post


@final
class PlantedNetwork(HookedRootModule):
    """Tokens in, logits over all ids out, each position alone; weights are random until they are planted."""

    def __init__(self, d_vocab: int, d_model: int, d_hidden: tuple[int, int], *, seed: int = 0) -> None:
        super().__init__()
        self.d_hidden = d_hidden
        self.embed = nn.Embedding(d_vocab, d_model)
        self.blocks = nn.ModuleList(PlantedBlock(d_model, size) for size in d_hidden)
        self.unembed = nn.Linear(d_model, d_vocab)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                nn.init.normal_(parameter, std=d_model**-0.5, generator=generator)
        self.setup()  # type: ignore[no-untyped-call]  # transformer-lens does not annotate it

    def forward(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        resid = self.embed(tokens)
        for block in self.blocks:
            resid = block(resid)
        logits: Tensor = self.unembed(resid)
        return logits


@final
class PlantedModel(Model):
    """A planted network behind the `Model` interface."""

    def __init__(self, module: PlantedNetwork, *, name: str, task: WindTunnel) -> None:
        self.module, self.task = module, task
        self._module = module
        self.withheld: Mapping[Site, str] = {}
        self.spec = _spec(module, name)

    @property
    def sites(self) -> frozenset[Site]:
        return frozenset({*_POINTS, s.TOKEN_EMBEDDINGS})

    def point(self, site: Site, layer: int) -> nn.Module:
        return self._module.get_submodule(f"blocks.{layer}.{_POINTS[site]}")

    @torch.no_grad()
    def static(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        assert site == s.TOKEN_EMBEDDINGS, "no other static site is available"
        embedded: Tensor = self._module.embed(tokens)
        return embedded

    def logits(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        return trials.at_scored(self._module(trials.tokens))

    def untrained_copy(self, seed: int) -> "PlantedModel":
        module = PlantedNetwork(self.spec.d_vocab, self.spec.d_model, self._module.d_hidden, seed=seed)
        assert self.task is not None, "set on construction"
        return PlantedModel(module, name=f"{self.spec.name} untrained, seed {seed}", task=self.task)

    def replayer(self) -> PlainLoop:
        return PlainLoop(self)


def _spec(module: PlantedNetwork, name: str) -> ModelSpec:
    weight = module.embed.weight
    return ModelSpec(
        name=name,
        architecture="planted",
        n_layers=len(module.blocks),
        n_heads=0,
        n_kv_heads=0,
        d_model=weight.shape[1],
        d_head=0,
        d_mlp=max(module.d_hidden),
        d_vocab=len(weight),
        n_ctx=None,
        score_scale=1.0,
        n_parameters=sum(parameter.numel() for parameter in module.parameters()),
        dtype="float32",
        device=str(weight.device),
        weights_hash=weights_hash(module.state_dict()),
    )
