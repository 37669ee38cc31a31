"""`intervene(kind="add", doses=…)`: how answers follow multiples of one direction.

Bayes' rule adds log-odds: what shifts a prior moves the log-odds of two answers by the same amount at every dose, so that
their movement is a line in the dose. In the last layer this follows from the softmax. So direct the edit below it, at one
position, and score later ones (`score_after`), next to random directions of the same norm.

References:
    arXiv:2511.00617 (context and steering add in log-odds).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from bayesgeom.core import AtPositions, Edit
from bayesgeom.interventions.engine import EditPlan, PairPass, Score, score_pairs
from bayesgeom.interventions.intervention import Intervention
from bayesgeom.interventions.report import RANDOM_DIRECTIONS, DoseReport
from bayesgeom.interventions.summary import placed
from bayesgeom.models.base import Variant
from bayesgeom.report.estimate import Baseline, Estimate
from bayesgeom.report.report import with_provenance
from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.stats.information import NATS_PER_BIT
from bayesgeom.subspaces.base import Sample, Subspace
from bayesgeom.tasks.base import Branch, derived_seed

RESOLVED = 24.0  # bits: in float32 the probability of the likelier answer is then 1


@final
@dataclass(frozen=True, kw_only=True)
class _Direction:
    """The first direction of a layer's subspace, and the answers that increase and decrease most along it."""

    subspace: Subspace
    answers: tuple[int, int]

    @classmethod
    def of(cls, subspace: Subspace, layer: int, sample: Sample) -> "_Direction":
        dual = None if subspace.dual is None else subspace.dual[:, :1]
        first, trials = replace(subspace, basis=subspace.basis[:, :1], dual=dual), sample.run.trials
        points, exact = sample.points(layer), trials.at_scored(trials.predictive).flatten(0, 1)
        along = (points - points.mean(dim=0)) @ first.reads.to(points)[:, 0] @ exact.to(points.device)
        return cls(subspace=first, answers=(int(along.argmax()), int(along.argmin())))


@final
@dataclass(frozen=True, kw_only=True)
class _Changes:
    """By sequence and edit: the changes of log-odds and of KL; and by edit the mean size of the log-odds, in bits."""

    log_odds: Float64[np.ndarray, "sequence layer draw dose"]
    kl: Float64[np.ndarray, "sequence layer draw dose"]
    size: Float64[np.ndarray, "layer draw dose"]

    def slopes(
        self, doses: Sequence[float], is_resolved: Bool[np.ndarray, "layer dose"]
    ) -> Float64[np.ndarray, "sequence layer draw"]:
        """Return the slope of the log-odds over the resolved doses of each layer; NaN with fewer than two."""
        amounts, n = is_resolved * np.array(doses), is_resolved.sum(axis=1, keepdims=True)
        centered = is_resolved * (amounts - amounts.sum(axis=1, keepdims=True) / np.maximum(n, 1))
        weights = centered / np.where(n > 1, np.square(centered).sum(axis=1, keepdims=True), np.nan)
        return np.asarray((self.log_odds * weights[:, None]).sum(axis=-1))


def dose_report(job: Intervention) -> DoseReport:
    """Fit the directions, add every dose of each in each layer alone, and return the report."""
    sample, doses = job.sample(), job.design.doses
    directions = {at: _Direction.of(subspace, at, sample) for at, subspace in job.fitted(sample)[0].items()}
    factories = {at: job.conditions(sample, at) for at in directions}
    random = {at: [Subspace("a random direction", basis) for basis in job.random_of(at, 1)] for at in directions}
    fitted = {at: [first.subspace] for at, first in directions.items()}
    main, drawn = (
        _changes(
            job,
            directions,
            [edit for at in directions for one in those[at] for edit in factories[at].doses(one, doses, fitted[at][0])],
            n,
        )
        for those, n in ((fitted, job.n), (random, min(job.n, job.design.n_control)))
    )
    is_resolved, labels, n_layers = main.size[:, 0] <= RESOLVED, job.task.token_labels(), job.model.spec.n_layers
    answers, saturated = [""] * n_layers, [""] * n_layers
    for row, (at, first) in enumerate(directions.items()):
        answers[at] = " : ".join(labels[int(sample.run.trials.answers[index])] for index in first.answers)
        saturated[at] = ", ".join(f"{dose:g}" for dose, is_in in zip(doses, is_resolved[row], strict=True) if not is_in)
    estimated = partial(_estimated, job, list(directions))
    report = DoseReport(
        subspace=job.fit.label,
        where=job.where,
        doses=tuple(f"{dose:g}" for dose in doses),
        dose_log_odds_bits=estimated(main.log_odds, drawn.log_odds),
        dose_kl_increase_bits=estimated(main.kl, drawn.kl),
        dose_slope_bits=estimated(*(each.slopes(doses, is_resolved) for each in (main, drawn))),
        answers_by_layer=tuple(answers),
        saturated_by_layer=tuple(saturated),
        n=job.n,
    )
    return with_provenance(report, {**job.provenance(), "doses": ",".join(report.doses)})


