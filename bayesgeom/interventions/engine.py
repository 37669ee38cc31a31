"""The engine: every pair of trials scored under every arm, streamed in tiles; what stays is a few sums per unit.

An arm is one edit of one layer: the subspace, the ceiling (the whole activation), or a random subspace of the same
rank. A unit is a run of consecutive pairs; units are independent, so that resampling them is resampling pairs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from bayesgeom.ablations.engine import Means, tiles, variants_at_once
from bayesgeom.activations import ModelSpec
from bayesgeom.behaviour import answer_log_probabilities
from bayesgeom.edits import Edit
from bayesgeom.errors import NonFinite
from bayesgeom.information import entropy_bits, kl_bits
from bayesgeom.models.replayer import Baseline, Replayer
from bayesgeom.sites import Site
from bayesgeom.trials import Trials

KL, KL_DONOR, ENTROPY_ERROR = range(3)  # metrics, in bits
N_METRICS = 3
MAX_UNITS = 2_048
Pair = tuple[Trials, Trials | None]
Arms = Mapping[int, Sequence[Edit]]


@final
@dataclass(frozen=True)
class PairReference:
    """Replacements for one tile of pairs: the task's means, and the donors' own activations."""

    means: Means
    donors: Baseline | None

    def mean(self, site: Site, layer: int) -> Float[Tensor, "pos *rest"]:
        """The task's mean at each position."""
        return self.means[site, layer]

    def donor(self, site: Site, layer: int) -> Float[Tensor, "batch pos *rest"]:
        """The donor's unedited activation."""
        assert self.donors is not None, "only swaps ask for donors, and swaps have them"
        return self.donors.held[site, layer]


@final
@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over the pairs of a unit, averaged over the positions of a band."""

    counts: Int[np.ndarray, " unit"]
    baseline: Float[np.ndarray, "unit metric band"]
    arms: Float[np.ndarray, "unit layer arm metric band"]


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run on every tile: the same number of arms in each layer."""

    replayer: Replayer
    spec: ModelSpec
    means: Means
    arms: Arms
    bands: Float64[np.ndarray, "position band"]


def bands_of(n_scored: int) -> tuple[tuple[str, ...], Float64[np.ndarray, "position band"]]:
    """All scored positions and their thirds, where there are three: names, and weights that average over each."""
    thirds = np.array_split(np.arange(n_scored), 3) if n_scored >= 3 else []
    members = [np.arange(n_scored), *thirds]
    weights = np.zeros((n_scored, len(members)))
    for band, positions in enumerate(members):
        weights[positions, band] = 1 / len(positions)
    return ("all", "first third", "middle third", "last third")[: len(members)], weights


def score_pairs(pairs: Iterator[Pair], plan: Plan, n: int) -> Totals:
    """Score every arm on `n` pairs that come in blocks."""
    per_unit = -(-n // MAX_UNITS)
    units, n_bands = -(-n // per_unit), plan.bands.shape[1]
    n_arms = len(next(iter(plan.arms.values())))
    counts = np.zeros(units, dtype=np.int64)
    baseline = np.zeros((units, N_METRICS, n_bands))
    arms = np.zeros((units, len(plan.arms), n_arms, N_METRICS, n_bands))
    done = 0
    for tile in _tiled(pairs, plan.spec):
        of_baseline, of_arms = _score_tile(tile, plan)
        unit = np.arange(done, done + len(of_baseline)) // per_unit
        np.add.at(counts, unit, 1)
        np.add.at(baseline, unit, of_baseline)
        np.add.at(arms, unit, of_arms)
        done += len(of_baseline)
    return Totals(counts=counts, baseline=baseline, arms=arms)


def _tiled(pairs: Iterator[Pair], spec: ModelSpec) -> Iterator[Pair]:
    for originals, donors in pairs:  # blocks of one size are cut alike
        yield from zip(tiles(originals, spec), repeat(None) if donors is None else tiles(donors, spec))  # noqa: B905


def _score_tile(
    pair: Pair, plan: Plan
) -> tuple[Float[np.ndarray, "sequence metric band"], Float[np.ndarray, "sequence layer arm metric band"]]:
    originals, donors = pair
    baseline = plan.replayer.baseline(originals)
    reference = PairReference(plan.means, None if donors is None else plan.replayer.baseline(donors))
    together = variants_at_once(originals, baseline.logits)
    by_layer = []
    for edits in plan.arms.values():
        scores = []
        for start in range(0, len(edits), together):
            chosen = edits[start : start + together]
            logits = plan.replayer.logits(baseline, [(edit,) for edit in chosen], reference)
            scores += [scored(own, pair, edit.label) @ plan.bands for own, edit in zip(logits, chosen, strict=True)]
        by_layer.append(np.stack(scores, axis=1))
    return scored(baseline.logits, pair, "no edit") @ plan.bands, np.stack(by_layer, axis=1)


def scored(
    logits: Float[Tensor, "batch query_pos d_vocab"], pair: Pair, what: str
) -> Float[np.ndarray, "sequence metric position"]:
    """KL to the original's exact posterior, KL to the donor's (NaN without one), and entropy error."""
    if not bool(logits.isfinite().all()):
        raise NonFinite(f"the logits are NaN or infinite under: {what}.")
    originals, donors = pair
    log_answers, _ = answer_log_probabilities(logits, originals)
    exact = originals.at_scored(originals.predictive)
    kl = kl_bits(exact, log_answers)
    to_donor = torch.full_like(kl, torch.nan)
    if donors is not None:
        to_donor = kl_bits(donors.at_scored(donors.predictive), log_answers)
    error = (entropy_bits(log_answers.exp()) - entropy_bits(exact)).abs()
    return torch.stack([kl, to_donor, error], dim=1).cpu().numpy()


def pooled_by_role(mean: Float[Tensor, "pos *rest"], is_scored: Bool[Tensor, " pos"]) -> Float[Tensor, "pos *rest"]:
    """At scored positions the mean over scored positions, at the others the mean over those."""
    pooled = torch.empty_like(mean)
    for role in (is_scored, ~is_scored):
        if bool(role.any()):
            pooled[role] = mean[role].mean(dim=0)
    return pooled
