"""Linear read-out of a belief from vectors: maps are fitted on one half of the sequences and scored on the other.

A belief gives three kinds of target: its values, which hypotheses are possible (belief > 0), and the most probable one.
Maps are fitted to the true targets and to targets shuffled across sequences within each position; the shuffle preserves
effects of position.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from bayesgeom.stats.clusters import nearest_centroid_labels
from bayesgeom.stats.regression import SplitMoments, ridge, split_moments, squared_error
from bayesgeom.stats.subspace import restricted

BELIEF, ALIVE, LABEL = range(3)  # the kinds of target
_TIE = 1e-9  # beliefs this close count as equal, so that no single hypothesis is most probable


@final
@dataclass(frozen=True, kw_only=True)
class BeliefTargets:
    """The targets at every point, draw 0 true and the others shuffled; the first `n_fit` points fit.

    A row of LABEL is one-hot at the most probable hypothesis, and all zero if there is a tie. `centered` is `values`
    minus `means`, the mean over the fitting points. `is_signed` says whether the belief may have negative entries.
    """

    values: Float32[Tensor, "point draw kind hypothesis"]
    centered: Float32[Tensor, "point draw kind hypothesis"]
    means: Float32[Tensor, "draw kind hypothesis"]
    n_fit: int
    n_positions: int
    is_signed: bool = False

    @property
    def held_out(self) -> Float32[Tensor, "sequence position draw kind hypothesis"]:
        """Values of the held-out sequences."""
        values = self.values[self.n_fit :]
        return values.reshape(len(values) // self.n_positions, self.n_positions, *values.shape[1:])


@final
@dataclass(frozen=True, kw_only=True)
class Readout:
    """Read-outs from one cloud. The axis `map` runs over the draws of the targets, then over the subspaces.

    `predicted_belief` and `decided_alive` are the first map's predictions at held-out points.
    """

    r2: Float64[np.ndarray, " map"]
    balanced_accuracy: Float64[np.ndarray, " map"]
    predicted_belief: Float64[np.ndarray, "sequence position hypothesis"]
    decided_alive: Bool[np.ndarray, "sequence position hypothesis"]


def belief_rows(
    belief: Float64[Tensor, "sequence position hypothesis"], *, is_signed: bool = False
) -> Float64[Tensor, "sequence position kind hypothesis"]:
    """Stack the three kinds of target, which are shuffled together.

    Where entries may be negative, as in a generalized process, nothing is excluded, and no hypothesis is most probable.
    """
    if is_signed:
        return torch.stack([belief, torch.ones_like(belief), torch.zeros_like(belief)], dim=2)
    n_hypotheses = belief.shape[-1]
    ordered = belief.sort(dim=-1, descending=True).values
    is_clear = ordered[..., 0] - ordered[..., 1:2].sum(dim=-1) > _TIE
    label = torch.nn.functional.one_hot(belief.argmax(dim=-1), n_hypotheses) * is_clear[..., None]
    return torch.stack([belief, (belief > 0).double(), label.double()], dim=2)


def belief_targets(
    rows: Float64[Tensor, "draw sequence position kind hypothesis"], n_fit: int, *, is_signed: bool = False
) -> BeliefTargets:
    """Build the targets from draws of `belief_rows`; the first `n_fit` sequences fit, the rest score."""
    values = rows.flatten(1, 2).transpose(0, 1)
    n_fit_points = n_fit * rows.shape[2]
    means = values[:n_fit_points].mean(dim=0)
    return BeliefTargets(
        values=values.float(),
        centered=(values - means).float(),
        means=means.float(),
        n_fit=n_fit_points,
        n_positions=rows.shape[2],
        is_signed=is_signed,
    )


def read_out(
    points: Float[Tensor, "point d"], targets: BeliefTargets, bases: Float64[Tensor, "subspace d rank"]
) -> Readout:
    """Fit every map on the first half and score it on the second.

    R² is 1 − Σ|b − b̂|² / Σ|b − b̄|², with b̄ the fitting half's mean. A hypothesis is predicted to be possible if its
    linear score is nearer to the fitting half's mean score of possible hypotheses than to that of excluded ones.
    """
    centered = points - points[: targets.n_fit].mean(dim=0)
    held_out = centered[targets.n_fit :]
    moments = split_moments(centered, targets.centered.flatten(1).to(points), targets.n_fit)
    n_draws = len(targets.means)
    draws = torch.tensor([*range(n_draws), *[0] * len(bases)], device=points.device)
    # Linear maps from the full space to every draw, then from each subspace to the true targets.
    cross = moments.fit_cross.reshape(-1, *targets.means.shape)[:, draws, :LABEL]
    whole = ridge(moments.fit_gram, cross[:, :n_draws].flatten(1)).reshape(len(cross), n_draws, -1)
    within = ridge(restricted(moments.fit_gram, bases), bases.mT @ cross[:, 0].flatten(1))
    maps = torch.cat([whole, (bases @ within).movedim(0, 1)], dim=1).reshape(cross.shape)
    scores = (held_out @ maps[:, :, ALIVE].flatten(1).to(points)).reshape(len(held_out), *maps.shape[1::2])
    # ½ (mean score of possible + of excluded hypotheses) over the fitting half; NaN if a class is missing. As Σ x = 0,
    # the points of possible hypotheses sum to Xᵀy and those of excluded ones to −Xᵀy.
    share = targets.means[:, ALIVE].to(maps)[draws]
    of_possible = (maps[:, :, ALIVE] * cross[:, :, ALIVE]).sum(dim=0)
    decided = scores > (of_possible / targets.n_fit * (1 / share - 1 / (1 - share)) / 2).to(points)
    in_sequences = (len(held_out) // targets.n_positions, targets.n_positions)
    decisions = decided.unflatten(0, in_sequences).cpu().numpy()
    is_possible = targets.held_out[:, :, draws.cpu(), ALIVE].numpy() > 0
    even = np.full((1, in_sequences[0]), 1 / max(1, in_sequences[0]))
    predicted = (held_out @ maps[:, 0, BELIEF].to(points)).cpu() + targets.means[0, BELIEF]
    return Readout(
        r2=_r2(maps[:, :, BELIEF], moments, draws),
        balanced_accuracy=balanced_accuracy(decisions, is_possible, even)[0],
        predicted_belief=predicted.double().unflatten(0, in_sequences).numpy(),
        decided_alive=decisions[:, :, 0],
    )


def centroid_hits(
    points: Float[Tensor, "point d"], targets: BeliefTargets
) -> Bool[np.ndarray, "sequence position draw"]:
    """Return whether the nearest centroid at held-out points is that of the most probable hypothesis.

    The centroids are means of the fitting points by most probable hypothesis, of each draw. A tie is no hit.
    """
    centered = points - points[: targets.n_fit].mean(dim=0)
    fitting, held_out = centered[: targets.n_fit], centered[targets.n_fit :]
    # As Σ x = 0, centered labels have the same sums as labels.
    sums = (fitting.T @ targets.centered[: targets.n_fit, :, LABEL].flatten(1).to(points)).double()
    share = targets.means[:, LABEL].to(sums)
    centroids = sums.reshape(-1, *share.shape) / (share * targets.n_fit).clamp_min(1)
    nearest = nearest_centroid_labels(held_out, centroids.to(held_out), share > 0)
    truth = targets.values[targets.n_fit :, :, LABEL].to(held_out)
    is_hit: Tensor = truth.gather(2, nearest[:, :, None])[:, :, 0] > 0
    hits: Bool[np.ndarray, "point draw"] = is_hit.cpu().numpy()
    return hits.reshape(len(held_out) // targets.n_positions, targets.n_positions, hits.shape[1])


def held_out_scores(
    readout: Readout, targets: BeliefTargets, weights: Float64[np.ndarray, "draw sequence"]
) -> dict[str, Float64[np.ndarray, " draw"]]:
    """Return `r2`, `total_variation` and `balanced_accuracy` of the first map, with the held-out sequences weighted.

    For total variation the prediction is renormalized: negative entries become 0, then it is divided by its sum. It is
    NaN if the belief itself may have negative entries.
    """
    truth = targets.held_out[:, :, 0].double().numpy()
    belief, mean = truth[:, :, BELIEF], targets.means[0, BELIEF].double().numpy()
    error, spread = (((belief - x) ** 2).sum(axis=(1, 2)) for x in (readout.predicted_belief, mean))
    distance = np.abs(belief - renormalized(readout.predicted_belief)).sum(axis=2).sum(axis=1) / 2 / targets.n_positions
    distance = np.full_like(distance, np.nan) if targets.is_signed else distance
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "r2": 1 - (weights @ error) / (weights @ spread),
            "total_variation": weights @ distance / weights.sum(axis=1),
            "balanced_accuracy": balanced_accuracy(readout.decided_alive, truth[:, :, ALIVE] > 0, weights),
        }


def balanced_accuracy(
    decided: Bool[np.ndarray, "sequence position *rest hypothesis"],
    truth: Bool[np.ndarray, "sequence position *rest hypothesis"],
    weights: Float64[np.ndarray, "draw sequence"],
) -> Float64[np.ndarray, "draw *rest"]:
    """Return ½ (true positive rate + true negative rate), averaged over cells of position and hypothesis.

    ½ at chance for any base rate, and for any rule that uses position only. Sequences count by their weight. Cells
    without both classes are left out; NaN if no cell is left.
    """
    true, yes, hit = (np.tensordot(weights, x.astype(np.float64), axes=1) for x in (truth, decided, decided & truth))
    false = weights.sum(axis=1).reshape(-1, *(1,) * (true.ndim - 1)) - true
    has_both = (true > _TIE) & (false > _TIE)
    rates = hit / np.where(has_both, true, 1) + (false - yes + hit) / np.where(has_both, false, 1)
    n_cells = has_both.sum(axis=(1, -1))
    return np.asarray((rates / 2 * has_both).sum(axis=(1, -1)) / np.where(n_cells > 0, n_cells, np.nan))


def in_bands(
    targets: BeliefTargets, bands: Sequence[tuple[float, float]]
) -> Bool[np.ndarray, "band sequence position draw"]:
    """Select held-out points with a single most probable hypothesis whose belief is in [`low`, `high`)."""
    held_out = targets.held_out.numpy()
    confidence, is_clear = held_out[:, :, :, BELIEF].max(axis=-1), held_out[:, :, :, LABEL].any(axis=-1)
    return np.stack([is_clear & (confidence >= low) & (confidence < high) for low, high in bands])


def commonest(
    targets: BeliefTargets, is_counted: Bool[np.ndarray, "band sequence position draw"]
) -> Float64[np.ndarray, " band"]:
    """Return the accuracy of always predicting the most common hypothesis; NaN if no point counts."""
    labels = targets.held_out[:, :, 0, LABEL].double().numpy()
    counts = np.einsum("bsp,sph->bh", is_counted[:, :, :, 0], labels)
    n_points = counts.sum(axis=1)
    return np.asarray(counts.max(axis=1) / np.where(n_points > 0, n_points, np.nan))


def renormalized(predicted: Float64[np.ndarray, "*batch hypothesis"]) -> Float64[np.ndarray, "*batch hypothesis"]:
    """Turn a linear prediction into a distribution: clip at 0 and divide by the sum; uniform if all are clipped."""
    clipped = np.clip(predicted, 0, None)
    total = clipped.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(total > 0, clipped / np.where(total > 0, total, 1), 1 / predicted.shape[-1]))


def _r2(
    maps: Float64[Tensor, "d map hypothesis"],
    moments: SplitMoments,
    draws: Int64[Tensor, " map"],
) -> Float64[np.ndarray, " map"]:
    n_hypotheses = maps.shape[2]
    power = moments.score_power.reshape(-1, 3, n_hypotheses)[draws, BELIEF]
    cross = moments.score_cross.reshape(len(maps), -1, 3, n_hypotheses)[:, draws, BELIEF]
    error = squared_error(maps.flatten(1), moments.score_gram, cross.flatten(1), power.flatten())
    return (1 - error.reshape(power.shape).sum(dim=1) / power.sum(dim=1)).cpu().numpy()
