"""`erase_onwards`: is a quantity used from a layer on? Erase it there and in all later layers, at all positions.

A later layer may recompute the quantity from what an earlier edit left. So erasers are fitted one layer after another,
on the residual stream with all earlier edits. At a scored position the erased quantity is that of the position; at
other positions it is that of the next and of the previous scored position, because either may be stored there.

Reference: Belrose et al. 2023, arXiv:2306.03819, section 5 (concept scrubbing).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Shaped
from torch import Tensor

from bayesgeom.core.edits import Edit, Reference
from bayesgeom.core.errors import InvalidArgument, checked
from bayesgeom.core.run import RESID_POST, RESID_PRE, Site, Trials, concatenate
from bayesgeom.core.torch_state import alone, with_gradients
from bayesgeom.interventions._evidence import Erasure, Read, erasure
from bayesgeom.interventions.design import MATCHED_MOST, RANDOM_MOST
from bayesgeom.interventions.engine import KL, EditPlan, PairReference, score_pairs
from bayesgeom.interventions.matching import matched_subspaces
from bayesgeom.interventions.onwards_report import STAGES, OnwardsReport, verdict_onwards
from bayesgeom.models.base import Model, Variant, provenance
from bayesgeom.models.replay.hooked import edited_pass
from bayesgeom.models.resolve import ModelLike, TaskLike, model_for, scored_task_of
from bayesgeom.report.estimate import Baseline, Estimate, with_ceiling
from bayesgeom.report.report import with_provenance
from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.stats.subspace import covariance, random_subspaces
from bayesgeom.subspaces.base import InterventionSite, Subspace
from bayesgeom.subspaces.erasers import JointMoments, covariance_subspace, leace_subspace
from bayesgeom.subspaces.quantity import PosteriorQuantity, is_function_of_position
from bayesgeom.tasks.base import Branch, WindTunnel, check_count, derived_seed

N_FIT, N_READ, N_HELD_OUT = 768, 256, 128  # sequences to fit erasers, to fit read-outs and to score read-outs
N_RANDOM, N_CONTROL = 20, 16  # random (and matched) subspaces, and the sequences on which they are scored
_TRIALS, _FIT, _DRAWS, _SHUFFLE, _MATCHED = 12, 13, 14, 15, 16  # branches of the seed
_NO_REFERENCE = PairReference({}, None)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class EraseByRole(Edit):
    """x − P (x − mean), with one eraser P and mean for scored positions and, optionally, another for the rest."""

    site: Site
    layer: int
    scored: tuple[Subspace, Float64[Tensor, " d"]]
    others: tuple[Subspace, Float64[Tensor, " d"]] | None
    mask: Bool[Tensor, " pos"]
    name: str

    @property
    def label(self) -> str:
        return f"erase {self.name} at L{self.layer} {self.site.name}"

    def applied(self, values: Shaped[Tensor, "..."], reference: Reference) -> Shaped[Tensor, "..."]:
        edited, mask = values.clone(), self.mask.to(values.device)
        if values.shape[1] != len(mask):  # values hold the scored positions only
            mask = mask[mask]
        for role, eraser in ((mask, self.scored), (~mask, self.others)):
            if eraser is not None and bool(role.any()):
                subspace, mean = eraser
                part = values[:, role]
                away = (part - mean.to(part)) @ subspace.reads.to(part) @ subspace.basis.to(part).T
                edited[:, role] = part - away
        return edited

    def along(self, bases: Sequence[Float64[Tensor, "d _"] | None], name: str) -> "EraseByRole":
        """Return the edit about the same means that erases other subspaces, at scored positions and at the others."""
        at_scored, elsewhere = bases
        assert at_scored is not None, "scored positions always have an eraser"
        others = None if self.others is None or elsewhere is None else (Subspace(name, elsewhere), self.others[1])
        return replace(self, scored=(Subspace(name, at_scored), self.scored[1]), others=others, name=name)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _EraseFitted(Edit):
    """Fits the eraser of a layer to the activation that arrives there, and applies it."""

    site: Site
    layer: int
    fitted: Callable[[Tensor, int], EraseByRole]

    @property
    def label(self) -> str:
        return f"fit an eraser at L{self.layer} {self.site.name}"

    def applied(self, values: Shaped[Tensor, "..."], reference: Reference) -> Shaped[Tensor, "..."]:
        return self.fitted(values, self.layer).applied(values, reference)


@final
@dataclass(frozen=True, kw_only=True)
class Targets:
    """The quantity for each role: at scored positions its value, at the others the next and the previous value."""

    scored: Float64[Tensor, "point component"]
    others: Float64[Tensor, "other_point both"]

    @classmethod
    def of(cls, trials: Trials, quantity: PosteriorQuantity) -> "Targets":
        """Return the targets; before the first and after the last scored position, missing values are the mean."""
        exact, positions = quantity.exact(trials), trials.scored_positions()[0].contiguous()
        elsewhere = (~trials.scored[0]).nonzero()[:, 0].contiguous()
        upcoming, parts = torch.searchsorted(positions, elsewhere), list[Tensor]()
        for index in (upcoming, upcoming - 1):
            there = ((index >= 0) & (index < exact.shape[1]))[:, None]
            values = exact[:, index.clamp(0, exact.shape[1] - 1)]
            parts.append(torch.where(there, values, exact.mean(dim=(0, 1))))
        return cls(scored=exact.flatten(0, 1), others=torch.cat(parts, dim=-1).flatten(0, 1))


@final
@dataclass(frozen=True, kw_only=True)
class Scrubbed:
    """Erasers by layer, the R² of a linear read-out before and after each, and covariances.

    Args:
        covariances: by layer, of the layer's input: at scored positions and at the others.
    """

    edits: Mapping[int, EraseByRole]
    erasures: Mapping[int, Erasure]
    covariances: Mapping[int, tuple[Float64[Tensor, "d d"], Float64[Tensor, "d d"] | None]]


@final
@dataclass(frozen=True, kw_only=True)
class Scrubber:
    """Fits the erasers of a quantity in one pass, each on the residual stream with all earlier edits.

    The first `n_fit` sequences fit the erasers, the next `n_read` fit the read-out, and the rest score it.
    """

    model: Model
    site: Site
    quantity: PosteriorQuantity
    oblique: bool
    n_fit: int
    n_read: int

    @property
    def name(self) -> str:
        """Label of the eraser in reports."""
        return f"{'LEACE' if self.oblique else 'covariance'} ({self.quantity.label})"

    @alone("model.module")
    @torch.no_grad()
    def from_layer(self, trials: Trials, first: int, *, seed: int) -> Scrubbed:
        """Erase in every layer from `first` on.

        Raises:
            InvalidArgument: The activations of a layer do not vary with the quantity.
        """
        edits, erasures = dict[int, EraseByRole](), dict[int, Erasure]()
        covariances = dict[int, tuple[Tensor, Tensor | None]]()
        values = self.quantity.exact(trials)

        def fitted(output: Tensor, layer: int) -> EraseByRole:
            edits[layer] = edit = self._eraser(trials, output, layer)
            few, mask = output[: self.n_fit], trials.scored[0]
            covariances[layer] = (_spread(few[:, mask]), None if mask.all() else _spread(few[:, ~mask]))
            points = trials.at_scored(output).double()
            fit, held_out = (
                Read(points=points[rows], values=values[rows])
                for rows in (slice(self.n_fit, self.n_fit + self.n_read), slice(self.n_fit + self.n_read, None))
            )
            erasures[layer] = erasure(fit, held_out, edit.scored[0], seed=seed + layer)
            return edit

        layers = range(first, self.model.spec.n_layers)
        fits = [_EraseFitted(site=self.site, layer=layer, fitted=fitted) for layer in layers]
        edited_pass(self.model, trials, fits, _NO_REFERENCE)
        return Scrubbed(edits=edits, erasures=erasures, covariances=covariances)

    def _eraser(self, trials: Trials, output: Float[Tensor, "batch pos d"], layer: int) -> EraseByRole:
        few, mask = trials.rows(slice(0, self.n_fit)), trials.scored[0]
        values, targets = output[: self.n_fit], Targets.of(few, self.quantity)
        own = self._one(values[:, mask], targets.scored)
        if own is None:
            raise InvalidArgument(
                f"nothing in layer {layer} varies with the {self.quantity.label}. Start from a later layer."
            )
        others = self._one(values[:, ~mask], targets.others)
        return EraseByRole(site=self.site, layer=layer, scored=own, others=others, mask=mask, name=self.name)

    def _one(
        self, values: Float[Tensor, "batch pos d"], target: Float64[Tensor, "point component"]
    ) -> tuple[Subspace, Float64[Tensor, " d"]] | None:
        """Return the eraser and the mean of one role; None if there is nothing to erase."""
        points = values.flatten(0, 1).double()
        if not len(points) or float((points - points.mean(dim=0)).abs().max()) < 1e-6 * float(points.abs().max()):
            return None
        if float((target - target.mean(dim=0)).abs().max()) < 1e-9:
            return None
        make = leace_subspace if self.oblique else covariance_subspace
        return make(self.name, JointMoments.of(points, target)), points.mean(dim=0)


def like_erasers(scrubbed: Scrubbed, *, seed: int) -> list[EraseByRole]:
    """Return erasers of random subspaces of the same ranks, at the same layers and about the same means."""
    found = []
    for layer, edit in scrubbed.edits.items():
        bases = [
            None
            if role is None
            else random_subspaces(role[0].width, role[0].rank, draws=1, seed=derived_seed(seed, layer, index))[0]
            for index, role in enumerate((edit.scored, edit.others))
        ]
        found.append(edit.along(bases, "a random subspace"))
    return found


def matched_erasers(scrubbed: Scrubbed, *, draws: int, seed: int) -> tuple[list[list[EraseByRole]], bool]:
    """Return `draws` sets of erasers of subspaces with the same share of variance, with the same layers and means.

    Returns:
        The sets, and whether the shares agree in every layer at scored positions. If no distinct subspaces have as
        much variance as the eraser's own subspace, every set uses the whole complement.
    """
    sets: list[list[EraseByRole]] = [[] for _ in range(draws)]
    is_matched = True
    for layer, edit in scrubbed.edits.items():
        roles = zip((edit.scored, edit.others), scrubbed.covariances[layer], strict=True)
        found = [
            None
            if role is None or spread is None
            else matched_subspaces(role[0], spread, draws=draws, seed=derived_seed(seed, layer, index))
            for index, (role, spread) in enumerate(roles)
        ]
        is_matched &= found[0] is not None and found[0].is_matched
        for number, erasers in enumerate(sets):
            bases = [None if own is None else own.bases[number % len(own.bases)] for own in found]
            erasers.append(edit.along(bases, "a matched subspace"))
    return sets, is_matched


def _spread(values: Float[Tensor, "batch pos d"]) -> Float64[Tensor, "d d"]:
    return covariance(values.flatten(0, 1).double())


@checked("model", "task")
@with_gradients
def erase_onwards(
    model: ModelLike,
    task: TaskLike | None = None,
    quantity: str | PosteriorQuantity = "entropy",
    *,
    sites: InterventionSite | None = None,
    oblique: bool = True,
    n: int = 256,
    seed: int = 0,
) -> OnwardsReport:
    """Erase a quantity from one layer on, at all positions, in a single pass, and report the KL increase.

    Args:
        model: a model, its name or its directory.
        task: a task or its name; by default the task that the model was trained on.
        quantity: "entropy", "belief" or "log_odds:H".
        sites: `resid_pre` or `resid_post`, and the first layers to try; by default `resid_pre` and every layer except
            0, where the vectors at all scored positions may be equal.
        oblique: erase by LEACE, else by the orthogonal projector onto Cov(x, y).
        n: number of scored sequences.
        seed: seed of the sequences, fits and intervals.

    Returns:
        KL increase and entropy error for every first layer.

    Raises:
        InvalidArgument: another site, a layer that does not exist, n < 2, or a first layer with nothing to erase.

    References:
        Belrose et al. 2023, arXiv:2306.03819, section 5.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=2, n_heads=1, d_model=8, d_mlp=8)
        >>> module = config.build(seed=0)
        >>> bayesgeom.erase_onwards(module, task, "entropy", n=8).n
        8
    """
    check_count(n)
    place, quantity = sites or InterventionSite(), PosteriorQuantity.of(quantity)
    subject = model_for(model, task)
    chosen = scored_task_of(subject, task)
    place.check_in(subject, editable=(RESID_PRE, RESID_POST))
    device, n_layers = subject.spec.device, subject.spec.n_layers
    one = chosen.sample(1, seed=seed, device=device)
    subject.check_fits(one)
    quantity.check(one)
    firsts = tuple(range(min(1, n_layers - 1), n_layers)) if place.layers is None else tuple(place.layers)
    scrubber = Scrubber(model=subject, site=place.site, quantity=quantity, oblique=oblique, n_fit=N_FIT, n_read=N_READ)
    trials = concatenate(list(chosen.stream(N_FIT + N_READ + N_HELD_OUT, seed=derived_seed(seed, _FIT), device=device)))
    found = {first: scrubber.from_layer(trials, first, seed=derived_seed(seed, _SHUFFLE)) for first in firsts}
    is_identified = not is_function_of_position(quantity.exact(trials))
    report = _report(scrubber, chosen, found, n=n, seed=seed, is_identified=is_identified)
    arguments = {"n": n, "seed": seed, "quantity": quantity.label, "oblique": oblique, "site": place.site.name}
    layers = "all" if place.layers is None else ",".join(map(str, firsts))
    return with_provenance(report, provenance(subject, chosen, {**arguments, "layers": layers}))


def _report(
    scrubber: Scrubber, task: WindTunnel, found: dict[int, Scrubbed], *, n: int, seed: int, is_identified: bool
) -> OnwardsReport:
    model, n_layers = scrubber.model, scrubber.model.spec.n_layers
    value, low, high, ceiling, least, most, matched, excess = np.full((8, n_layers), np.nan)
    r2 = np.full((2, n_layers), np.nan)
    verdicts, own_kl, is_matched = [""] * n_layers, float("nan"), [False] * n_layers
    for first, scrubbed in found.items():
        everything = torch.eye(scrubbed.edits[first].scored[0].width, dtype=torch.float64)
        replaced_by_mean = scrubbed.edits[first].along((everything, everything), "whole activation")
        conditions: list[Variant] = [list(scrubbed.edits.values()), [replaced_by_mean]]
        draws = [like_erasers(scrubbed, seed=derived_seed(seed, _DRAWS, number)) for number in range(N_RANDOM)]
        alike, is_matched[first] = matched_erasers(scrubbed, draws=N_RANDOM, seed=derived_seed(seed, _MATCHED))
        main = _kl(model, task, conditions, n=n, seed=seed)
        control = _kl(model, task, draws + alike, n=min(n, N_CONTROL), seed=seed)
        paired, own_kl = main[:, 1:] - main[:, :1], float(main[:, 0].mean())
        value[first], ceiling[first] = paired[:, 0].mean(), paired[:, 1].mean()
        low[first], high[first] = mean_interval(paired[:, 0], seed=derived_seed(seed, Branch.RESAMPLING))
        drawn = (control[:, 1:] - control[:, :1]).mean(axis=0)
        least[first], most[first] = drawn[:N_RANDOM].min(), drawn[:N_RANDOM].max()
        matched[first] = drawn[N_RANDOM:].max()
        erasures = list(scrubbed.erasures.values())
        r2[:, first] = erasures[0].before, max(each.after for each in erasures)
        excess[first] = max(each.after - max(each.permuted, 0.0) for each in erasures)
        verdicts[first] = verdict_onwards(
            (low[first], high[first]),
            ceiling[first],
            own_kl,
            excess=excess[first],
            is_decodable=erasures[0].is_clearly_decodable,
            is_identified=is_identified,
        )
    controls = [
        Baseline.of("chance", RANDOM_MOST, most, low=least, high=most),
        Baseline.of("chance", MATCHED_MOST, matched),
    ]
    return OnwardsReport(
        site=scrubber.site.name,
        subspace=scrubber.name,
        quantity=scrubber.quantity.label,
        kl_increase_bits=with_ceiling(Estimate.of(value, (low, high), n=n, baselines=controls), ceiling),
        stages=STAGES,
        r2=Estimate.of(r2),
        r2_excess=excess,
        unedited_kl_bits=Estimate.of(own_kl, n=n),
        verdict_by_layer=tuple(map(str, verdicts)),
        is_matched_by_layer=tuple(is_matched),
        n=n,
    )


def _kl(model: Model, task: WindTunnel, conditions: Sequence[Variant], *, n: int, seed: int) -> np.ndarray:
    """Return KL per sequence, averaged over scored positions: unedited, then with each set of edits."""
    stream = task.stream(n, seed=derived_seed(seed, _TRIALS), device=model.spec.device)
    plan = EditPlan(replayer=model.replayer(), spec=model.spec, means={}, conditions=lambda _: conditions, max_units=n)
    totals = score_pairs(((block, None) for block in stream), plan, n)
    return np.concatenate([totals.baseline[:, None], totals.conditions], axis=1)[..., KL, 0]
