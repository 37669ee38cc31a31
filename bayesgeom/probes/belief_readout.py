"""Belief read-out: does the residual stream hold the exact belief, in a form that a linear map finds?

That something can be decoded does not say that it is used, and a wide enough cloud gives away a lot by chance. So every
number stands beside the shuffle within position, random subspaces of the same rank, and the untrained architecture.

References: Shai et al. 2024, arXiv:2405.15943 (linear maps from residuals to beliefs; the simplex of Mess3);
Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (clusters by hidden state).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bayesgeom.activations import Run
from bayesgeom.geometry.clusters import adjusted_rand, cluster_clouds, meetings
from bayesgeom.geometry.readout import (
    LABEL,
    BeliefTargets,
    Readout,
    belief_rows,
    belief_targets,
    centroid_accuracy,
    commonest,
    in_bands,
    read_out,
    summary,
)
from bayesgeom.geometry.subspace import random_subspaces
from bayesgeom.probes.base import Control, Needs, Probe, mean_over_copies, planted_run, planted_trials
from bayesgeom.report import Headline, Report
from bayesgeom.sites import RESID_POST, RESID_PRE
from bayesgeom.statistics import bootstrap_weights, shuffled_within_position
from bayesgeom.trials import Trials

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_POINTS, N_CLUSTERED, COUNTS = 3_072, 500, range(2, 9)
SHUFFLES, SUBSPACES, DRAWS = 5, 20, 200
_BANDS = {"all": (0, 2), "below 0.5": (0, 0.5), "0.5–0.75": (0.5, 0.75), "0.75–0.9": (0.75, 0.9), "above 0.9": (0.9, 2)}
_SHUFFLE, _NO_GUESS = "shuffle within position", "no hypothesis is ever the single best guess"
_LAYER, _COUNT, _CONFIDENCE = "layer", "number of clusters k, last layer", "confidence of the exact belief, last layer"
# Metric: what its panel asks, its axes, its null, and why it may be missing.
_PANELS = {
    "r2": ("Linear read-out of the belief", _LAYER, "held-out R² (1 is exact)", _SHUFFLE, ""),
    "total_variation": ("What is read, against the belief", _LAYER, "total variation (0 is exact)", "mean belief", ""),
    "balanced_accuracy": (
        "Surviving hypotheses",
        _LAYER,
        "balanced accuracy (½ is chance)",
        _SHUFFLE,
        "none is ruled out",
    ),
    "silhouette": ("Are there clusters?", _COUNT, "silhouette (−1 to 1)", "Gaussian cloud", ""),
    "rand_index": ("Are they the best guesses?", _COUNT, "adjusted Rand index (0 is chance)", _SHUFFLE, _NO_GUESS),
    "nearest_centroid_accuracy": ("Nearest best guess", _CONFIDENCE, "accuracy", _SHUFFLE, _NO_GUESS),
}
_READ = ("r2", "total_variation", "balanced_accuracy")
_OTHER_NULLS = {"initialisation": "initialisation", "random_subspace": "random subspaces of that rank"}


@final
@dataclass(frozen=True, kw_only=True)
class BeliefReadoutReport(Report):
    """What a linear map reads of the exact belief in `resid_post`, by layer, and the clusters of the same vectors.

    Held out by sequence. `r2` is at most 1 and 0 for the mean belief; `total_variation` (0 to 1) compares the
    prediction, clipped at 0 and renormalised, with the belief; `balanced_accuracy` (½ at chance) is that of deciding
    which hypotheses survive, NaN where all do. `silhouette` (−1 to 1) and `rand_index` (0 at chance, 1 for one cluster
    per best guess) are of k-means on `n_clustered` points. `rand_index` and `nearest_centroid_accuracy` leave out
    points without a single most probable hypothesis; `constant_accuracy` is that of always naming the commonest one.

    `*_null` is the shuffle within position, except for `total_variation` (the mean belief) and `silhouette` (a Gaussian
    cloud of the same covariance). `*_random_subspace` is the mean and 95 % range over subspaces of `subspace_rank`.
    """

    name: ClassVar[str] = "belief_readout"
    title: ClassVar[str] = "Belief read-out: is the exact posterior written in the residual stream?"
    about: ClassVar[str] = (
        "A linear map is fitted from the model's vectors to the exact belief on half of the sequences and tested on "
        "the other half: R² is 1 when the belief can be read off exactly and 0 when the map does no better than the "
        "average belief. Being readable is not being used, and much is readable by accident, so compare with the grey "
        "lines: beliefs exchanged between sequences at the same position (what position alone explains), random "
        "subspaces with as many dimensions as there are hypotheses, and the same network before training. 'Surviving' "
        "asks which hypotheses are still possible. The other panels ask whether the vectors fall into clusters, and "
        "whether these are the best guesses, the most probable hypotheses; k-means finds clusters in anything, hence "
        "the Gaussian cloud beside it. Any accurate model clusters by best guess to some degree: alone that proves "
        "little."
    )

    r2: Float[np.ndarray, " layer"]
    r2_lo: Float[np.ndarray, " layer"]
    r2_hi: Float[np.ndarray, " layer"]
    r2_null: Float[np.ndarray, " layer"]
    r2_initialisation: Float[np.ndarray, " layer"]
    r2_random_subspace: Float[np.ndarray, " layer"]
    r2_random_subspace_lo: Float[np.ndarray, " layer"]
    r2_random_subspace_hi: Float[np.ndarray, " layer"]
    total_variation: Float[np.ndarray, " layer"]
    total_variation_lo: Float[np.ndarray, " layer"]
    total_variation_hi: Float[np.ndarray, " layer"]
    total_variation_null: Float[np.ndarray, " layer"]
    total_variation_initialisation: Float[np.ndarray, " layer"]
    balanced_accuracy: Float[np.ndarray, " layer"]
    balanced_accuracy_lo: Float[np.ndarray, " layer"]
    balanced_accuracy_hi: Float[np.ndarray, " layer"]
    balanced_accuracy_null: Float[np.ndarray, " layer"]
    balanced_accuracy_initialisation: Float[np.ndarray, " layer"]
    balanced_accuracy_random_subspace: Float[np.ndarray, " layer"]
    balanced_accuracy_random_subspace_lo: Float[np.ndarray, " layer"]
    balanced_accuracy_random_subspace_hi: Float[np.ndarray, " layer"]
    embedding_r2: float
    embedding_total_variation: float
    embedding_balanced_accuracy: float
    silhouette: Float[np.ndarray, "layer cluster_count"]
    silhouette_null: Float[np.ndarray, "layer cluster_count"]
    silhouette_initialisation: Float[np.ndarray, "layer cluster_count"]
    rand_index: Float[np.ndarray, "layer cluster_count"]
    rand_index_null: Float[np.ndarray, "layer cluster_count"]
    rand_index_initialisation: Float[np.ndarray, "layer cluster_count"]
    nearest_centroid_accuracy: Float[np.ndarray, "layer confidence"]
    nearest_centroid_accuracy_null: Float[np.ndarray, "layer confidence"]
    nearest_centroid_accuracy_initialisation: Float[np.ndarray, "layer confidence"]
    constant_accuracy: Float[np.ndarray, " confidence"]
    cluster_counts: tuple[str, ...]
    confidences: tuple[str, ...]
    subspace_rank: int
    n_clustered: int
    n_held_out: int
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        best = int(np.argmax(np.nan_to_num(self.silhouette[-1], nan=-1.0)))
        return (
            self._last("r2", "R² of the belief, last layer"),
            self._last("total_variation", "what is read against the belief, last layer"),
            self._last("balanced_accuracy", "which hypotheses survive, balanced accuracy, last layer"),
            self._last("silhouette", f"best silhouette (k = {self.cluster_counts[best]}), last layer", best),
            self._last("rand_index", "the same clusters against best guesses, adjusted Rand", best),
        )

    def figure(self) -> "Figure":
        from bayesgeom.charts.readout import Line, readout_figure

        ticks = {_LAYER: [str(layer) for layer in range(len(self.r2))], _COUNT: self.cluster_counts}
        lines = []
        for metric, (title, x, y, _, note) in _PANELS.items():
            drawn, nulls = self._drawn(metric), self._nulls(metric)
            band = (drawn[f"{metric}_lo"], drawn[f"{metric}_hi"]) if f"{metric}_lo" in drawn else None
            before = float(vars(self)[f"embedding_{metric}"]) if metric in _READ else math.nan
            lines.append(Line(
                title=title, x=x, y=y, ticks=ticks.get(x, self.confidences), values=drawn[metric], nulls=nulls,
                band=band, before=before, note=note,
            ))  # fmt: skip
        return readout_figure(self.title, lines)

    def _drawn(self, metric: str) -> dict[str, Float[np.ndarray, " step"]]:
        """A metric and its companions: over the layers, or in the last layer over what else they depend on."""
        arrays = {name: array for name, array in self.arrays().items() if name.startswith(metric)}
        return {name: array if array.ndim == 1 else array[-1] for name, array in arrays.items()}

    def _nulls(self, metric: str) -> dict[str, Float[np.ndarray, " step"]]:
        drawn = self._drawn(metric)
        labels = {"null": _PANELS[metric][3], **_OTHER_NULLS}
        nulls = {label: drawn[f"{metric}_{end}"] for end, label in labels.items() if f"{metric}_{end}" in drawn}
        return nulls | ({"one constant answer": self.constant_accuracy} if "centroid" in metric else {})

    def _last(self, metric: str, label: str, column: int = -1) -> Headline:
        null_label, *others = ((name, float(level[column])) for name, level in self._nulls(metric).items())
        beside = [f"{name} {level:.3g}" for name, level in others if not math.isnan(level)]
        at = (-1,) if vars(self)[metric].ndim == 1 else (-1, column)
        return self.entry(metric, at, label, null_label="; ".join([null_label[0], *beside]))


@final
@dataclass(frozen=True)
class BeliefReadout(Probe[BeliefReadoutReport]):
    """Fitted on the first half of the sequences, scored on the rest; those beyond `MAX_POINTS` points are left out."""

    name: ClassVar[str] = "belief_readout"
    needs: ClassVar[Needs] = Needs(sites=(RESID_POST,), optional=(RESID_PRE,), posterior=True)

    def measure(self, run: Run, initialised: Sequence[BeliefReadoutReport] = ()) -> BeliefReadoutReport:
        trials = run.trials.rows(slice(0, max(2, MAX_POINTS // run.trials.n_scored)))
        targets = _targets(trials, run.seed)
        residuals = run.at(RESID_POST)[:, : len(trials)].flatten(1, 2)
        rank = min(trials.belief.shape[-1], residuals.shape[-1])
        bases = random_subspaces(residuals.shape[-1], rank, draws=SUBSPACES, seed=run.seed).to(residuals.device)
        layers = [read_out(points, targets, bases) for points in residuals]
        n_held = len(targets.held)
        weights = bootstrap_weights(n_held, seed=run.seed, draws=DRAWS) if n_held else np.zeros((1, 0))
        measured = {**summary(layers, targets, weights), **_guesses(layers, targets)}
        measured |= _clusters(residuals, targets, run.seed)
        embedding = dict.fromkeys(_READ, np.full(1, np.nan))
        if RESID_PRE in run.recorded:
            first = read_out(run.at(RESID_PRE)[0, : len(trials)].flatten(0, 1), targets, bases)
            embedding = summary([first], targets, weights)
        return BeliefReadoutReport(
            **measured | _untrained(measured, initialised),
            embedding_r2=float(embedding["r2"][0]),
            embedding_total_variation=float(embedding["total_variation"][0]),
            embedding_balanced_accuracy=float(embedding["balanced_accuracy"][0]),
            cluster_counts=tuple(map(str, COUNTS)),
            confidences=tuple(_BANDS),
            subspace_rank=rank,
            n_clustered=min(N_CLUSTERED, residuals.shape[1]),
            n_held_out=n_held,
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
            holds=lambda r: r.embedding_r2 > 0.99 > 0.1 > r.r2[0] and r.embedding_balanced_accuracy > 0.9,
        )


def _tells_layers_apart(report: BeliefReadoutReport) -> bool:
    noise, written, guesses, place = range(4)
    at_three = report.cluster_counts.index("3")
    return bool(
        report.r2[written] > 0.99 > 0.1 > max(report.r2[[noise, place]])
        and report.total_variation[written] < 0.02 < 0.1 < report.total_variation[noise]
        and report.balanced_accuracy[written] > 0.9
        and max(report.balanced_accuracy[[noise, place]]) < 0.6
        and report.rand_index[guesses, at_three] > 0.99 > 0.1 > report.rand_index[place, at_three]
        and report.silhouette[guesses, at_three] > 0.9 > 0.5 > report.silhouette[noise, at_three]
        and report.nearest_centroid_accuracy[guesses, 0] > 0.99 > 0.6 > report.nearest_centroid_accuracy[noise, 0]
    )


def _targets(trials: Trials, seed: int) -> BeliefTargets:
    """The belief as it is, and shuffled within position; the first half of the sequences fits, the second scores."""
    rows = belief_rows(trials.at_scored(trials.belief).cpu())
    rng = np.random.default_rng(seed)
    shuffles = [torch.from_numpy(shuffled_within_position(rows.numpy(), rng)) for _ in range(SHUFFLES)]
    return belief_targets(torch.stack([rows, *shuffles]), n_fit=-(-len(trials) // 2))


def _clusters(residuals: Float[Tensor, "layer point d"], targets: BeliefTargets, seed: int) -> dict[str, Any]:
    """k-means on a sample of the points, its silhouettes, and its agreement with the most probable hypotheses."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(residuals.shape[1], generator=generator)[:N_CLUSTERED].sort().values
    labels, scores, of_gaussian = cluster_clouds(residuals[:, chosen], COUNTS, generator)
    agreement = adjusted_rand(meetings(labels, targets.values[chosen, :, LABEL])).numpy()
    return {
        "silhouette": scores.cpu().numpy(),
        "silhouette_null": of_gaussian.cpu().numpy(),
        "rand_index": agreement[:, 0],
        "rand_index_null": agreement[:, 1:].mean(axis=1),
    }


def _guesses(layers: Sequence[Readout], targets: BeliefTargets) -> dict[str, Any]:
    """Accuracy of the nearest centroid, and of one constant answer, by confidence."""
    is_counted = in_bands(targets, list(_BANDS.values()))
    accuracy = np.stack([centroid_accuracy(layer, is_counted) for layer in layers])
    return {
        "nearest_centroid_accuracy": accuracy[:, :, 0],
        "nearest_centroid_accuracy_null": accuracy[:, :, 1:].mean(axis=2),
        "constant_accuracy": commonest(targets, is_counted),
    }


def _untrained(measured: Mapping[str, Any], initialised: Sequence[BeliefReadoutReport]) -> dict[str, Any]:
    """Means over the fresh copies of the architecture; NaN where there are none."""
    fresh = [report.arrays() for report in initialised]
    return {f"{m}_initialisation": mean_over_copies([arrays[m] for arrays in fresh], like=measured[m]) for m in _PANELS}
