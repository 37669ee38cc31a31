"""A checked intervention: fits subspaces, draws controls, runs every condition and passes the sums to the summary."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.ablations.engine import Means, batches
from bayesgeom.core.edits import Edit, SubspaceKind
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.progress import bar
from bayesgeom.core.run import Run
from bayesgeom.core.sites import RESID_POST, Site
from bayesgeom.core.trials import Trials, concatenate
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.engine import (
    DISTANCE,
    MOVED,
    Movement,
    Pair,
    Plan,
    Totals,
    bands_of,
    pooled_by_role,
    score_pairs,
)
from bayesgeom.interventions.report import InterventionReport
from bayesgeom.interventions.summary import Context, Controls, intervention_report, where_text
from bayesgeom.interventions.verdicts import Reach, listed
from bayesgeom.models.base import Model
from bayesgeom.models.provenance import provenance
from bayesgeom.models.replay.carried import CARRIED, CarriedReplayer
from bayesgeom.models.replay.replayer import Replayer
from bayesgeom.report.report import with_provenance
from bayesgeom.stats.pca import covariance
from bayesgeom.stats.subspace import random_subspaces
from bayesgeom.subspaces.base import Fit, Sample, Setting
from bayesgeom.subspaces.conditions import Conditions
from bayesgeom.subspaces.evidence import coordinate_r2, erasures, reads
from bayesgeom.subspaces.matching import Draw, Matched, matched_subspaces, outside_share, same_share_subspaces
from bayesgeom.subspaces.overlap import Overlap, overlaps
from bayesgeom.subspaces.positions import Positions
from bayesgeom.subspaces.quantity import answers_are_hypotheses, is_function_of_position
from bayesgeom.subspaces.quantity_fits import Eraser, NothingLeft
from bayesgeom.subspaces.site import InterventionSite
from bayesgeom.subspaces.subspace import Subspace
from bayesgeom.subspaces.trained import TrainedSwap
from bayesgeom.tasks.base import BLOCK, Branch, WindTunnel, check_count, derived_seed

N_READ, N_HELD_OUT = 256, 128  # sequences on which read-outs are fitted, and on which they are scored
N_MEAN, N_COMPARED = 256, 32  # sequences for the mean activation, and pairs for the share outside a subspace
N_ALIKE = 256  # pairs from whose difference share-matched controls are drawn
_PAIRS, _FIT, _HELD_OUT, _DRAWS, _DONORS, _UNTRAINED, _TRAIN, _SHUFFLE = range(4, 12)  # branches of the seed
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
        check_count(n)
        place.check_in(model)
        one = task.sample(1, seed=seed, device=model.spec.device)
        model.check_fits(one)
        fit.check(Setting(model=model, place=place, trials=one))
        has_donors = design.kind == "swap" or isinstance(fit, TrainedSwap)
        donors = _donors_of(task, fit, design, seed) if has_donors else ""
        found = cls(model=model, task=task, fit=fit, design=design, place=place, donors=donors, n=n, seed=seed)
        found.positions.check(one)
        return found

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that are edited."""
        return self.place.layers_of(self.model.spec)

    @property
    def kind(self) -> SubspaceKind:
        """The kind of edit."""
        return self.design.kind

    @property
    def positions(self) -> Positions:
        """The positions of a sequence that are edited."""
        by_fit = "scored" if self.fit.about.at_scored else "all"
        return Positions(are_scored=(self.place.positions or by_fit) == "scored", score_after=self.place.score_after)

    def pairs(self, n: int) -> Iterator[Pair]:
        """Yield the scored sequences in blocks, with donors under a swap and None otherwise."""
        if self.kind != "swap":
            stream = self.task.stream(n, seed=derived_seed(self.seed, _PAIRS), device=self.model.spec.device)
            yield from ((trials, None) for trials in stream)
            return
        for block, start in enumerate(range(0, n, BLOCK)):
            both = self._drawn(BLOCK, derived_seed(self.seed, _PAIRS, block))
            originals, donors = (trials.rows(slice(0, n - start)) for trials in both)
            yield originals, donors

    def sample(self) -> Sample:
        """Return the sequences on which subspaces are fitted, with the model's activations."""
        return self._sample(self.design.n_fit, _FIT)

    def report(self) -> InterventionReport:
        """Fit the subspaces, edit, score and return the report."""
        sample = self.sample()
        subspaces, empty = self._fitted(sample)
        layers = tuple(subspaces)
        moments = {at: covariance(sample.points(at)) for at in layers}
        controls = {at: self._controls(subspaces[at], moments[at], at) for at in layers}
        random = {at: self.random_of(at, subspaces[at].rank) for at in layers}
        means = self._means(sample)
        main = self._scored(self.n, self._main_conditions(sample, subspaces), (means, sample), is_main=True)
        conditions = {
            at: self._control_conditions(sample, subspaces[at], random[at], controls[at].bases, at) for at in layers
        }
        control = self._scored(min(self.n, self.design.n_control), conditions, (means, sample), is_main=False)
        read = self._sample(N_READ + N_HELD_OUT, _HELD_OUT)
        about, n_random = self.fit.about, self.design.n_random
        values = about.quantity.exact(sample.run.trials)
        is_identified = not is_function_of_position(values)
        context = Context(
            kind=self.kind,
            label=self.fit.label,
            quantity=about.quantity.label,
            where=where_text(
                self.place.site.name, self.positions.label, self.donors if self.kind == "swap" else "none"
            ),
            bands=self.positions.bands(sample.run.trials.n_scored),
            subspaces=subspaces,
            n_layers=self.model.spec.n_layers,
            r2=coordinate_r2(sample, read, subspaces, random, n_held_out=N_HELD_OUT),
            erasures=erasures(
                reads(read, about.quantity, layers), subspaces, n_fit=N_READ, seed=derived_seed(self.seed, _SHUFFLE)
            ),
            variance_share={at: subspaces[at].variance_share(moments[at]) for at in layers},
            outside_share=self._outside(subspaces),
            overlaps=self._overlaps(sample, subspaces),
            untrained=self._untrained() if is_identified else {},
            whole=self._whole(sample) if is_identified else {},
            empty=empty,
            controls=Controls(
                random=slice(1, 1 + n_random),
                matched=slice(1 + n_random, 1 + n_random + self.design.n_matched),
                found=controls,
            ),
            is_identified=is_identified,
            is_readout=about.is_readout,
            claims_the_quantity=self._claims_the_quantity,
            follows_answer=about.quantity.name != "entropy" and not self.place.score_after,
            n=self.n,
            seed=derived_seed(self.seed, Branch.RESAMPLING),
        )
        return with_provenance(intervention_report(main, control, context), self._provenance())

    def against_share(self) -> tuple[Totals, dict[int, float], dict[int, Matched]]:
        """Score the whole activation, the subspace, and subspaces with the same share of the donors' difference.

        Returns:
            The sums, where all but the first condition may follow once more without their direct path; the share of
            each layer; and the controls.
        """
        sample = self.sample()
        subspaces, _ = self._fitted(sample)
        apart = self._apart(subspaces, N_ALIKE)
        moments = {at: own.T @ own / len(own) for at, own in apart.items()}
        controls = {at: self._controls(own, moments[at], at, same_share_subspaces) for at, own in subspaces.items()}
        conditions = dict[int, list[Edit]]()
        for at, own in subspaces.items():
            edits, alike = self.conditions(sample, at), controls[at].bases
            conditions[at] = [edits.ceiling(), edits.own(own), *edits.filling(alike, self.design.n_matched)]
        totals = self._scored(self.n, conditions, ({}, sample), is_main=False)
        return totals, {at: own.variance_share(moments[at]) for at, own in subspaces.items()}, controls

    def _fitted(self, sample: Sample) -> tuple[dict[int, Subspace], dict[int, str]]:
        """Return the subspaces, and the reason in layers where the quantities held fixed leave none.

        Raises:
            InvalidArgument: No layer has a subspace.
        """
        subspaces, empty = dict[int, Subspace](), dict[int, str]()
        try:
            return self.fit.fitted(sample, self.layers), empty
        except NothingLeft:
            for layer in self.layers:
                try:
                    subspaces |= self.fit.fitted(sample, (layer,))
                except NothingLeft as error:
                    empty[layer] = error.reason
        if not subspaces:
            groups = {reason: [at for at, own in empty.items() if own == reason] for reason in empty.values()}
            reasons = "; ".join(f"in {listed(layers)}, {reason}" for reason, layers in groups.items())
            raise InvalidArgument(f"{self.fit.label} exists in no layer: {reasons}. Hold fewer quantities fixed.")
        return subspaces, empty

    def _provenance(self) -> dict[str, Any]:
        arguments = {
            "n": self.n,
            "seed": self.seed,
            "kind": self.kind,
            "subspace": self.fit.label,
            "site": self.place.site.name,
            "layers": "all" if self.place.layers is None else ",".join(map(str, self.layers)),
            "positions": self.place.positions or "by subspace",
            "score_after": self.place.score_after,
            "donors": self.donors or "none",
            "controls": self.design.n_random,
        }
        return provenance(self.model, self.task, arguments)

    def _overlaps(self, sample: Sample, subspaces: Mapping[int, Subspace]) -> dict[int, Overlap]:
        """Return how much of each subspace lies in the span of the hypothesis tokens' embeddings."""
        setting = Setting(model=self.model, place=self.place, trials=sample.run.trials.rows(slice(0, 1)))
        return overlaps(setting, sample, subspaces, seed=derived_seed(self.seed, _DRAWS, 2))

    def random_of(self, layer: int, rank: int) -> Float64[Tensor, "draw d rank"]:
        """Return random subspaces of this rank in one layer."""
        width = self.place.width_in(self.model.spec)
        seed = derived_seed(self.seed, _DRAWS, layer)
        return random_subspaces(width, rank, draws=self.design.n_random, seed=seed)

    def conditions(self, sample: Sample, layer: int, kind: SubspaceKind | None = None) -> Conditions:
        """Return the factory of the edits of one layer."""
        like = sample.run.at(self.place.site)
        return Conditions(
            site=self.place.site,
            layer=layer,
            kind=kind or self.kind,
            like=like,
            points=sample.points(layer),
            seed=self.seed,
        )

    def _main_conditions(self, sample: Sample, subspaces: Mapping[int, Subspace]) -> dict[int, list[Edit]]:
        """Return subspace and ceiling; under a swap also their removal, and the erasure of the quantity."""
        found = {}
        erasers = subspaces if isinstance(self.fit, Eraser) or not self._claims_the_quantity else self._erasers(sample)
        for layer, own in subspaces.items():
            conditions = self.conditions(sample, layer)
            found[layer] = [conditions.own(own), conditions.ceiling()]
            if self.kind == "swap":
                removal = self.conditions(sample, layer, "remove")
                found[layer] += [removal.own(own), removal.ceiling(), removal.own(erasers[layer])]
        return found

    @property
    def _claims_the_quantity(self) -> bool:
        """Whether the subspace claims to hold the quantity, so that erasing the quantity tests the claim."""
        return self.kind == "swap" and self.fit.about.at_scored

    def _erasers(self, sample: Sample) -> Mapping[int, Subspace]:
        return Eraser(self.fit.about.quantity, oblique=True).fitted(sample, self.layers)

    def _control_conditions(
        self,
        sample: Sample,
        own: Subspace,
        random: Float64[Tensor, "draw d r"],
        matched: Sequence[Float64[Tensor, "d _"]],
        layer: int,
    ) -> list[Edit]:
        """Return the ceiling, then random subspaces, then those with the same share of variance."""
        conditions = self.conditions(sample, layer)
        controls = conditions.filling(matched, self.design.n_matched)
        return [conditions.ceiling(), *conditions.controls(random, own), *controls]

    def _controls(
        self, own: Subspace, covariance: Float64[Tensor, "d d"], layer: int, draw: Draw = matched_subspaces
    ) -> Matched:
        seed = derived_seed(self.seed, _DRAWS, layer, 1)
        return draw(own, covariance, draws=self.design.n_matched, seed=seed)

    def _scored(
        self, n: int, conditions: Mapping[int, list[Edit]], fitted: tuple[Means, Sample], *, is_main: bool
    ) -> Totals:
        """Score every condition on `n` pairs; the subspace and its controls also without their direct paths."""
        (means, sample), trials = fitted, self.task.sample(1, seed=self.seed)
        toward = (1 if is_main else 0) if self.place.score_after else None
        quantity, are_hypotheses = self.fit.about.quantity, answers_are_hypotheses(trials)
        center = quantity.own(sample.run.log_answers.double(), are_hypotheses=are_hypotheses).mean(dim=0)
        movement = Movement(quantity=quantity, are_hypotheses=are_hypotheses, center=center, toward_condition=toward)
        has_direct = self.place.is_residual and RESID_POST in self.model.sites
        n_conditions = len(next(iter(conditions.values())))
        without_direct = ((0,) if is_main else tuple(range(1, n_conditions))) if has_direct else ()
        plan = Plan(
            replayer=self._replayer(),
            spec=self.model.spec,
            means=means,
            conditions=conditions,
            bands=bands_of(trials.n_scored)[1],
            positions=self.positions,
            movement=movement if self.kind == "swap" else None,
            without_direct=without_direct,
        )
        label = f"{self.kind} {self.fit.label}" if is_main else "control subspaces"
        return score_pairs(self._shown(n, label), plan, n)

    def _sample(self, n: int, branch: int) -> Sample:
        device = self.model.spec.device
        stream = self.task.stream(n, seed=derived_seed(self.seed, branch), device=device)
        if self.place.site == CARRIED:
            run = self._recorded(list(stream))
        else:
            run = self.model.run(stream, record=(self.place.site,), n_recorded=n, budget_bytes=_BUDGET)
        return Sample(
            model=self.model,
            run=run,
            place=self.place,
            seed=derived_seed(self.seed, branch, 1),
            draw_pairs=self._pairs_to_train,
            mask=self.positions.mask(run.trials, 0),
        )

    def _replayer(self) -> Replayer:
        return CarriedReplayer(self.model) if self.place.site == CARRIED else self.model.replayer()

    def _recorded(self, blocks: list[Trials]) -> Run:
        """Return a run with the carried states of every layer at scored positions, which no module outputs."""
        run = self.model.run(blocks, record=(), n_recorded=sum(map(len, blocks)), budget_bytes=_BUDGET)
        replayer, found = self._replayer(), list[Tensor]()
        for block in blocks:
            for batch in batches(block, self.model.spec):
                stored = replayer.baseline(batch).stored
                layers = [batch.at_scored(stored[CARRIED, layer]) for layer in range(self.model.spec.n_layers)]
                found.append(torch.stack(layers))
        return replace(run, recorded={CARRIED: torch.cat(found, dim=1)}, trials=concatenate(blocks))

    def _pairs_to_train(self, n: int, seed: int) -> tuple[Trials, Trials]:
        """Return recipients and donors from a separate branch of the seed."""
        return self._drawn(n, derived_seed(self.seed, _TRAIN, seed))

    def _drawn(self, n: int, seed: int) -> tuple[Trials, Trials]:
        """Return recipients and donors: pairs of the task, or independent sequences."""
        device = self.model.spec.device
        if self.donors == "independent":
            return _independent(self.task, n, seed, device)
        return self.task.sample_pair(n, seed=seed, device=device)

    def _means(self, sample: Sample) -> Means:
        """Return the mean activation of each layer: one vector for scored positions, one for the others."""
        site, like = self.place.site, sample.run.at(self.place.site)
        if self.positions.are_scored or self.positions.score_after:
            n_pos = sample.run.trials.tokens.shape[1]
            rest = like.shape[3:]
            return {
                (site, at): sample.points(at).mean(dim=0).to(like).reshape(rest).expand(n_pos, *rest)
                for at in self.layers
            }
        replayer, sums = self._replayer(), dict[tuple[Site, int], Tensor]()
        is_scored = torch.zeros(0, dtype=torch.bool)
        for block in self.task.stream(N_MEAN, seed=derived_seed(self.seed, _FIT), device=self.model.spec.device):
            for batch in batches(block, self.model.spec):
                is_scored, stored = batch.scored[0], replayer.baseline(batch).stored
                for layer in self.layers:
                    sums[site, layer] = sums.get((site, layer), 0) + stored[site, layer].float().sum(dim=0) / N_MEAN
        return {place: pooled_by_role(mean, is_scored) for place, mean in sums.items()}

    @torch.no_grad()
    def _outside(self, subspaces: Mapping[int, Subspace]) -> dict[int, float]:
        """Return the share of Σ |donor − recipient|² outside each subspace; NaN without donors or difference."""
        if self.kind != "swap":
            return dict.fromkeys(subspaces, float("nan"))
        apart = self._apart(subspaces, N_COMPARED)
        return {at: outside_share(apart[at], own) for at, own in subspaces.items()}

    @torch.no_grad()
    def _apart(self, layers: Iterable[int], n: int) -> dict[int, Float64[Tensor, "point d"]]:
        """Return donor − recipient at the edited positions of `n` pairs."""
        replayer, site = self._replayer(), self.place.site
        both = self._drawn(n, derived_seed(self.seed, _PAIRS, 0, 1))
        originals, donors = (replayer.baseline(trials) for trials in both)
        mask = Positions(are_scored=self.positions.are_scored or self.place.score_after).mask(both[0], 0)
        found = {at: (donors.stored[site, at] - originals.stored[site, at]).double().flatten(2) for at in layers}
        return {at: (own if mask is None else own[:, mask.to(own.device)]).flatten(0, 1) for at, own in found.items()}

    def _untrained(self) -> dict[int, float]:
        """Return the least movement among untrained networks, as a share of their ceiling; NaN if the fit fails."""
        shares = list[dict[int, float]]()
        for number in range(self.design.n_untrained if self.kind == "swap" else 0):
            model = self.model.untrained_copy(derived_seed(self.seed, _UNTRAINED, number) % 2**31)
            design = replace(self.design, n_fit=min(self.design.n_fit, N_READ))
            shares.append(replace(self, model=model, design=design).share_of_ceiling())
        return {at: min(share[at] for share in shares) for at in self.layers} if shares else {}

    def _whole(self, sample: Sample) -> dict[int, list[Reach]]:
        """Return the reach of swaps of the quantity's whole subspace, if the edit may swap a part of it.

        The whole is the same fit with nothing held fixed, and what LEACE removes.
        """
        found: dict[int, list[Reach]] = {at: [] for at in self.layers}
        if not self._claims_the_quantity:
            return found
        wholes: list[Fit] = [Eraser(self.fit.about.quantity, oblique=True)]
        wholes += [self.fit.without_given] if isinstance(self.fit, Eraser) else []
        for fit in dict.fromkeys(own for own in wholes if own != self.fit):
            for at, reach in replace(self, fit=fit).reach(sample).items():
                found[at].append(reach)
        return found

    def reach(self, sample: Sample) -> dict[int, Reach]:
        """Return what tells whether the swap is an identity, in each layer where the fit succeeds."""
        subspaces, unknown = self._possible(sample), float("nan")
        outside, untrained = self._outside(subspaces), self._untrained()
        shares = self._shares(sample, subspaces, self.n)
        return {
            at: Reach(
                outside_share=outside[at], share_of_ceiling=shares[at], untrained_share=untrained.get(at, unknown)
            )
            for at in subspaces
        }

    def _possible(self, sample: Sample) -> dict[int, Subspace]:
        """Return the subspaces of the layers where the fit succeeds."""
        subspaces: dict[int, Subspace] = {}
        for layer in self.layers:
            try:
                subspaces |= self.fit.fitted(sample, (layer,))
            except InvalidArgument:  # such as a layer where every vector is the same
                continue
        return subspaces

    def share_of_ceiling(self) -> dict[int, float]:
        """Return movement as a share of the ceiling in each layer, on the control pairs; NaN where the fit fails."""
        sample = self.sample()
        known = self._shares(sample, self._possible(sample), min(self.n, self.design.n_control))
        return dict.fromkeys(self.layers, float("nan")) | known

    def _shares(self, sample: Sample, subspaces: Mapping[int, Subspace], n: int) -> dict[int, float]:
        """Return movement as a share of the ceiling on `n` pairs, in the layers with a subspace."""
        found: dict[int, float] = {}
        if not subspaces:
            return found
        conditions = {
            at: [self.conditions(sample, at).own(own), self.conditions(sample, at).ceiling()]
            for at, own in subspaces.items()
        }
        totals = self._scored(n, conditions, ({}, sample), is_main=True)
        sums = totals.conditions[..., 0].sum(axis=0)
        for row, layer in enumerate(subspaces):
            way = sums[row, :2, MOVED] / sums[row, :2, DISTANCE] if sums[row, :2, DISTANCE].all() else (0.0, 0.0)
            found[layer] = float(way[0] / way[1]) if way[1] > 0 else float("nan")
        return found

    def _shown(self, n: int, label: str) -> Iterator[Pair]:
        with bar(total=n, desc=label, unit="seq", leave=False) as progress:
            for pair in self.pairs(n):
                yield pair
                progress.update(len(pair[0]))


