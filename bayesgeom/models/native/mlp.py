"""The MLP that has no mixer: what can be had without carrying anything from one position to another.

    resid_post = resid_pre + W_out GELU(W_in LayerNorm(resid_pre) + b_in) + b_out

`context` says what a position is given. "position": its own token and its place, nothing else, the strict control.
"prefix": the embeddings of its last `n_ctx` tokens, left-padded with zeros to that length, side by side and projected
into the residual stream: everything before it, without attention or recurrence. Each place in the window, counted from
the position itself, has its own slice of the projection, so that a causal convolution as long as the context does it,
and the windows themselves (batch × pos × n_ctx × d_embed numbers) are never laid out.

An MLP has no state: nothing is carried from position to position.

Glossary, of Agarwal, Dalal & Misra 2025 to ours: width d_model, hidden layer d_mlp, "residual blocks" `blocks`. The
paper does not say how the sequence enters; the follow-up's control is per position, with nine blocks at d_model 192.

References: Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (the MLP baseline).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from bayesgeom.checks.arguments import check_types
from bayesgeom.core.errors import InvalidArgument, TaskMismatch
from bayesgeom.models.config import ModelConfig

INIT_STD = 0.02
EPS = 1e-5
CONTEXTS = ("position", "prefix")


@final
@dataclass(frozen=True, kw_only=True)
class MLPConfig(ModelConfig):
    """Shape of an MLP. `d_embed` is an embedding's width where the prefix is projected; 0 is d_model's."""

    name: ClassVar[str] = "mlp"
    d_vocab: int
    n_ctx: int
    n_layers: int = 9
    d_model: int = 192
    d_mlp: int = 768
    context: Literal["position", "prefix"] = "position"
    d_embed: int = 0
    tied: bool = True

    def __post_init__(self) -> None:
        check_types(self)
        sizes = (self.d_vocab, self.n_ctx, self.n_layers, self.d_model, self.d_mlp)
        if min(sizes) < 1 or self.d_embed < 0:
            raise InvalidArgument(f"every size of an MLP is at least 1 (d_embed: 0 or more), got {self}.")
        if self.context not in CONTEXTS:
            raise InvalidArgument(f"context must be one of {', '.join(CONTEXTS)}; got {self.context!r}.")
        if self.width != self.d_model and (self.context == "position" or self.tied):
            raise InvalidArgument(
                f"d_embed = {self.d_embed} differs from d_model = {self.d_model}: that takes context='prefix', which "
                f"projects it, and tied=False, as the output reads d_model."
            )

    @property
    def width(self) -> int:
        """Width of an embedding."""
        return self.d_embed or self.d_model

    def _build(self, *, seed: int) -> "PositionwiseMLP":
        return PositionwiseMLP(self, seed=seed)

    @classmethod
    def proportions(cls, d_model: int) -> Mapping[str, int]:
        """A hidden layer four times as wide."""
        return {"d_model": d_model, "d_mlp": 4 * d_model}


@final
class PositionwiseMLP(HookedRootModule):
    """Tokens in, logits over all ids out. Weights are float32, drawn from N(0, 0.02²) with the given seed.

    Per position, places come from a learned table. The prefix needs none: its padding shows how long it is, and its
    projection is drawn from N(0, 1 / (n_ctx · width)), so that a full window enters at the embeddings' size.
    """

    def __init__(self, config: MLPConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.d_vocab, config.width)
        self.hook_embed = HookPoint()
        if config.context == "position":
            self.pos_embed = nn.Embedding(config.n_ctx, config.d_model)
            self.hook_pos_embed = HookPoint()
        else:
            self.window = nn.Conv1d(config.width, config.d_model, config.n_ctx)
        self.blocks = nn.ModuleList(MLPBlock(config) for _ in range(config.n_layers))
        self.ln_final = nn.LayerNorm(config.d_model, eps=EPS)
        if not config.tied:
            self.unembed = nn.Linear(config.d_model, config.d_vocab, bias=False)
        self._initialize(seed)
        self.setup()  # type: ignore[no-untyped-call]  # transformer-lens does not annotate it

    def forward(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        """**Raises** `TaskMismatch` where the table of positions is shorter than the sequence."""
        resid: Tensor = self.hook_embed(self.embed(tokens))
        resid = self._windows(resid) if self.config.context == "prefix" else self._placed(resid)
        for block in self.blocks:
            resid = block(resid)
        output = self.embed.weight if self.config.tied else self.unembed.weight
        return nn.functional.linear(self.ln_final(resid), output)

    def entering(self, tokens: Int64[Tensor, " token"]) -> Float[Tensor, "token d_model"]:
        """What each token adds to the residual stream of its own position."""
        embedded: Tensor = self.embed(tokens)
        return embedded @ self.window.weight[:, :, -1].T if self.config.context == "prefix" else embedded

    def _placed(self, embedded: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        n_pos = embedded.shape[1]
        if n_pos > self.config.n_ctx:
            raise TaskMismatch(
                f"{n_pos} tokens asked of a model with learned positions for {self.config.n_ctx}; shorten the "
                f"sequence, or train with context='prefix', which looks back {self.config.n_ctx} tokens."
            )
        placed: Tensor = embedded + self.hook_pos_embed(self.pos_embed.weight[:n_pos].expand_as(embedded))
        return placed

    def _windows(self, embedded: Float[Tensor, "batch pos width"]) -> Float[Tensor, "batch pos d_model"]:
        """Each position's last n_ctx embeddings, projected."""
        padded = nn.functional.pad(embedded.transpose(1, 2), (self.config.n_ctx - 1, 0))
        projected: Tensor = self.window(padded).transpose(1, 2)
        return projected

    @torch.no_grad()
    def _initialize(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                if name.endswith("bias"):
                    nn.init.zeros_(parameter)
                continue  # norms start at one
            std = INIT_STD / math.sqrt(self.config.n_layers) if name.endswith("W_out.weight") else INIT_STD
            std = (self.config.n_ctx * self.config.width) ** -0.5 if name == "window.weight" else std
            nn.init.normal_(parameter, std=std, generator=generator)


@final
class MLPBlock(nn.Module):
    """resid_pre → + MLP(norm) → resid_post."""

    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(config.d_model, eps=EPS)
        self.W_in, self.W_out = nn.Linear(config.d_model, config.d_mlp), nn.Linear(config.d_mlp, config.d_model)
        self.hook_resid_pre, self.hook_mlp_out, self.hook_resid_post = HookPoint(), HookPoint(), HookPoint()

    def forward(self, resid: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        resid = self.hook_resid_pre(resid)
        hidden = nn.functional.gelu(self.W_in(self.ln(resid)))
        post: Tensor = self.hook_resid_post(resid + self.hook_mlp_out(self.W_out(hidden)))
        return post
