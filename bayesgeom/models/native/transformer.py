"""A causal pre-norm transformer with transformer-lens's hook names.

`HookedRootModule` provides `run_with_cache` and `run_with_hooks`. Every activation with a standard name passes a
`HookPoint` of that name (`blocks.2.attn.hook_pattern`, …). Positional encodings are in `models.native.positions`.

In einsums, p, q and k index positions, h heads, and d the width of a head. Attention is softmax(q·k / √d + bias) over
k ≤ q.

References: Zhang & Sennrich 2019 (RMSNorm); Agarwal, Dalal & Misra 2025 (sizes).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, cast, final, get_args

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from bayesgeom.core import InvalidArgument, TaskMismatch, checked
from bayesgeom.models.config import INIT_STD, ModelConfig, draw_weights
from bayesgeom.models.native.positions import (
    PositionalPrior,
    alibi_bias,
    causal_mask,
    check_prior,
    rotated,
    sinusoids,
)

Attention = Literal["auto", "eager", "sdpa"]
NormKind = Literal["rmsnorm", "layernorm"]
PositionKind = Literal["learned", "sinusoidal", "rotary", "alibi", "prior", "none"]
NORMS: tuple[NormKind, ...] = get_args(NormKind)
POSITIONS: tuple[PositionKind, ...] = get_args(PositionKind)
EPS = 1e-5
# On a CPU, forward and backward pass of the fused attention take 1.0 times as long as eager ones at 95 positions, 0.7
# times at 129 and 0.3 times at 329 (AVX2, two cores); with AVX-512, several times as long at 39.
FUSED_TRAINING_FROM = 257


@final
@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """Sizes of a transformer, as stored in `config.json`. `d_head` is d_model / n_heads.

    Args:
        d_vocab: Number of token ids.
        n_ctx: Longest sequence, in tokens.
        n_layers: Number of blocks.
        n_heads: Attention heads of each block.
        d_model: Width of the residual stream.
        d_mlp: Width of the MLPs' hidden layer.
        norm: Kind of normalization.
        positions: Kind of positional encoding.
        tied: Whether output and embedding share their weights.
        prior_slopes: Slope of each head, for positions "prior" (see `PositionalPrior`). Empty: ALiBi's.
        prior_exponents: Exponent of each head, for positions "prior". Empty: 1.
        prior_is_learned: Whether slopes and exponents are trained.
        top_attention_off: Number of top layers without attention: their W_O is zero and is not trained.

    Raises:
        InvalidArgument: A size is below 1, sizes are inconsistent, or a kind is unknown.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_heads=6, d_model=192).d_head
        32
    """

    name: ClassVar[str] = "transformer"
    d_vocab: int
    n_ctx: int
    n_layers: int = 6
    n_heads: int = 6
    d_model: int = 192
    d_mlp: int = 768
    norm: NormKind = "rmsnorm"
    positions: PositionKind = "learned"
    tied: bool = True
    prior_slopes: tuple[float, ...] = ()
    prior_exponents: tuple[float, ...] = ()
    prior_is_learned: bool = True
    top_attention_off: int = 0

    def __post_init__(self) -> None:
        self.check_sizes("a transformer", or_zero="top_attention_off")
        if self.d_model % self.n_heads:
            raise InvalidArgument(f"d_model = {self.d_model} must be a multiple of n_heads = {self.n_heads}.")
        if self.positions == "rotary" and self.d_head % 2:
            raise InvalidArgument(f"rotary positions rotate pairs of coordinates: d_head = {self.d_head} must be even.")
        if self.positions == "prior":
            check_prior(self.n_heads, self.prior_slopes, self.prior_exponents, self.prior_is_learned)
        elif self.prior_slopes or self.prior_exponents or not self.prior_is_learned:
            raise InvalidArgument(f"prior_… options require positions 'prior'; positions are {self.positions!r}.")
        if not 0 <= self.top_attention_off <= self.n_layers:
            raise InvalidArgument(
                f"top_attention_off must be 0 to {self.n_layers} layers, got {self.top_attention_off}."
            )

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads

    def _build(self, *, seed: int) -> "Transformer":
        return Transformer(self, seed=seed)


@final
class Transformer(HookedRootModule):
    """A transformer that maps tokens to logits over all ids.

    Weights are float32, drawn from N(0, 0.02²). With attention "eager", scores and pattern are computed; with "sdpa",
    torch fuses them (equal up to rounding). "auto" is "eager" if a hook is set on the scores or the pattern, and for
    gradients on a CPU, where the fused backward pass is slower on short sequences and has no second derivatives.
    Otherwise it is "sdpa", also for a module in training mode on more than 256 positions, where it is faster.

    Args:
        config: Sizes and kinds of the parts.
        seed: Seed of the weights.
        attention: Implementation of attention: "auto", "eager" or "sdpa".

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> module = config.build(seed=0)
        >>> import torch
        >>> module(torch.zeros(2, 5, dtype=torch.int64)).shape
        torch.Size([2, 5, 10])
    """

    @checked()
    def __init__(self, config: TransformerConfig, *, seed: int = 0, attention: Attention = "auto") -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.d_vocab, config.d_model)
        self.hook_embed = HookPoint()
        if config.positions in ("learned", "sinusoidal"):
            self.hook_pos_embed = HookPoint()
        if config.positions == "learned":
            self.pos_embed = nn.Embedding(config.n_ctx, config.d_model)
        self.blocks = nn.ModuleList(Block(config, attention) for _ in range(config.n_layers))
        self.ln_final = Norm(config)
        if not config.tied:
            self.unembed = nn.Linear(config.d_model, config.d_vocab, bias=False)
        output_std = INIT_STD / math.sqrt(2 * config.n_layers)
        draw_weights(self, seed, dict.fromkeys(("W_O.weight", "W_out.weight"), output_std))
        for block in list(self.blocks)[config.n_layers - config.top_attention_off :]:
            nn.init.zeros_(block.get_parameter("attn.W_O.weight")).requires_grad_(False)
        self.setup()  # type: ignore[no-untyped-call]  # transformer-lens does not annotate it

    def forward(
        self, tokens: Int64[Tensor, "batch pos"], at: slice | None = None
    ) -> Float[Tensor, "batch query_pos d_vocab"]:
        """Return the logits at every position, or at some of them.

        Args:
            tokens: Ids of tokens.
            at: Positions of the logits. What follows the attention of the last block is computed there only, and its
                hooks see these positions only. Default: all positions.

        Raises:
            TaskMismatch: A learned position table is shorter than the sequence.
        """
        resid = self.embedded(tokens)
        *blocks, last = self.blocks
        for block in blocks:
            resid = block(resid)
        return self.logits(last(resid) if at is None else last(resid, at))

    def embedded(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        """Return the input of block 0.

        Args:
            tokens: Ids of tokens.
        """
        resid: Tensor = self.hook_embed(self.embed(tokens))
        n_pos = tokens.shape[1]
        if self.config.positions == "learned":
            if n_pos > self.config.n_ctx:
                raise TaskMismatch(
                    f"the sequence has {n_pos} tokens, the model learned positions for {self.config.n_ctx}; shorten "
                    f"the sequence or use a model with sinusoidal, rotary, alibi, prior or no positions."
                )
            resid = resid + self.hook_pos_embed(self.pos_embed.weight[:n_pos].expand_as(resid))
        if self.config.positions == "sinusoidal":
            resid = resid + self.hook_pos_embed(sinusoids(n_pos, self.config.d_model, resid).expand_as(resid))
        return resid

    def logits(self, resid: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_vocab"]:
        """Return the logits of a final residual: final norm, then the output (or transposed embedding) matrix.

        Args:
            resid: Residuals after the last block.
        """
        output = self.embed.weight if self.config.tied else self.unembed.weight
        return nn.functional.linear(self.ln_final(resid), output)


@final
class Block(nn.Module):
    """resid_pre → + attention(norm) → resid_mid → + mlp(norm) → resid_post."""

    def __init__(self, config: TransformerConfig, attention: Attention) -> None:
        super().__init__()
        self.ln1, self.ln2 = Norm(config), Norm(config)
        self.attn = MultiHeadAttention(config, attention)
        self.mlp = MLP(config)
        self.hook_resid_pre, self.hook_attn_out, self.hook_resid_mid = HookPoint(), HookPoint(), HookPoint()
        self.hook_mlp_out, self.hook_resid_post = HookPoint(), HookPoint()

    def forward(
        self, resid: Float[Tensor, "batch pos d_model"], at: slice | None = None
    ) -> Float[Tensor, "batch query_pos d_model"]:
        resid = self.hook_resid_pre(resid)
        x = self.ln1(resid)
        attn_out = self.hook_attn_out(self.attn(x) if at is None else self.attn(x, at))
        resid = self.hook_resid_mid((resid if at is None else resid[:, at]) + attn_out)
        return cast(Tensor, self.hook_resid_post(resid + self.hook_mlp_out(self.mlp(self.ln2(resid)))))


@final
class MultiHeadAttention(nn.Module):
    """Causal attention without biases. `hook_q`, `hook_k` are before rotation, `hook_rot_q`, `hook_rot_k` after."""

    def __init__(self, config: TransformerConfig, attention: Attention) -> None:
        super().__init__()
        self.config, self.attention = config, attention
        self.W_Q, self.W_K, self.W_V, self.W_O = (
            nn.Linear(config.d_model, config.d_model, bias=False) for _ in range(4)
        )
        self.hook_q, self.hook_k, self.hook_v, self.hook_z = HookPoint(), HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        if config.positions == "rotary":
            self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint()
        if config.positions == "prior":
            self.prior = PositionalPrior(
                config.n_heads,
                slopes=config.prior_slopes,
                exponents=config.prior_exponents,
                is_learned=config.prior_is_learned,
            )

    def forward(
        self, x: Float[Tensor, "batch pos d_model"], at: slice | None = None
    ) -> Float[Tensor, "batch query_pos d_model"]:
        q, k, v = (
            hook(rearrange(linear(x), "b p (h d) -> b p h d", h=self.config.n_heads))
            for linear, hook in ((self.W_Q, self.hook_q), (self.W_K, self.hook_k), (self.W_V, self.hook_v))
        )
        if self.config.positions == "rotary":
            q, k = self.hook_rot_q(rotated(q)), self.hook_rot_k(rotated(k))
        z = self.hook_z(self._eager(q, k, v) if self._is_eager(q) else self._fused(q, k, v))
        return cast(Tensor, self.W_O(rearrange(z if at is None else z[:, at], "b p h d -> b p (h d)")))

    def score_bias(self, n_pos: int, like: Tensor) -> Float[Tensor, "head query_pos key_pos"] | None:
        """Return the positional bias of the scores, or None if there is none."""
        match self.config.positions:
            case "alibi":
                return alibi_bias(self.config.n_heads, n_pos, like)
            case "prior":
                return cast(Tensor, self.prior(n_pos, like))
        return None

    def _is_eager(self, q: Float[Tensor, "b p h d"]) -> bool:
        if self.attention != "auto":
            return self.attention == "eager"
        points = (self.hook_attn_scores, self.hook_pattern)
        is_watched = any(bool(point._forward_hooks or point._backward_hooks) for point in points)
        is_long = self.training and q.shape[1] >= FUSED_TRAINING_FROM
        return is_watched or (q.requires_grad and q.device.type == "cpu" and not is_long)

    def _eager(
        self, q: Float[Tensor, "b p h d"], k: Float[Tensor, "b p h d"], v: Float[Tensor, "b p h d"]
    ) -> Float[Tensor, "b p h d"]:
        scores = einsum(q / math.sqrt(self.config.d_head), k, "b q h d, b k h d -> b h q k")
        if (bias := self.score_bias(q.shape[1], scores)) is not None:
            scores = scores + bias
        scores = self.hook_attn_scores(scores.masked_fill(~causal_mask(q.shape[1], q), -torch.inf))
        pattern = self.hook_pattern(scores.softmax(dim=-1))
        return cast(Tensor, einsum(pattern, v, "b h q k, b k h d -> b q h d"))

    def _fused(
        self, q: Float[Tensor, "b p h d"], k: Float[Tensor, "b p h d"], v: Float[Tensor, "b p h d"]
    ) -> Float[Tensor, "b p h d"]:
        if (bias := self.score_bias(q.shape[1], q)) is not None:
            bias = bias.masked_fill(~causal_mask(q.shape[1], q), -torch.inf)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        z = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None)
        return z.transpose(1, 2)


@final
class MLP(nn.Module):
    """Linear, GELU, linear, with biases."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.W_in, self.W_out = nn.Linear(config.d_model, config.d_mlp), nn.Linear(config.d_mlp, config.d_model)
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        return cast(Tensor, self.W_out(self.hook_post(nn.functional.gelu(self.hook_pre(self.W_in(x))))))


@final
class Norm(nn.Module):
    """LayerNorm (x − mean) / sd · w + b, or RMSNorm x / rms · w; ε = 1e-5 inside the root."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(config.d_model))
        if config.norm == "layernorm":
            self.b = nn.Parameter(torch.zeros(config.d_model))
        self.is_layernorm = config.norm == "layernorm"
        self.hook_normalized = HookPoint()

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        shape = self.w.shape
        if self.is_layernorm:
            y = nn.functional.layer_norm(x, shape, self.w, self.b, EPS)
        else:
            y = nn.functional.rms_norm(x, shape, self.w, EPS)
        return cast(Tensor, self.hook_normalized(y))
