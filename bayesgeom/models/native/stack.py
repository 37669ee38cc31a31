"""The common part of recurrent models: an embedding, blocks on a residual stream, a final norm, and an output."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from bayesgeom.models.config import INIT_STD


class ResidualStack(HookedRootModule, ABC):
    """Base class that maps tokens to logits. Weights are float32, drawn from a seed: tables first, then blocks."""

    config: Any  # with d_vocab, d_model and tied

    def __init__(self, config: Any, blocks: Iterable[nn.Module], ln_final: nn.Module, *, seed: int) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.d_vocab, config.d_model)
        self.hook_embed = HookPoint()
        self.blocks = nn.ModuleList(blocks)
        self.ln_final = ln_final
        if not config.tied:
            self.unembed = nn.Linear(config.d_model, config.d_vocab, bias=False)
        self._initialize(torch.Generator().manual_seed(seed))
        self.setup()  # type: ignore[no-untyped-call]  # transformer-lens does not annotate it

    def forward(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        resid: Tensor = self.hook_embed(self.embed(tokens))
        for block in self.blocks:
            resid = block(resid)
        output = self.embed.weight if self.config.tied else self.unembed.weight
        return nn.functional.linear(self.ln_final(resid), output)

    @abstractmethod
    def _initialize_block(self, block: nn.Module, generator: torch.Generator) -> None:
        """Initialize a block's weights."""

    @torch.no_grad()
    def _initialize(self, generator: torch.Generator) -> None:
        for table in (self.embed,) if self.config.tied else (self.embed, self.unembed):
            nn.init.normal_(table.weight, std=INIT_STD, generator=generator)
        for block in self.blocks:
            self._initialize_block(block, generator)
