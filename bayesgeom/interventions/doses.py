"""`intervene(kind="add", doses=…)`: how answers follow multiples of one direction.

Bayes' rule adds log-odds: what shifts a prior moves the log-odds of two answers by the same amount at every dose, so
that they move in a line with the dose. In the last layer this follows from the softmax. So edit below it, at one
position, and score later ones (`score_after`), next to random directions of the same norm.

References:
    arXiv:2511.00617 (context and steering add in log-odds).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float64

from bayesgeom.core import Edit
from bayesgeom.interventions.intervention import Intervention
from bayesgeom.interventions.report import RANDOM_DIRECTIONS, DoseReport
from bayesgeom.interventions.summary import estimated
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.report import with_provenance
from bayesgeom.stats.information import NATS_PER_BIT, kl_bits
from bayesgeom.subspaces.base import Sample, Subspace

RESOLVED = 24.0  # bits: in float32 the probability of the likelier answer is then 1
ByDose = Float64[np.ndarray, "sequence layer draw dose"]


def dose_report(job: Intervention) -> DoseReport:
    """Fit the directions, add every dose of each in each layer alone, and return the report."""
    sample, doses, labels = job.sample(), np.array(job.design.doses), job.task.token_labels()
    ids, n_layers = sample.run.trials.answers.tolist(), job.model.spec.n_layers
    pairs, added, drawn = dict[int, tuple[int, int]](), list[Edit](), list[Edit]()
    for at, subspace in job.fitted(sample)[0].items():
        dual, edits = None if subspace.dual is None else subspace.dual[:, :1], job.conditions(sample, at)
        first = replace(subspace, basis=subspace.basis[:, :1], dual=dual)
        pairs[at] = _told_apart(first, at, sample)
        for direction in (first, *(Subspace("a random direction", basis) for basis in job.random_of(at, 1))):
            (added if direction is first else drawn).extend(edits.doses(direction, doses.tolist(), first))
    odds, kl, size = _changes(job, added, pairs, job.n)
    random_odds, random_kl, _ = _changes(job, drawn, pairs, min(job.n, job.design.n_control))
    is_resolved = size.mean(axis=0)[:, 0] <= RESOLVED
    weights = np.array([_slope_weights(doses, row) for row in is_resolved])[:, None]

    def with_level(values: np.ndarray, random: np.ndarray) -> Estimate:
        parts = values[:, :, 0], np.ones((job.n, *(1,) * (values.ndim - 2)))
        return estimated(job, pairs, parts, {RANDOM_DIRECTIONS: random.mean(axis=0)})

    answers, saturated = [""] * n_layers, [""] * n_layers
    for (at, pair), row in zip(pairs.items(), is_resolved, strict=True):
        answers[at] = " : ".join(labels[ids[index]] for index in pair)
        saturated[at] = ", ".join(f"{dose:g}" for dose in doses[~row])
    report = DoseReport(
        subspace=job.fit.label,
        where=job.where,
        doses=tuple(f"{dose:g}" for dose in doses),
        dose_log_odds_bits=with_level(odds, random_odds),
        dose_kl_increase_bits=with_level(kl, random_kl),
        dose_slope_bits=with_level((odds * weights).sum(axis=-1), (random_odds * weights).sum(axis=-1)),
        answers_by_layer=tuple(answers),
        saturated_by_layer=tuple(saturated),
        n=job.n,
    )
    return with_provenance(report, {**job.provenance(), "doses": ",".join(report.doses)})


def _told_apart(direction: Subspace, layer: int, sample: Sample) -> tuple[int, int]:
    """Return the answers whose exact probabilities increase and decrease most along a direction."""
    points, trials = sample.points(layer), sample.run.trials
    exact = trials.at_scored(trials.predictive).flatten(0, 1).to(points)
    along = (points - points.mean(dim=0)) @ direction.reads.to(points)[:, 0] @ exact
    return int(along.argmax()), int(along.argmin())


def _slope_weights(doses: np.ndarray, is_resolved: np.ndarray) -> np.ndarray:
    """Return the weights of a least-squares slope over the resolved doses; NaN with fewer than two."""
    if is_resolved.sum() < 2:
        return np.full(len(doses), np.nan)
    centered = np.where(is_resolved, doses - doses[is_resolved].mean(), 0.0)
    return np.asarray(centered / np.square(centered).sum())


def _changes(
    job: Intervention, edits: Sequence[Edit], pairs: Mapping[int, tuple[int, int]], n: int
) -> tuple[ByDose, ByDose, ByDose]:
    """Return the change of log-odds and of KL, and the size of the log-odds, in bits, over the scored positions."""
    scored, logs = job.answers(edits, n)
    band = [(job.positions.weights(logs.shape[2], number)[:, :1].T, len(each)) for number, (each, _) in scored]
    weights = torch.from_numpy(np.concatenate([row.repeat(size, axis=0) for row, size in band]))
    exact = torch.cat([originals.at_scored(originals.predictive) for _, (originals, _) in scored]).to(logs)
    up, down = torch.eye(logs.shape[3]).to(logs)[torch.tensor([pairs[edit.layer] for edit in edits])].unbind(dim=1)
    unedited, odds = (
        torch.einsum("cbpa,ca->cbp", each, up - down) for each in (logs[:1].expand_as(logs[1:]), logs[1:])
    )
    kl = kl_bits(exact.expand_as(logs), logs)
    each = ((odds - unedited) / NATS_PER_BIT, kl[1:] - kl[:1], odds.abs() / NATS_PER_BIT)
    shape = (n, len(pairs), -1, len(job.design.doses))
    change, increase, size = ((values * weights).sum(dim=-1).T.reshape(shape).numpy() for values in each)
    return change, increase, size
