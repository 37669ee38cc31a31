"""The deviation of each gradient law from autograd, in every layer."""

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.gradients.attention_laws import key_gradient, query_gradient, routing_gradient
from bayesgeom.gradients.capture import LayerGradients

IDENTITIES = ("mixing", "scores", "values", "queries", "keys", "value matrix")


def identity_errors(layer: LayerGradients, score_scale: float) -> Float64[Tensor, "law 2"]:
    """Return the largest difference and the largest autograd entry per law; NaN if it cannot be tested.

    "mixing" is the premise, pattern · values = z; "scores" and "values" are the two laws; the others apply the chain
    rule to queries, keys and W_V.
    """
    by_score = routing_gradient(layer.pattern, layer.agreement)
    keys = layer.of_query_heads(layer.keys)
    pairs: dict[str, tuple[Tensor, Tensor | None]] = {
        "mixing": (layer.pattern @ layer.of_query_heads(layer.values), layer.mixed),
        "scores": (by_score, layer.by_score),
        "values": (layer.value_update(), layer.by_value),
        "queries": (query_gradient(by_score, keys, score_scale), layer.by_query),
        "keys": (layer.of_kv_heads(key_gradient(by_score, layer.queries, score_scale)), layer.by_key),
        "value matrix": (_by_value_matrix(layer), layer.by_value_matrix),
    }
    return torch.stack([_error(*pairs[name]) for name in IDENTITIES])


def _by_value_matrix(layer: LayerGradients) -> Float[Tensor, "kd d_model"]:
    """Return ∂L/∂W_V = Σ_j (∂L/∂v_j) x_jᵀ, over all sequences."""
    if layer.value_inputs is None:
        return layer.values.new_zeros(1, 1)
    pulled = rearrange(layer.value_update(), "b kv p d -> b p (kv d)")
    return einsum(pulled, layer.value_inputs, "b p kd, b p m -> kd m")


def _error(law: Tensor, autograd: Tensor | None) -> Float64[Tensor, " 2"]:
    if autograd is None:
        return torch.full((2,), torch.nan, dtype=torch.float64)
    return torch.stack([(law - autograd).abs().max(), autograd.abs().max()]).double().cpu()
