"""The engine: score every pair of sequences under every condition, batch by batch, and store sums per unit.

A condition is one edit of one layer: the subspace, the ceiling (the whole activation), or a control subspace.
It may be scored a second time without its direct path: the change that the edit made to the residual stream is
subtracted before the final norm, so only the effect through later blocks remains. A unit is a run of consecutive
pairs; units are independent, so resampling units is equivalent to resampling pairs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from bayesgeom.ablations.engine import Means, batches, variants_at_once
from bayesgeom.core.edits import AtPositions, Edit, Subtract
from bayesgeom.core.errors import NonFinite
from bayesgeom.core.run import RESID_POST, ModelSpec, Site, Trials
from bayesgeom.models.base import BaselinePass, Replayer, Variant
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import entropy_bits, kl_bits
from bayesgeom.subspaces.positions import Positions
from bayesgeom.subspaces.quantity import Quantity

KL, KL_DONOR, ENTROPY_ERROR, MOVED, DISTANCE = range(5)  # the first three in bits
N_METRICS = 5
MAX_UNITS = 2_048
Pair = tuple[Trials, Trials | None]
Conditions = Mapping[int, Sequence[Edit]]


@final
@dataclass(frozen=True)
class PairReference:
    """Replacement activations for one batch of pairs: the task's means, and the donors' activations."""

    means: Means
    donors: BaselinePass | None

    def mean(self, site: Site, layer: int) -> Float[Tensor, "pos *rest"]:
        """Return the task's mean at each position."""
        return self.means[site, layer]

    def donor(self, site: Site, layer: int) -> Float[Tensor, "batch pos *rest"]:
        """Return the donor's unedited activation."""
        assert self.donors is not None, "only swaps need donors, and swaps have them"
        return self.donors.stored[site, layer]


@final
@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over the pairs of a unit, averaged over the positions of a band."""

    counts: Int[np.ndarray, " unit"]
    baseline: Float[np.ndarray, "unit metric band"]
    conditions: Float[np.ndarray, "unit layer condition metric band"]


@final
@dataclass(frozen=True, kw_only=True)
class Movement:
    """Movement of the model's own value y of a quantity toward the donor's value or that under one condition.

    MOVED sums (y − y_own) · w and DISTANCE sums w · w. For the donor, w is the residual of y_donor after regression on
    y_own within the batch, both centered at `center`: MOVED / DISTANCE is the slope of y on y_donor at a given y_own,
    1 for a complete transfer and 0 for an edit that ignores the donor. (With w = y_donor − y_own, mean ablation would
    score 1/2.) For a condition, w = y_condition − y_own: the ratio is the share of the distance covered.

    Args:
        center: the model's own mean value at each scored position.
    """

    quantity: Quantity
    are_hypotheses: bool
    center: Float64[Tensor, "query_pos part"]
    toward_condition: int | None = None

    def value(self, log_answers: Float64[Tensor, "batch query_pos answer"]) -> Float64[Tensor, "batch query_pos part"]:
        """Return the model's own value."""
        return self.quantity.own(log_answers, are_hypotheses=self.are_hypotheses)


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """The conditions to run on every batch: the same number of conditions in each layer.

    Conditions in `without_direct` are scored a second time without their direct path, after all others.
    """

    replayer: Replayer
    spec: ModelSpec
    means: Means
    conditions: Conditions
    bands: Float64[np.ndarray, "position band"]
    positions: Positions | None = None
    movement: Movement | None = None
    without_direct: tuple[int, ...] = ()


def bands_of(n_scored: int) -> tuple[tuple[str, ...], Float64[np.ndarray, "position band"]]:
    """Return names and averaging weights of the bands: all scored positions, and thirds if there are three."""
    everywhere = Positions(are_scored=False)
    return everywhere.bands(n_scored), everywhere.weights(n_scored, 0)


