"""Key overlap: how far the keys of a named token set are from orthogonal, per layer and key head.

A shared offset alone drives cosines up, so every overlap is given raw and with the mean key removed. Keys are read from
activations (mean recorded key per token), from weights (bare normed embedding through W_K), and as columns of W_K.

References: Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (orthogonal keys); their Paper III (columns); Welch 1974.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bayesgeom.activations import Run
from bayesgeom.geometry.cosine import (
    coordinates_of,
    frame_chances,
    frame_statistics,
    overlaps,
    projected_overlap,
    welch_bound,
)
from bayesgeom.geometry.tokens import in_parts, occurrences, token_means
from bayesgeom.probes.base import Control, Needs, Probe, mean_over_copies, planted_run, planted_trials
from bayesgeom.probes.key_report import FIRST_LAYER, KeyOverlapReport
from bayesgeom.sites import K_ROT, TOKEN_INPUTS, TOKEN_KEYS, W_K_GRAM, K
from bayesgeom.statistics import bootstrap_weights, centred_interval, percentile_interval

MAX_SEQUENCES, DRAWS, N_PROJECTIONS = 256, 200, 20


@final
@dataclass(frozen=True)
class KeyOverlap(Probe[KeyOverlapReport]):
    """Means over the recorded sequences; a token that none of them shows is left out and counted."""

    name: ClassVar[str] = "key_overlap"
    needs: ClassVar[Needs] = Needs(sites=(K,), optional=(K_ROT, TOKEN_KEYS, TOKEN_INPUTS, W_K_GRAM))

    def measure(self, run: Run, initialised: Sequence[KeyOverlapReport] = ()) -> KeyOverlapReport:
        views = _views(run, DRAWS)
        sizes = [(v.vectors.shape[2], v.width or v.vectors.shape[3]) for v in views]
        statistics = [frame_statistics(view.vectors.double()) for view in views]
        values: dict[str, Any] = {n: np.stack([found[n].cpu().numpy() for found in statistics]) for n in statistics[0]}
        chances = [frame_chances(*size) for size in sizes]
        nulls: dict[str, Any] = {n: np.array([chance[n] for chance in chances]) for n in chances[0]}
        resampled = np.stack([view.resampled for view in views], axis=2)
        found = np.stack([values["overlap"], values["overlap_centred"]])
        (overlap_lo, centred_lo), (overlap_hi, centred_hi) = _bounds(resampled, found)
        untrained, untrained_centred = (_untrained(m, views, initialised) for m in ("overlap", "overlap_centred"))
        projected = np.stack([_random_projection(view, run.seed) for view in views], axis=1)
        lows, highs = map(_named, _bounds(_first_layer(resampled), _first_layer(found)))
        first: dict[str, Any] = _named(_first_layer(found))
        copies = [copy.first_layer for copy in initialised if copy.views[:1] == (views[0].name,)]
        return KeyOverlapReport(
            views=tuple(view.name for view in views),
            **values,
            **{f"{name}_null": null for name, null in nulls.items()},
            overlap_lo=overlap_lo,
            overlap_hi=overlap_hi,
            overlap_bias=resampled[:, 0].mean(axis=0) - found[0],
            overlap_centred_lo=centred_lo,
            overlap_centred_hi=centred_hi,
            overlap_initialisation=untrained,
            overlap_centred_initialisation=untrained_centred,
            overlap_random_projection=projected[0],
            overlap_random_projection_lo=projected[1],
            overlap_random_projection_hi=projected[2],
            welch=np.array([welch_bound(*size) for size in sizes]),
            n_vectors=np.array([size[0] for size in sizes], dtype=np.int64),
            n_unseen=np.array([view.n_unseen for view in views], dtype=np.int64),
            **first,
            first_layer_initialisation=_named(_first_layer(np.stack([untrained, untrained_centred]))),
            first_layer_initialisation_range={
                name: (min(copy[name] for copy in copies), max(copy[name] for copy in copies))
                for name in first
                if copies
            },
            intervals={name: (lows[name], highs[name]) for name in lows},
            nulls=_named(nulls[name][0] for name in ("overlap", "overlap_centred", "overlap")),
            n=min(run.n_recorded, MAX_SEQUENCES),
        )

    def controls(self) -> Iterator[Control[KeyOverlapReport]]:
        frames = torch.stack([torch.eye(7)[:5], torch.ones(5, 7), torch.eye(7)[:5] + 3.0])
        yield Control(label="basis, one line, basis with an offset", run=_planted(frames), holds=_tells_frames_apart)
        spread = torch.randn(2, 61, 11, generator=torch.Generator().manual_seed(0))
        yield Control(label="random directions", run=_planted(spread), holds=_is_at_chance)


def overlap_by_view(run: Run) -> dict[str, Float[np.ndarray, "layer kv_head"]]:
    """The overlap of each view, by its name, without intervals."""
    return {
        view.name: frame_statistics(view.vectors.double())["overlap"].cpu().numpy() for view in _views(run, draws=1)
    }


@final
@dataclass(frozen=True, kw_only=True)
class _View:
    """The vectors compared; overlap in resamples, raw and centred; what W_K was applied to; the space's dimensions."""

    name: str
    vectors: Float[Tensor, "layer kv_head item d"]
    resampled: Float[np.ndarray, "draw 2 layer kv_head"]
    n_unseen: int = 0
    inputs: Float[Tensor, "layer item d_model"] | None = None
    width: int | None = None  # where the vectors are given in coordinates of their span


