"""The one path of edited passes: score sequences, or pairs, under conditions, and store sums per unit.

A condition is a tuple of edits that act in the same pass, in one layer or in several. Single, joint and onward
interventions differ only in their conditions, which may depend on the batch: a position to edit that changes from
batch to batch, or the change of the residual stream that an edit made, subtracted again before the final norm so that
only the effect through later blocks remains. A unit is a run of consecutive sequences; units are independent, so
resampling units is equivalent to resampling sequences.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from bayesgeom.ablations.engine import Means, batches, edited_logits, position_means
from bayesgeom.core import RESID_POST, Edit, ModelSpec, NonFinite, Site, Subtract, Trials, phase
from bayesgeom.core.torch_state import SiteLayer
from bayesgeom.interventions.design import Positions
from bayesgeom.models.base import BaselinePass, Replayer, Variant
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import entropy_bits, kl_bits
from bayesgeom.subspaces.quantity import OwnValue
from bayesgeom.tasks.base import WindTunnel, at_most

MAX_UNITS = 2_048
N_MEAN = 256  # sequences for the mean activation
Pair = tuple[Trials, Trials | None]


class Score(IntEnum):
    """The scores of a sequence under one condition, in the order of the axis `score` of `Totals`."""

    KL = 0
    """KL(exact ‖ model), in bits."""
    DONOR_KL = 1
    """KL(donor's exact ‖ model), in bits."""
    ENTROPY_ERROR = 2
    """|entropy of the model − exact entropy|, in bits."""
    MOVED = 3
    """What the edit moved the model's own value of the quantity: see `Movement`."""
    DISTANCE = 4
    """How far it could be moved."""


@final
@dataclass(frozen=True)
class PairReference:
    """Replacement activations for one batch of pairs: the task's means, and the donors' activations."""

    means: Means
    donors: BaselinePass | None
    ends: Int64[Tensor, " batch"] | None = None  # of sequences of unequal length: their donors are aligned at the ends

    def mean(self, site: Site, layer: int) -> Float[Tensor, "pos *rest"]:
        """Return the task's mean at each position."""
        return self.means[site, layer]

    def donor(self, site: Site, layer: int) -> Float[Tensor, "batch pos *rest"]:
        """Return the donor's unedited activation."""
        assert self.donors is not None, "only swaps need donors, and swaps have them"
        stored = self.donors.stored[site, layer]
        if self.ends is None:
            return stored
        away = (self.donors.trials.ends() - self.ends)[:, None]
        at = (torch.arange(stored.shape[1], device=away.device) + away).clamp(0, stored.shape[1] - 1)
        return stored[torch.arange(len(stored), device=at.device)[:, None], at]


@final
@dataclass(frozen=True, kw_only=True)
class PairPass:
    """One batch of sequences, with donors or without, after its unedited passes; batches are numbered from 0."""

    number: int
    pair: Pair
    baseline: BaselinePass
    reference: PairReference

    def without_direct_path(self, edit: Edit, spec: ModelSpec) -> Variant:
        """Return the edit, and one that subtracts what it added to the residual stream before the final norm."""
        unedited = self.baseline.stored[edit.site, edit.layer]
        added = edit.applied(unedited, self.reference) - unedited
        return edit, Subtract(site=RESID_POST, layer=spec.n_layers - 1, amount=added)


@final
@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over the sequences of a unit, averaged over the positions of a band."""

    counts: Int[np.ndarray, " unit"]
    baseline: Float[np.ndarray, "unit score band"]
    conditions: Float[np.ndarray, "unit *condition score band"]

    def by_layer(self, n_layers: int) -> "Totals":
        """Return the totals with an axis of layers before the conditions, of which each layer has the same number."""
        shape = (len(self.counts), n_layers, -1, *self.conditions.shape[2:])
        return Totals(counts=self.counts, baseline=self.baseline, conditions=self.conditions.reshape(shape))


@final
@dataclass(frozen=True, kw_only=True)
class Movement:
    """Movement of the model's own value y of a quantity toward the donor's value or that under one condition.

    MOVED sums (y − y_own) · w and DISTANCE sums w · w. For the donor, w is the residual of y_donor after regression on
    y_own within the batch, both centered at `center`: MOVED / DISTANCE is the slope of y on y_donor at a given y_own,
    1 for a complete transfer and 0 for an edit that ignores the donor. (With w = y_donor − y_own, mean ablation would
    score 1/2.) For a condition, w = y_condition − y_own: the ratio is the share of the distance covered.

    Args:
        value: the model's own value, of its log answer probabilities.
        center: the model's own mean value at each scored position.
        toward: for each condition the index of the one toward which its movement is measured; None: the donor.
    """

    value: OwnValue
    center: Float64[Tensor, "query_pos part"]
    toward: Sequence[int] | None = None

    def way(
        self, donor: Float64[Tensor, "batch query_pos part"], recipient: Float64[Tensor, "batch query_pos part"]
    ) -> Float64[Tensor, "batch query_pos part"]:
        """Return the residual of the donors' values after a regression through zero on the recipients' values."""
        donor, recipient = donor - self.center, recipient - self.center
        power = recipient.square().sum()
        return donor - recipient * ((donor * recipient).sum() / power) if bool(power > 0) else donor


_EVERYWHERE = Positions(are_scored=False)
Watch = Callable[[int, Float64[Tensor, "batch query_pos answer"]], None]


@final
@dataclass(frozen=True, kw_only=True)
class EditPlan:
    """The conditions to run on every batch, always the same number, and what to measure.

    Args:
        conditions: the conditions of a batch after its unedited passes.
        positions: the bands of positions over which scores are averaged.
        watch: receives the log probabilities of the answers: 0 and those of the unedited model, then 1 and those of
            the first condition, and so on in any order.
        max_units: no more units are stored.
        label: what the progress bar says; without one there is no bar.
    """

    replayer: Replayer
    spec: ModelSpec
    conditions: Callable[[PairPass], Sequence[Variant]]
    means: Means
    positions: Positions = _EVERYWHERE
    movement: Movement | None = None
    watch: Watch | None = None
    max_units: int = MAX_UNITS
    label: str = ""


def reference_of(replayer: Replayer, originals: Trials, donors: Trials | None, means: Means) -> PairReference:
    """Return the replacements for a batch of pairs, after a pass on the donors."""
    if donors is None:
        return PairReference(means, None)
    ends = originals.ends()
    is_even = bool((ends == ends[0]).all()) and torch.equal(ends, donors.ends())
    return PairReference(means, replayer.baseline(donors), None if is_even else ends)


def score_pairs(pairs: Iterator[Pair], plan: EditPlan, n: int) -> Totals:
    """Score every condition on `n` sequences or pairs, which are drawn in blocks."""
    per_unit = -(-n // plan.max_units)
    counts, sums, done = np.zeros(-(-n // per_unit), dtype=np.int64), np.zeros(0), 0
    with phase(plan.label, n, "sequence", is_quiet=not plan.label) as progress:
        for number, pair in enumerate(_batched(pairs, plan.spec)):
            scores = _scores_of(number, pair, plan)
            if not done:
                sums = np.zeros((len(counts), *scores.shape[1:]))
            unit = np.arange(done, done + len(scores)) // per_unit
            np.add.at(counts, unit, 1)
            np.add.at(sums, unit, scores)
            done += len(scores)
            progress.update(len(scores))
    return Totals(counts=counts, baseline=sums[:, 0], conditions=sums[:, 1:])


def _batched(pairs: Iterator[Pair], spec: ModelSpec) -> Iterator[Pair]:
    for originals, donors in pairs:  # blocks of the same size give the same batches
        parts = list(batches(originals, spec))
        yield from zip(parts, [None] * len(parts) if donors is None else batches(donors, spec), strict=True)


def _scores_of(number: int, pair: Pair, plan: EditPlan) -> Float[np.ndarray, "sequence condition score band"]:
    """Return the scores of one batch: of the unedited model, then of every condition."""
    originals, donors = pair
    baseline = plan.replayer.baseline(originals)
    reference = reference_of(plan.replayer, originals, donors, plan.means)
    batch = PairPass(number=number, pair=pair, baseline=baseline, reference=reference)
    variants, scorer = plan.conditions(batch), _Scorer(batch, plan)
    scores = [scorer.scores(baseline.logits, None), *[np.zeros(0)] * len(variants)]
    if plan.movement is not None and plan.movement.toward is not None:
        for at in sorted(set(plan.movement.toward)):
            scorer.head_for(at, plan.replayer.logits(baseline, [variants[at]], reference)[0])
    for chosen, by_variant in edited_logits(plan.replayer, baseline, variants, reference):
        for index, logits in zip(chosen, by_variant, strict=True):
            scores[1 + index] = scorer.scores(logits, index, variants[index][0].label)
    return np.stack(scores, axis=1)


@final
class _Scorer:
    """Metrics of one batch, averaged over bands; `ways` holds the w of `Movement`, by target."""

    def __init__(self, batch: PairPass, plan: EditPlan) -> None:
        self._plan, (self._originals, donors) = plan, batch.pair
        exact = self._originals.at_scored(self._originals.predictive)
        self._exact, self._exact_entropy = exact, entropy_bits(exact)
        # Scored after the edit, the donor's own tokens have not been seen: its posterior is no prediction there.
        has_answer = donors is not None and not plan.positions.score_after
        self._donor = donors.at_scored(donors.predictive) if donors is not None and has_answer else None
        self._weights = plan.positions.weights(exact.shape[1], batch.number)
        self._own: Tensor | None = None
        self._ways = dict[int | None, Tensor]()
        if (movement := plan.movement) is not None:
            self._own = movement.value(answer_log_probabilities(batch.baseline.logits, self._originals)[0])
            if donors is not None and batch.reference.donors is not None:
                donor = movement.value(answer_log_probabilities(batch.reference.donors.logits, donors)[0])
                self._ways[None] = movement.way(donor, self._own)

    def head_for(self, target: int, logits: Float[Tensor, "batch query_pos d_vocab"]) -> None:
        """Measure movement toward the value under this condition."""
        assert self._plan.movement is not None and self._own is not None, "only movement has a target"
        value = self._plan.movement.value(answer_log_probabilities(logits, self._originals)[0])
        self._ways[target] = value - self._own

    def scores(
        self, logits: Float[Tensor, "batch query_pos d_vocab"], index: int | None, what: str = "no edit"
    ) -> Float[np.ndarray, "sequence score band"]:
        """Return every `Score`; NaN for those that need a donor without one."""
        if not bool(logits.isfinite().all()):
            raise NonFinite(f"the logits are NaN or infinite under: {what}. Check the weights and the edit.")
        log_answers, _ = answer_log_probabilities(logits, self._originals)
        if self._plan.watch is not None:
            self._plan.watch(0 if index is None else 1 + index, log_answers)
        kl = kl_bits(self._exact, log_answers)
        to_donor = moved = distance = torch.full_like(kl, torch.nan)
        if self._donor is not None:
            to_donor = kl_bits(self._donor, log_answers)
        error = (entropy_bits(log_answers.exp()) - self._exact_entropy).abs()
        movement = self._plan.movement
        target = None if index is None or movement is None or movement.toward is None else movement.toward[index]
        if movement is not None and self._own is not None and (way := self._ways.get(target)) is not None:
            moved = ((movement.value(log_answers) - self._own) * way).sum(dim=-1)
            distance = way.square().sum(dim=-1)
        by_position = torch.stack([kl, to_donor, error, moved, distance], dim=1).cpu().numpy()
        averaged: np.ndarray = by_position @ self._weights
        return averaged


def role_means(
    replayer: Replayer, task: WindTunnel, spec: ModelSpec, places: Sequence[SiteLayer], *, seed: int
) -> Means:
    """Return the mean activation over `N_MEAN` sequences: one vector for scored positions, one for the others."""
    n = at_most(task, N_MEAN)
    blocks = list(task.stream(n, seed=seed, device=spec.device))
    means, is_scored = position_means(replayer, blocks, spec, places, n), blocks[0].scored[0]
    for mean in means.values():
        for role in (is_scored.to(mean.device), ~is_scored.to(mean.device)):
            if bool(role.any()):
                mean[role] = mean[role].mean(dim=0)
    return means
