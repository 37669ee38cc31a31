"""What the measurements of beliefs share: the points and targets that they read, maps between them, and their levels.

Maps are fitted on the first half of the sequences and scored on the others; at most `MAX_POINTS` points are used, or
`MIN_SEQUENCES` sequences. A site wider than `MAX_WIDTH`, such as the state of a Mamba, is reduced to that many leading
principal axes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core import RESID_POST, RESID_PRE, STATE, Run, Site, Trials
from bayesgeom.measurements.base import known
from bayesgeom.report.estimate import Baseline, Estimate, of_draws, smooth_estimate
from bayesgeom.report.panels import Panel
from bayesgeom.stats.bootstrap import jackknife_weights, shuffled_within_position
from bayesgeom.stats.readout import (
    BELIEF,
    BeliefTargets,
    Readout,
    belief_rows,
    belief_targets,
    held_out_scores,
    read_out,
)
from bayesgeom.stats.subspace import leading_coordinates, random_subspaces

SHUFFLE, SUBSPACES = "shuffle within position", "random subspaces of that rank"
MEAN_BELIEF, EMBEDDING = "mean belief", "embedding"
ANSWERS = "exact next-token distribution"
LOG_ANSWERS = "exact next-token log probabilities"  # which are linear in what any accurate network unembeds
_CLIP_BITS = 10.0  # of log probabilities, which may be infinite
IDENTIFIED = 0.99  # an R² of that distribution from here on leaves nothing to read out
MAX_POINTS, MAX_WIDTH = 3_072, 192
MIN_SEQUENCES = 16  # used however long they are
SHUFFLES, N_SUBSPACES = 5, 20


@final
@dataclass(frozen=True, kw_only=True)
class Clouds:
    """The points of every site and layer at the scored positions of the sequences that are used.

    `n_fit` is the number of sequences that fit. `embedding` is the input of the first layer, if it was recorded.
    """

    trials: Trials
    seed: int
    sites: tuple[str, ...]
    points: tuple[Float[Tensor, "layer point _d"], ...]
    embedding: Float[Tensor, "one point d"] | None

    @property
    def n_fit(self) -> int:
        """Number of sequences that fit: the first half."""
        return -(-len(self.trials) // 2)


def clouds_of(run: Run) -> Clouds:
    """Return the points that the run has of the residual stream, of recurrent states and of the embedding."""
    trials = run.trials.rows(slice(0, max(MIN_SEQUENCES, MAX_POINTS // run.trials.n_scored)))
    sites = [site for site in (RESID_POST, STATE) if site in run.recorded]
    embedding = _points(run, RESID_PRE, trials, n_layers=1) if RESID_PRE in run.recorded else None
    return Clouds(
        trials=trials,
        seed=run.seed,
        sites=tuple(site.name for site in sites),
        points=tuple(_points(run, site, trials) for site in sites),
        embedding=embedding,
    )


def _points(run: Run, site: Site, trials: Trials, *, n_layers: int | None = None) -> Float[Tensor, "layer point axis"]:
    stored, n_fit = run.at(site), -(-len(trials) // 2) * trials.n_scored
    layers = stored[:n_layers, : len(trials)].flatten(1, 2)
    points = torch.stack([leading_coordinates(x, MAX_WIDTH, n_fit=n_fit, seed=run.seed) for x in layers])
    return points[run.rows_of(site)] if site in run.layers else points


def rows_of(trials: Trials) -> Float64[Tensor, "sequence position kind hypothesis"]:
    """Return the kinds of target at the scored positions."""
    return belief_rows(trials.at_scored(trials.belief).cpu(), is_signed=trials.is_signed)


def targets_of(clouds: Clouds) -> BeliefTargets:
    """Return the exact beliefs at the points, and those of `SHUFFLES` shuffles."""
    rows = shuffles(rows_of(clouds.trials), clouds.seed)
    return belief_targets(rows, n_fit=clouds.n_fit, is_signed=clouds.trials.is_signed)


def shuffles(
    rows: Float64[Tensor, "sequence position *rest"], seed: int
) -> Float64[Tensor, "draw sequence position *rest"]:
    """Return the rows, then the rows shuffled within position."""
    rng = np.random.default_rng(seed)
    shuffled = (torch.from_numpy(shuffled_within_position(rows.numpy(), rng)) for _ in range(SHUFFLES))
    return torch.stack([rows, *shuffled])


def read_layers(points: Float[Tensor, "layer point d"], targets: BeliefTargets, rank: int, seed: int) -> list[Readout]:
    """Read every layer, in full and in random subspaces."""
    bases = random_subspaces(points.shape[2], rank, draws=N_SUBSPACES, seed=seed).to(points.device)
    return [read_out(layer, targets, bases) for layer in points]


def next_token_score(trials: Trials, targets: BeliefTargets, seed: int, *, of_logs: bool = False) -> Estimate:
    """Return the R² of a linear map from the exact predictive, or its log, to the targets; NaN if they are the same."""
    predictive, exact = trials.at_scored(trials.predictive).cpu(), targets.values[:, 0, BELIEF]
    if exact.shape[1] == predictive.shape[2] and torch.equal(predictive.flatten(0, 1).float(), exact):
        return Estimate.of(np.nan, (np.nan, np.nan), n=len(trials))
    predictive = clipped_logs(predictive) if of_logs else predictive
    readouts = read_layers(predictive.flatten(0, 1)[None], targets, predictive.shape[-1], seed)
    score: Estimate = linear_scores([readouts], targets, n=len(trials), seed=seed)["r2"][0, 0]
    return replace(score, baselines=())


def clipped_logs(predictive: Float64[Tensor, "*batch answer"]) -> Float64[Tensor, "*batch answer"]:
    """Return log probabilities in bits, of which none is below −10."""
    return predictive.log2().clamp_min(-_CLIP_BITS)


def linear_scores(
    readouts: Sequence[Sequence[Readout]], targets: BeliefTargets, *, n: int, seed: int = 0
) -> dict[str, Any]:
    """Return `r2`, `total_variation` and `balanced_accuracy` on held-out sequences, by site and layer.

    The maps are fixed: an interval of R² is for the R² of this map, not for the best linear map. Baselines are
    shuffled beliefs and random subspaces; that of total variation is the mean belief.
    """
    weights, n_draws = jackknife_weights(len(targets.held_out)), len(targets.means)
    scores = [[held_out_scores(readout, targets, weights) for readout in layers] for layers in readouts]
    distance = (targets.held_out[:, :, 0, BELIEF] - targets.means[0, BELIEF]).abs().double().sum(dim=-1) / 2
    distance = torch.full_like(distance, torch.nan) if targets.is_signed else distance
    maps = {
        "r2": np.array([[readout.r2 for readout in layers] for layers in readouts]),
        "balanced_accuracy": np.array([[readout.balanced_accuracy for readout in layers] for layers in readouts]),
    }
    levels = {"total_variation": [Baseline.of("baseline", MEAN_BELIEF, float(distance.mean()))]}
    for name, of_maps in maps.items():
        levels[name] = [
            Baseline.of("permutation", SHUFFLE, of_maps[..., 1:n_draws].mean(axis=-1)),
            of_draws("chance", SUBSPACES, np.moveaxis(of_maps[..., n_draws:], 2, 0)),
        ]
    return {
        name: smooth_estimate(
            np.moveaxis(np.array([[score[name] for score in layers] for layers in scores]), 2, 0),
            seed=seed,
            n=n,
            baselines=known(*baselines),
        )
        for name, baselines in levels.items()
    }


def compared_scores(
    readouts: Sequence[Sequence[Readout]],
    targets: BeliefTargets,
    next_token_r2: Estimate,
    levels: Sequence[Baseline],
    clouds: Clouds,
) -> dict[str, Any]:
    """Return `linear_scores` with further baselines: next-token distribution and others of R², and the embedding."""
    linear = linear_scores(readouts, targets, n=len(clouds.trials), seed=clouds.seed)
    low, high = next_token_r2.ends
    further = {"r2": (Baseline.of("baseline", ANSWERS, next_token_r2.value, low=low, high=high), *levels)}
    if clouds.embedding is not None:
        (embedded,) = read_layers(clouds.embedding, targets, 1, clouds.seed)
        for name, score in held_out_scores(embedded, targets, np.ones((1, len(targets.held_out)))).items():
            level = np.full((len(readouts), len(readouts[0])), np.nan)  # the embedding is that of `resid_post` alone
            level[0] = score
            further[name] = (*further.get(name, ()), Baseline.of("baseline", EMBEDDING, level))
    for name, baselines in further.items():
        estimate = linear[name]
        shown = (level.broadcast(estimate.value.shape) for level in known(*baselines))
        linear[name] = replace(estimate, baselines=(*estimate.baselines, *shown))
    return linear


def readout_panel(
    title: str, site: str, axes: tuple[str, str], ticks: Sequence[str], estimate: Estimate, *, at: int
) -> Panel:
    """Draw an estimate along its only axis, which `ticks` name; the embedding is one step before the first.

    The title states the entry `at` this place.
    """
    from bayesgeom.charts.lines import brief, estimate_panel
    from bayesgeom.report.theme import BASELINE

    where = f" with k = {ticks[at]}" if axes[0].startswith("number") else f" in {axes[0]} {ticks[at]}"
    where = where.replace("in confidence", "for confidence")
    named = f"{title}{f' ({site})' if site else ''}: {brief(estimate.value[at])}{where}"
    steps, levels = range(len(estimate.value)), [level for level in estimate.baselines if level.name != EMBEDDING]
    panel = estimate_panel(named, axes, steps, replace(estimate, baselines=tuple(levels)))
    start = [float(level.value[0]) for level in estimate.baselines if level.name == EMBEDDING]
    places, texts = list(steps), list(ticks)
    if start and np.isfinite(start[0]):
        marker = {"color": BASELINE, "symbol": "diamond", "size": 8}
        drawn = {"mode": "markers", "name": f"baseline: {EMBEDDING}", "marker": marker, "showlegend": False}
        panel.figure.add_scatter(x=[-1], y=start, **drawn)
        places, texts = [-1, *places], ["emb", *texts]
    every = -(-len(texts) // 9)
    panel.figure.update_xaxes(tickvals=places[::every], ticktext=texts[::every])
    return panel


Drawn = tuple[Estimate, str, tuple[str, str], Sequence[str]]  # by site; title; axis titles; ticks of the last axis


def site_panels(sites: Sequence[str], shown: Sequence[Drawn], best: int = 0) -> list[Panel]:
    """Return a panel of each estimate at each site, by layer, or in the last layer along a further axis.

    The titles state the last known layer, or, along numbers of clusters, the entry `best`.
    """
    panels = []
    for row, site in enumerate(sites):
        for place, (metric, title, axes, ticks) in enumerate(shown):
            estimate = metric[row]
            estimate = estimate if estimate.value.ndim == 1 else estimate[-1]
            if np.isfinite(estimate.value).any():
                at = best if axes[0].startswith("number") else int(np.flatnonzero(np.isfinite(estimate.value))[-1])
                panel = readout_panel(title, site * (row > 0), axes, ticks, estimate, at=at)
                panels.append(replace(panel, is_folded=place + row > 0))
    return panels
