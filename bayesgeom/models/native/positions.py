"""Positional encodings of transformers: sinusoids, rotations, and decays of the attention scores.

A decay adds −(slope · distance)^exponent to the scores of a head. Slope 0 encodes no position, exponent 1 is ALiBi (a
Laplace prior over distance), exponent 2 is a Gaussian prior. The slope is the reciprocal of the prior's scale.

References: Vaswani et al. 2017 (sinusoids); Su et al. 2021 (rotary); Press et al. 2022 (ALiBi).
"""

import math
from collections.abc import Sequence
from typing import final

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from bayesgeom.core import InvalidArgument
from bayesgeom.models.config import INIT_STD

_FARTHEST = 60.0  # logarithm of a decay that is practically infinite, but finite in float32


@final
class PositionalPrior(nn.Module):
    """Adds −(slope · distance)^exponent to the scores of each head; logarithms of slopes and exponents may be learned.

    By default slopes are ALiBi's and exponents are 1, so the initial prior is ALiBi.
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
        """Return the bias that is added to the scores before the causal mask."""
        log_slope, exponent = self.slopes.log(), self.exponents
        if self.is_learned:
            log_slope = log_slope + self.log_slope_shift
            exponent = exponent * self.log_exponent_shift.exp()
        return decay(log_slope, exponent, n_pos).to(like.dtype)


def decay(
    log_slopes: Float[Tensor, " head"], exponents: Float[Tensor, " head"], n_pos: int
) -> Float[Tensor, "head query_pos key_pos"]:
    """Return −(slope · |query − key|)^exponent. At distance 0 the value and its gradient are 0, which avoids log 0."""
    apart = distances(n_pos, log_slopes).abs().to(log_slopes.dtype)
    reach = exponents[:, None, None] * (log_slopes[:, None, None] + apart.clamp_min(1).log())
    return torch.where(apart > 0, -reach.clamp_max(_FARTHEST).exp(), 0.0)


def alibi_slopes(n_heads: int) -> Float[Tensor, " head"]:
    """Return ALiBi's slopes, 2^(−8h/n_heads) for h = 1 … n_heads."""
    return 2.0 ** (-8.0 * torch.arange(1, n_heads + 1) / n_heads)


def alibi_bias(n_heads: int, n_pos: int, like: Tensor) -> Float[Tensor, "head query_pos key_pos"]:
    """Return ALiBi's bias, −slope · (query − key)."""
    slopes = alibi_slopes(n_heads).to(like.device)
    return (-slopes[:, None, None] * distances(n_pos, like)).to(like.dtype)


def distances(n_pos: int, like: Tensor) -> Float[Tensor, "query_pos key_pos"]:
    """Return query position minus key position."""
    pos = torch.arange(n_pos, device=like.device, dtype=torch.float32)
    return pos[:, None] - pos[None, :]


def causal_mask(n_pos: int, like: Tensor) -> Bool[Tensor, "query_pos key_pos"]:
    """Return the causal mask: true if the key is not later than the query."""
    return torch.ones(n_pos, n_pos, dtype=torch.bool, device=like.device).tril()


def sinusoids(n_pos: int, d_model: int, like: Tensor) -> Float[Tensor, "pos d_model"]:
    """Return sin and cos of pos / 10000^(2i/d_model), scaled to the initial size of the embeddings."""
    angles = _angles(n_pos, d_model, like)
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :d_model]
    return (waves * (INIT_STD * math.sqrt(2))).to(like.dtype)


def rotated(x: Float[Tensor, "batch pos head d_head"]) -> Float[Tensor, "batch pos head d_head"]:
    """Return `x` with coordinates i and i + d/2 rotated by pos / 10000^(2i/d), the layout of Llama's checkpoints."""
    angles = _angles(x.shape[1], x.shape[3], x)
    cos, sin = (rearrange(f(angles), "p d -> p 1 d").to(x.dtype) for f in (torch.cos, torch.sin))
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def check_prior(n_heads: int, slopes: Sequence[float], exponents: Sequence[float], is_learned: bool) -> None:
    """Check that there is one finite slope ≥ 0 and one exponent > 0 per head, or none.

    A slope of 0 cannot be learned, because it is learned by its logarithm.

    Raises:
        InvalidArgument: The check failed.
    """
    for what, given, least in (("slope", slopes, 0.0), ("exponent", exponents, math.ulp(0.0))):
        if given and (len(given) != n_heads or not all(math.isfinite(x) and x >= least for x in given)):
            raise InvalidArgument(
                f"a positional prior requires one finite {what} per head, "
                f"{'at least' if what == 'slope' else 'above'} 0: {n_heads} of them, "
                f"or none for ALiBi's; got {tuple(given)}."
            )
    if is_learned and 0.0 in slopes:
        raise InvalidArgument("a slope of 0 cannot be learned: start from a small one, or fix the prior.")


def _angles(n_pos: int, width: int, like: Tensor) -> Float[Tensor, "pos half_width"]:
    frequency = 10_000.0 ** (-torch.arange(0, width, 2, device=like.device) / width)
    return torch.arange(n_pos, device=like.device)[:, None] * frequency[None, :]