def _views(run: Run, draws: int) -> list[_View]:
    """Every token set in every variant recorded, hypotheses first; then the columns of W_K. Never empty."""
    ids, sets, k, rotated = run.trials.token_ids(), run.trials.token_sets, run.at(K), run.recorded.get(K_ROT)
    members = {name: torch.searchsorted(ids, sets[name]) for name in sorted(sets, key=lambda x: (x != "hypotheses", x))}
    unknown = np.full((draws, 2, run.spec.n_layers, run.spec.n_kv_heads), np.nan)
    variants = [_from_activations(run, k, members, "activation", draws)]
    if rotated is not None and not torch.equal(rotated[:, :1], k[:, :1]):  # a rotation shows in any one sequence
        variants.append(_from_activations(run, rotated, members, "activation rotated", draws))
    if TOKEN_KEYS in run.recorded:
        keys, inputs = run.at(TOKEN_KEYS).movedim(2, 1), run.recorded.get(TOKEN_INPUTS)
        of = {name: None if inputs is None else inputs[:, at] for name, at in members.items()}
        variants.append(
            {
                name: _View(name=f"{name} / weights", vectors=keys[:, :, at], resampled=unknown, inputs=of[name])
                for name, at in members.items()
            }
        )
    views = [by_set[name] for name in members for by_set in variants]
    if W_K_GRAM in run.recorded:
        columns = coordinates_of(run.at(W_K_GRAM))
        views.append(_View(name="columns", vectors=columns, resampled=unknown, width=run.spec.d_model))
    nothing = torch.full((run.spec.n_layers, run.spec.n_kv_heads, 1, run.spec.d_head), torch.nan)
    return views or [_View(name="no tokens named", vectors=nothing, resampled=unknown)]


