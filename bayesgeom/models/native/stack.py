"""The common part of recurrent models: an embedding, blocks on a residual stream, a final norm, and an output."""

from abc import ABC
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from bayesgeom.models.config import INIT_STD


class ResidualStack(HookedRootModule, ABC):
    """Base class that maps tokens to logits. Weights are float32, drawn from a seed: tables first, then blocks.

    A block draws its weights in `initialize`, given a generator.
    """

    config: Any  # with d_vocab, d_model and tied

    def __init__(self, config: Any, blocks: Sequence[Any], ln_final: nn.Module, *, seed: int) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.d_vocab, config.d_model)
        self.hook_embed = HookPoint()
        self.blocks = nn.ModuleList(blocks)
        self.ln_final = ln_final
        if not config.tied:
            self.unembed = nn.Linear(config.d_model, config.d_vocab, bias=False)
        with torch.no_grad():
            generator = torch.Generator().manual_seed(seed)
            for table in (self.embed,) if config.tied else (self.embed, self.unembed):
                nn.init.normal_(table.weight, std=INIT_STD, generator=generator)
            for block in blocks:
                block.initialize(generator)
        self.setup()  # type: ignore[no-untyped-call]  # transformer-lens does not annotate it

    def forward(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        resid: Tensor = self.hook_embed(self.embed(tokens))
        for block in self.blocks:
            resid = block(resid)
        return self.logits(resid)

    def logits(self, resid: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_vocab"]:
        """Return the logits of a final residual."""
        output = self.embed.weight if self.config.tied else self.unembed.weight
        return nn.functional.linear(self.ln_final(resid), output)
