"""Belief read-out: do the activations hold the exact belief, in a form that a linear map finds?

That something can be decoded does not say that it is used, and a wide enough cloud gives away a lot by chance. So every
number stands beside the shuffle within position, random subspaces of the same rank, and the untrained architecture.

References: Shai et al. 2024, arXiv:2405.15943 (linear maps from residuals to beliefs; the simplex of Mess3);
Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (clusters by hidden state).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core.observers import STARTS, window_beliefs
from bayesgeom.core.run import Run
from bayesgeom.core.sites import RESID_POST, RESID_PRE, STATE
from bayesgeom.core.trials import Trials
from bayesgeom.probes.base import (
    Control,
    Needs,
    Probe,
    mean_over_copies,
    planted_chain,
    planted_run,
    planted_trials,
)
from bayesgeom.probes.belief_report import METRICS, READ, BeliefReadoutReport
from bayesgeom.stats.best_guesses import cluster_scores, guess_scores
from bayesgeom.stats.bootstrap import jackknife_weights, r2_interval, shuffled_within_position
from bayesgeom.stats.polygon import MAX_CORNERS
from bayesgeom.stats.readout import BELIEF, BeliefTargets, Readout, belief_rows, belief_targets, read_out, summary
from bayesgeom.stats.sketch import leading_coordinates
from bayesgeom.stats.subspace import random_subspaces

MAX_POINTS, MAX_WIDTH, N_CLUSTERED, N_DRAWN, COUNTS = 3_072, 192, 500, 1_000, range(2, 9)
SHUFFLES, SUBSPACES = 5, 20
WIDTHS = (1, 2, 3, 4, 10)  # symbols of the window observers whose beliefs are compared
_BANDS = {"all": (0, 2), "below 0.5": (0, 0.5), "0.5–0.75": (0.5, 0.75), "0.75–0.9": (0.75, 0.9), "above 0.9": (0.9, 2)}


@final
@dataclass(frozen=True)
class BeliefReadout(Probe[BeliefReadoutReport]):
    """Fitted on the first half of the sequences, scored on the rest; those beyond `MAX_POINTS` points are left out.

    A site wider than `MAX_WIDTH`, as the state of a Mamba is, is read along so many of its leading principal axes.
    """

    name: ClassVar[str] = "belief_readout"
    needs: ClassVar[Needs] = Needs(sites=(RESID_POST,), optional=(RESID_PRE, STATE), posterior=True)

    def measure(self, run: Run, initialised: Sequence[BeliefReadoutReport] = ()) -> BeliefReadoutReport:
        trials = run.trials.rows(slice(0, max(2, MAX_POINTS // run.trials.n_scored)))
        targets = _targets(trials, run.seed)
        sites = [site for site in (RESID_POST, STATE) if site in run.recorded]
        clouds = [_points(run.at(site)[:, : len(trials)].flatten(1, 2), targets, run.seed) for site in sites]
        rank = min(trials.belief.shape[-1], *(points.shape[-1] for points in clouds))
        found = [_read(points, targets, rank, run.seed) for points in clouds]
        tokens = _tokens(trials, run.seed)
        rows = [_measured(*both, targets, tokens, run.seed) for both in zip(clouds, found, strict=True)]
        measured: dict[str, Any] = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        constant_accuracy = measured.pop("constant_accuracy")[0]
        embedding = dict.fromkeys(READ, np.full(1, np.nan))
        if RESID_PRE in run.recorded:
            before = _points(run.at(RESID_PRE)[:1, : len(trials)].flatten(1, 2), targets, run.seed)
            embedding = summary(_read(before, targets, rank, run.seed), targets, np.ones((1, len(targets.held))))
        return BeliefReadoutReport(
            **measured,
            **_untrained(measured, initialised),
            **_drawn(found, targets, initialised, run.seed),
            **_windows(trials, targets, run.seed),
            constant_accuracy=constant_accuracy,
            embedding_r2=float(embedding["r2"][0]),
            embedding_total_variation=float(embedding["total_variation"][0]),
            embedding_balanced_accuracy=float(embedding["balanced_accuracy"][0]),
            sites=tuple(site.name for site in sites),
            cluster_counts=tuple(map(str, COUNTS)),
            confidences=tuple(_BANDS),
            subspace_rank=rank,
            n_clustered=min(N_CLUSTERED, len(targets.values)),
            n_held_out=len(targets.held),
            intervals={},
            nulls={},
            n=len(trials),
        )

    def controls(self) -> Iterator[Control[BeliefReadoutReport]]:
        rng = np.random.default_rng(0)
        # One hypothesis is dead at each point and one of the rest is a little favoured.
        weights = rng.uniform(0.6, 1.4, size=(83, 5, 3))
        weights[rng.permuted(np.tile(np.arange(3), (83, 5, 1)), axis=2) == 0] = 0
        belief = weights / weights.sum(axis=2, keepdims=True)
        trials = planted_trials(belief, rng.integers(7, size=(83, 11)))
        noise, place = rng.normal(size=(83, 5, 7)), np.tile(np.eye(5, 7), (83, 1, 1))
        written = belief @ rng.normal(size=(3, 7))
        guesses = 9 * np.eye(3, 7)[belief.argmax(axis=2)] + 0.1 * noise
        layers = torch.from_numpy(np.stack([noise, written, guesses, place + 0.01 * noise]))
        planted = planted_run(trials, {RESID_POST: layers})
        yield Control(label="noise, the belief, best guesses, position", run=planted, holds=_tells_layers_apart)
        before = planted_run(trials, {RESID_POST: layers[:1], RESID_PRE: layers[1:2]})
        yield Control(
            label="the belief is in the embedding only",
            run=before,
            holds=lambda r: r.embedding_r2 > 0.99 > 0.1 > r.r2[0, 0] and r.embedding_balanced_accuracy > 0.9,
        )
        # A high R² with nothing carried: the vectors hold no more than the current symbol.
        chain = planted_chain(stay=0.9, seed=0)
        assert chain.observers is not None
        after = [*islice(window_beliefs(chain.observers.filter, chain.at_scored(chain.belief), "stationary"), 2)][1]
        yield Control(
            label="the belief after the current symbol is read as well as that observer's",
            run=planted_run(chain, {RESID_POST: (after @ after.new_tensor(rng.normal(size=(2, 7))))[None]}),
            holds=lambda r: r.r2[0, 0] > 0.3 and abs(r.r2[0, 0] - r.window_map_r2[1, 0]) < 0.01 < 0.05 < 1 - r.r2[0, 0],
        )


def _tells_layers_apart(report: BeliefReadoutReport) -> bool:
    noise, written, guesses, place = range(4)
    at_three = report.cluster_counts.index("3")
    return bool(
        report.r2[0, written] > 0.99 > 0.1 > max(report.r2[0, [noise, place]])
        and report.total_variation[0, written] < 0.02 < 0.1 < report.total_variation[0, noise]
        and report.balanced_accuracy[0, written] > 0.9
        and max(report.balanced_accuracy[0, [noise, place]]) < 0.6
        and report.rand_index[0, guesses, at_three] > 0.99 > 0.1 > report.rand_index[0, place, at_three]
        and report.silhouette[0, guesses, at_three] > 0.9 > 0.5 > report.silhouette[0, noise, at_three]
        and report.nearest_centroid_accuracy[0, guesses, 0] > 0.99 > 0.6 > report.nearest_centroid_accuracy[0, noise, 0]
    )


def _targets(trials: Trials, seed: int) -> BeliefTargets:
    """The belief as it is, and shuffled within position; the first half of the sequences fits, the second scores."""
    rows = belief_rows(trials.at_scored(trials.belief).cpu())
    rng = np.random.default_rng(seed)
    shuffles = [torch.from_numpy(shuffled_within_position(rows.numpy(), rng)) for _ in range(SHUFFLES)]
    return belief_targets(torch.stack([rows, *shuffles]), n_fit=-(-len(trials) // 2))


def _tokens(trials: Trials, seed: int) -> Float[Tensor, "point shuffle token"]:
    """The token just read at every point, a row with a single 1, as it is and shuffled within position."""
    read = trials.at_scored(trials.tokens).cpu()
    rows = torch.nn.functional.one_hot(torch.unique(read, return_inverse=True)[1]).double()
    rng = np.random.default_rng(seed)
    shuffles = [torch.from_numpy(shuffled_within_position(rows.numpy(), rng)) for _ in range(SHUFFLES)]
    return torch.stack([rows, *shuffles], dim=2).flatten(0, 1)


def _points(
    vectors: Float[Tensor, "layer point d"], targets: BeliefTargets, seed: int
) -> Float[Tensor, "layer point axis"]:
    return torch.stack([leading_coordinates(points, MAX_WIDTH, n_fit=targets.n_fit, seed=seed) for points in vectors])


def _read(points: Float[Tensor, "layer point d"], targets: BeliefTargets, rank: int, seed: int) -> list[Readout]:
    """What every layer gives away, as a whole and in random subspaces."""
    bases = random_subspaces(points.shape[2], rank, draws=SUBSPACES, seed=seed).to(points.device)
    return [read_out(layer, targets, bases) for layer in points]


def _measured(
    points: Float[Tensor, "layer point d"],
    layers: Sequence[Readout],
    targets: BeliefTargets,
    tokens: Float[Tensor, "point shuffle token"],
    seed: int,
) -> dict[str, Float64[np.ndarray, "..."]]:
    """Every metric with its interval and nulls, by layer."""
    n_held, n_all = len(targets.held), len(targets.values) // targets.n_positions
    held = jackknife_weights(n_held)
    whole = jackknife_weights(n_all)
    clusters = cluster_scores(points, targets, tokens, COUNTS, whole, n_clustered=N_CLUSTERED, seed=seed)
    guesses = guess_scores(layers, targets, [*_BANDS.values()], seed=seed)
    return {**summary(layers, targets, held, seed=seed), **guesses, **clusters}


def _untrained(measured: Mapping[str, Any], initialised: Sequence[BeliefReadoutReport]) -> dict[str, Any]:
    """Means over the fresh copies of the architecture; NaN where there are none."""
    fresh = [report.arrays() for report in initialised]
    return {f"{m}_initialisation": mean_over_copies([arrays[m] for arrays in fresh], like=measured[m]) for m in METRICS}


def _windows(trials: Trials, targets: BeliefTargets, seed: int) -> dict[str, Any]:
    """How much of the belief window observers have: as it is, and through the best linear map; {} without dynamics."""
    widths = [width for width in WIDTHS if width < trials.n_scored]
    if trials.observers is None or not widths:
        return {}
    exact, n_held = trials.at_scored(trials.belief), len(targets.held)
    held = jackknife_weights(n_held)
    rows = []
    for start in STARTS:
        all_widths = window_beliefs(trials.observers.filter, exact, start)
        beliefs = torch.stack([belief for width, belief in enumerate(all_widths) if width in widths])
        read = summary(_read(beliefs.flatten(1, 2), targets, beliefs.shape[-1], seed), targets, held, seed=seed)
        row = {f"window_map_{name}": read[name] for name in ("r2", "r2_lo", "r2_hi")}
        rows.append(row | _unfitted(beliefs[:, len(exact) - n_held :].cpu().numpy(), targets, seed))
    stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return {**stacked, "window_starts": STARTS, "windows": tuple(map(str, widths))}


def _unfitted(
    beliefs: Float64[np.ndarray, "window sequence position hypothesis"],
    targets: BeliefTargets,
    seed: int,
) -> dict[str, Float64[np.ndarray, " window"]]:
    """R² of beliefs as they are, on held-out sequences, with its interval."""
    truth, mean = targets.held[:, :, 0, BELIEF].double().numpy(), targets.means[0, BELIEF].double().numpy()
    error, spread = ((beliefs - truth) ** 2).sum(axis=(2, 3)), ((truth - mean) ** 2).sum(axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        lo, hi = r2_interval(error.T, spread[:, None], seed=seed)
        return {"window_r2": 1 - error.sum(axis=1) / spread.sum(), "window_r2_lo": lo, "window_r2_hi": hi}


def _drawn(
    found: Sequence[Sequence[Readout]],
    targets: BeliefTargets,
    initialised: Sequence[BeliefReadoutReport],
    seed: int,
) -> dict[str, Any]:
    """Some held-out beliefs, and how they are read; in the first fresh copy too, which read the same sequences."""
    belief = targets.held[:, :, 0, BELIEF].flatten(0, 1).double().numpy()
    n_drawn = min(N_DRAWN, len(belief)) if belief.shape[1] <= MAX_CORNERS else 0
    chosen = np.sort(np.random.default_rng(seed).permutation(len(belief))[:n_drawn])
    first, last = (
        np.stack([layers[which].predicted_belief.reshape(belief.shape)[chosen] for layers in found])
        for which in (0, -1)
    )
    untrained = initialised[0].drawn_last if initialised else np.full_like(last, np.nan)
    return {
        "drawn_belief": belief[chosen], "drawn_first": first, "drawn_last": last, "drawn_untrained": untrained,
    }  # fmt: skip
