"""Belief factors: on a product of two tasks, do the activations hold the joint belief, or each factor's side by side?

References:
    Shai et al. 2026, arXiv:2602.02385 (joint and factored representations of independent parts).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, cast, final

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.core import RESID_POST, STATE, Run, Verdict
from bayesgeom.measurements._beliefs import (
    IDENTIFIED,
    LOG_ANSWERS,
    N_SUBSPACES,
    Clouds,
    clipped_logs,
    clouds_of,
    site_panels,
)
from bayesgeom.measurements.base import Control, Needs, Probe, known, planted_run, planted_trials, with_untrained
from bayesgeom.report.estimate import Baseline, Estimate, NonNegative, Quantity, Share, of_draws, with_interval
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.bootstrap import jackknife_weights, statistic_interval
from bayesgeom.stats.intervals import Scale
from bayesgeom.stats.regression import ridge
from bayesgeom.stats.subspace import random_subspaces

JOINT, FACTORED = "random maps of the joint belief", "the factors' beliefs side by side"
RANDOM_PAIRS = "two random subspaces"
_AXES_SHARE, _LEAST_SHARE, _STRENGTH = 0.95, 0.01, 1e-6  # of `belief_dimension`, of `factor_angle`, of the penalty
_LARGEST = {"factored_share": 1.0, "belief_dimension": math.inf, "factor_angle": 90.0}  # value of each number


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class BeliefFactorsReport(Report):
    """On a product of two tasks, the vectors may follow the joint belief or the belief of each factor.

    Of the variance of the vectors that the joint belief explains linearly, the share is what the factors' beliefs
    explain: 1 if they are held side by side. Log probabilities of the next token are sums over the factors, so what an
    accurate network unembeds is side by side. Where they alone give a share of 0.99, the numbers are not identified.

    Fields: geometry of the joint belief, within positions, by site and layer.

    `sites` are `resid_post`, and `state` for recurrent models. `factored_share` is that share. `belief_dimension` is
    the number of principal axes, interpolated, for 95 % of the variance that the joint belief explains. `factor_angle`
    is the smallest principal angle, in degrees, between the axes that each factor's belief explains (those with at
    least 1 % of its part). The level of the exact log probabilities is a baseline of all three.
    """

    name: ClassVar[str] = "belief_factors"
    title: ClassVar[str] = "Belief factors: is a product held as its factors?"
    limit: ClassVar[str] = "at most 3,072 scored positions"

    factored_share: Annotated[Estimate, Share("site layer", better="higher", label="explained by the factors")]
    belief_dimension: Annotated[Estimate, NonNegative("site layer", better="lower", label="dimension of the belief")]
    factor_angle: Annotated[
        Estimate,
        Quantity("site layer", unit="degrees", better="higher", label="angle between the factors", range=(0.0, 90.0)),
    ]
    sites: tuple[str, ...]
    n: int

    @property
    def identified(self) -> bool:
        """Whether the exact log probabilities of the next token leave the share open."""
        return not float(self.factored_share.baseline(LOG_ANSWERS).value[0, -1]) >= IDENTIFIED

    def headlines(self) -> Sequence[Headline]:
        verdict = None if self.identified else str(Verdict.NOT_IDENTIFIED)
        shown = (
            ("factored_share", "share explained by the factors"),
            ("belief_dimension", "dimension of the belief"),
            ("factor_angle", "angle between the factors"),
        )
        return [headline_of(self, metric, (0, -1), f"{label}, last layer", verdict=verdict) for metric, label in shown]

    def panels(self) -> Sequence[Panel]:
        layers, axes = [*map(str, range(self.factored_share.value.shape[1]))], ("layer", "share of the joint belief's")
        shown = (
            (self.factored_share, "Explained by the factors' beliefs", axes, layers),
            (self.belief_dimension, "Dimension of the belief", ("layer", "axes for 95 %"), layers),
            (self.factor_angle, "Angle between the factors", ("layer", "degrees (90 is orthogonal)"), layers),
        )
        return site_panels(self.sites, shown)


@final
@dataclass(frozen=True)
class BeliefFactors(Probe[BeliefFactorsReport]):
    """Regress the vectors, within positions, on the factors' beliefs and on the joint belief, over all sequences."""

    name: ClassVar[str] = "belief_factors"
    follows: ClassVar[str] = "belief_readout"
    needs: ClassVar[Needs] = Needs(
        sites=(RESID_POST,), optional=(STATE,), partial=(STATE,), posterior=True, factors=True
    )
    relative_time: ClassVar[int] = 2

    def measure(self, run: Run, untrained: Sequence[BeliefFactorsReport] = ()) -> BeliefFactorsReport:
        clouds = clouds_of(run)
        report = BeliefFactorsReport(**_scores(clouds), sites=clouds.sites, n=len(clouds.trials))
        return with_untrained(report, untrained, *_LARGEST)

    def controls(self) -> Iterator[Control[BeliefFactorsReport]]:
        rng = np.random.default_rng(0)
        a, b = (rng.dirichlet(np.ones(k), size=(83, 5)) for k in (3, 2))
        joint = (a[..., None] * b[..., None, :]).reshape(83, 5, 6)
        one, other = np.eye(11)[:3], np.eye(11)[5:7]
        noise = rng.normal(size=(4, 83, 5, 11)) * np.array([1, 0.01, 0.01, 0.01])[:, None, None, None]
        side_by_side, shared = a @ one + b @ other, a @ one + b @ (one[:2] - one[1:])
        layers = np.stack([0 * shared, side_by_side, joint @ rng.normal(size=(6, 11)), shared]) + noise
        pairs = replace(planted_trials(joint, rng.integers(7, size=(83, 5))), factor_sizes=(3, 2))
        yield Control(
            label="noise, both factors' beliefs, the joint belief, and factors that share a direction",
            run=planted_run(pairs, {RESID_POST: torch.from_numpy(layers)}),
            holds=_tells_layers_apart,
        )
        place = 9 * rng.normal(size=(5, 11))  # much more variance than the beliefs have
        yield Control(
            label="both factors' beliefs next to a code for position",
            run=planted_run(pairs, {RESID_POST: torch.from_numpy(side_by_side + place + noise[1])[None]}),
            holds=lambda r: bool(
                r.factored_share.value[0, 0] > 0.99 and r.belief_dimension.value[0, 0] < 3 and not r.identified
            ),
        )


