"""Positions: what tells a transformer where a token stands. Sinusoids, rotations, and decays of the attention scores.

A decay adds −(slope · distance)^exponent to the scores of a head. Slope 0 is no position at all, exponent 1 is ALiBi's
(a Laplace prior over distance), exponent 2 a Gaussian one. The slope is one over the prior's scale.

References: Vaswani et al. 2017 (sinusoids); Su et al. 2021 (rotary); Press et al. 2022 (ALiBi).
"""

import math
from collections.abc import Sequence
from typing import final

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from bayesgeom.core.errors import InvalidArgument

INIT_STD = 0.02  # of embeddings, which sinusoids must not drown
_FARTHEST = 60.0  # the logarithm of a decay that is as good as infinite, and still a number in float32


@final
class PositionalPrior(nn.Module):
    """−(slope · distance)^exponent, head by head; learned ones move in the logarithms of both, from where they start.

    Not given, slopes are ALiBi's and exponents 1: until it has learned something else, the prior is ALiBi.
    """

    slopes: Tensor
    exponents: Tensor

    def __init__(
        self, n_heads: int, *, slopes: Sequence[float] = (), exponents: Sequence[float] = (), is_learned: bool = True
    ) -> None:
        super().__init__()
        check_prior(n_heads, slopes, exponents, is_learned)
        given = torch.tensor(slopes) if slopes else alibi_slopes(n_heads)
        self.register_buffer("slopes", given.float(), persistent=False)  # the config holds them
        self.register_buffer("exponents", torch.tensor(exponents or (1.0,) * n_heads), persistent=False)
        self.is_learned = is_learned
        if is_learned:
            self.log_slope_shift = nn.Parameter(torch.zeros(n_heads))
            self.log_exponent_shift = nn.Parameter(torch.zeros(n_heads))

    def forward(self, n_pos: int, like: Tensor) -> Float[Tensor, "head query_pos key_pos"]:
        """What is added to the scores, before the causal mask."""
        log_slope, exponent = self.slopes.log(), self.exponents
        if self.is_learned:
            log_slope = log_slope + self.log_slope_shift
            exponent = exponent * self.log_exponent_shift.exp()
        return decay(log_slope, exponent, n_pos).to(like.dtype)


def decay(
    log_slopes: Float[Tensor, " head"], exponents: Float[Tensor, " head"], n_pos: int
) -> Float[Tensor, "head query_pos key_pos"]:
    """−(slope · |query − key|)^exponent; at distance 0 it is 0, and so is its gradient, which log 0 would spoil."""
    apart = distances(n_pos, log_slopes).abs().to(log_slopes.dtype)
    reach = exponents[:, None, None] * (log_slopes[:, None, None] + apart.clamp_min(1).log())
    return torch.where(apart > 0, -reach.clamp_max(_FARTHEST).exp(), 0.0)


def alibi_slopes(n_heads: int) -> Float[Tensor, " head"]:
    """2^(−8h/n_heads) for h = 1 … n_heads."""
    return 2.0 ** (-8.0 * torch.arange(1, n_heads + 1) / n_heads)


def alibi_bias(n_heads: int, n_pos: int, like: Tensor) -> Float[Tensor, "head query_pos key_pos"]:
    """−slope · (query − key)."""
    slopes = alibi_slopes(n_heads).to(like.device)
    return (-slopes[:, None, None] * distances(n_pos, like)).to(like.dtype)


def distances(n_pos: int, like: Tensor) -> Float[Tensor, "query_pos key_pos"]:
    """How far each key lies before each query."""
    pos = torch.arange(n_pos, device=like.device, dtype=torch.float32)
    return pos[:, None] - pos[None, :]


def causal_mask(n_pos: int, like: Tensor) -> Bool[Tensor, "query_pos key_pos"]:
    """True where a key may be seen: not later than the query."""
    return torch.ones(n_pos, n_pos, dtype=torch.bool, device=like.device).tril()


def sinusoids(n_pos: int, d_model: int, like: Tensor) -> Float[Tensor, "pos d_model"]:
    """sin and cos of pos / 10000^(2i/d_model), scaled to the embeddings' initial size: unscaled they drown them."""
    angles = _angles(n_pos, d_model, like)
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :d_model]
    return (waves * (INIT_STD * math.sqrt(2))).to(like.dtype)


def rotated(
    x: Float[Tensor, "batch pos head d_head"], at: Int64[Tensor, " pos"] | None = None
) -> Float[Tensor, "batch pos head d_head"]:
    """Coordinates i and i + d/2 turned by pos / 10000^(2i/d): the layout of Llama's checkpoints.

    `at` gives the positions where they are not 0, 1, 2, …
    """
    angles = _angles(x.shape[1] if at is None else int(at.max()) + 1, x.shape[3], x)
    angles = angles if at is None else angles[at]
    cos, sin = (rearrange(f(angles), "p d -> p 1 d").to(x.dtype) for f in (torch.cos, torch.sin))
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def check_prior(n_heads: int, slopes: Sequence[float], exponents: Sequence[float], is_learned: bool) -> None:
    """**Raises** `InvalidArgument` unless there is one finite slope ≥ 0 and one exponent > 0 per head, or none given.

    A slope of 0 cannot be learned: its logarithm has nowhere to start.
    """
    for what, given, least in (("slope", slopes, 0.0), ("exponent", exponents, math.ulp(0.0))):
        if given and (len(given) != n_heads or not all(math.isfinite(x) and x >= least for x in given)):
            raise InvalidArgument(
                f"a positional prior takes one finite {what} per head, {'at least' if what == 'slope' else 'above'} 0: "
                f"{n_heads} of them, or none for ALiBi's; got {tuple(given)}."
            )
    if is_learned and 0.0 in slopes:
        raise InvalidArgument("a slope of 0 cannot be learned: start from a small one, or fix the prior.")


def _angles(n_pos: int, width: int, like: Tensor) -> Float[Tensor, "pos half_width"]:
    frequency = 10_000.0 ** (-torch.arange(0, width, 2, device=like.device) / width)
    return torch.arange(n_pos, device=like.device)[:, None] * frequency[None, :]
