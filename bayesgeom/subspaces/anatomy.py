"""What a head reads from the residual stream and writes into it, in the stream's own coordinates.

Asked of the model's static sites, one layer at a time: of any model that offers them, whatever its architecture.
"""

import torch
from einops import einsum
from jaxtyping import Float, Int64
from torch import Tensor

from bayesgeom.core.sites import NORM_WEIGHT, TOKEN_EMBEDDINGS, TOKEN_INPUTS, W_K, W_O, W_V, Site
from bayesgeom.models.base import Model

EMBEDDING_SITES = (TOKEN_EMBEDDINGS,)
PULLBACK_SITES = (TOKEN_INPUTS, NORM_WEIGHT, W_K)
WRITE_SITES = (TOKEN_INPUTS, W_V, W_O)


@torch.no_grad()
def token_embeddings(model: Model, tokens: Int64[Tensor, " token"]) -> Float[Tensor, "token d_model"]:
    """Embeddings with unit mean square, as a norm without weights makes them; their span stays the same."""
    vectors = model.static(TOKEN_EMBEDDINGS, tokens, 0)
    return vectors / vectors.square().mean(dim=-1, keepdim=True).sqrt()


@torch.no_grad()
def key_pullbacks(
    model: Model, tokens: Int64[Tensor, " token"], layer: int, head: int
) -> Float[Tensor, "token d_model"]:
    """w ∘ W_Kᵀ W_K norm(e): along what a residual must move for the key that `head` sees of each token to grow.

    w is the weight of the norm before attention, which stands between the stream and W_K.
    """
    inputs, norm, keys = (model.static(site, tokens, layer) for site in PULLBACK_SITES)
    weight = keys[_group(model, head)]
    pulled_back: Tensor = norm * einsum(inputs, weight, weight, "t m, d m, d n -> t n")
    return pulled_back


@torch.no_grad()
def written_values(
    model: Model, tokens: Int64[Tensor, " token"], layer: int, head: int
) -> Float[Tensor, "token d_model"]:
    """W_O W_V norm(e): what the head writes where it attends to each token's bare embedding alone."""
    inputs, values, output = (model.static(site, tokens, layer) for site in WRITE_SITES)
    written: Tensor = einsum(inputs, values[_group(model, head)], output[head], "t m, d m, d n -> t n")
    return written


@torch.no_grad()
def output_weights(model: Model, layer: int) -> Float[Tensor, "head d_head d_model"]:
    """W_O of every head, as it acts on a row vector z from the right."""
    return model.static(W_O, torch.zeros(0, dtype=torch.int64, device=model.spec.device), layer)


def frame_sites(kind: str) -> tuple[Site, ...]:
    """What a frame of this kind is made from."""
    return {"keys": PULLBACK_SITES, "ov": WRITE_SITES}.get(kind, EMBEDDING_SITES)


def _group(model: Model, head: int) -> int:
    """Which key-value head a query head shares: neighbors do."""
    return head // (model.spec.n_heads // model.spec.n_kv_heads)
