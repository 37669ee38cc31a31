"""A checked intervention: fits subspaces, draws controls and scores conditions."""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.ablations.engine import Means, batches
from bayesgeom.core import RESID_POST, AtPositions, Edit, InvalidArgument, NoCopy, Run, Trials, concatenate, phase
from bayesgeom.interventions.design import Design, LayerEdits, Positions
from bayesgeom.interventions.engine import (
    EditPlan,
    Movement,
    Pair,
    PairPass,
    Totals,
    reference_of,
    role_means,
    score_pairs,
)
from bayesgeom.interventions.matching import Matched, matched_subspaces, outside_share
from bayesgeom.models.base import Model, Replayer, Variant, provenance
from bayesgeom.models.replay.carried import CARRIED, CarriedReplayer
from bayesgeom.stats.subspace import random_subspaces
from bayesgeom.subspaces.base import Fit, InterventionSite, Sample, Setting, Subspace
from bayesgeom.subspaces.erasers import Eraser, NothingLeft
from bayesgeom.subspaces.trained import TrainedSwap
from bayesgeom.tasks.base import (
    BLOCK,
    FiniteTask,
    LabeledTask,
    WindTunnel,
    at_most,
    check_count,
    derived_seed,
    fit_task,
    score_task,
)

N_READ = 256  # sequences on which read-outs are fitted
_LEAST_TEXTS = 6  # with labels: a read-out holds out a third of the half that is scored
N_COMPARED = 32  # pairs for the share outside a subspace
_PAIRS, _FIT, HELD_OUT, DRAWS, _DONORS, _UNTRAINED, _TRAIN, SHUFFLE = range(4, 12)  # branches of the seed
_BUDGET = 2**30  # bytes of activations that fits may record
_SAME = 1e-6  # share of a quantity's variance below which pairs do not differ in it


