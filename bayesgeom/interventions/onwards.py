"""`erase_onwards`: is a quantity inert from a layer on? Erase it there and in all later layers, at all positions.

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

from bayesgeom.core import RESID_POST, RESID_PRE, Edit, InvalidArgument, Reference, Site, Trials, checked, concatenate
from bayesgeom.core.torch_state import holding_lock, with_gradients
from bayesgeom.interventions._evidence import Erasure, erasure
from bayesgeom.interventions.design import ERASED, MATCHED_MOST, RANDOM_MOST
from bayesgeom.interventions.engine import EditPlan, PairReference, Score, score_pairs
from bayesgeom.interventions.matching import matched_subspaces
from bayesgeom.interventions.report import OnwardsReport
from bayesgeom.interventions.verdicts import onwards_verdict
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
from bayesgeom.tasks.base import Branch, FiniteTask, WindTunnel, check_count, derived_seed

N_FIT, N_READ, N_HELD_OUT = 768, 256, 128  # sequences to fit erasers, to fit read-outs and to score read-outs
N_RANDOM, N_CONTROL = 20, 16  # random (and matched) subspaces, and the sequences on which they are scored
_TRIALS, _FIT, _DRAWS, _SHUFFLE, _MATCHED = 12, 13, 14, 15, 16  # branches of the seed
_NO_REFERENCE = PairReference({}, None)


@final
@dataclass(frozen=True, kw_only=True)
class Role:
    """The eraser of one role of positions, those that are scored or the others, about a mean.

    Args:
        covariance: of the activations that arrive there.
    """

    eraser: Subspace
    mean: Float64[Tensor, " d"]
    covariance: Float64[Tensor, "d d"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class EraseByRole(Edit):
    """x − P (x − mean), with one eraser P and mean for scored positions and another for the rest; None leaves them."""

    site: Site
    layer: int
    roles: tuple[Role | None, Role | None]
    mask: Bool[Tensor, " pos"]

    @property
    def label(self) -> str:
        (name,) = {role.eraser.name for role in self.roles if role is not None}
        return f"erase {name} at L{self.layer} {self.site.name}"

    def applied(self, values: Shaped[Tensor, "..."], reference: Reference) -> Shaped[Tensor, "..."]:
        edited, mask = values.clone(), self.mask.to(values.device)
        for at, role in zip((mask, ~mask), self.roles, strict=True):
            if role is not None and bool(at.any()):
                part = values[:, at]
                away = (part - role.mean.to(part)) @ role.eraser.reads.to(part) @ role.eraser.basis.to(part).T
                edited[:, at] = part - away
        return edited

    def along(self, subspaces: Sequence[Subspace | None]) -> "EraseByRole":
        """Return the edit about the same means that erases other subspaces, one for each role."""
        scored, others = (
            role if role is None or subspace is None else replace(role, eraser=subspace)
            for role, subspace in zip(self.roles, subspaces, strict=True)
        )
        return replace(self, roles=(scored, others))


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


def targets_of(
    trials: Trials, quantity: PosteriorQuantity
) -> tuple[Float64[Tensor, "point component"], Float64[Tensor, "other_point both"]]:
    """Return the quantity for each role: at scored positions its value, at the others the next and the previous value.

    Before the first and after the last scored position, missing values are the mean.
    """
    exact, positions = quantity.exact(trials), trials.scored_positions()[0].contiguous()
    elsewhere = (~trials.scored[0]).nonzero()[:, 0].contiguous()
    upcoming, parts = torch.searchsorted(positions, elsewhere), list[Tensor]()
    for index in (upcoming, upcoming - 1):
        there = ((index >= 0) & (index < exact.shape[1]))[:, None]
        values = exact[:, index.clamp(0, exact.shape[1] - 1)]
        parts.append(torch.where(there, values, exact.mean(dim=(0, 1))))
    return exact.flatten(0, 1), torch.cat(parts, dim=-1).flatten(0, 1)


@final
@dataclass(frozen=True, kw_only=True)
class Scrubbed:
    """Erasers by layer, and the R² of a linear read-out at scored positions before and after each."""

    edits: Mapping[int, EraseByRole]
    erasures: Mapping[int, Erasure]

    def like(self, *, seed: int) -> list[EraseByRole]:
        """Return erasers of random subspaces of the same ranks, at the same layers and about the same means."""
        edits = []
        for layer, edit in self.edits.items():
            drawn = list[Subspace | None]()
            for at, role in enumerate(edit.roles):
                size, here = (1, 1) if role is None else role.eraser.basis.shape, derived_seed(seed, layer, at)
                drawn.append(Subspace("a random subspace", random_subspaces(*size, draws=1, seed=here)[0]))
            edits.append(edit.along(drawn))
        return edits

    def matched(self, *, draws: int, seed: int) -> tuple[list[list[EraseByRole]], bool]:
        """Return sets of erasers of subspaces with the same share of variance, with the same layers and means.

        Returns:
            `draws` sets, and whether the shares agree in every layer at scored positions. If no distinct subspaces
            have as much variance as the eraser's own subspace, every set uses the whole complement.
        """
        sets: list[list[EraseByRole]] = [[] for _ in range(draws)]
        is_matched = True
        for layer, edit in self.edits.items():
            by_role = [
                role
                and matched_subspaces(role.eraser, role.covariance, draws=draws, seed=derived_seed(seed, layer, at))
                for at, role in enumerate(edit.roles)
            ]
            is_matched &= by_role[0] is not None and by_role[0].is_matched
            for number, erasers in enumerate(sets):
                bases = [matched and matched.bases[number % len(matched.bases)] for matched in by_role]
                erasers.append(
                    edit.along([None if basis is None else Subspace("a matched subspace", basis) for basis in bases])
                )
        return sets, is_matched


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
    n_fit: int = N_FIT
    n_read: int = N_READ

    @property
    def name(self) -> str:
        """Label of the eraser in reports."""
        return f"{'LEACE' if self.oblique else 'covariance'} ({self.quantity.label})"

    @holding_lock("model.module")
    @torch.no_grad()
    def from_layer(self, trials: Trials, first: int, *, seed: int) -> Scrubbed:
        """Erase in every layer from `first` on.

        Raises:
            InvalidArgument: The activations of a layer do not vary with the quantity.
        """
        edits, erasures = dict[int, EraseByRole](), dict[int, Erasure]()
        values, mask, few = self.quantity.exact(trials), trials.scored[0], trials.rows(slice(0, self.n_fit))
        at_scored, elsewhere = targets_of(few, self.quantity)

        def fitted(output: Tensor, layer: int) -> EraseByRole:
            scored = self._role(output[: self.n_fit][:, mask], at_scored)
            if scored is None:
                raise InvalidArgument(
                    f"nothing in layer {layer} varies with the {self.quantity.label}. Start from a later layer."
                )
            roles = scored, self._role(output[: self.n_fit][:, ~mask], elsewhere)
            edits[layer] = EraseByRole(site=self.site, layer=layer, roles=roles, mask=mask)
            points = trials.at_scored(output).double()[self.n_fit :]
            erasures[layer] = erasure(points, values[self.n_fit :], scored.eraser, n_fit=self.n_read, seed=seed + layer)
            return edits[layer]

        layers = range(first, self.model.spec.n_layers)
        fits = [_EraseFitted(site=self.site, layer=layer, fitted=fitted) for layer in layers]
        edited_pass(self.model, trials, fits, _NO_REFERENCE)
        return Scrubbed(edits=edits, erasures=erasures)

    def _role(self, values: Float[Tensor, "batch pos d"], target: Float64[Tensor, "point component"]) -> Role | None:
        """Return the eraser of one role; None if there is nothing to erase."""
        points = values.flatten(0, 1).double()
        if not len(points) or float((points - points.mean(dim=0)).abs().max()) < 1e-6 * float(points.abs().max()):
            return None
        if float((target - target.mean(dim=0)).abs().max()) < 1e-9:
            return None
        make = leace_subspace if self.oblique else covariance_subspace
        eraser = make(self.name, JointMoments.of(points, target))
        return Role(eraser=eraser, mean=points.mean(dim=0), covariance=covariance(points))


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
        quantity: "entropy", "belief", "log_odds:H" or "statistic:NAME".
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
    if isinstance(chosen, FiniteTask):
        raise InvalidArgument(f"erase_onwards needs a task that draws new sequences; {chosen} has none: use intervene.")
    device, n_layers = subject.spec.device, subject.spec.n_layers
    subject.check_fits(one := chosen.sample(1, seed=seed, device=device))
    quantity.check(one)
    firsts = tuple(range(min(1, n_layers - 1), n_layers)) if place.layers is None else tuple(place.layers)
    scrubber = Scrubber(model=subject, site=place.site, quantity=quantity, oblique=oblique)
    trials = concatenate(list(chosen.stream(N_FIT + N_READ + N_HELD_OUT, seed=derived_seed(seed, _FIT), device=device)))
    by_first = {first: scrubber.from_layer(trials, first, seed=derived_seed(seed, _SHUFFLE)) for first in firsts}
    is_identified = not is_function_of_position(quantity.exact(trials))
    report = _report(scrubber, chosen, by_first, n=n, seed=seed, is_identified=is_identified)
    arguments = {"n": n, "seed": seed, "quantity": quantity.label, "oblique": oblique, "site": place.site.name}
    layers = "all" if place.layers is None else ",".join(map(str, firsts))
    return with_provenance(report, provenance(subject, chosen, {**arguments, "layers": layers}))


def _report(
    scrubber: Scrubber, task: WindTunnel, by_first: dict[int, Scrubbed], *, n: int, seed: int, is_identified: bool
) -> OnwardsReport:
    model, n_layers = scrubber.model, scrubber.model.spec.n_layers
    value, low, high, ceiling, least, median, most, matched, excess = np.full((9, n_layers), np.nan)
    r2, codes = np.full((2, n_layers), np.nan), np.zeros(n_layers, dtype=np.int64)
    verdicts, own_kl = [""] * n_layers, float("nan")
    is_matched, is_decodable = ([False] * n_layers for _ in range(2))
    everything = Subspace("whole activation", torch.eye(model.spec.d_model, dtype=torch.float64))
    for first, scrubbed in by_first.items():
        replaced_by_mean = scrubbed.edits[first].along([everything, everything])
        conditions: list[Variant] = [list(scrubbed.edits.values()), [replaced_by_mean]]
        draws = [scrubbed.like(seed=derived_seed(seed, _DRAWS, number)) for number in range(N_RANDOM)]
        alike, is_matched[first] = scrubbed.matched(draws=N_RANDOM, seed=derived_seed(seed, _MATCHED))
        main = _kl(model, task, conditions, n=n, seed=seed)
        control = _kl(model, task, draws + alike, n=min(n, N_CONTROL), seed=seed)
        paired, own_kl = main[:, 1:] - main[:, :1], float(main[:, 0].mean())
        value[first], ceiling[first] = paired[:, 0].mean(), paired[:, 1].mean()
        interval = mean_interval(paired[:, 0], seed=derived_seed(seed, Branch.RESAMPLING))
        low[first], high[first], codes[first] = interval.lo, interval.hi, interval.code
        drawn = (control[:, 1:] - control[:, :1]).mean(axis=0)
        random = drawn[:N_RANDOM]
        least[first], median[first], most[first] = random.min(), np.median(random), random.max()
        matched[first] = drawn[N_RANDOM:].max()
        erasures = list(scrubbed.erasures.values())
        r2[:, first] = erasures[0].before, max(each.after for each in erasures)
        excess[first] = max(each.after - max(each.permuted, 0.0) for each in erasures)
        is_decodable[first] = erasures[0].is_clearly_decodable
    controls = [
        Baseline.of("chance", RANDOM_MOST, most, low=least, high=most),
        Baseline.of("chance", MATCHED_MOST, matched),
        Baseline.of("chance", ERASED, median, low=least, high=most),
    ]
    increase = with_ceiling(Estimate.of(value, (low, high), n=n, baselines=controls, reason=codes), ceiling)
    for first in by_first:
        verdicts[first] = onwards_verdict(
            increase[first], excess=excess[first], is_decodable=is_decodable[first], is_identified=is_identified
        )
    return OnwardsReport(
        site=scrubber.site.name,
        subspace=scrubber.name,
        quantity=scrubber.quantity.label,
        kl_increase_bits=increase,
        r2_before=Estimate.of(r2[0]),
        r2_after=Estimate.of(r2[1]),
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
    return np.concatenate([totals.baseline[:, None], totals.conditions], axis=1)[..., Score.KL, 0]
