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

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core import RESID_POST, AtPositions, Edit, Trials, Verdict
from bayesgeom.core.observers import Filter, exact_beliefs
from bayesgeom.interventions.design import LEAST_CONTROLS, MATCHED, RANDOM
from bayesgeom.interventions.engine import EditPlan, Pair, PairPass, score_pairs
from bayesgeom.interventions.intervention import Intervention, fitted_where_possible, outside_shares, untrained
from bayesgeom.interventions.report import LAST, UNEDITED, LagReport
from bayesgeom.interventions.verdicts import IDENTITY, LEAST_SEQUENCES, LEAST_SHARE, untrained_bound
from bayesgeom.models.base import Variant
from bayesgeom.report.estimate import UNTRAINED, WHOLE, Baseline, Estimate, of_untrained
from bayesgeom.report.report import with_provenance
from bayesgeom.stats.bootstrap import ratio_interval
from bayesgeom.stats.information import kl_bits
from bayesgeom.stats.subspace import covariance
from bayesgeom.subspaces.base import Sample, Subspace
from bayesgeom.subspaces.quantity import OwnValue
from bayesgeom.tasks.base import Branch, derived_seed

_LEFT = 1e-9  # share of the variance of the continued filter below which what the others leave is rounding error
ByLag = Float64[Tensor, "pair lag answer"]
PerPair = Float64[np.ndarray, "pair _ lag"]


@final
@dataclass(frozen=True, kw_only=True)
class _Answers:
    """Answers at every lag: of the continued, the exact and the window's filter; natural logs of the model's.

    The first condition is the unedited model. `forced` is NaN where the donor's belief rules out a later symbol.
    """

    forced: ByLag
    exact: ByLag
    window: ByLag
    model: Float64[Tensor, "condition pair lag answer"]

    @property
    def is_known(self) -> Float64[Tensor, "pair lag"]:
        """Whether the recipient's later symbols are possible after the donor's belief, as 0 or 1."""
        return self.forced.isfinite().all(dim=-1).double()

    def moved(self, value: OwnValue) -> tuple[PerPair, PerPair]:
        """Return numerator and denominator of each edit's movement, by pair; 0 where it is not known.

        Of the change by an edit, too, only what the two filters do not predict counts: this changes no sum, and pairs
        differ less.
        """
        is_known = self.is_known[..., None]

        def centered(values: Float64[Tensor, "pair lag component"]) -> Float64[Tensor, "lag point"]:
            values = torch.where(is_known > 0, values, 0.0)
            values = (values - values.sum(dim=0) / is_known.sum(dim=0).clamp_min(1)) * is_known
            return values.movedim(1, 0).flatten(1)

        target, *others = (centered(value(each.log())) for each in (self.forced, self.exact, self.window))
        unedited, *edited = map(value, self.model)
        known = torch.stack(others, dim=-1)
        left = torch.stack([target, *(centered(each - unedited) for each in edited)], dim=-1)
        left = left - known @ (torch.linalg.pinv(known, rtol=1e-6) @ left)
        is_left = left[..., 0].square().sum(dim=1) > _LEFT * target.square().sum(dim=1)
        way = left[..., :1] * is_left[:, None, None]
        by_pair = (left * way).unflatten(1, (len(self.exact), -1)).sum(dim=2).movedim(0, 2).numpy()
        return by_pair[:, 1:], by_pair[:, :1]

    def kl_bits(self) -> tuple[PerPair, PerPair]:
        """Return KL(continued filter ‖ model) without an edit, then of each edit, by pair, and whether it is known."""
        forced = torch.where(self.is_known[..., None] > 0, self.forced, self.exact)
        kl = kl_bits(forced.expand_as(self.model), self.model) * self.is_known
        return kl.movedim(0, 1).numpy(), self.is_known[:, None].numpy()