@final
@dataclass(frozen=True, kw_only=True)
class Intervention:
    """A checked intervention in each layer of a site alone, shared by `intervene` and the dynamics. Internal."""

    model: Model
    task: WindTunnel
    fit: Fit
    design: Design
    place: InterventionSite
    donors: str
    n: int
    seed: int

    @classmethod
    def of(
        cls,
        model: Model,
        task: WindTunnel,
        fit: Fit,
        *,
        design: Design,
        place: InterventionSite,
        n: int,
        seed: int,
    ) -> "Intervention":
        """Check all arguments before anything runs."""
        n = at_most(score_task(task), check_count(n))
        if isinstance(task, LabeledTask) and task.n_sequences < _LEAST_TEXTS:
            raise InvalidArgument(f"intervene scores a half of the texts: pass at least {_LEAST_TEXTS}, got {task}.")
        place.check_in(model)
        one = task.sample(1, seed=seed, device=model.spec.device)
        model.check_fits(one)
        fit.check(Setting(model=model, place=place, trials=one))
        has_donors = design.kind == "swap" or isinstance(fit, TrainedSwap)
        donors = _donors_of(task, fit, design, seed) if has_donors else ""
        checked = cls(model=model, task=task, fit=fit, design=design, place=place, donors=donors, n=n, seed=seed)
        checked.positions.check(one)
        if isinstance(fit, TrainedSwap) or not (checked.positions.are_scored or place.score_after):
            check_even(task, f"{fit.label} at {checked.positions.label}")
        return checked

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that are edited."""
        return self.place.layers_of(self.model.spec)

    @property
    def positions(self) -> Positions:
        """The positions of a sequence that are edited."""
        by_fit = "scored" if self.fit.about.at_scored else "all"
        are_scored, place = (self.place.positions or by_fit) == "scored", self.place
        return Positions(are_scored=are_scored, score_after=place.score_after, lags=self.design.lags)

    @property
    def has_direct_path(self) -> bool:
        """Whether the residual stream carries an edit to the output."""
        return self.place.is_residual and RESID_POST in self.model.sites

    @property
    def by_leace(self) -> tuple[Eraser, ...]:
        """LEACE's fit of the quantity, which judges covariance and trained swaps where there is a direct path."""
        fit, given = self.fit, self.fit.given if isinstance(self.fit, Eraser) else ()
        is_judged = isinstance(fit, TrainedSwap) or (isinstance(fit, Eraser) and not fit.oblique)
        eraser = Eraser(quantity=fit.about.quantity, oblique=True, given=given)
        return (eraser,) if is_judged and self.has_direct_path and self.design.kind == "swap" else ()

    def pairs(self, n: int) -> Iterator[Pair]:
        """Yield the scored sequences in blocks, with donors under a swap and None otherwise."""
        if self.design.kind != "swap":
            stream = score_task(self.task).stream(
                n, seed=derived_seed(self.seed, _PAIRS), device=self.model.spec.device
            )
            yield from ((trials, None) for trials in stream)
            return
        size = n if isinstance(self.task, FiniteTask) else BLOCK  # so that each of its sequences is edited once
        for block, start in enumerate(range(0, n, size)):
            both = self._drawn(score_task(self.task), size, derived_seed(self.seed, _PAIRS, block))
            originals, donors = (trials.rows(slice(0, n - start)) for trials in both)
            yield originals, donors

    def answers(
        self, edits: Sequence[Edit], n: int
    ) -> tuple[Sequence[tuple[int, Pair]], Float64[Tensor, "condition pair query_pos answer"]]:
        """Return the batches with their numbers, and the model's log answers: without an edit, then under each."""
        scored, logs = list[tuple[int, Pair]](), [list[Tensor]() for _ in range(1 + len(edits))]

        def variants(batch: PairPass) -> list[Variant]:
            scored.append((batch.number, batch.pair))
            mask = self.positions.mask(batch.baseline.trials, batch.number)
            return [(edit if mask is None else AtPositions.of(edit, mask),) for edit in edits]

        def watch(index: int, log_answers: Float64[Tensor, "batch query_pos answer"]) -> None:
            logs[index].append(log_answers.cpu())

        label, spec = f"{self.design.kind} {self.fit.label}", self.model.spec
        plan = EditPlan(replayer=self.replayer(), spec=spec, conditions=variants, means={}, watch=watch, label=label)
        score_pairs(self.pairs(n), plan, n)
        return scored, torch.stack([torch.cat(parts) for parts in logs])

    @property
    def where(self) -> str:
        """Site, positions and donors, as reports name them."""
        donors = f"; donors: {self.donors}" if self.design.kind == "swap" else ""
        return f"{self.place.site.name}, {self.positions.label}{donors}"

    def fitted(self, sample: Sample) -> tuple[dict[int, Subspace], dict[int, str]]:
        """Return the subspaces, and the reason in layers where the quantities held fixed leave none.

        Raises:
            InvalidArgument: No layer has a subspace.
        """
        with phase(f"fitting {self.fit.label}"):
            subspaces, empty = fitted_where_possible(self.fit, sample, self.layers, but=NothingLeft)
        if not subspaces:
            groups = {reason: [at for at, why in empty.items() if why == reason] for reason in empty.values()}
            reasons = "; ".join(f"in layers {', '.join(map(str, at))}, {reason}" for reason, at in groups.items())
            raise InvalidArgument(f"{self.fit.label} exists in no layer: {reasons}. Hold fewer quantities fixed.")
        return subspaces, empty

    def provenance(self) -> dict[str, Any]:
        """Return model, task and arguments."""
        arguments = {
            "n": self.n,
            "seed": self.seed,
            "kind": self.design.kind,
            "subspace": self.fit.label,
            "site": self.place.site.name,
            "layers": "all" if self.place.layers is None else ",".join(map(str, self.layers)),
            "positions": self.place.positions or "by subspace",
            "score_after": self.place.score_after,
            "donors": self.donors or "none",
            "controls": self.design.n_random,
        }
        return provenance(self.model, self.task, arguments)

    def random_of(self, layer: int, rank: int) -> Float64[Tensor, "draw d rank"]:
        """Return random subspaces of this rank in one layer."""
        width = self.place.width_in(self.model.spec)
        seed = derived_seed(self.seed, DRAWS, layer)
        return random_subspaces(width, rank, draws=self.design.n_random, seed=seed)

    def conditions(self, sample: Sample, layer: int) -> LayerEdits:
        """Return the factory of the edits of one layer."""
        like = sample.run.at(self.place.site)
        return LayerEdits(
            site=self.place.site,
            layer=layer,
            kind=self.design.kind,
            like=like,
            points=sample.points(layer),
            seed=self.seed,
        )

    def controls(self, subspace: Subspace, covariance: Float64[Tensor, "d d"], layer: int) -> Matched:
        """Return subspaces with the same share of a covariance."""
        seed = derived_seed(self.seed, DRAWS, layer, 1)
        return matched_subspaces(subspace, covariance, draws=self.design.n_matched, seed=seed)

    def scored(
        self,
        n: int,
        conditions: Mapping[int, Sequence[Edit]],
        sample: Sample,
        *,
        means: Means | None = None,
        ceiling_at: int = 0,
        paths: Sequence[int] | None = None,
    ) -> Totals:
        """Score every condition on `n` pairs: where the site allows it, some also without their direct paths.

        By default these are all others if the ceiling is first, else the first one and that of LEACE, the last.
        """
        quantity, trials = self.fit.about.quantity, sample.run.trials
        value = quantity.own(trials) if quantity.is_told_by_answers(trials) else _unknown
        center = value(sample.run.log_answers.double()).mean(dim=0)
        n_edits, chosen = len(next(iter(conditions.values()))), tuple[int, ...]()
        if self.has_direct_path:
            firsts = (0, n_edits - 1) if self.by_leace else (0,)
            chosen = tuple(paths or (firsts if ceiling_at else range(1, n_edits)))

        def variants(batch: PairPass) -> list[Variant]:
            mask, edited = self.positions.mask(batch.baseline.trials, batch.number), list[Variant]()
            for edits in conditions.values():
                limited = [edit if mask is None else AtPositions.of(edit, mask) for edit in edits]
                edited += [(edit,) for edit in limited]
                edited += [batch.without_direct_path(limited[index], self.model.spec) for index in chosen]
            return edited

        per_layer = n_edits + len(chosen)
        ceilings = [row * per_layer + ceiling_at for row in range(len(conditions)) for _ in range(per_layer)]
        toward = ceilings if self.place.score_after else None
        movement = Movement(value=value, center=center, toward=toward)
        plan = EditPlan(
            replayer=self.replayer(),
            spec=self.model.spec,
            conditions=variants,
            means=means or {},
            positions=self.positions,
            movement=movement if self.design.kind == "swap" else None,
            label=f"{self.design.kind} {self.fit.label}" if ceiling_at else "control subspaces",
        )
        return score_pairs(self.pairs(n), plan, n).by_layer(len(conditions))

    def sample(self, n: int = 0, branch: int = _FIT) -> Sample:
        """Return `n` sequences with the model's activations; by default those on which subspaces are fitted."""
        n = n or self.design.n_fit
        task = fit_task(self.task) if branch == _FIT else score_task(self.task)
        n = at_most(task, n)
        stream = task.stream(n, seed=derived_seed(self.seed, branch), device=self.model.spec.device)
        with phase(f"{self.model.spec.name}: activations of {n:,} sequences"):
            if self.place.site == CARRIED:
                run = self._recorded(list(stream))
            else:
                run = self.model.run(stream, record=(self.place.site,), n_recorded=n, budget_bytes=_BUDGET)
        return Sample(
            model=self.model,
            run=run,
            place=self.place,
            seed=derived_seed(self.seed, branch, 1),
            draw_pairs=lambda n, seed: self._drawn(fit_task(self.task), n, derived_seed(self.seed, _TRAIN, seed)),
            mask=self.positions.mask(run.trials, 0),
        )

    def replayer(self) -> Replayer:
        """Return what runs edited passes at the site."""
        return CarriedReplayer(self.model) if self.place.site == CARRIED else self.model.replayer()

    def _recorded(self, blocks: list[Trials]) -> Run:
        """Return a run with the carried states of every layer at scored positions, which no module outputs."""
        run = self.model.run(blocks, record=(), n_recorded=sum(map(len, blocks)), budget_bytes=_BUDGET)
        replayer, by_batch = self.replayer(), list[Tensor]()
        for block in blocks:
            for batch in batches(block, self.model.spec):
                stored = replayer.baseline(batch).stored
                layers = [batch.at_scored(stored[CARRIED, layer]) for layer in range(self.model.spec.n_layers)]
                by_batch.append(torch.stack(layers))
        return replace(run, recorded={CARRIED: torch.cat(by_batch, dim=1)}, trials=concatenate(blocks))

    def _drawn(self, task: WindTunnel, n: int, seed: int) -> tuple[Trials, Trials]:
        """Return recipients and donors: pairs of the task, or independent sequences."""
        n, device = at_most(task, n), self.model.spec.device
        if self.donors == "independent":
            return _independent(task, n, seed, device)
        return task.sample_pair(n, seed=seed, device=device)

    def means(self, sample: Sample) -> Means:
        """Return the mean activation of each layer: one vector for scored positions, one for the others."""
        site, like = self.place.site, sample.run.at(self.place.site)
        if self.positions.are_scored or self.positions.score_after:
            n_pos = sample.run.trials.tokens.shape[1]
            rest = like.shape[3:]
            return {
                (site, at): sample.points(at).mean(dim=0).to(like).reshape(rest).expand(n_pos, *rest)
                for at in self.layers
            }
        places = [(site, at) for at in self.layers]
        return role_means(
            self.replayer(), fit_task(self.task), self.model.spec, places, seed=derived_seed(self.seed, _FIT)
        )

    @torch.no_grad()
    def differences(self, layers: Iterable[int], n: int) -> dict[int, Float64[Tensor, "point d"]]:
        """Return donor − recipient at the edited positions of `n` pairs."""
        replayer, site = self.replayer(), self.place.site
        both = self._drawn(score_task(self.task), n, derived_seed(self.seed, _PAIRS, 0, 1))
        stored, reference = replayer.baseline(both[0]).stored, reference_of(replayer, *both, {})
        chosen = (
            both[0].scored if self.positions.are_scored or self.place.score_after else torch.ones_like(both[0].scored)
        )
        by_layer = {at: (reference.donor(site, at) - stored[site, at]).double().flatten(2) for at in layers}
        return {at: apart[chosen.to(apart.device)] for at, apart in by_layer.items()}