def score_pairs(pairs: Iterator[Pair], plan: Plan, n: int) -> Totals:
    """Score every condition on `n` pairs, which are drawn in blocks."""
    per_unit = -(-n // MAX_UNITS)
    units, n_bands = -(-n // per_unit), _weights(plan, 0).shape[1]
    n_conditions = len(next(iter(plan.conditions.values()))) + len(plan.without_direct)
    counts = np.zeros(units, dtype=np.int64)
    baseline = np.zeros((units, N_METRICS, n_bands))
    conditions = np.zeros((units, len(plan.conditions), n_conditions, N_METRICS, n_bands))
    done = 0
    for number, batch in enumerate(_batched(pairs, plan.spec)):
        of_baseline, of_conditions = _score_batch(batch, plan, number)
        unit = np.arange(done, done + len(of_baseline)) // per_unit
        np.add.at(counts, unit, 1)
        np.add.at(baseline, unit, of_baseline)
        np.add.at(conditions, unit, of_conditions)
        done += len(of_baseline)
    return Totals(counts=counts, baseline=baseline, conditions=conditions)


def _batched(pairs: Iterator[Pair], spec: ModelSpec) -> Iterator[Pair]:
    for originals, donors in pairs:  # blocks of the same size give the same batches
        own = list(batches(originals, spec))
        yield from zip(own, [None] * len(own) if donors is None else batches(donors, spec), strict=True)


def _score_batch(
    pair: Pair, plan: Plan, number: int
) -> tuple[Float[np.ndarray, "sequence metric band"], Float[np.ndarray, "sequence layer condition metric band"]]:
    originals, donors = pair
    baseline = plan.replayer.baseline(originals)
    reference = PairReference(plan.means, None if donors is None else plan.replayer.baseline(donors))
    together = variants_at_once(originals, baseline.logits)
    weights = _weights(plan, number)
    scorer = _Scorer.of(pair, plan, baseline, reference)
    by_layer = []
    for layer, edits in plan.conditions.items():
        variants = _variants(edits, plan, (baseline, reference), number)

        def logits_of(chosen: Sequence[Variant]) -> Float[Tensor, "variant batch query_pos d_vocab"]:
            return plan.replayer.logits(baseline, chosen, reference)

        way = scorer.way
        if plan.movement is not None and plan.movement.toward_condition is not None and scorer.own is not None:
            (toward,) = logits_of([variants[plan.movement.toward_condition]])
            way = plan.movement.value(answer_log_probabilities(toward, originals)[0]) - scorer.own
        scores = []
        for start in range(0, len(variants), together):
            chosen = variants[start : start + together]
            scores += [
                scorer.scores(own, way, variant[0].label) @ weights
                for own, variant in zip(logits_of(chosen), chosen, strict=True)
            ]
        assert len(scores) == len(variants), f"every condition of layer {layer} is scored once"
        by_layer.append(np.stack(scores, axis=1))
    return scorer.scores(baseline.logits, scorer.way, "no edit") @ weights, np.stack(by_layer, axis=1)


def _weights(plan: Plan, number: int) -> Float64[np.ndarray, "position band"]:
    """Return the weights that average over positions in this batch."""
    return plan.bands if plan.positions is None else plan.positions.weights(len(plan.bands), number)


def _variants(
    edits: Sequence[Edit], plan: Plan, passes: tuple[BaselinePass, PairReference], number: int
) -> list[tuple[Edit, ...]]:
    """Return the conditions of one layer in this batch, then those without their direct path."""
    baseline, reference = passes
    mask = None if plan.positions is None else plan.positions.mask(baseline.trials, number)
    limited = [edit if mask is None else AtPositions.of(edit, mask, baseline.rows) for edit in edits]
    return [(edit,) for edit in limited] + [
        (limited[index], _direct_path(limited[index], plan.spec.n_layers - 1, baseline, reference))
        for index in plan.without_direct
    ]


def _direct_path(edit: Edit, last: int, baseline: BaselinePass, reference: PairReference) -> Subtract:
    """Return the edit that subtracts, before the final norm, what `edit` added to the residual stream."""
    own = baseline.stored[edit.site, edit.layer]
    added = edit.applied(own, reference) - own
    return Subtract(site=RESID_POST, layer=last, amount=added, rows=baseline.rows)


@final
@dataclass(frozen=True, kw_only=True)
class _Scorer:
    """Metrics of one batch; `own` is the model's value without an edit, `way` the w of `Movement`."""

    pair: Pair
    movement: Movement | None
    has_donor_answer: bool
    own: Float64[Tensor, "batch query_pos part"] | None
    way: Float64[Tensor, "batch query_pos part"] | None

    @classmethod
    def of(cls, pair: Pair, plan: Plan, baseline: BaselinePass, reference: PairReference) -> "_Scorer":
        """Return the scorer of a batch after its passes."""
        originals, donors = pair
        own = way = None
        if plan.movement is not None:
            own = plan.movement.value(answer_log_probabilities(baseline.logits, originals)[0])
            if donors is not None and reference.donors is not None:
                donor = plan.movement.value(answer_log_probabilities(reference.donors.logits, donors)[0])
                way = _unpredicted(donor - plan.movement.center, own - plan.movement.center)
        # Scored after the edit, the donor's own tokens have not been seen: its posterior is no prediction there.
        is_after = plan.positions is not None and plan.positions.score_after
        return cls(pair=pair, movement=plan.movement, has_donor_answer=not is_after, own=own, way=way)

    def scores(
        self,
        logits: Float[Tensor, "batch query_pos d_vocab"],
        way: Float64[Tensor, "batch query_pos part"] | None,
        what: str,
    ) -> Float[np.ndarray, "sequence metric position"]:
        """Return the metrics of `scored`, then MOVED and DISTANCE; NaN without a target of the movement."""
        originals, donors = self.pair
        log_answers = _log_answers(logits, originals, what)
        first = _bits(log_answers, originals, donors if self.has_donor_answer else None)
        moved = distance = torch.full_like(first[0], torch.nan)
        if self.movement is not None and self.own is not None and way is not None:
            moved = ((self.movement.value(log_answers) - self.own) * way).sum(dim=-1)
            distance = way.square().sum(dim=-1)
        return torch.stack([*first, moved, distance], dim=1).cpu().numpy()


def _unpredicted(
    donor: Float64[Tensor, "batch query_pos part"], own: Float64[Tensor, "batch query_pos part"]
) -> Float64[Tensor, "batch query_pos part"]:
    """Return the residual of the donors' values after a regression through zero on the recipients' values."""
    power = own.square().sum()
    return donor - own * ((donor * own).sum() / power) if bool(power > 0) else donor


def scored(
    logits: Float[Tensor, "batch query_pos d_vocab"], pair: Pair, what: str
) -> Float[np.ndarray, "sequence metric position"]:
    """Return KL to the original's exact posterior, KL to the donor's (NaN without one), and entropy error."""
    originals, donors = pair
    return torch.stack(_bits(_log_answers(logits, originals, what), originals, donors), dim=1).cpu().numpy()


def _log_answers(
    logits: Float[Tensor, "batch query_pos d_vocab"], originals: Trials, what: str
) -> Float64[Tensor, "batch query_pos answer"]:
    if not bool(logits.isfinite().all()):
        raise NonFinite(f"the logits are NaN or infinite under: {what}. Check the weights and the edit.")
    return answer_log_probabilities(logits, originals)[0]


def _bits(
    log_answers: Float64[Tensor, "batch query_pos answer"], originals: Trials, donors: Trials | None
) -> list[Float64[Tensor, "batch query_pos"]]:
    exact = originals.at_scored(originals.predictive)
    kl = kl_bits(exact, log_answers)
    to_donor = torch.full_like(kl, torch.nan)
    if donors is not None:
        to_donor = kl_bits(donors.at_scored(donors.predictive), log_answers)
    return [kl, to_donor, (entropy_bits(log_answers.exp()) - entropy_bits(exact)).abs()]


def pooled_by_role(mean: Float[Tensor, "pos *rest"], is_scored: Bool[Tensor, " pos"]) -> Float[Tensor, "pos *rest"]:
    """Return the mean over scored positions at scored positions, and the mean over the others at the others."""
    pooled = torch.empty_like(mean)
    for role in (is_scored, ~is_scored):
        if bool(role.any()):
            pooled[role] = mean[role].mean(dim=0)
    return pooled