def _tells_layers_apart(report: BeliefFactorsReport) -> bool:
    _, factored, joint, shared = range(4)
    share, axes, degrees = (report.estimate(name).value[0] for name in _LARGEST)
    random = report.factor_angle.baseline(RANDOM_PAIRS).value[0, factored]
    maps, logs = (report.factored_share.baseline(name).value[0, 0] for name in (JOINT, LOG_ANSWERS))
    return bool(
        min(share[[factored, shared]]) > 0.99 > 0.95 > share[joint]
        and maps < 0.9 < 0.99 < logs
        and report.belief_dimension.baseline(FACTORED).value[0, 0] < 3 < axes[joint]
        and max(axes[[factored, shared]]) < 3 < report.belief_dimension.baseline(JOINT).value[0, 0]
        and degrees[factored] > 88 > 80 > random > 20 > degrees[shared]
    )


@final
@dataclass(frozen=True, kw_only=True)
class _Factored:
    """What a cloud has of the factors, for each row of weights, and the dimension of either factor's subspace."""

    scores: dict[str, Float64[np.ndarray, " replicate"]]
    ranks: tuple[int, int]


def _scores(clouds: Clouds) -> dict[str, Any]:
    """Return the three numbers by site and layer, with their levels."""
    trials, seed = clouds.trials, clouds.seed
    joint, weights = trials.at_scored(trials.belief).cpu(), torch.from_numpy(jackknife_weights(len(trials)))
    sizes = trials.factor_sizes
    both = joint.unflatten(2, sizes)
    beliefs = torch.cat([both.sum(dim=3), both.sum(dim=2), joint], dim=2)
    in_sequences = (points.cpu().double().unflatten(1, joint.shape[:2]) for points in clouds.points)
    factored = [[_factored_in(layer, beliefs, sizes, weights) for layer in points] for points in in_sequences]
    levels = _levels(clouds, factored, beliefs)
    estimates = {}
    for name, largest in _LARGEST.items():
        rows = np.moveaxis(np.array([[layer.scores[name] for layer in layers] for layers in factored]), 2, 0)
        # At an edge, fitted noise moves the number by more than its uncertainty: the interval is of its expectation.
        scale: Scale = "share" if math.isfinite(largest) else "plain"
        unit = largest if scale == "share" else 1.0
        interval = statistic_interval(rows / unit, seed=seed, scale=scale, is_corrected=False)
        interval = replace(interval, lo=unit * interval.lo, hi=unit * interval.hi)
        estimates[name] = with_interval(rows[0], interval, n=len(trials), baselines=known(*levels[name]))
    return estimates


