"""Edits in several layers at once, for `intervene(sites=[…])`, with each layer's coordinate read before its edit.

The coordinate along a layer's axis is read before that layer's own edit. After the edit it is constant by
construction, so its correlation with entropy would be zero whatever the model does. Before the edit, the correlation
shows what earlier edits left and what the layers in between restored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int64, Shaped
from torch import Tensor

from bayesgeom.core import Edit, InvalidArgument, Reference, Site, V
from bayesgeom.core.edits import SUBSPACE_KINDS
from bayesgeom.interventions.design import RANDOM, Design
from bayesgeom.interventions.engine import EditPlan, PairPass, Score, Totals, role_means, score_pairs
from bayesgeom.interventions.intervention import Intervention, check_even, fitted_where_possible
from bayesgeom.interventions.report import ENTROPIES, ORTHOGONAL, UNEDITED, JointInterventionReport
from bayesgeom.interventions.verdicts import joint_verdict
from bayesgeom.models.base import STAGES, Model, Variant, provenance
from bayesgeom.models.replay.hooked import PlainLoop
from bayesgeom.report.estimate import Baseline, Estimate, with_ceiling, with_interval
from bayesgeom.report.report import with_provenance
from bayesgeom.stats.bootstrap import jackknife_weights, ratio_interval, statistic_interval
from bayesgeom.stats.information import entropy_bits
from bayesgeom.stats.regression import absolute_interval, ranks, without_level_means
from bayesgeom.stats.resampling import resampled_correlation_at_position, resampled_spearman
from bayesgeom.stats.subspace import random_subspaces
from bayesgeom.subspaces.base import Fit, InterventionSite, Sample, Setting, Subspace
from bayesgeom.tasks.base import WindTunnel, at_most, check_count, derived_seed, fit_task, score_task

N_RANDOM = 20  # random subspaces of the same rank
N_KEPT = 256  # sequences whose coordinates are correlated with entropy
EDITABLE = (*STAGES, V)
OWN, CEILING, FIRST_RANDOM = range(3)  # conditions of a set
_TRIALS, _RESAMPLING, _FIT, _ORTHOGONAL = 8, 9, 10, 11  # branches of the seed
_WITHOUT_DONORS = tuple(kind for kind in SUBSPACE_KINDS if kind not in ("swap", "rotate"))


@final
@dataclass(frozen=True, kw_only=True)
class JointIntervention:
    """A checked intervention in several layers at once, for `intervene(sites=[…])`; `single` edits one. Internal."""

    single: Intervention
    sets: tuple[tuple[int, ...], ...]

    @classmethod
    def of(
        cls,
        model: Model,
        task: WindTunnel,
        fit: Fit,
        *,
        sites: Sequence[InterventionSite],
        design: Design,
        n: int,
        seed: int,
    ) -> "JointIntervention":
        """Check all arguments before anything runs."""
        if design.kind not in _WITHOUT_DONORS:
            allowed = ", ".join(_WITHOUT_DONORS)
            raise InvalidArgument(
                f"in several layers at once kind must be one of {allowed}; {design.kind!r} edits one layer at a time."
            )
        if n < 2:
            raise InvalidArgument(f"n, the number of sequences, must be at least 2 for a correlation; got {n}.")
        n = at_most(score_task(task), check_count(n))
        if not sites or len({place.site for place in sites}) > 1:
            named = ", ".join(dict.fromkeys(place.site.name for place in sites)) or "(none)"
            raise InvalidArgument(
                f"sites must hold at least one site, all at one hook point, such as [InterventionSite(RESID_PRE, (1, "
                f"3))]; got sites at {named}."
            )
        for place in sites:
            place.check_in(model, editable=EDITABLE)
        everywhere = InterventionSite(sites[0].site)
        one = task.sample(1, seed=seed, device=model.spec.device)
        model.check_fits(one)
        check_even(task, "an edit of several layers at once")
        fit.check(Setting(model=model, place=everywhere, trials=one))
        single = Intervention(
            model=model,
            task=task,
            fit=fit,
            design=design,
            place=everywhere,
            donors="",
            n=n,
            seed=seed,
        )
        return cls(single=single, sets=tuple(place.layers_of(model.spec) for place in sites))

    def report(self) -> JointInterventionReport:
        """Fit the subspaces, edit, score and return the report."""
        single, model, site, n = self.single, self.single.model, self.single.place.site, self.single.n
        spec, seed, sample = model.spec, single.seed, single.sample()
        edited = sorted({layer for layers in self.sets for layer in layers})
        elsewhere = [layer for layer in range(spec.n_layers) if layer not in edited]  # only read there
        subspaces = single.fit.fitted(sample, edited) | fitted_where_possible(single.fit, sample, elsewhere)[0]
        axes = {at: subspace.basis for at, subspace in subspaces.items() if subspace.rank == 1}
        conditions = list[Variant]()  # own, ceiling, random and orthogonal ones of each set; layers share draw numbers
        for layers in self.sets:
            conditions += zip(*(self._edits(sample, layer, subspaces[layer]) for layer in layers), strict=True)
        kept = _Coordinates(site, axes, conditions, spec.n_layers)
        places, loop = [(site, layer) for layer in edited], PlainLoop(model, also=(V,))
        plan = EditPlan(
            # Whole passes: `v` has no replay, and the rounding of a replay would change the ranks of a coordinate that
            # an edit leaves nearly constant.
            replayer=loop,
            spec=spec,
            conditions=kept.conditions,
            means=role_means(loop, fit_task(single.task), spec, places, seed=derived_seed(seed, _FIT)),
            watch=kept.watch,
            label=f"{single.design.kind} {single.fit.label}",
        )
        stream = score_task(single.task).stream(n, seed=derived_seed(seed, _TRIALS), device=spec.device)
        totals = score_pairs(((block, None) for block in stream), plan, n)
        report = self._report(totals, kept, subspaces[self.sets[0][0]].rank)
        arguments = {
            "n": n,
            "seed": seed,
            "subspace": single.fit.label,
            "layers": ",".join(report.sets),
            "controls": N_RANDOM,
            "kind": single.design.kind,
            "site": site.name,
        }
        return with_provenance(report, provenance(model, single.task, arguments))

    def _report(self, totals: Totals, kept: "_Coordinates", rank: int) -> JointInterventionReport:
        """Return the report; conditions: the unedited model, then own, ceiling, random and orthogonal ones of sets."""
        seed, counts, firsts = derived_seed(self.single.seed, _RESAMPLING), totals.counts, range(len(self.sets))
        scores = [Score.KL, Score.ENTROPY_ERROR]
        unedited = totals.baseline[..., scores, 0]
        changes = totals.conditions[..., scores, 0] - unedited[:, None]
        paired = np.stack(np.split(changes, len(self.sets), axis=1), axis=1)  # unit, set, condition, score
        families = np.split(paired[:, :, FIRST_RANDOM:], 2, axis=2)
        levels = [
            _level(name, np.moveaxis(family.sum(axis=0), 1, 0) / counts.sum())
            for name, family in zip((RANDOM, ORTHOGONAL), families, strict=True)
        ]
        increase = with_ceiling(
            _mean(paired[:, :, OWN], counts, seed, levels), paired[:, :, CEILING].sum(axis=0) / counts.sum()
        )
        level, beyond = _mean(unedited, counts, seed), _mean(paired[:, :, OWN] - families[0].mean(axis=2), counts, seed)
        most = increase.baseline(RANDOM).bar("higher")
        verdicts = [joint_verdict(increase.value[i, 0], beyond.ends[0][i, 0], most[i, 0]) for i in firsts]
        return JointInterventionReport(
            kind=self.single.design.kind,
            site=self.single.place.site.name,
            subspace=self.single.fit.label,
            rank=rank,
            sets=tuple("+".join(map(str, layers)) for layers in self.sets),
            targets=ENTROPIES,
            unedited_kl_bits=level[0],
            unedited_entropy_error_bits=level[1],
            kl_increase_bits=increase[:, 0],
            entropy_error_increase_bits=increase[:, 1],
            kl_beyond_random_bits=beyond[:, 0],
            entropy_error_beyond_random_bits=beyond[:, 1],
            axis_correlation=kept.order(len(self.sets), seed),
            verdicts=tuple(map(str, verdicts)),
            n_random=N_RANDOM,
            n_kept=kept.n_kept,
            n=int(counts.sum()),
        )

    def _edits(self, sample: Sample, layer: int, subspace: Subspace) -> list[Edit]:
        """Return the edits of one layer, own and controls.

        Raises:
            InvalidArgument: The complement is too small for a subspace of the same rank.
        """
        width, rank = subspace.width, subspace.rank
        if 2 * rank > width:
            raise InvalidArgument(
                f"{subspace.name} has rank {rank} of {width} in layer {layer}: no subspace of that rank is orthogonal "
                f"to it. Use one of at most {width // 2}."
            )
        seed = derived_seed(self.single.seed, _ORTHOGONAL, layer)
        random = self.single.random_of(layer, rank)
        orthogonal = orthogonal_to(subspace.basis.cpu(), draws=N_RANDOM, seed=seed)
        conditions = self.single.conditions(sample, layer)
        return [
            conditions.own(subspace),
            conditions.ceiling(),
            *conditions.controls(torch.cat([random, orthogonal]), subspace),
        ]


def orthogonal_to(basis: Float[Tensor, "d rank"], *, draws: int, seed: int) -> Float64[Tensor, "draw d rank"]:
    """Return random subspaces of the same rank orthogonal to a subspace; of lower rank if the complement is smaller."""
    d, rank = basis.shape
    basis = basis.double()
    drawn = random_subspaces(d, min(rank, d - rank), draws=draws, seed=seed).to(basis)
    rest: Tensor = torch.linalg.qr(drawn - basis @ (basis.T @ drawn)).Q
    return rest


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _ReadAlong(Edit):
    """Stores the coordinates of the first sequences along an axis, at scored positions, and changes nothing."""

    site: Site
    layer: int
    axis: Float[Tensor, "d 1"]
    rows: Int64[Tensor, " query_pos"]
    into: Float64[np.ndarray, "kept query_pos"]

    @property
    def label(self) -> str:
        return f"read along an axis at L{self.layer} {self.site.name}"

    def applied(self, values: Shaped[Tensor, "..."], reference: Reference | None = None) -> Shaped[Tensor, "..."]:
        flat = values[: len(self.into), self.rows.to(values.device)].flatten(2).double()
        self.into[:] = (flat @ self.axis.to(flat))[..., 0].cpu().numpy()
        return values


@final
class _Coordinates:
    """Coordinates along each layer's axis, read before the layer's own edit, and entropies of the first sequences.

    A layer up to the first edited one has the unedited model's coordinates. In later layers an edit that changes
    nothing reads them in the edited pass.
    """

    def __init__(self, site: Site, axes: Mapping[int, Tensor], edits: Sequence[Variant], n_layers: int) -> None:
        self._site, self._axes, self._edits, self._n_layers = site, axes, edits, n_layers
        self._along, self._own = list[np.ndarray](), list[np.ndarray]()
        self._exact, self._room = list[np.ndarray](), N_KEPT

    def conditions(self, batch: PairPass) -> Sequence[Variant]:
        """Return the edits of each condition, with those that read coordinates if the batch is among the first."""
        trials = batch.baseline.trials
        rows = trials.scored_positions()[0]
        self._room -= (kept := min(self._room, len(trials)))
        shape = 1 + len(self._edits), self._n_layers, kept, len(rows)
        self._along.append(np.full(shape, np.nan))
        self._own.append(np.full((shape[0], *shape[2:]), np.nan))
        self._exact.append(entropy_bits(trials.at_scored(trials.predictive))[:kept].cpu().numpy())
        if not kept:
            return self._edits

        def reading(layer: int, into: np.ndarray) -> _ReadAlong:
            return _ReadAlong(site=self._site, layer=layer, axis=self._axes[layer], rows=rows, into=into)

        for layer in self._axes:
            reading(layer, first := self._along[-1][0, layer]).applied(batch.baseline.stored[self._site, layer])
            self._along[-1][1:, layer] = first
        return [
            [*(reading(at, along[at]) for at in self._axes if at > min(edit.layer for edit in edits)), *edits]
            for edits, along in zip(self._edits, self._along[-1][1:], strict=True)
        ]

    def watch(self, condition: int, log_answers: Float64[Tensor, "batch query_pos answer"]) -> None:
        """Store the entropy of the model's own answers."""
        entropies = self._own[-1][condition]
        entropies[:] = entropy_bits(log_answers[: len(entropies)].exp()).cpu().numpy()

    @property
    def n_kept(self) -> int:
        """Number of sequences whose coordinates were stored."""
        return N_KEPT - self._room

    def order(self, n_sets: int, seed: int) -> Estimate:
        """Return |ρ| along the axes with each set's edits; baselines are random edits and the unedited model."""
        even, per_set = np.full((1, self.n_kept), 1 / self.n_kept), len(self._edits) // n_sets
        firsts = [1 + i * per_set for i in range(n_sets)]
        drawn = [
            [np.abs(self._correlations(first + FIRST_RANDOM + i, even)[0]) for first in firsts] for i in range(N_RANDOM)
        ]
        conditions, weights = [0, *(first + OWN for first in firsts)], jackknife_weights(self.n_kept)
        rows = np.stack([self._correlations(condition, weights) for condition in conditions], axis=1)
        # |ρ| is withheld where ρ is.
        interval = absolute_interval(statistic_interval(rows, seed=seed, scale="correlation"))
        value = np.abs(rows[0])
        levels = [
            _level(RANDOM, np.array(drawn)),
            Baseline.of("baseline", UNEDITED, value[0], low=interval.lo[0], high=interval.hi[0]),
        ]
        ends = interval.lo[1:], interval.hi[1:]
        return Estimate.of(value[1:], ends, n=self.n_kept, baselines=levels, reason=interval.code[1:])

    def _correlations(
        self, condition: int, weights: Float[np.ndarray, "row kept"]
    ) -> Float64[np.ndarray, "row layer target"]:
        """Return ρ with the exact entropy, overall and within positions, and with the model's own, per row."""
        exact = np.concatenate(self._exact).round(9)
        entropies = np.concatenate([part[condition] for part in self._own]).round(9)
        level = np.tile(np.arange(exact.shape[1]), (len(exact), 1))
        layers = list[np.ndarray]()
        for along in np.concatenate([part[condition] for part in self._along], axis=1):
            if np.isnan(along).any():
                layers.append(np.full((len(weights), len(ENTROPIES)), np.nan))
                continue
            along = (along / max(np.abs(along).max(), 1e-30)).round(6)  # rounding errors must not change ranks
            x, y = (
                without_level_means(ranks(v.ravel())[:, None], level.ravel()).reshape(v.shape) for v in (along, exact)
            )
            by_target = (
                resampled_spearman(along, exact, weights),
                resampled_correlation_at_position(x, y, weights),
                resampled_spearman(along, entropies, weights),
            )
            layers.append(np.stack(by_target, axis=1))
        return np.stack(layers, axis=1)


def _level(name: str, by_draw: Float[np.ndarray, "draw *axes"]) -> Baseline:
    """Return mean and range over random subspaces."""
    return Baseline.of("chance", name, by_draw.mean(axis=0), low=by_draw.min(axis=0), high=by_draw.max(axis=0))


def _mean(
    sums: Float64[np.ndarray, "unit *axes"],
    counts: Int[np.ndarray, " unit"],
    seed: int,
    levels: Sequence[Baseline] = (),
) -> Estimate:
    """Return means over sequences with their intervals."""
    weights = counts.reshape(-1, *(1,) * (sums.ndim - 1)).astype(np.float64)
    interval = ratio_interval(sums, weights, seed=seed)
    return with_interval(sums.sum(axis=0) / counts.sum(), interval, n=int(counts.sum()), baselines=levels)
