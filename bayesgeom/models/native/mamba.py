"""Mamba-1: a selective state space model, with transformer-lens's hook names for its residual stream.

    resid_post = resid_pre + mixer(RMSNorm(resid_pre))      mixer: (x, z) = W_in ·      x ← SiLU(causal conv(x))
    (δ, B, C) = W_x x      Δ = softplus(W_Δ δ + b_Δ)      h_t = exp(Δ_t A) ∘ h_{t−1} + Δ_t B_t x_t
    y_t = C_t h_t + D ∘ x_t      out = W_out (y ∘ SiLU(z))

Δ, B and C depend on the token: this is the selection. `hook_state` of a block is h_t, d_inner × d_state numbers at
every position, which are computed only if hooked. An edit there changes what is read at that position, but not the
carried state. Besides h, the last d_conv − 1 inputs of the convolution are carried.

Notation of Gu & Dao 2023 (algorithm 2) in the names used here: D (channels) is d_inner = expand · d_model, N d_state,
R dt_rank, A = −exp(A_log), Δ delta. s_B(x), s_C(x) and s_Δ(x) are the parts of x_proj, τ_Δ is softplus, and x̄ and B̄
are in `scan`. Parts are named as in the released models (in_proj, x_proj, dt_proj, …), so weights can be copied by
name. There is no positional encoding: the recurrence is ordered.

Reference: Gu & Dao 2023, arXiv:2312.00752.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from bayesgeom.models.config import ModelConfig
from bayesgeom.models.native.scan import causal_conv_silu, plain_states, read_states, selective_scan
from bayesgeom.models.native.stack import ResidualStack

EPS = 1e-5
DELTA_RANGE = 1e-3, 0.1  # Δ at initialization, log-uniform


@final
@dataclass(frozen=True, kw_only=True)
class MambaConfig(ModelConfig):
    """Sizes of a Mamba. `n_ctx` is the training length; it runs at any length. `dt_rank` 0 means ⌈d_model / 16⌉."""

    name: ClassVar[str] = "mamba"
    d_vocab: int
    n_ctx: int
    n_layers: int = 6
    d_model: int = 192
    d_state: int = 16
    d_conv: int = 4
    expand: int = 2
    dt_rank: int = 0
    tied: bool = True

    def __post_init__(self) -> None:
        self.check_sizes("a Mamba", or_zero="dt_rank")

    @property
    def d_inner(self) -> int:
        """Number of channels of the scan."""
        return self.expand * self.d_model

    @property
    def rank(self) -> int:
        """Width of the input of Δ's projection."""
        return self.dt_rank or -(-self.d_model // 16)

    def _build(self, *, seed: int) -> "Mamba":
        return Mamba(self, seed=seed)


@final
class Mamba(ResidualStack):
    """A Mamba that maps tokens to logits. Weights are float32, drawn from this seed as in the released models."""

    config: MambaConfig

    def __init__(self, config: MambaConfig, *, seed: int = 0) -> None:
        blocks = [MambaBlock(config) for _ in range(config.n_layers)]
        super().__init__(config, blocks, nn.RMSNorm(config.d_model, eps=EPS), seed=seed)


@final
class MambaBlock(nn.Module):
    """resid_pre → + mixer(norm) → resid_post."""

    def __init__(self, config: MambaConfig) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.d_model, eps=EPS)
        self.mixer = MambaMixer(config)
        self.hook_resid_pre, self.hook_state, self.hook_resid_post = HookPoint(), HookPoint(), HookPoint()

    def forward(self, resid: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        resid = self.hook_resid_pre(resid)
        return cast(Tensor, self.hook_resid_post(resid + self.mixer(self.norm(resid), self.hook_state)))

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights of the mixer."""
        self.mixer.initialize(generator)


@final
class MambaMixer(nn.Module):
    """The update of a block: gated read-out of a selective scan."""

    def __init__(self, config: MambaConfig) -> None:
        super().__init__()
        self.config = config
        d, n, rank = config.d_inner, config.d_state, config.rank
        self.in_proj = nn.Linear(config.d_model, 2 * d, bias=False)
        self.conv1d = DepthwiseConv(d, config.d_conv)
        self.x_proj = nn.Linear(d, rank + 2 * n, bias=False)
        self.dt_proj = nn.Linear(rank, d)
        self.A_log, self.D = nn.Parameter(torch.empty(d, n)), nn.Parameter(torch.ones(d))
        self.out_proj = nn.Linear(d, config.d_model, bias=False)

    def forward(
        self, resid: Float[Tensor, "batch pos d_model"], hook_state: HookPoint
    ) -> Float[Tensor, "batch pos d_model"]:
        x, z = self._entering(resid)
        delta, B, C = self._selected(x)
        A = -self.A_log.exp()
        if hook_state._forward_hooks or hook_state._backward_hooks:
            states: Tensor = hook_state(plain_states(x, delta, A, B).flatten(2))
            read = read_states(states.unflatten(2, A.shape), x, C, self.D, z)
        else:
            read = selective_scan(x, delta, A, B, C, self.D, z)
        return cast(Tensor, self.out_proj(read))

    def written(
        self, resid: Float[Tensor, "batch pos d_model"], states: Float[Tensor, "batch pos d_inner_times_d_state"]
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return the mixer's update for given states, instead of those of the recurrence."""
        x, z = self._entering(resid)
        C = self._selected(x)[2]
        return cast(Tensor, self.out_proj(read_states(states.unflatten(2, self.A_log.shape), x, C, self.D, z)))

    def _entering(self, resid: Float[Tensor, "batch pos d_model"]) -> tuple[Tensor, Tensor]:
        """The input of the scan, and the gate."""
        x, z = self.in_proj(resid).chunk(2, dim=-1)
        return self.conv1d(x), z

    def _selected(self, x: Float[Tensor, "batch pos d_inner"]) -> tuple[Tensor, Tensor, Tensor]:
        """Δ, B and C at each token; Δ is before its softplus, and in full precision because small steps add up."""
        n = self.config.d_state
        delta, B, C = self.x_proj(x).split((self.config.rank, n, n), dim=-1)
        with torch.autocast(x.device.type, enabled=False):
            return self.dt_proj(delta.to(self.dt_proj.weight.dtype)), B, C

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights: A is −1 … −N in every channel, Δ log-uniform, D one; out_proj is divided by √n_layers."""
        for linear in (self.in_proj, self.x_proj, self.out_proj):
            nn.init.kaiming_uniform_(linear.weight, a=math.sqrt(5), generator=generator)
        self.out_proj.weight /= math.sqrt(self.config.n_layers)
        nn.init.kaiming_uniform_(self.conv1d.weight, a=math.sqrt(5), generator=generator)
        bound = self.config.rank**-0.5
        nn.init.uniform_(self.dt_proj.weight, -bound, bound, generator=generator)
        low, high = (math.log(end) for end in DELTA_RANGE)
        delta = (low + (high - low) * torch.rand(self.config.d_inner, generator=generator)).exp()
        self.dt_proj.bias.copy_(delta + (-(-delta).expm1()).log())  # inverse softplus
        self.A_log.copy_(torch.arange(1, self.config.d_state + 1).log().expand_as(self.A_log))


@final
class DepthwiseConv(nn.Module):
    """Causal depthwise convolution with SiLU. Parameters have the layout of torch's grouped convolution."""

    def __init__(self, n_channels: int, n_taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_channels, 1, n_taps))
        self.bias = nn.Parameter(torch.zeros(n_channels))

    def forward(self, x: Float[Tensor, "batch pos channel"]) -> Float[Tensor, "batch pos channel"]:
        return causal_conv_silu(x, self.weight[:, 0], self.bias)
