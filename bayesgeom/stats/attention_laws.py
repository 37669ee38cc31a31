"""The gradient laws of one attention head: what descent does to its scores and its values.

A query i mixes values by c_i = Σ_j α_ij v_j, with α_i = softmax(s_i). Write u_i = ∂L/∂c_i for the gradient that reaches
the head's output, and b_ij = u_i · v_j. Then, exactly:

    ∂L/∂s_ij = α_ij (b_ij − E_{α_i}[b])    routing: attention grows where b is below its mean
    ∂L/∂v_j  = Σ_i α_ij u_i                values: each is pulled by the queries that attend to it

The advantage A_ij = E_{α_i}[b] − b_ij is what attending to j saves, to first order, over attending as now.

Reference: Agarwal, Dalal & Misra 2025, Paper II (routing and value laws; responsibilities).
"""

from jaxtyping import Float
from torch import Tensor


def agreement(
    upstream: Float[Tensor, "*batch query_pos d_head"], values: Float[Tensor, "*batch key_pos d_head"]
) -> Float[Tensor, "*batch query_pos key_pos"]:
    """b_ij = u_i · v_j: how much the loss of query i would rise if it mixed in more of value j."""
    b: Tensor = upstream @ values.mT
    return b


def advantage(
    pattern: Float[Tensor, "*batch query_pos key_pos"], b: Float[Tensor, "*batch query_pos key_pos"]
) -> Float[Tensor, "*batch query_pos key_pos"]:
    """A_ij = E_{α_i}[b] − b_ij; its mean under the attention is zero in every row."""
    return (pattern * b).sum(dim=-1, keepdim=True) - b


def routing_gradient(
    pattern: Float[Tensor, "*batch query_pos key_pos"], b: Float[Tensor, "*batch query_pos key_pos"]
) -> Float[Tensor, "*batch query_pos key_pos"]:
    """∂L/∂s_ij = −α_ij A_ij; rows sum to zero."""
    return -pattern * advantage(pattern, b)


def value_gradient(
    pattern: Float[Tensor, "*batch query_pos key_pos"], upstream: Float[Tensor, "*batch query_pos d_head"]
) -> Float[Tensor, "*batch key_pos d_head"]:
    """∂L/∂v_j = Σ_i α_ij u_i: upstream gradients weighted by responsibility."""
    pulled: Tensor = pattern.mT @ upstream
    return pulled


def query_gradient(
    by_score: Float[Tensor, "*batch query_pos key_pos"], keys: Float[Tensor, "*batch key_pos d_head"], scale: float
) -> Float[Tensor, "*batch query_pos d_head"]:
    """∂L/∂q_i = Σ_j ∂L/∂s_ij k_j · scale, where s = q·k·scale."""
    pulled: Tensor = by_score @ keys * scale
    return pulled


def key_gradient(
    by_score: Float[Tensor, "*batch query_pos key_pos"], queries: Float[Tensor, "*batch query_pos d_head"], scale: float
) -> Float[Tensor, "*batch key_pos d_head"]:
    """∂L/∂k_j = Σ_i ∂L/∂s_ij q_i · scale."""
    pulled: Tensor = by_score.mT @ queries * scale
    return pulled
