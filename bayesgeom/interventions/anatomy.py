"""What a head reads from the residual stream and writes into it, in the stream's own coordinates."""

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int64
from torch import Tensor

from bayesgeom.errors import MissingSite
from bayesgeom.models.base import Model
from bayesgeom.models.transformer import MultiHeadAttention, Norm, Transformer


def transformer_of(model: Model, by: str) -> Transformer:
    """The module with the weights. **Raises** `MissingSite` for another architecture; `by` says who asks."""
    module = model.module
    if not isinstance(module, Transformer):
        raise MissingSite(
            f"{by} reads embeddings, W_K, W_V and W_O, which only a bayesgeom Transformer shows; {model.spec.name} is "
            f"a {type(module).__name__}."
        )
    return module


@torch.no_grad()
def token_embeddings(model: Model, tokens: Int64[Tensor, " token"]) -> Float[Tensor, "token d_model"]:
    """Embeddings with unit mean square, as a norm without weights makes them; their span stays the same."""
    vectors: Tensor = transformer_of(model, "a frame").embed(tokens)
    return vectors / vectors.square().mean(dim=-1, keepdim=True).sqrt()


@torch.no_grad()
def key_pullbacks(
    model: Model, tokens: Int64[Tensor, " token"], layer: int, head: int
) -> Float[Tensor, "token d_model"]:
    """w ∘ W_Kᵀ W_K norm(e): along what a residual must move for the head's key of each token to grow.

    w is the weight of the norm before attention, which stands between the stream and W_K.
    """
    attention, norm = _attention(model, layer), _norm(model, layer)
    weight = rearrange(attention.W_K.weight, "(h d) m -> h d m", h=model.spec.n_heads)[head]
    inputs: Tensor = norm(transformer_of(model, "a frame").embed(tokens))
    pulled_back: Tensor = norm.w * einsum(inputs, weight, weight, "t m, d m, d n -> t n")
    return pulled_back


@torch.no_grad()
def written_values(
    model: Model, tokens: Int64[Tensor, " token"], layer: int, head: int
) -> Float[Tensor, "token d_model"]:
    """W_O W_V norm(e): what the head writes where it attends to each token's bare embedding alone."""
    attention, norm = _attention(model, layer), _norm(model, layer)
    weight = rearrange(attention.W_V.weight, "(h d) m -> h d m", h=model.spec.n_heads)[head]
    inputs: Tensor = norm(transformer_of(model, "a frame").embed(tokens))
    written: Tensor = einsum(inputs, weight, output_weights(model, layer)[head], "t m, d m, d n -> t n")
    return written


def output_weights(model: Model, layer: int) -> Float[Tensor, "head d_head d_model"]:
    """W_O of every head, as it acts on a row vector z from the right."""
    weight = _attention(model, layer).W_O.weight.detach()
    return rearrange(weight, "m (h d) -> h d m", h=model.spec.n_heads)


def _attention(model: Model, layer: int) -> MultiHeadAttention:
    attention = transformer_of(model, "a frame").get_submodule(f"blocks.{layer}.attn")
    assert isinstance(attention, MultiHeadAttention)
    return attention


def _norm(model: Model, layer: int) -> Norm:
    norm = transformer_of(model, "a frame").get_submodule(f"blocks.{layer}.ln1")
    assert isinstance(norm, Norm)
    return norm
