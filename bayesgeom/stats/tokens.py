"""Mean vector of each token over its occurrences, for one or many weightings of the sequences."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bayesgeom.core.batching import even_slices

_AT_ONCE = 2**22


def occurrences(tokens: Int[Tensor, "batch pos"], ids: Int[Tensor, " token"]) -> Bool[Tensor, "batch token pos"]:
    """Return the positions of each of these ids as a mask."""
    shown: Tensor = tokens[:, None, :] == ids[:, None]
    return shown


def in_parts(weights: Float[np.ndarray, "draw batch"], each: int) -> list[Float[np.ndarray, "part batch"]]:
    """Split draws into parts of a few million numbers, given that one draw needs `each` numbers."""
    return [weights[part] for part in even_slices(len(weights), at_most=_AT_ONCE // max(1, each))]


def token_means(
    vectors: Float[Tensor, "batch pos *rest"],
    shown: Bool[Tensor, "batch token pos"],
    weights: Float[np.ndarray, "draw batch"],
) -> Float[Tensor, "draw token *rest"]:
    """Return Σ w · x / Σ w over the occurrences of each token, with w the weight of the sequence; NaN if Σ w = 0.

    `weights` are those of `bootstrap_weights`: positions of one sequence are resampled together.
    """
    share = torch.as_tensor(weights, dtype=vectors.dtype, device=vectors.device)
    at = shown.to(vectors.dtype)
    sums = (share @ (at @ vectors.flatten(2)).flatten(1)).unflatten(1, (at.shape[1], *vectors.shape[2:]))
    counts = (share @ at.sum(dim=2)).reshape(len(share), at.shape[1], *([1] * (vectors.ndim - 2)))
    means: Tensor = sums / counts
    return means
