"""Statistics of activations, one per sequence, that a pass can compute without storing the activations.

Intervals resample sequences, so sums over all sequences do not suffice: a reduction keeps one small array per sequence
and layer. Its sums over sequences are computed from these in float64 or by the same operations as from stored
activations, so both give the same numbers. The means of each token's vectors, under one or many weightings of the
sequences, are such sums.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from bayesgeom.core import K_ROT, RESID_POST, K, ModelSpec, Run, Site, Trials, V
from bayesgeom.core.batching import even_slices

_AT_ONCE = 2**22


def occurrences(tokens: Int[Tensor, "batch pos"], ids: Int[Tensor, " token"]) -> Bool[Tensor, "batch token pos"]:
    """Return the positions of each of these ids as a mask."""
    return tokens[:, None, :] == ids[:, None]


def token_occurrences(trials: Trials, rows: slice = slice(None)) -> Bool[Tensor, "batch token pos"]:
    """Return where the ids of all token sets occur in some of the sequences, up to their last scored positions.

    What follows these may be padding, whose id can be that of a token.
    """
    return occurrences(trials.tokens[rows], trials.token_ids()) & trials.is_read()[rows, None]


def in_parts(weights: Float[np.ndarray, "draw batch"], each: int) -> list[Float[np.ndarray, "part batch"]]:
    """Split draws into parts of a few million numbers, given that one draw needs `each` numbers."""
    return [weights[part] for part in even_slices(len(weights), at_most=_AT_ONCE // max(1, each))]


def token_sums(
    vectors: Float[Tensor, "batch pos *rest"], shown: Bool[Tensor, "batch token pos"]
) -> Float[Tensor, "batch token *rest"]:
    """Return the sum of each token's vectors over its occurrences in each sequence."""
    return cast(Tensor, (shown.to(vectors.dtype) @ vectors.flatten(2)).unflatten(2, vectors.shape[2:]))


@final
@dataclass(frozen=True, kw_only=True)
class TokenSums:
    """Sums of vectors over the occurrences of each token in each sequence, and the numbers of occurrences.

    They are computed once and then averaged under many weights.
    """

    sums: Float[Tensor, "batch token *rest"]
    counts: Shaped[Tensor, "batch token"]

    def means(self, weights: Float[np.ndarray, "draw batch"]) -> Float[Tensor, "draw token *rest"]:
        """Return Σ w · x / Σ w for each token, with w the weight of the sequence; NaN if Σ w = 0.

        `weights` are those of `bootstrap_weights`: positions of one sequence are resampled together.
        """
        share = torch.as_tensor(weights, dtype=self.sums.dtype, device=self.sums.device)
        sums = (share @ self.sums.flatten(1)).unflatten(1, self.sums.shape[1:])
        counts = (share @ self.counts.to(share)).reshape(*sums.shape[:2], *([1] * (sums.ndim - 2)))
        return cast(Tensor, sums / counts)


Mask = Bool[Tensor, "from_pos key_pos"]


@final
@dataclass(frozen=True)
class Reduction:
    """A statistic of one site in one layer, per sequence.

    Attributes:
        name: Its key in `Run.reduced`.
        site: The site that it reads.
        of: Returns it for some of the sequences. Arguments: recorded activations of the layer in these sequences, all
            sequences (for comparisons between them), the index of these among all, and the mask of the layer, as in
            `Run.masks`.
        size: Returns its numbers per sequence and layer.
    """

    name: str
    site: Site
    of: Callable[[Tensor, Trials, slice, Mask | None], Tensor]
    size: Callable[[ModelSpec, Trials], int]

    def is_in(self, run: Run) -> bool:
        """Return whether the run has it, or the activations to compute it."""
        return self.name in run.reduced or self.site in run.recorded

    def at(self, run: Run, layer: int, n: int) -> Shaped[Tensor, "batch *rest"]:
        """Return it in one layer for the first `n` sequences: as the pass computed it, or from stored activations.

        Raises:
            MissingSite: The run has neither.
        """
        if self.name in run.reduced:
            return run.reduced[self.name][layer, :n]
        mask = run.masks[layer] if run.masks else None
        return self.of(run.at(self.site)[layer, :n], run.trials.rows(slice(0, n)), slice(0, n), mask)


def _last_values(
    values: Float[Tensor, "batch key_pos kv_head d"], trials: Trials, rows: slice, _mask: Mask | None
) -> Tensor:
    last = trials.scored_positions()[rows, -1]
    return values[torch.arange(len(values), device=values.device), last].flatten(1)


def _token_sums(
    keys: Float[Tensor, "batch key_pos kv_head d"], trials: Trials, rows: slice, _mask: Mask | None
) -> Tensor:
    return token_sums(keys, token_occurrences(trials, rows))


def _keys_of_tokens(spec: ModelSpec, trials: Trials) -> int:
    return len(trials.token_ids()) * spec.n_kv_heads * spec.d_head


LAST_VALUES = Reduction("last values", V, _last_values, lambda spec, _: spec.n_kv_heads * spec.d_of_value)
LAST_RESIDUAL = Reduction("last resid_post", RESID_POST, lambda x, _t, _r, _m: x[:, -1], lambda spec, _: spec.d_model)
KEY_SUMS = Reduction("key sums", K, _token_sums, _keys_of_tokens)
ROTATED_KEY_SUMS = Reduction("rotated key sums", K_ROT, _token_sums, _keys_of_tokens)