def fitted_where_possible(
    fit: Fit, sample: Sample, layers: Sequence[int], *, but: type[InvalidArgument] = InvalidArgument
) -> tuple[dict[int, Subspace], dict[int, str]]:
    """Return the subspaces of the layers where the fit succeeds, and the reason where it fails with such an error.

    It fails where every vector is the same, for example. All layers are tried at once first: gradients cost a pass.
    """
    subspaces, failed = dict[int, Subspace](), dict[int, str]()
    try:
        return fit.fitted(sample, layers), failed
    except but:
        for layer in layers:
            try:
                subspaces |= fit.fitted(sample, (layer,))
            except but as error:
                failed[layer] = error.reason if isinstance(error, NothingLeft) else str(error)
    return subspaces, failed


def check_even(task: WindTunnel, by: str) -> None:
    """Check that sequences have one length.

    Raises:
        InvalidArgument: They do not.
    """
    ends = task.in_order().ends().tolist() if isinstance(task, FiniteTask) else [0]
    if min(ends) < max(ends):
        raise InvalidArgument(
            f"{by} needs sequences of one length; {task} have {min(ends)} … {max(ends)} tokens. Edit scored positions "
            f"alone, or pass texts of one length."
        )


def _donors_of(task: WindTunnel, fit: Fit, design: Design, seed: int) -> str:
    """Return "paired" or "independent".

    Raises:
        InvalidArgument: The task draws no pairs, or its pairs cannot be swapped.
    """
    chosen: str = design.donors
    originals, donors = _independent(task, 2, seed, "cpu")
    if chosen != "independent":
        try:
            pairs = task.sample_pair(at_most(task, N_COMPARED), seed=seed)
            recipients, other = map(fit.about.quantity.exact, pairs)
            spread = float((recipients - recipients.mean(dim=(0, 1))).square().sum())
            differ = recipients.shape == other.shape and float((recipients - other).square().sum()) > _SAME * spread
            if design.donors == "paired" or differ:
                chosen, (originals, donors) = "paired", pairs
        except NotImplementedError as error:
            if design.donors == "paired":
                raise InvalidArgument(
                    f"{task} has no pairs. Use donors='independent' or 'auto', or kind 'remove' or 'keep'."
                ) from error
    from_end = [trials.ends()[:, None] - trials.scored_positions() for trials in (originals, donors)]
    if originals.tokens.shape != donors.tokens.shape or not (
        torch.equal(originals.answers, donors.answers)
        and from_end[0].shape == from_end[1].shape
        and (torch.equal(*from_end) if isinstance(task, LabeledTask) else torch.equal(originals.scored, donors.scored))
    ):
        raise InvalidArgument(
            f"the pairs of {task} do not score the same positions and answers, so they cannot be swapped. Use kind "
            f"'remove' or 'keep'."
        )
    return "paired" if chosen == "paired" else "independent"


