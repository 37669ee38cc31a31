"""An MLP without a sequence mixer: a baseline that carries nothing from one position to another.

    resid_post = resid_pre + W_out GELU(W_in LayerNorm(resid_pre) + b_in) + b_out

`context` selects the input of a position. "position" is the strict control: the position's own token and index only.
"prefix" is the last `n_ctx` tokens, without attention or recurrence. Their embeddings, left-padded with zeros, are
concatenated and projected into the residual stream. Each offset in the window has its own slice of the projection, so
a causal convolution as long as the context computes it without materializing the windows.

Names in Agarwal, Dalal & Misra 2025: width is d_model, hidden layer d_mlp, "residual blocks" `blocks`. The paper does
not state how the sequence enters. The control of the follow-up is per position, with nine blocks at d_model 192.

References: Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (the MLP baseline).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, cast, final

from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from bayesgeom.core import InvalidArgument, TaskMismatch
from bayesgeom.models.config import INIT_STD, ModelConfig, draw_weights

EPS = 1e-5


@final
@dataclass(frozen=True, kw_only=True)
class MLPConfig(ModelConfig):
    """Sizes of an MLP. `d_embed` is the width of embeddings with context "prefix"; 0 means d_model."""

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
        self.check_sizes("an MLP", or_zero="d_embed")
        if self.width != self.d_model and (self.context == "position" or self.tied):
            raise InvalidArgument(
                f"d_embed = {self.d_embed} differs from d_model = {self.d_model}: this requires context='prefix', "
                f"which projects embeddings, and tied=False, because the output reads d_model."
            )

    @property
    def width(self) -> int:
        """Width of an embedding."""
        return self.d_embed or self.d_model

    def _build(self, *, seed: int) -> "PositionwiseMLP":
        return PositionwiseMLP(self, seed=seed)


@final
class PositionwiseMLP(HookedRootModule):
    """An MLP that maps tokens to logits over all ids. Weights are float32, drawn from N(0, 0.02²) with this seed.

    With context "position" there is a learned position table. With "prefix" there is none, because the padding encodes
    the position. Its projection is drawn from N(0, 1 / (n_ctx · width)), which preserves the embeddings' scale.
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
        window_std = (config.n_ctx * config.width) ** -0.5
        draw_weights(self, seed, {"W_out.weight": INIT_STD / math.sqrt(config.n_layers), "window.weight": window_std})
        self.setup()  # type: ignore[no-untyped-call]  # transformer-lens does not annotate it

    def forward(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        """Return the logits at every position.

        Raises:
            TaskMismatch: The position table is shorter than the sequence.
        """
        resid: Tensor = self.hook_embed(self.embed(tokens))
        if self.config.context == "prefix":  # the projection of each position's last n_ctx embeddings
            padded = nn.functional.pad(resid.transpose(1, 2), (self.config.n_ctx - 1, 0))
            resid = self.window(padded).transpose(1, 2)
        else:
            resid = self._placed(resid)
        for block in self.blocks:
            resid = block(resid)
        output = self.embed.weight if self.config.tied else self.unembed.weight
        return nn.functional.linear(self.ln_final(resid), output)

    def entering(self, tokens: Int64[Tensor, " token"]) -> Float[Tensor, "token d_model"]:
        """Return the update of each token to the residual stream of its own position."""
        embedded: Tensor = self.embed(tokens)
        return embedded @ self.window.weight[:, :, -1].T if self.config.context == "prefix" else embedded

    def _placed(self, embedded: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        n_pos = embedded.shape[1]
        if n_pos > self.config.n_ctx:
            raise TaskMismatch(
                f"the sequence has {n_pos} tokens, the model learned positions for {self.config.n_ctx}; shorten the "
                f"sequence, or train with context='prefix', which looks back {self.config.n_ctx} tokens."
            )
        return cast(Tensor, embedded + self.hook_pos_embed(self.pos_embed.weight[:n_pos].expand_as(embedded)))


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
        return cast(Tensor, self.hook_resid_post(resid + self.hook_mlp_out(self.W_out(hidden))))