def _estimated(
    job: Intervention,
    layers: Sequence[int],
    main: Float64[np.ndarray, "sequence layer one *rest"],
    drawn: Float64[np.ndarray, "few layer draw *rest"],
) -> Estimate:
    """Return the mean over sequences with its interval, next to mean and range over random directions."""
    values, n_layers = main[:, :, 0], job.model.spec.n_layers
    interval = mean_interval(values, seed=derived_seed(job.seed, Branch.RESAMPLING))
    code = np.where(np.isnan(values.mean(axis=0)), 0.0, interval.code)
    mean, low, high, codes = (
        placed(each, layers, n_layers) for each in (values.mean(axis=0), interval.lo, interval.hi, code)
    )
    by_draw = drawn.mean(axis=0)
    level, least, most = (placed(of(by_draw, axis=1), layers, n_layers) for of in (np.mean, np.min, np.max))
    random = Baseline.of("chance", RANDOM_DIRECTIONS, level, low=least, high=most)
    codes = np.nan_to_num(codes).astype(np.int64)
    return Estimate.of(mean, (low, high), n=job.n, baselines=[random], reason=codes)


def _changes(job: Intervention, directions: Mapping[int, _Direction], edits: Sequence[Edit], n: int) -> _Changes:
    """Return what each edit changes on `n` sequences, averaged over the scored positions that it is scored at."""
    pairs, batches = {at: first.answers for at, first in directions.items()}, list[PairPass]()
    log_odds, sizes = ([list[Tensor]() for _ in edits] for _ in range(2))
    unedited = dict[int, Tensor]()

    def variants(batch: PairPass) -> list[Variant]:
        batches.append(batch)
        mask = job.positions.mask(batch.baseline.trials, batch.number)
        return [(edit if mask is None else AtPositions.of(edit, mask),) for edit in edits]

    def watch(index: int, log_answers: Float64[Tensor, "batch query_pos answer"]) -> None:
        odds = {at: (log_answers[..., up] - log_answers[..., down]) / NATS_PER_BIT for at, (up, down) in pairs.items()}
        if not index:
            unedited.update(odds)
            return
        at = edits[index - 1].layer
        weights = torch.from_numpy(job.positions.weights(log_answers.shape[1], batches[-1].number)[:, 0]).to(odds[at])
        log_odds[index - 1].append(((odds[at] - unedited[at]) @ weights).cpu())
        sizes[index - 1].append((odds[at].abs() @ weights).cpu())

    plan = EditPlan(
        replayer=job.replayer(),
        spec=job.model.spec,
        conditions=variants,
        means={},
        positions=job.positions,
        watch=watch,
        max_units=n,
        label=f"add {job.fit.label}, by dose",
    )
    totals = score_pairs(job.pairs(n), plan, n)
    kl = totals.conditions[..., Score.KL, 0] - totals.baseline[:, None, Score.KL, 0]
    shape = (len(directions), -1, len(job.design.doses))
    odds, size = (np.stack([torch.cat(each).numpy() for each in parts], axis=1) for parts in (log_odds, sizes))
    return _Changes(
        log_odds=odds.reshape(len(odds), *shape), kl=kl.reshape(len(kl), *shape), size=size.mean(axis=0).reshape(shape)
    )
