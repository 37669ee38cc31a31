"""GRU: a gated recurrent network with an untied output, as an architecture that checkpoints can name."""

from dataclasses import asdict, dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.core.run import ModelSpec, Site, Trials
from bayesgeom.models.base import Model, Replayer
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.models.config import ModelConfig
from bayesgeom.tasks.base import WindTunnel


@final
@dataclass(frozen=True, kw_only=True)
class GRUConfig(ModelConfig):
    """Sizes of a GRU. It takes sequences of any length; `n_ctx` is the length that it is trained at."""

    name: ClassVar[str] = "gru"
    d_vocab: int
    n_ctx: int
    n_layers: int = 2
    d_model: int = 64

    def _build(self, *, seed: int) -> nn.Module:
        torch.manual_seed(seed)  # the caller restores the global random state
        return GRU(self)

    @classmethod
    def adapter(
        cls, module: nn.Module, *, name: str | None, task: WindTunnel | None, digest: str | None
    ) -> Model | None:
        return GRUModel(module, name=name, task=task, digest=digest) if isinstance(module, GRU) else None


@final
class GRU(nn.Module):
    """Tokens to logits."""

    def __init__(self, config: GRUConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.d_vocab, config.d_model)
        self.blocks = nn.GRU(config.d_model, config.d_model, config.n_layers, batch_first=True)
        self.unembed = nn.Linear(config.d_model, config.d_vocab)

    def forward(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        hidden, _ = self.blocks(self.embed(tokens))
        logits: Tensor = self.unembed(hidden)
        return logits


@final
class GRUModel(Model):
    """A GRU behind the interface that measurements use. It provides no sites, so calibration is all that runs."""

    def __init__(self, module: GRU, *, name: str | None, task: WindTunnel | None, digest: str | None) -> None:
        self.module, self.task, self.withheld = module, task, {}
        weights = module.state_dict()
        nothing = {"n_heads": 0, "n_kv_heads": 0, "d_head": 0, "d_mlp": 0}
        sizes = {key: size for key, size in asdict(module.config).items() if key != "n_ctx"}
        self.spec = ModelSpec(
            name=name or "gru",
            architecture="gru",
            n_ctx=None,  # any length
            score_scale=float("nan"),
            n_parameters=sum(weight.numel() for weight in weights.values()),
            dtype="float32",
            device=str(module.embed.weight.device),
            weights_hash=digest or weights_hash(weights),
            **nothing,
            **sizes,
        )

    @property
    def sites(self) -> frozenset[Site]:
        return frozenset()

    def point(self, site: Site, layer: int) -> nn.Module:
        raise NotImplementedError("a GRU model provides no sites")

    def static(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        raise NotImplementedError("a GRU model provides no sites")

    def logits(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        return trials.at_scored(self.module(trials.tokens))

    def untrained_copy(self, seed: int) -> "GRUModel":
        module = self.module.config.build(seed=seed).to(self.spec.device)
        return GRUModel(module, name=self.spec.name, task=self.task, digest=None)

    def replayer(self) -> Replayer:
        raise NotImplementedError("ablations need sites, and a GRU model provides none")