def _levels(
    clouds: Clouds,
    factored: Sequence[Sequence[_Factored]],
    beliefs: Float64[Tensor, "sequence position belief"],
) -> dict[str, list[Baseline]]:
    """Return the levels: random maps of the joint belief, random subspaces, and what unembeds.

    The log probabilities of a product are sums over its factors, and linear in what an accurate network unembeds.
    """
    trials, seed = clouds.trials, clouds.seed
    joint, sizes = trials.at_scored(trials.belief).cpu(), trials.factor_sizes
    logs = clipped_logs(trials.at_scored(trials.predictive).cpu())
    rng, even = np.random.default_rng(seed), torch.full((1, len(joint)), 1 / len(joint), dtype=torch.float64)
    mapped, degrees = [], []
    for points, layers in zip(clouds.points, factored, strict=True):
        maps = torch.from_numpy(rng.normal(size=(N_SUBSPACES, joint.shape[2], points.shape[2])))
        mapped.append([_factored_in(joint @ weights, beliefs, sizes, even).scores for weights in maps])
        degrees.append([_random_degrees(points.shape[2], layer.ranks, seed) for layer in layers])
    levels = {}
    for name in ("factored_share", "belief_dimension"):
        drawn = np.array([[scores[name] for scores in draws] for draws in mapped])  # site, draw, and one set of weights
        levels[name] = [of_draws("chance", JOINT, np.moveaxis(drawn, 1, 0))]
    side_by_side = _factored_in(beliefs[..., : sum(sizes)], beliefs, sizes, even).scores["belief_dimension"]
    levels["belief_dimension"].append(Baseline.of("ceiling", FACTORED, side_by_side[0]))
    levels["factor_angle"] = [of_draws("chance", RANDOM_PAIRS, np.moveaxis(np.array(degrees), 2, 0))]
    for name, level in _factored_in(logs, beliefs, sizes, even).scores.items():
        levels[name].append(Baseline.of("baseline", LOG_ANSWERS, level[0]))
    return levels


def _factored_in(
    points: Float64[Tensor, "sequence position d"],
    beliefs: Float64[Tensor, "sequence position belief"],
    sizes: Sequence[int],
    weights: Float64[Tensor, "replicate sequence"],
) -> _Factored:
    """Regress the points on the factors' beliefs and on the joint belief, which follows them, within positions."""
    x, y = (values - values.mean(dim=0) for values in (points, beliefs))
    gram = torch.tensordot(weights, torch.einsum("spi,spj->sij", y, y), dims=1)
    cross = torch.tensordot(weights, torch.einsum("spi,spd->sid", y, x), dims=1)
    n_main = sum(sizes)
    both, whole = slice(0, n_main), slice(n_main, None)
    main, joint = (ridge(gram[:, part, part], cross[:, part], strength=_STRENGTH) for part in (both, whole))
    # Of a least-squares fit, Σ‖x̂‖² = tr(Wᵀ Yᵀ X).
    share = (main * cross[:, :n_main]).sum(dim=(1, 2)) / (joint * cross[:, n_main:]).sum(dim=(1, 2))
    variances = torch.linalg.svdvals(_scaled(gram[:, n_main:, n_main:], joint)).square()
    shares = variances / variances.sum(dim=1, keepdim=True)
    missing = _AXES_SHARE - (shares.cumsum(dim=1) - shares)  # before each axis
    dimension = torch.where(shares > 0, missing / shares, 0.0).clamp(0, 1).sum(dim=1)
    factors = (slice(0, sizes[0]), slice(sizes[0], n_main))
    a, b = (_axes(_scaled(gram[:, part, part], main[:, part])) for part in factors)
    ranks = a.shape[1], b.shape[1]
    cosine = torch.linalg.svdvals(a @ b.mT).amax(dim=1) if all(ranks) else torch.full_like(share, torch.nan)
    scores = {
        "factored_share": share.clamp(0, 1),
        "belief_dimension": torch.where(share.isfinite(), dimension, torch.nan),
        "factor_angle": cosine.clamp_max(1).acos().rad2deg(),
    }
    return _Factored(scores={name: score.numpy() for name, score in scores.items()}, ranks=ranks)


def _scaled(
    gram: Float64[Tensor, "replicate p p"], maps: Float64[Tensor, "replicate p d"]
) -> Float64[Tensor, "replicate p d"]:
    """Return rows with the second moments of the predictions of the map W: G^½ W."""
    sizes, axes = torch.linalg.eigh(gram)
    return cast(Tensor, (axes * sizes.clamp_min(0).sqrt()[:, None]).mT @ maps)


def _axes(rows: Float64[Tensor, "replicate p d"]) -> Float64[Tensor, "replicate axis d"]:
    """Return the axes with at least 1 % of the rows' variance, as many in each replicate as in the first one."""
    _, sizes, axes = torch.linalg.svd(rows, full_matrices=False)
    rank = int((sizes[0].square() > _LEAST_SHARE * sizes[0].square().sum()).sum())
    return cast(Tensor, axes[:, :rank])


def _random_degrees(d: int, ranks: tuple[int, int], seed: int) -> Float64[np.ndarray, " draw"]:
    """Return the smallest principal angle, in degrees, between random subspaces of these dimensions."""
    if not all(ranks):
        return np.full(N_SUBSPACES, np.nan)
    a, b = (random_subspaces(d, rank, draws=N_SUBSPACES, seed=seed + at) for at, rank in enumerate(ranks))
    cosines = torch.linalg.svdvals(a.mT @ b)[:, 0].clamp_max(1)
    return np.asarray(cosines.acos().rad2deg().numpy())
