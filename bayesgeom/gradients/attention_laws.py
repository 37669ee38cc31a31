"""Gradient laws of one attention head: how gradient descent changes its scores and its values.

A query i mixes values by c_i = Σ_j α_ij v_j, with α_i = softmax(s_i). Let u_i = ∂L/∂c_i be the gradient at the head's
output, and b_ij = u_i · v_j. Then, exactly:

    ∂L/∂s_ij = α_ij (b_ij − E_{α_i}[b])    routing: attention grows where b is below its mean
    ∂L/∂v_j  = Σ_i α_ij u_i                values: each is pulled by the queries that attend to it

The advantage A_ij = E_{α_i}[b] − b_ij is the first-order decrease of the loss from attending to j instead of attending
as now.

References:
    Agarwal, Dalal & Misra 2025, Paper II (routing and value laws; responsibilities).
"""

import torch
from jaxtyping import Float
from torch import Tensor


def agreement(
    upstream: Float[Tensor, "*batch query_pos d_head"], values: Float[Tensor, "*batch key_pos d_head"]
) -> Float[Tensor, "*batch query_pos key_pos"]:
    """Return b_ij = u_i · v_j: the increase of the loss if query i mixes in more of value j."""
    return torch.matmul(upstream, values.mT)


def advantage(
    pattern: Float[Tensor, "*batch query_pos key_pos"], b: Float[Tensor, "*batch query_pos key_pos"]
) -> Float[Tensor, "*batch query_pos key_pos"]:
    """Return A_ij = E_{α_i}[b] − b_ij; its mean under the attention is zero in every row."""
    return (pattern * b).sum(dim=-1, keepdim=True) - b


def routing_gradient(
    pattern: Float[Tensor, "*batch query_pos key_pos"], b: Float[Tensor, "*batch query_pos key_pos"]
) -> Float[Tensor, "*batch query_pos key_pos"]:
    """Return ∂L/∂s_ij = −α_ij A_ij; rows sum to zero."""
    return -pattern * advantage(pattern, b)


def value_gradient(
    pattern: Float[Tensor, "*batch query_pos key_pos"], upstream: Float[Tensor, "*batch query_pos d_head"]
) -> Float[Tensor, "*batch key_pos d_head"]:
    """Return ∂L/∂v_j = Σ_i α_ij u_i: upstream gradients weighted by responsibility."""
    return torch.matmul(pattern.mT, upstream)


def query_gradient(
    by_score: Float[Tensor, "*batch query_pos key_pos"], keys: Float[Tensor, "*batch key_pos d_head"], scale: float
) -> Float[Tensor, "*batch query_pos d_head"]:
    """Return ∂L/∂q_i = Σ_j ∂L/∂s_ij k_j · scale, where s = q·k·scale."""
    return torch.matmul(by_score, keys) * scale


def key_gradient(
    by_score: Float[Tensor, "*batch query_pos key_pos"], queries: Float[Tensor, "*batch query_pos d_head"], scale: float
) -> Float[Tensor, "*batch key_pos d_head"]:
    """Return ∂L/∂k_j = Σ_i ∂L/∂s_ij q_i · scale."""
    return torch.matmul(by_score.mT, queries) * scale
