"""From scores under every arm to the joint report: paired intervals over sequences, floors, correlations, verdicts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float, Float64

from bayesgeom.interventions.joint import Scores
from bayesgeom.interventions.joint_report import METRICS, TARGETS, JointInterventionReport, verdict_of
from bayesgeom.stats.bootstrap import bootstrap_weights, percentile_interval, ratio_interval
from bayesgeom.stats.correlation import ranks
from bayesgeom.stats.regression import without_level_means
from bayesgeom.stats.resampling import resampled_correlation_at_position, resampled_spearman

DRAWS = 200
OWN, CEILING, FIRST_RANDOM = range(3)  # arms of a set; arm 0 of all is the model as it is


@final
@dataclass(frozen=True, kw_only=True)
class JointContext:
    """What the report needs beside the scores."""

    kind: str
    site: str
    label: str
    rank: int
    sets: Sequence[Sequence[int]]
    n_random: int
    seed: int


def joint_report(scores: Scores, context: JointContext) -> JointInterventionReport:
    """The report; arms come as the model itself, then of each set: own, ceiling, random ones, orthogonal ones."""
    per_set = FIRST_RANDOM + 2 * context.n_random
    n_kept = scores.own_entropy.shape[1]
    effects = [_effects(scores, 1 + i * per_set, context) for i in range(len(context.sets))]
    found: dict[str, Any] = {name: np.stack([effect[name] for effect in effects]) for name in effects[0]}
    lo, hi = ratio_interval(scores.bits[0], scores.counts[:, None].astype(float), seed=context.seed)
    orders = [_orders(scores, 1 + i * per_set, context) for i in range(len(context.sets))]
    found |= {f"axis_correlation{end}": np.stack([order[end] for order in orders]) for end in orders[0]}
    baseline, baseline_lo, baseline_hi = _bounded(scores, 0, context.seed)
    verdicts = [
        verdict_of(effect["increase_bits"][0], effect["beyond_random_bits_lo"][0], effect["increase_bits_most"][0])
        for effect in effects
    ]
    return JointInterventionReport(
        **found, kind=context.kind, site=context.site, subspace=context.label, rank=context.rank,
        sets=tuple("+".join(map(str, layers)) for layers in context.sets), metrics=METRICS, targets=TARGETS,
        baseline_bits=scores.bits[0].sum(axis=0) / scores.counts.sum(), baseline_bits_lo=lo, baseline_bits_hi=hi,
        axis_correlation_baseline=baseline, axis_correlation_baseline_lo=baseline_lo,
        axis_correlation_baseline_hi=baseline_hi, verdicts=tuple(verdicts), n_random=context.n_random, n_kept=n_kept,
        intervals={}, nulls={}, n=int(scores.counts.sum()),
    )  # fmt: skip


def _effects(scores: Scores, first: int, context: JointContext) -> dict[str, Float64[np.ndarray, " metric"]]:
    """Increases over the model as it is on the same sequences, of one set of layers."""
    counts, n = scores.counts[:, None].astype(float), scores.counts.sum()
    paired = scores.bits[first : first + FIRST_RANDOM + 2 * context.n_random] - scores.bits[0]
    random, orthogonal = np.split(paired[FIRST_RANDOM:], 2)
    beyond = paired[OWN] - random.mean(axis=0)
    found = {"increase_bits": paired[OWN].sum(axis=0) / n, "beyond_random_bits": beyond.sum(axis=0) / n}
    for name, sums in (("increase_bits", paired[OWN]), ("beyond_random_bits", beyond)):
        found[f"{name}_lo"], found[f"{name}_hi"] = ratio_interval(sums, counts, seed=context.seed)
    found["increase_bits_ceiling"] = paired[CEILING].sum(axis=0) / n
    for (mean, least, most), family in (
        (("_null", "_least", "_most"), random), (("_orthogonal", "_orthogonal_least", "_orthogonal_most"), orthogonal)
    ):  # fmt: skip
        drawn = family.sum(axis=1) / n
        found[f"increase_bits{mean}"] = drawn.mean(axis=0)
        found[f"increase_bits{least}"], found[f"increase_bits{most}"] = drawn.min(axis=0), drawn.max(axis=0)
    return found


def _orders(scores: Scores, first: int, context: JointContext) -> dict[str, Float64[np.ndarray, "layer target"]]:
    """|ρ| along the axes under one set's own edits with intervals, and under its random ones."""
    value, lo, hi = _bounded(scores, first, context.seed)
    even = np.full((1, scores.own_entropy.shape[1]), 1 / scores.own_entropy.shape[1])
    arms = range(first + FIRST_RANDOM, first + FIRST_RANDOM + context.n_random)
    drawn = np.stack([_correlations(scores, arm, even)[0] for arm in arms])
    ends = {"_null": drawn.mean(axis=0), "_least": drawn.min(axis=0), "_most": drawn.max(axis=0)}
    return {"": value, "_lo": lo, "_hi": hi, **ends}


def _bounded(scores: Scores, arm: int, seed: int) -> tuple[Float64[np.ndarray, "layer target"], ...]:
    n = scores.own_entropy.shape[1]
    weights = np.concatenate([np.full((1, n), 1 / n), bootstrap_weights(n, seed=seed, draws=DRAWS)])
    drawn = _correlations(scores, arm, weights)
    return drawn[0], *percentile_interval(drawn[1:])


def _correlations(
    scores: Scores, arm: int, weights: Float[np.ndarray, "draw kept"]
) -> Float64[np.ndarray, "draw layer target"]:
    """|ρ| with the exact entropy, with it within positions, and with the model's own, in each resample."""
    exact, own = scores.exact_entropy.round(9), scores.own_entropy[arm].round(9)
    level = np.tile(np.arange(exact.shape[1]), (len(exact), 1))
    layers = []
    for along in scores.coordinates[arm]:
        if np.isnan(along).any():
            layers.append(np.full((len(weights), len(TARGETS)), np.nan))
            continue
        along = (along / max(np.abs(along).max(), 1e-30)).round(6)  # what differs by rounding is equal in rank
        x, y = (without_level_means(ranks(v.ravel())[:, None], level.ravel()).reshape(v.shape) for v in (along, exact))
        by_target = (
            resampled_spearman(along, exact, weights), resampled_correlation_at_position(x, y, weights),
            resampled_spearman(along, own, weights),
        )  # fmt: skip
        layers.append(np.abs(np.stack(by_target, axis=1)))
    return np.stack(layers, axis=1)
