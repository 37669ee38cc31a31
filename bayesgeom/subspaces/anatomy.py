"""The directions that a head reads from the residual stream and writes into it, in residual-stream coordinates.

They are computed from the model's static sites, one layer at a time, for any architecture that provides them.
"""

import torch
from einops import einsum
from jaxtyping import Float, Int64
from torch import Tensor

from bayesgeom.core.run import NORM_WEIGHT, TOKEN_EMBEDDINGS, TOKEN_INPUTS, W_K, W_O, W_V, Site
from bayesgeom.models.base import Model

EMBEDDING_SITES = (TOKEN_EMBEDDINGS,)
PULLBACK_SITES = (TOKEN_INPUTS, NORM_WEIGHT, W_K)
WRITE_SITES = (TOKEN_INPUTS, W_V, W_O)


@torch.no_grad()
def token_embeddings(model: Model, tokens: Int64[Tensor, " token"]) -> Float[Tensor, "token d_model"]:
    """Return embeddings scaled to unit mean square, as by a norm without weights; their span does not change."""
    vectors = model.static(TOKEN_EMBEDDINGS, tokens, 0)
    return vectors / vectors.square().mean(dim=-1, keepdim=True).sqrt()


@torch.no_grad()
def key_pullbacks(
    model: Model, tokens: Int64[Tensor, " token"], layer: int, head: int
) -> Float[Tensor, "token d_model"]:
    """Return w ∘ W_Kᵀ W_K norm(e): the residual-stream direction that increases each token's key in `head`.

    w is the weight of the norm before attention.
    """
    inputs, norm, keys = (model.static(site, tokens, layer) for site in PULLBACK_SITES)
    weight = keys[_group(model, head)]
    pulled_back: Tensor = norm * einsum(inputs, weight, weight, "t m, d m, d n -> t n")
    return pulled_back


@torch.no_grad()
def written_values(
    model: Model, tokens: Int64[Tensor, " token"], layer: int, head: int
) -> Float[Tensor, "token d_model"]:
    """Return W_O W_V norm(e): the head's output when it attends only to the embedding of each token."""
    inputs, values, output = (model.static(site, tokens, layer) for site in WRITE_SITES)
    written: Tensor = einsum(inputs, values[_group(model, head)], output[head], "t m, d m, d n -> t n")
    return written


@torch.no_grad()
def output_weights(model: Model, layer: int) -> Float[Tensor, "head d_head d_model"]:
    """Return W_O of every head, for multiplication with a row vector z from the right."""
    return model.static(W_O, torch.zeros(0, dtype=torch.int64, device=model.spec.device), layer)


def frame_sites(kind: str) -> tuple[Site, ...]:
    """Return the static sites from which a frame of this kind is computed."""
    return {"keys": PULLBACK_SITES, "ov": WRITE_SITES}.get(kind, EMBEDDING_SITES)


def _group(model: Model, head: int) -> int:
    """Return the key-value head of a query head; neighboring query heads share one."""
    return head // (model.spec.n_heads // model.spec.n_kv_heads)