def lag_report(job: Intervention) -> LagReport:
    """Fit the subspaces, swap them up to one position, score by lag, and return the report."""
    sample = job.sample()
    subspaces, _ = job.fitted(sample)
    value, size = job.fit.about.quantity.own(sample.run.trials), len(subspaces)
    edits = {at: job.conditions(sample, at) for at in subspaces}
    swaps = [edits[at].own(subspace) for at, subspace in subspaces.items()]
    answers = _answers(job, [*swaps, *(edits[at].ceiling() for at in subspaces)], job.n)
    (above, below), (kl, is_known) = answers.moved(value), answers.kl_bits()
    placed = partial(_placed, subspaces, job.model.spec.n_layers)
    levels = list[Baseline]()
    for name, drawn in _controls(job, sample, subspaces, value).items():
        mean, least, most = (placed(of(drawn, axis=1)) for of in (np.mean, np.min, np.max))
        levels.append(Baseline.of("chance", name, mean, low=least, high=most))
    levels += of_untrained([_fitted_anew(copy, value) for copy in untrained(job)])
    levels.append(Baseline.of("baseline", LAST, _last_layer(job, value)))
    levels.append(Baseline.of("ceiling", WHOLE, placed(_ratio(above[:, size:], below))))
    unedited = Baseline.of("baseline", UNEDITED, _ratio(kl[:, :1], is_known))
    estimated = partial(_estimated, job, placed)
    movement = estimated(above[:, :size], below, [level for level in levels if np.isfinite(level.value).any()])
    outside = outside_shares(job, subspaces)
    verdicts = {
        at: Verdict.BY_CONSTRUCTION if outside[at] <= IDENTITY else _verdict(movement[at], job) for at in subspaces
    }
    report = LagReport(
        subspace=job.fit.label,
        quantity=job.fit.about.quantity.label,
        where=job.where,
        position=job.positions.last(sample.run.trials),
        lags=tuple(map(str, job.design.lags)),
        lag_movement=movement,
        forced_kl_bits=estimated(kl[:, 1 : 1 + size], is_known, [unedited]),
        n_possible=is_known.sum(axis=(0, 1)).astype(np.int64),
        verdict_by_layer=tuple(str(verdicts.get(at, "")) for at in range(job.model.spec.n_layers)),
        n=job.n,
    )
    return with_provenance(report, {**job.provenance(), "lags": ",".join(report.lags)})


def _placed(
    layers: Collection[int], n_layers: int, values: Float[np.ndarray, "chosen lag"]
) -> Float64[np.ndarray, "layer lag"]:
    """Return an array over all layers with the rows of the edited layers; NaN elsewhere."""
    spread = np.full((n_layers, values.shape[1]), np.nan)
    spread[list(layers)] = values
    return spread


def _estimated(
    job: Intervention,
    placed: Callable[[np.ndarray], np.ndarray],
    above: Float64[np.ndarray, "pair chosen lag"],
    below: Float64[np.ndarray, "pair 1 lag"],
    levels: Sequence[Baseline],
) -> Estimate:
    """Return Σ above / Σ below over pairs, with its interval or the reason why it has none."""
    interval = ratio_interval(above, below, seed=derived_seed(job.seed, Branch.RESAMPLING))
    value, ends = placed(_ratio(above, below)), (placed(interval.lo), placed(interval.hi))
    codes = np.nan_to_num(np.where(np.isnan(value), 0.0, placed(interval.code))).astype(np.int64)
    return Estimate.of(value, ends, n=job.n, baselines=levels, reason=codes)


def _answers(job: Intervention, edits: Sequence[Edit], n: int) -> _Answers:
    """Return what the model answers after each edit on `n` pairs, and the filters at the same positions."""
    pairs, logs = list[Pair](), [list[Tensor]() for _ in range(1 + len(edits))]

    def variants(batch: PairPass) -> list[Variant]:
        pairs.append(batch.pair)
        mask = job.positions.mask(batch.baseline.trials, batch.number)
        assert mask is not None, "lags edit positions up to one"
        return [(AtPositions.of(edit, mask),) for edit in edits]

    def watch(index: int, log_answers: Float64[Tensor, "batch query_pos answer"]) -> None:
        at = log_answers.shape[1] - 1 - max(job.design.lags)
        logs[index].append(log_answers[:, [at + lag for lag in job.design.lags]].cpu())

    model, label = job.model, f"{job.design.kind} {job.fit.label}, by lag"
    plan = EditPlan(replayer=job.replayer(), spec=model.spec, conditions=variants, means={}, watch=watch, label=label)
    score_pairs(job.pairs(n), plan, n)
    filters = [_filters(*pair, job) for pair in pairs]
    forced, exact, window = (torch.cat(parts).cpu() for parts in zip(*filters, strict=True))
    return _Answers(forced=forced, exact=exact, window=window, model=torch.stack([torch.cat(log) for log in logs]))


