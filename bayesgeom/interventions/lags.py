"""`intervene(lags=…)`: does a swap set a state, or does it only write the answer?

The swap edits positions up to one, t₀, and answers are scored at t₀ + lag. There the exact filter is continued from the
donor's belief at t₀ with the recipient's own symbols. A network that set its state answers as this filter does; one
that rereads the symbols, or whose edit only changed the current answer, does not.

    movement = Σ (y' − y) · w / Σ w · w

y and y' are the model's own values of the quantity before and after the swap, and w is the part of the continued
filter's value that two others do not predict, each over the same pairs: the exact filter of the recipient's own
symbols, and the window observer of the symbols after t₀. Answers of either of these filters have movement 0.

References:
    arXiv:2605.20824 (Markovian circuit tracing: the KL to a forced state).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.core import RESID_POST, Edit, Verdict
from bayesgeom.core.observers import Filter, exact_beliefs
from bayesgeom.interventions.design import LEAST_CONTROLS, MATCHED, RANDOM
from bayesgeom.interventions.intervention import Intervention, fitted_where_possible, outside_shares, untrained
from bayesgeom.interventions.report import LAST, UNEDITED, LagReport
from bayesgeom.interventions.summary import estimated, placed, ratio
from bayesgeom.interventions.verdicts import IDENTITY, LEAST_SEQUENCES, LEAST_SHARE, untrained_bound
from bayesgeom.report.estimate import UNTRAINED, WHOLE, Baseline, Estimate, of_untrained
from bayesgeom.report.report import with_provenance
from bayesgeom.stats.information import kl_bits
from bayesgeom.stats.subspace import covariance
from bayesgeom.subspaces.quantity import OwnValue

_LEFT = 1e-9  # share of the variance of the continued filter below which what the others leave is rounding error
PerPair = Float64[np.ndarray, "pair condition lag"]
OfPair = Float64[np.ndarray, "pair 1 lag"]


@final
@dataclass(frozen=True, kw_only=True)
class Course:
    """Answers at every lag: of the continued filter, the exact one and the window's; natural logs of the model's.

    The first condition is the unedited model. `forced` is NaN where the donor's belief rules out a later symbol.
    """

    forced: Float64[Tensor, "pair lag answer"]
    others: tuple[Float64[Tensor, "pair lag answer"], Float64[Tensor, "pair lag answer"]]
    model: Float64[Tensor, "condition pair lag answer"]

    @classmethod
    def of(cls, job: Intervention, edits: Sequence[Edit], n: int) -> "Course":
        """Return the answers under each edit on `n` pairs."""
        scored, logs = job.answers(edits, n)
        last, lags = logs.shape[2] - 1 - max(job.design.lags), job.design.lags
        at, filters = [last + lag for lag in lags], list[tuple[Tensor, Tensor, Tensor]]()
        for _, (originals, donors) in scored:
            assert donors is not None and donors.observers is not None and originals.observers is not None, "checked"
            own, exact = originals.observers.filter, originals.at_scored(originals.predictive)[:, at]
            belief = exact_beliefs(donors.observers.filter, len(donors), last + 1)[:, -1:]
            prior = own.priors["stationary"].expand(len(originals), -1)[:, None]
            filters.append((continued(own, belief, last, lags), exact, continued(own, prior, last, lags)))
        forced, *others = (torch.cat(parts).cpu() for parts in zip(*filters, strict=True))
        return cls(forced=forced, others=(others[0], others[1]), model=logs[:, :, at])

    @property
    def is_known(self) -> Float64[Tensor, "pair lag one"]:
        """Whether the recipient's later symbols are possible after the donor's belief, as 0 or 1."""
        return self.forced.isfinite().all(dim=-1, keepdim=True).double()

    def moved(self, value: OwnValue) -> tuple[PerPair, OfPair]:
        """Return numerator and denominator of each edit's movement, by pair; 0 where it is not known.

        Of the change by an edit, too, only what the two filters do not predict counts: this changes no sum, and pairs
        differ less.
        """

        def centered(values: Float64[Tensor, "pair lag component"]) -> Float64[Tensor, "lag point"]:
            values = torch.where(self.is_known > 0, values, 0.0)
            mean = values.sum(dim=0) / self.is_known.sum(dim=0).clamp_min(1)
            return ((values - mean) * self.is_known).movedim(1, 0).flatten(1)

        target, *others = (centered(value(each.log())) for each in (self.forced, *self.others))
        known, (unedited, *edited) = torch.stack(others, dim=-1), map(value, self.model)
        left = torch.stack([target, *(centered(each - unedited) for each in edited)], dim=-1)
        left = left - known @ (torch.linalg.pinv(known, rtol=1e-6) @ left)
        is_left = left[..., 0].square().sum(dim=1) > _LEFT * target.square().sum(dim=1)
        products = left * left[..., :1] * is_left[:, None, None]
        by_pair = products.unflatten(1, (len(self.forced), -1)).sum(dim=2).movedim(0, 2).numpy()
        return by_pair[:, 1:], by_pair[:, :1]

    def kl_bits(self) -> tuple[PerPair, OfPair]:
        """Return KL(continued filter ‖ model) without an edit, then of each edit, by pair, and whether it is known."""
        forced = torch.where(self.is_known > 0, self.forced, self.others[0])
        kl = kl_bits(forced.expand_as(self.model), self.model) * self.is_known[..., 0]
        return kl.movedim(0, 1).numpy(), self.is_known.movedim(2, 1).numpy()


def continued(
    own: Filter, belief: Float64[Tensor, "pair 1 state"], last: int, lags: Sequence[int]
) -> Float64[Tensor, "pair lag answer"]:
    """Return the predictives at every lag after this belief at the scored position `last`."""
    by_lag = [own.answers(belief)]
    for step in range(1, 1 + max(lags)):
        belief = own.moved(belief, last + step)
        belief = belief / belief.sum(dim=-1, keepdim=True)
        by_lag.append(own.answers(belief))
    return torch.cat([by_lag[lag] for lag in lags], dim=1)


def lag_report(job: Intervention) -> LagReport:
    """Fit the subspaces, swap them up to one position, score by lag, and return the report."""
    sample, lags, n_layers = job.sample(), job.design.lags, job.model.spec.n_layers
    subspaces, value = job.fitted(sample)[0], job.fit.about.quantity.own(sample.run.trials)
    swaps, wholes, controls, found = list[Edit](), list[Edit](), list[Edit](), np.zeros(n_layers, dtype=np.int64)
    for at, subspace in subspaces.items():
        edits, matched = job.conditions(sample, at), job.controls(subspace, covariance(sample.points(at)), at)
        swaps, wholes = [*swaps, edits.own(subspace)], [*wholes, edits.ceiling()]
        controls += edits.controls(job.random_of(at, subspace.rank)) + edits.filling(
            matched.bases, job.design.n_matched
        )
        found[at] = matched.n_distinct if matched.is_matched else 0
    course, size = Course.of(job, swaps + wholes, job.n), len(subspaces)
    (above, below), (kl, is_known) = course.moved(value), course.kl_bits()
    drawn = _moved(job, controls, value).reshape(size, -1, len(lags))
    drawn[found[[*subspaces]] == 0, job.design.n_random :] = np.nan  # no subspaces have as much variance
    last = replace(job, place=replace(job.place, site=RESID_POST, layers=(n_layers - 1,)))
    levels = [
        *of_untrained([_fitted_anew(copy, value) for copy in untrained(job)]),
        Baseline.of("ceiling", WHOLE, placed(ratio(above[:, size:], below), subspaces, n_layers)),
        *([Baseline.of("baseline", LAST, _fitted_anew(last, value)[-1])] if job.has_direct_path else []),
    ]
    chance = {RANDOM: drawn[:, : job.design.n_random], MATCHED: drawn[:, job.design.n_random :]}
    movement = estimated(job, subspaces, (above[:, :size], below), chance, levels)
    unedited = Baseline.of("baseline", UNEDITED, ratio(kl[:, :1], is_known))
    outside = outside_shares(job, subspaces)
    verdicts = {
        at: Verdict.BY_CONSTRUCTION if outside[at] <= IDENTITY else _verdict(movement[at], job, found[at])
        for at in subspaces
    }
    report = LagReport(
        subspace=job.fit.label,
        where=f"{job.where}; up to scored position {job.positions.last(sample.run.trials)}",
        lags=tuple(map(str, lags)),
        lag_movement=movement,
        forced_kl_bits=estimated(job, subspaces, (kl[:, 1 : 1 + size], is_known), {}, [unedited]),
        n_possible=is_known.sum(axis=(0, 1)).astype(np.int64),
        verdict_by_layer=tuple(str(verdicts.get(at, "")) for at in range(n_layers)),
        controls_found=found,
        n=job.n,
    )
    return with_provenance(report, {**job.provenance(), "lags": ",".join(report.lags)})


def _moved(job: Intervention, edits: Sequence[Edit], value: OwnValue) -> Float64[np.ndarray, "edit lag"]:
    """Return the movement by each of some edits, on as many pairs as controls are scored on."""
    return ratio(*Course.of(job, edits, min(job.n, job.design.n_control)).moved(value))


def _fitted_anew(job: Intervention, value: OwnValue) -> Float64[np.ndarray, "layer lag"]:
    """Return the movement by the subspaces that are fitted in this model, at this site; NaN where there is none."""
    sample = job.sample()
    subspaces, _ = fitted_where_possible(job.fit, sample, job.layers)
    moved = _moved(job, [job.conditions(sample, at).own(subspace) for at, subspace in subspaces.items()], value)
    return placed(moved, subspaces, job.model.spec.n_layers)


def _verdict(movement: Estimate, job: Intervention, n_matched: int | np.integer) -> Verdict:
    """Return whether a swap sets a state, or writes the answer, from its movement at every lag: see `LagReport`."""
    lags, (low, high) = np.array(job.design.lags), movement.ends
    controls = [level.bar("higher") for level in movement.compared if level.name not in (LAST, UNTRAINED)]
    is_above = low > np.nanmax([np.zeros(len(lags)), LEAST_SHARE * movement.ceiling, *controls], axis=0)
    later = np.flatnonzero((lags > 0) & ~np.isnan(movement.value))
    if not len(later) or job.design.n_random < LEAST_CONTROLS or job.n < LEAST_SEQUENCES:
        return Verdict.UNDECIDED
    first = later[lags[later].argmin()]
    if n_matched >= LEAST_CONTROLS and is_above[first] and low[first] > untrained_bound(movement[first]):
        return Verdict.SETS
    is_small = movement.value[first] == 0 or high[first] < LEAST_SHARE  # 0: no logit changes, so that no pairs differ
    return Verdict.WRITES if is_small and is_above[lags == 0].any() else Verdict.UNDECIDED