def _from_activations(
    run: Run,
    keys: Float[Tensor, "layer batch key_pos kv_head d"],
    members: Mapping[str, Int[Tensor, " item"]],
    variant: str,
    draws: int,
) -> dict[str, _View]:
    """Mean key of each token over the sequences, and its overlap in resamples of them."""
    n = min(run.n_recorded, MAX_SEQUENCES)
    shown = occurrences(run.trials.tokens[:n], run.trials.token_ids())
    weights = bootstrap_weights(n, seed=run.seed, draws=draws)
    kept = {name: at[shown.any(dim=2).any(dim=0)[at]] for name, at in members.items()}
    vectors, resampled = ({name: list[Tensor]() for name in members} for _ in range(2))
    for layer in keys[:, :n]:
        means = token_means(layer, shown, np.full((1, n), 1 / n))[0]
        for name, at in kept.items():
            vectors[name].append(means[at].transpose(0, 1))
        for part in in_parts(weights, means.numel()):
            drawn = token_means(layer, shown, part)
            for name, at in kept.items():
                resampled[name].append(overlaps(drawn[:, at].transpose(1, 2).contiguous()))
    return {
        name: _View(
            name=f"{name} / {variant}",
            vectors=torch.stack(vectors[name]),
            resampled=torch.cat(resampled[name]).unflatten(0, (-1, draws)).movedim(0, 2).double().cpu().numpy(),
            n_unseen=len(members[name]) - len(kept[name]),
        )
        for name in members
    }


def _bounds(
    resampled: Float[np.ndarray, "draw *rest"], found: Float[np.ndarray, "*rest"]
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    lo, hi = centred_interval(resampled, found)
    return lo.clip(0, 1), hi.clip(0, 1)


def _random_projection(view: _View, seed: int) -> Float[np.ndarray, "3 layer"]:
    """Overlap of the same inputs through random Gaussian W_K: mean, and 95 % range of the draws."""
    if view.inputs is None:
        return np.full((3, len(view.vectors)), np.nan)
    drawn = projected_overlap(view.inputs, view.vectors.shape[-1], n=N_PROJECTIONS, seed=seed).double().cpu().numpy()
    return np.stack([drawn.mean(axis=0), *percentile_interval(drawn)])


def _untrained(
    metric: str, views: Sequence[_View], copies: Sequence[KeyOverlapReport]
) -> Float[np.ndarray, "view layer kv_head"]:
    """Mean over the untrained copies, view by view; NaN where there are none."""
    means = []
    for view in views:
        found = [vars(copy)[metric][copy.views.index(view.name)] for copy in copies if view.name in copy.views]
        means.append(mean_over_copies(found, like=np.empty(view.vectors.shape[:2])))
    return np.stack(means)


def _first_layer(both: Float[np.ndarray, "*draw 2 view layer kv_head"]) -> Float[np.ndarray, "*draw 3"]:
    """Layer 0 of the first view, in the order of `FIRST_LAYER`, from raw and centred overlap."""
    raw, without_mean = (both[..., i, 0, 0, :] for i in (0, 1))
    return np.stack([raw.mean(axis=-1), without_mean.mean(axis=-1), raw.min(axis=-1)], axis=-1)


def _named(values: Iterable[float]) -> dict[str, float]:
    return {name: float(value) for name, value in zip(FIRST_LAYER, values, strict=True)}


def _planted(frames: Float[Tensor, "layer item d"]) -> Run:
    """One sequence that shows each token once; each layer's keys are its frame, in one head."""
    n_items = frames.shape[1]
    trials = planted_trials(np.ones((1, 1, 1)), np.arange(n_items)[None], token_sets={"hypotheses": range(n_items)})
    return planted_run(trials, {K: frames[:, None, :, None, :]})


def _tells_frames_apart(report: KeyOverlapReport) -> bool:
    basis, line, offset = report.overlap[0, :, 0]
    simplex = report.overlap_centred[0, [0, 2], 0]
    return bool(basis < 1e-6 and line > 1 - 1e-6 and offset > 0.9 and np.allclose(simplex, 1 / 4, atol=1e-5))


def _is_at_chance(report: KeyOverlapReport) -> bool:
    pairs = [(vars(report)[m], vars(report)[f"{m}_null"]) for m in ("overlap", "overlap_centred", "orthogonality")]
    return all(np.allclose(found, null, atol=0.02) for found, null in pairs)