def _filters(originals: Trials, donors: Trials | None, job: Intervention) -> tuple[ByLag, ByLag, ByLag]:
    """Return the predictives of the filter continued from the donor's belief, of the exact one, and of the window."""
    assert donors is not None and donors.observers is not None and originals.observers is not None, "checked"
    own, last, lags = originals.observers.filter, job.positions.last(originals), job.design.lags
    belief = exact_beliefs(donors.observers.filter, len(donors), last + 1)[:, -1:]
    prior = own.priors["stationary"].expand(len(originals), -1)[:, None]
    exact = originals.at_scored(originals.predictive)[:, [last + lag for lag in lags]]
    return _continued(own, belief, last, lags), exact, _continued(own, prior, last, lags)


def _continued(own: Filter, belief: Float64[Tensor, "pair 1 state"], last: int, lags: Sequence[int]) -> ByLag:
    """Return the predictives at every lag after this belief at the scored position `last`."""
    by_lag = [own.answers(belief)]
    for step in range(1, 1 + max(lags)):
        belief = own.moved(belief, last + step)
        belief = belief / belief.sum(dim=-1, keepdim=True)
        by_lag.append(own.answers(belief))
    return torch.cat([by_lag[lag] for lag in lags], dim=1)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(above.sum(axis=0) / below.sum(axis=0))


def _controls(
    job: Intervention, sample: Sample, subspaces: Mapping[int, Subspace], value: OwnValue
) -> dict[str, Float64[np.ndarray, "layer draw lag"]]:
    """Return the movement by random and by variance-matched subspaces."""
    design, edits = job.design, list[Edit]()
    for at, subspace in subspaces.items():
        factory, matched = job.conditions(sample, at), job.controls(subspace, covariance(sample.points(at)), at)
        edits += factory.controls(job.random_of(at, subspace.rank)) + factory.filling(matched.bases, design.n_matched)
    drawn = _moved_by(job, edits, value).reshape(len(subspaces), -1, len(design.lags))
    return {RANDOM: drawn[:, : design.n_random], MATCHED: drawn[:, design.n_random :]}


def _fitted_anew(job: Intervention, value: OwnValue) -> Float64[np.ndarray, "layer lag"]:
    """Return the movement by the subspaces that are fitted in this model, at this site; NaN where there is none."""
    sample, by_layer = job.sample(), np.full((job.model.spec.n_layers, len(job.design.lags)), np.nan)
    subspaces, _ = fitted_where_possible(job.fit, sample, job.layers)
    if subspaces:
        edits = [job.conditions(sample, at).own(subspace) for at, subspace in subspaces.items()]
        by_layer[list(subspaces)] = _moved_by(job, edits, value)
    return by_layer


def _last_layer(job: Intervention, value: OwnValue) -> Float64[np.ndarray, " lag"]:
    """Return the movement by the same swap in the output of the last layer, which writes the current answer alone."""
    if not job.has_direct_path:
        return np.full(len(job.design.lags), np.nan)
    place = replace(job.place, site=RESID_POST, layers=(job.model.spec.n_layers - 1,))
    return _fitted_anew(replace(job, place=place), value)[-1]


def _moved_by(job: Intervention, edits: Sequence[Edit], value: OwnValue) -> Float64[np.ndarray, "edit lag"]:
    """Return the movement by each of some edits, on as many pairs as controls are scored on."""
    return _ratio(*_answers(job, edits, min(job.n, job.design.n_control)).moved(value))


def _verdict(movement: Estimate, job: Intervention) -> Verdict:
    """Return whether a swap sets a state, or writes the answer, from its movement at every lag.

    The first lag above 0 at which the movement is known decides. See `LagReport`.
    """
    lags, low, high = np.array(job.design.lags), *movement.ends
    levels = [level for level in movement.compared if level.name != LAST]
    controls = [level.bar("higher") for level in levels if level.name != UNTRAINED]
    least = np.nanmax([np.zeros(len(lags)), LEAST_SHARE * movement.ceiling, *controls], axis=0)
    later = np.flatnonzero((lags > 0) & ~np.isnan(movement.value))
    n_least = min(job.design.n_random, job.design.n_matched)
    if not len(later) or n_least < LEAST_CONTROLS or job.n < LEAST_SEQUENCES:
        return Verdict.UNDECIDED
    first = later[lags[later].argmin()]
    if low[first] > max(untrained_bound(movement[first]), least[first]):
        return Verdict.SETS
    is_written = bool((low > least)[lags == 0].any() and high[first] < LEAST_SHARE)
    return Verdict.WRITES if is_written else Verdict.UNDECIDED
