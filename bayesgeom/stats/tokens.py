"""Mean vector of each token over its occurrences, for one or many weightings of the sequences."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
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


def token_sums(
    vectors: Float[Tensor, "batch pos *rest"], shown: Bool[Tensor, "batch token pos"]
) -> Float[Tensor, "batch token *rest"]:
    """Return the sum of each token's vectors over its occurrences in each sequence."""
    sums: Tensor = (shown.to(vectors.dtype) @ vectors.flatten(2)).unflatten(2, vectors.shape[2:])
    return sums


@final
@dataclass(frozen=True, kw_only=True)
class TokenSums:
    """Sums of vectors over the occurrences of each token in each sequence, and the numbers of occurrences.

    They are computed once and then averaged under many weights.
    """

    sums: Float[Tensor, "batch token *rest"]
    counts: Shaped[Tensor, "batch token"]

    @classmethod
    def of(cls, vectors: Float[Tensor, "batch pos *rest"], shown: Bool[Tensor, "batch token pos"]) -> "TokenSums":
        """Sum the vectors at the positions that `occurrences` returns."""
        return cls(sums=token_sums(vectors, shown), counts=shown.sum(dim=2))

    def means(self, weights: Float[np.ndarray, "draw batch"]) -> Float[Tensor, "draw token *rest"]:
        """Return Σ w · x / Σ w for each token, with w the weight of the sequence; NaN if Σ w = 0.

        `weights` are those of `bootstrap_weights`: positions of one sequence are resampled together.
        """
        share = torch.as_tensor(weights, dtype=self.sums.dtype, device=self.sums.device)
        sums = (share @ self.sums.flatten(1)).unflatten(1, self.sums.shape[1:])
        counts = (share @ self.counts.to(share)).reshape(*sums.shape[:2], *([1] * (sums.ndim - 2)))
        found: Tensor = sums / counts
        return found
