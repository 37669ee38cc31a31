"""Entropy and divergence of discrete distributions along the last axis, in bits; log-probabilities of bins.

Conventions: 0 log 0 = 0; KL is always KL(exact ‖ model).

References:
    Cover & Thomas 2006, chapter 2.
"""

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

NATS_PER_BIT = math.log(2)
_ROUNDING = 1e-6  # of the sum of a row in float32
KNOWN_BITS = 1e-6  # an answer is known if the entropy of the exact posterior is below this


def entropy_bits(p: Float[Tensor, "*batch outcome"]) -> Float[Tensor, "*batch"]:
    """Return the entropy −Σ p log2 p, between 0 and log2(outcomes)."""
    return -torch.xlogy(p, p).sum(-1) / NATS_PER_BIT


def row_sums(weights: Float[Tensor, "*batch outcome"]) -> Float[Tensor, "*batch"]:
    """Return the sums of rows of attention; exactly 1 where they differ from it by rounding in float32.

    A sink, a score without a key, takes a part of the row. Rounding to bfloat16 changes a sum by up to 0.4 %.
    """
    total = weights.sum(dim=-1)
    return torch.where((total - 1).abs() <= _ROUNDING, 1.0, total)


def row_entropy_bits(weights: Float[Tensor, "*batch outcome"]) -> Float[Tensor, "*batch"]:
    """Return the entropy of rows of attention divided by their sums, between 0 and log2(outcomes); NaN for a sum of 0.

    Example:
        >>> row_entropy_bits(torch.tensor([[0.25, 0.25, 0.0], [0.5, 0.5, 0.0]])).tolist()
        [1.0, 1.0]
    """
    total = row_sums(weights)
    return entropy_bits(weights) / total + total.log2()


def kl_bits(
    exact: Float[Tensor, "*batch outcome"], log_model: Float[Tensor, "*batch outcome"]
) -> Float[Tensor, "*batch"]:
    """Return Σ p (log2 p − log2 q) ≥ 0 for p = `exact` and natural log-probabilities log q = `log_model`.

    Infinite where q = 0 and p > 0. Terms with p = 0 are zero for any q.
    """
    cross = torch.where(exact > 0, exact * log_model, 0.0)
    return (torch.xlogy(exact, exact) - cross).sum(-1) / NATS_PER_BIT


def total_variation(p: Float[Tensor, "*batch outcome"], q: Float[Tensor, "*batch outcome"]) -> Float[Tensor, "*batch"]:
    """Return the total variation ½ Σ |p − q|, between 0 (equal) and 1 (disjoint)."""
    return (p - q).abs().sum(-1) / 2


def jensen_shannon_bits(
    p: Float[Tensor, "*batch outcome"], q: Float[Tensor, "*batch outcome"]
) -> Float[Tensor, "*batch"]:
    """Return the Jensen–Shannon divergence H((p + q)/2) − (H(p) + H(q))/2, between 0 and 1 bit."""
    return entropy_bits((p + q) / 2) - (entropy_bits(p) + entropy_bits(q)) / 2


def log_bin_probabilities(
    edges: Float64[Tensor, " edge"], mean: Float64[Tensor, "*#batch"], deviation: Float64[Tensor, "*#batch"]
) -> Float64[Tensor, "*#batch bin"]:
    """Return the natural log of the probability of each bin under normal distributions; the outermost bins are open.

    Example:
        >>> log_bin_probabilities(torch.tensor([0.0]).double(), torch.tensor(40.0).double(), torch.tensor(1.0).double())
        tensor([-804.6084,    0.0000], dtype=torch.float64)
    """
    places = (edges.to(mean) - mean[..., None]) / deviation[..., None]
    low = torch.nn.functional.pad(places, (1, 0), value=-torch.inf)
    high = torch.nn.functional.pad(places, (0, 1), value=torch.inf)
    # Bins above the mean are mirrored: a difference of small tails keeps the digits that one of values near 1 loses.
    is_above = low > 0
    low, high = torch.where(is_above, -high, low), torch.where(is_above, -low, high)
    below, up_to = torch.special.log_ndtr(low), torch.special.log_ndtr(high)
    logs: Tensor = up_to + (-torch.expm1(below - up_to)).log()
    return logs.log_softmax(dim=-1)
