"""Quantities of Paper III's pass thresholds, per resample: shares of PCs, overlaps of keys, fall of attention entropy.

References:
    Agarwal, Dalal & Misra 2025, Paper III of their trilogy, sections 4.2, 4.4 and 4.5.
"""

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from bayesgeom.core.run import Run
from bayesgeom.core.sites import W_K_GRAM
from bayesgeom.stats.overlap import coordinates_of, overlap, pairwise_cosine
from bayesgeom.stats.pca import cloud_axes, standardized
from bayesgeom.stats.reduction import KEY_SUMS, LAST_ENTROPY, LAST_VALUES, TokenSums, in_parts, occurrences
from bayesgeom.stats.resampling import standardized_axis_shares

MAX_SEQUENCES = 256


def pc_shares(run: Run, weights: Float64[np.ndarray, "row sequence"]) -> Float64[np.ndarray, "2 row"]:
    """Return the shares of PC1 and of PC1 + PC2, with axes refitted in each row."""
    n = weights.shape[1]
    points = LAST_VALUES.at(run, -1, n)
    _, axes = cloud_axes(standardized(points))
    shares = standardized_axis_shares(points.cpu().numpy(), axes[:, :2].cpu().numpy(), weights).T.cumsum(axis=0)
    return shares[[0, -1]]


def column_overlaps(run: Run) -> Float64[np.ndarray, "1 layer"]:
    """Return the mean |cosine| of the columns of W_K, averaged over heads."""
    if W_K_GRAM not in run.recorded:
        return np.full((1, run.spec.n_layers), np.nan)
    grams = run.at(W_K_GRAM)
    layers = [overlap(pairwise_cosine(coordinates_of(gram))).mean() for gram in grams]
    return torch.stack(layers)[None].cpu().numpy()


def key_overlaps(run: Run, weights: Float64[np.ndarray, "row sequence"]) -> Float64[np.ndarray, "row layer"]:
    """Return the mean |cosine| of the mean keys of tokens, averaged over heads, under each row of weights."""
    n, ids = weights.shape[1], compared_tokens(run)
    if not KEY_SUMS.is_in(run) or len(ids) < 2:
        return np.full((len(weights), run.spec.n_layers), np.nan)
    counts, layers = occurrences(run.trials.tokens[:n], ids).sum(dim=2), list[Tensor]()
    at = torch.searchsorted(run.trials.token_ids(), ids)
    for sums in (KEY_SUMS.at(run, layer, n)[:, at] for layer in range(run.spec.n_layers)):
        of_tokens = TokenSums(sums=sums, counts=counts)
        parts = (of_tokens.means(part) for part in in_parts(weights, sums[0].numel()))
        layers.append(torch.cat([overlap(pairwise_cosine(keys.transpose(1, 2))).mean(dim=1) for keys in parts]))
    return torch.stack(layers, dim=1).double().cpu().numpy()


def last_entropies(run: Run, weights: Float64[np.ndarray, "row sequence"]) -> Float64[np.ndarray, "row layer"]:
    """Return the attention entropy of the last scored query, averaged over heads."""
    if not LAST_ENTROPY.is_in(run):
        return np.full((len(weights), run.spec.n_layers), np.nan)
    found = torch.stack([LAST_ENTROPY.at(run, layer, weights.shape[1]) for layer in range(run.spec.n_layers)])
    return np.asarray(weights @ found.T.cpu().numpy())


def compared_tokens(run: Run) -> Int64[Tensor, " token"]:
    """Return the tokens in the recorded sequences that are hypotheses, or in the first token set without these."""
    sets = run.trials.token_sets
    name = "hypotheses" if "hypotheses" in sets else next(iter(sorted(sets)), "")
    ids = sets.get(name, run.trials.tokens[0, :0])
    return ids[torch.isin(ids, run.trials.tokens[:MAX_SEQUENCES])]


def share_apart(overlaps: Float64[np.ndarray, "row layer"], below: float) -> Float64[np.ndarray, " row"]:
    """Return the share of layers with an overlap below a threshold."""
    return np.where(np.isnan(overlaps).any(axis=1), np.nan, (overlaps < below).mean(axis=1))


def fall(entropy: Float64[np.ndarray, "row layer"]) -> Float64[np.ndarray, " row"]:
    """Return 1 − last / first; NaN for a single layer, and if the first has zero entropy."""
    first, last = entropy[:, 0], entropy[:, -1]
    has_fall = (first > 0) & (entropy.shape[1] > 1)
    return np.where(has_fall, 1 - last / np.where(has_fall, first, 1), np.nan)
