"""The joint report from the scores of every condition: paired intervals, chance levels, correlations and verdicts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Float64, Int

from bayesgeom.interventions.design import RANDOM
from bayesgeom.interventions.joint_report import (
    METRICS,
    ORTHOGONAL,
    TARGETS,
    UNEDITED,
    JointInterventionReport,
    verdict_of,
)
from bayesgeom.report.estimate import Baseline, Estimate, with_ceiling
from bayesgeom.stats.bootstrap import jackknife_weights, ratio_interval, statistic_interval
from bayesgeom.stats.regression import absolute_interval, ranks, without_level_means
from bayesgeom.stats.resampling import resampled_correlation_at_position, resampled_spearman

OWN, CEILING, FIRST_RANDOM = range(3)  # conditions of a set; the very first condition is the unedited model


@final
@dataclass(frozen=True, kw_only=True)
class Scores:
    """Sums over the sequences of a unit for every condition, and coordinates and entropies of the first sequences.

    - `bits`: KL to the exact posterior and entropy error, averaged over positions.
    - `own_entropy`: entropy of the model's prediction over the answers.
    - `coordinates`: along each layer's axis at scored positions; NaN if the subspace has more than one dimension.
    """

    counts: Int[np.ndarray, " unit"]
    bits: Float64[np.ndarray, "condition unit metric"]
    own_entropy: Float64[np.ndarray, "condition kept position"]
    coordinates: Float64[np.ndarray, "condition layer kept position"]
    exact_entropy: Float64[np.ndarray, "kept position"]


@final
@dataclass(frozen=True, kw_only=True)
class JointContext:
    """The data that the report needs in addition to the scores."""

    kind: str
    site: str
    label: str
    rank: int
    sets: Sequence[Sequence[int]]
    n_random: int
    seed: int


def joint_report(scores: Scores, context: JointContext) -> JointInterventionReport:
    """Return the report; conditions: the unedited model, then own, ceiling, random and orthogonal ones of each set."""
    n, per_set = int(scores.counts.sum()), FIRST_RANDOM + 2 * context.n_random
    firsts = [1 + i * per_set for i in range(len(context.sets))]
    paired = [scores.bits[first : first + per_set] - scores.bits[0] for first in firsts]
    families = [np.split(own[FIRST_RANDOM:], 2) for own in paired]
    levels = [_level(name, [own[i].sum(axis=1) / n for own in families]) for i, name in enumerate((RANDOM, ORTHOGONAL))]
    increase = _estimate([own[OWN] for own in paired], scores, context, levels)
    beyond = _estimate(
        [own[OWN] - random.mean(axis=0) for own, (random, _) in zip(paired, families, strict=True)], scores, context
    )
    most = increase.baseline(RANDOM).bar("higher")
    verdicts = [verdict_of(increase.value[i, 0], beyond.ends[0][i, 0], most[i, 0]) for i in range(len(firsts))]
    return JointInterventionReport(
        kind=context.kind,
        site=context.site,
        subspace=context.label,
        rank=context.rank,
        sets=tuple("+".join(map(str, layers)) for layers in context.sets),
        metrics=METRICS,
        targets=TARGETS,
        unedited_bits=_estimate([scores.bits[0]], scores, context)[0],
        increase_bits=with_ceiling(increase, [own[CEILING].sum(axis=0) / n for own in paired]),
        beyond_random_bits=beyond,
        axis_correlation=_order(scores, firsts, context),
        verdicts=tuple(map(str, verdicts)),
        n_random=context.n_random,
        n_kept=scores.own_entropy.shape[1],
        n=n,
    )


def _level(name: str, drawn: Sequence[Float[np.ndarray, "draw *axes"]]) -> Baseline:
    """Return mean and range over the random subspaces of each set."""
    by_set = np.stack(drawn, axis=1)
    return Baseline.of("chance", name, by_set.mean(axis=0), low=by_set.min(axis=0), high=by_set.max(axis=0))


def _estimate(
    sums: Sequence[Float64[np.ndarray, "unit metric"]],
    scores: Scores,
    context: JointContext,
    baselines: Sequence[Baseline] = (),
) -> Estimate:
    """Return means over sequences with their intervals for every set."""
    counts, n = scores.counts[:, None].astype(float), int(scores.counts.sum())
    found = [ratio_interval(own, counts, seed=context.seed) for own in sums]
    low, high, reason = (np.stack(parts) for parts in zip(*((own.lo, own.hi, own.code) for own in found), strict=True))
    return Estimate.of([own.sum(axis=0) / n for own in sums], (low, high), n=n, baselines=baselines, reason=reason)


def _order(scores: Scores, firsts: Sequence[int], context: JointContext) -> Estimate:
    """Return |ρ| along the axes with each set's edits; baselines are random edits and the unedited model."""
    n_kept = scores.own_entropy.shape[1]
    even = np.full((1, n_kept), 1 / n_kept)
    drawn = [
        np.abs([_correlations(scores, first + FIRST_RANDOM + i, even)[0] for i in range(context.n_random)])
        for first in firsts
    ]
    unedited, low, high, _ = _bounded(scores, 0, context.seed)
    found = np.array([_bounded(scores, first, context.seed) for first in firsts])
    return Estimate.of(
        found[:, 0],
        (found[:, 1], found[:, 2]),
        n=n_kept,
        baselines=[_level(RANDOM, drawn), Baseline.of("baseline", UNEDITED, unedited, low=low, high=high)],
        reason=found[:, 3].astype(np.int64),
    )


def _bounded(scores: Scores, condition: int, seed: int) -> tuple[Float64[np.ndarray, "layer target"], ...]:
    """Return |ρ| with its interval and the numbers of reasons; it is withheld where that of ρ is."""
    rows = _correlations(scores, condition, jackknife_weights(scores.own_entropy.shape[1]))
    found = absolute_interval(statistic_interval(rows, seed=seed, scale="correlation"))
    return np.abs(rows[0]), found.lo, found.hi, found.code.astype(np.float64)


def _correlations(
    scores: Scores, condition: int, weights: Float[np.ndarray, "row kept"]
) -> Float64[np.ndarray, "row layer target"]:
    """Return ρ with the exact entropy, overall and within positions, and with the model's own, per row of weights."""
    exact, own = scores.exact_entropy.round(9), scores.own_entropy[condition].round(9)
    level = np.tile(np.arange(exact.shape[1]), (len(exact), 1))
    layers = []
    for along in scores.coordinates[condition]:
        if np.isnan(along).any():
            layers.append(np.full((len(weights), len(TARGETS)), np.nan))
            continue
        along = (along / max(np.abs(along).max(), 1e-30)).round(6)  # rounding errors must not change ranks
        x, y = (without_level_means(ranks(v.ravel())[:, None], level.ravel()).reshape(v.shape) for v in (along, exact))
        by_target = (
            resampled_spearman(along, exact, weights),
            resampled_correlation_at_position(x, y, weights),
            resampled_spearman(along, own, weights),
        )
        layers.append(np.stack(by_target, axis=1))
    return np.stack(layers, axis=1)