def _independent(task: WindTunnel, n: int, seed: int, device: str) -> tuple[Trials, Trials]:
    originals, donors = (task.sample(n, seed=derived_seed(seed, _DONORS, i), device=device) for i in range(2))
    return originals, donors


def outside_shares(job: Intervention, subspaces: Mapping[int, Subspace]) -> dict[int, float]:
    """Return the share of Σ |donor − recipient|² outside each subspace; NaN without donors or difference."""
    if job.design.kind != "swap":
        return dict.fromkeys(subspaces, float("nan"))
    apart = job.differences(subspaces, N_COMPARED)
    return {at: outside_share(apart[at], subspace) for at, subspace in subspaces.items()}


def untrained(job: Intervention) -> Iterator[Intervention]:
    """Yield the same swap in untrained networks, with fewer sequences to fit on; none where there are no copies."""
    with contextlib.suppress(NoCopy):
        for number in range(job.design.n_untrained if job.design.kind == "swap" else 0):
            model = job.model.untrained_copy(derived_seed(job.seed, _UNTRAINED, number) % 2**31)
            yield replace(job, model=model, design=replace(job.design, n_fit=min(job.design.n_fit, N_READ)))


def _unknown(log_answers: Float64[Tensor, "batch query_pos answer"]) -> Float64[Tensor, "batch query_pos one"]:
    """Return NaN as the own value of a statistic that answers do not tell: movement toward it is not known."""
    return torch.full_like(log_answers[..., :1], math.nan)