def _donors_of(task: WindTunnel, fit: Fit, design: Design, seed: int) -> str:
    """Return "paired" or "independent".

    Raises:
        InvalidArgument: The task draws no pairs, or its pairs cannot be swapped.
    """
    if design.donors == "independent":
        _check_pairs(task, *_independent(task, 2, seed, "cpu"))
        return "independent"
    try:
        originals, donors = task.sample_pair(N_COMPARED, seed=seed)
    except NotImplementedError as error:
        if design.donors == "paired":
            raise InvalidArgument(
                f"{task} has no pairs. Use donors='independent' or 'auto', or kind 'remove' or 'keep'."
            ) from error
        _check_pairs(task, *_independent(task, 2, seed, "cpu"))
        return "independent"
    _check_pairs(task, originals, donors)
    if design.donors == "paired":
        return "paired"
    own, other = (fit.about.quantity.exact(trials) for trials in (originals, donors))
    spread = float((own - own.mean(dim=(0, 1))).square().sum())
    return "paired" if float((own - other).square().sum()) > _SAME * spread else "independent"


def _independent(task: WindTunnel, n: int, seed: int, device: str) -> tuple[Trials, Trials]:
    originals, donors = (task.sample(n, seed=derived_seed(seed, _DONORS, i), device=device) for i in range(2))
    return originals, donors


def _check_pairs(task: WindTunnel, originals: Trials, donors: Trials) -> None:
    same = [torch.equal(vars(originals)[name], vars(donors)[name]) for name in ("scored", "answers")]
    if originals.tokens.shape != donors.tokens.shape or not all(same):
        raise InvalidArgument(
            f"the pairs of {task} do not score the same positions and answers, so they cannot be swapped. Use kind "
            f"'remove' or 'keep'."
        )
