"""The keys whose overlap is measured: every token set from every source, with replicates over the sequences.

Keys come from activations (mean recorded key per token), from weights (normed embedding through W_K), and as columns
of W_K.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bayesgeom.core.run import K_ROT, TOKEN_INPUTS, TOKEN_KEYS, W_K_GRAM, K, Run
from bayesgeom.stats.bootstrap import random_halves
from bayesgeom.stats.overlap import Frames, coordinates_of, cross_fitted_overlap, overlap_rows, squared_lengths
from bayesgeom.stats.reduction import KEY_SUMS, ROTATED_KEY_SUMS, Reduction, TokenSums, in_parts, occurrences

WEIGHTS, COLUMNS = "weights", "columns"  # keys from the weights alone: by token set, and columns of W_K
N_SPLITS = 8  # random halvings of the sequences, for cross-fitting
_ORDER = {"inputs": 0, "hypotheses": 1}


@final
@dataclass(frozen=True, kw_only=True)
class View:
    """The compared vectors; overlap under each row of weights, raw and centered; the inputs of W_K; the width.

    `rows` and `kink` are those of `overlap_rows`. `noise` is the share of sampling noise in the mean squared length of
    the vectors, raw and centered.
    """

    name: str
    vectors: Float[Tensor, "layer kv_head item d"]
    rows: Float[np.ndarray, "row 2 layer kv_head"]
    crossfit: Float[np.ndarray, "layer kv_head"]
    kink: Float[np.ndarray, "2 layer kv_head"]
    noise: Float[np.ndarray, "2 layer kv_head"]
    n_unseen: int = 0
    inputs: Float[Tensor, "known_layer named_item d_model"] | None = None  # for the first layers only
    width: int | None = None  # if the vectors are given in coordinates of their span


def key_views(run: Run, weights: Float[np.ndarray, "row batch"]) -> list[View]:
    """Return every token set in every recorded variant, inputs first, then the columns of W_K. Never empty."""
    ids, sets = run.trials.token_ids(), run.trials.token_sets
    members = {name: torch.searchsorted(ids, sets[name]) for name in sorted(sets, key=lambda x: (_ORDER.get(x, 2), x))}
    unknown = np.full((len(weights), 2, run.spec.n_layers, run.spec.n_kv_heads), np.nan)
    no_sample = {"rows": unknown, "kink": unknown[0], "noise": unknown[0], "crossfit": unknown[0, 0]}
    inputs = run.recorded.get(TOKEN_INPUTS)
    of = {name: None if inputs is None else inputs[:, at] for name, at in members.items()}
    variants = [_from_activations(run, KEY_SUMS, members, of, "activation", weights)]
    if ROTATED_KEY_SUMS.is_in(run) and _is_rotated(run, weights.shape[1]):
        variants.append(_from_activations(run, ROTATED_KEY_SUMS, members, of, "activation rotated", weights))
    if TOKEN_KEYS in run.recorded:
        keys = run.at(TOKEN_KEYS).movedim(2, 1)
        variants.append(
            {
                name: View(
                    name=f"{name} / {WEIGHTS}",
                    vectors=keys[:, :, at],
                    **no_sample,
                    inputs=of[name],
                )
                for name, at in members.items()
            }
        )
    views = [by_set[name] for name in members for by_set in variants]
    if W_K_GRAM in run.recorded:
        columns, width = coordinates_of(run.at(W_K_GRAM)), run.spec.d_model
        views.append(View(name=COLUMNS, vectors=columns, **no_sample, width=width))
    nothing = torch.full((run.spec.n_layers, run.spec.n_kv_heads, 1, run.spec.d_head), torch.nan)
    return views or [View(name="no tokens named", vectors=nothing, **no_sample)]


def _is_rotated(run: Run, n: int) -> bool:
    """Return whether rotated keys differ from keys; a model without rotation has the same."""
    layers = range(run.spec.n_layers)
    if {K, K_ROT} <= run.recorded.keys():  # compare them without computing the sums
        plain, rotated = (run.at(site)[:, :n] for site in (K, K_ROT))
        if (plain.data_ptr(), plain.shape, plain.stride()) == (rotated.data_ptr(), rotated.shape, rotated.stride()):
            return False
        if torch.equal(plain, rotated):
            return False
    return any(not torch.equal(*(own.at(run, i, n) for own in (KEY_SUMS, ROTATED_KEY_SUMS))) for i in layers)


def _from_activations(
    run: Run,
    keys: Reduction,
    members: Mapping[str, Int[Tensor, " item"]],
    inputs: Mapping[str, Float[Tensor, "layer _ d_model"] | None],
    variant: str,
    weights: Float[np.ndarray, "row batch"],
) -> dict[str, View]:
    """Return the view of mean keys per token: overlap under each row of weights, and between random halves."""
    n = weights.shape[1]
    counts = occurrences(run.trials.tokens[:n], run.trials.token_ids()).sum(dim=2)
    halves = random_halves(n, N_SPLITS, seed=run.seed)
    kept = {name: at[(counts > 0).any(dim=0)[at]] for name, at in members.items()}
    vectors, found, between, noises = ({name: list[Any]() for name in members} for _ in range(4))
    for layer in range(run.spec.n_layers):
        of_tokens = TokenSums(sums=keys.at(run, layer, n), counts=counts)
        means = of_tokens.means(np.full((1, n), 1 / n))[0]
        one, other = (of_tokens.means(half).transpose(1, 2) for half in halves)
        drawn = _drawn(of_tokens, weights, means.numel())
        for name, at in kept.items():
            own, frames = means[at].transpose(0, 1), drawn(at)
            vectors[name].append(own)
            between[name].append(cross_fitted_overlap(one[:, :, at], other[:, :, at]).nanmean(dim=0))
            found[name].append(overlap_rows(frames))
            spread = torch.stack([squared_lengths(part - own).sum(dim=1) for part in frames()]).sum(dim=0).cpu()
            noises[name].append((n - 1) / n * spread / squared_lengths(own).cpu())
    return {
        name: View(
            name=f"{name} / {variant}",
            vectors=torch.stack(vectors[name]),
            rows=np.stack([own.rows for own in found[name]], axis=2),
            kink=np.stack([own.kink for own in found[name]], axis=1),
            crossfit=torch.stack(between[name]).double().cpu().numpy(),
            noise=torch.stack(noises[name], dim=1).numpy(),
            n_unseen=len(members[name]) - len(kept[name]),
            inputs=None
            if (bare := inputs[name]) is None
            else bare[:1],  # keys of deeper layers are not computed from embeddings
        )
        for name in members
    }


def _drawn(
    of_tokens: TokenSums, weights: Float[np.ndarray, "row batch"], each: int
) -> Callable[[Int[Tensor, " item"]], Frames]:
    """Return a function that gives the mean keys of tokens under each row of weights, in parts.

    They are computed once if they fit in one part.
    """
    parts = in_parts(weights, each)
    kept = [of_tokens.means(parts[0])] if len(parts) == 1 else None

    def of_items(at: Int[Tensor, " item"]) -> Frames:
        def frames() -> Iterator[Float[Tensor, "part kv_head item d"]]:
            for means in kept or map(of_tokens.means, parts):
                yield means[:, at].transpose(1, 2).contiguous()

        if kept is None:
            return frames
        only = [*frames()]
        return lambda: only

    return of_items
