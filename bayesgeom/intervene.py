"""`intervene`: act on a subspace and report whether the answer follows. `write_strength`: which heads write there."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.ablate import ablate
from bayesgeom.ablations.batteries import every_head
from bayesgeom.ablations.engine import Means, tiles
from bayesgeom.ablations.report import AblationReport
from bayesgeom.edits import SUBSPACE_KINDS, Edit, InSubspace, Replace, SubspaceKind
from bayesgeom.errors import InvalidArgument
from bayesgeom.geometry.subspace import random_subspaces
from bayesgeom.interventions.base import Fit, Sample, Setting
from bayesgeom.interventions.decoding import decoded_r2
from bayesgeom.interventions.engine import Pair, Plan, Totals, bands_of, pooled_by_role, score_pairs
from bayesgeom.interventions.fits import fixed, frame
from bayesgeom.interventions.place import Place
from bayesgeom.interventions.report import InterventionReport
from bayesgeom.interventions.subspace import Subspace
from bayesgeom.interventions.summary import Context, intervention_report
from bayesgeom.interventions.writes import WriteReport, write_report
from bayesgeom.models.base import Model
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, scored_task_of
from bayesgeom.progress import bar
from bayesgeom.sites import ATTN_OUT, W_O, Site, Z
from bayesgeom.tasks.base import BLOCK, Branch, WindTunnel, check_count, derived_seed

N_FIT, N_HELD = 256, 128  # sequences that subspaces and read-outs are fitted on, and that read-outs are scored on
N_RANDOM, N_FLOOR = 20, 64  # random subspaces of the same rank, and the pairs that they are scored on
_PAIRS, _FIT, _HELD, _DRAWS = 4, 5, 6, 7  # branches of the seed


def intervene(
    model: ModelLike,
    task: TaskLike | None = None,
    subspace: Subspace | Fit | None = None,
    *,
    kind: SubspaceKind = "swap",
    at: Place | None = None,
    n: int = 256,
    seed: int = 0,
) -> InterventionReport:
    """What becomes of the answer when one subspace is acted on, in each layer of `at` alone, on `n` fresh trials.

    `subspace`: one of `bayesgeom.subspaces`, fitted on trials that are not scored, or a `Subspace`; else the frame
    of hypothesis embeddings. `at`: by default `resid_pre` of every layer. `kind`:

    - "swap": its part becomes that of the paired trial, which shares what is given and differs in the latent;
    - "remove": it becomes the task's mean; "keep": everything else does. The mean is over all scored positions at those
      and over all others at the others: what tells positions apart goes too, as entropy may be a function of position;
    - "rotate": its coordinates are turned at random, or negated where there is one;
    - "add": each coordinate grows by one standard deviation.

    **Raises** before anything runs: `InvalidArgument` for an unknown kind, n < 1, a layer that is not there, a basis of
    the wrong width or a rank beyond it, a swap in a task without pairs; `MissingSite` for a site that the model lacks.
    """
    return InterventionJob.of(model, task, subspace, kind=kind, at=at, n=n, seed=seed).run()


def write_strength(
    model: ModelLike,
    task: TaskLike | None = None,
    subspace: Subspace | Fit | None = None,
    *,
    n: int = 256,
    seed: int = 0,
    ablation: AblationReport | None = None,
) -> WriteReport:
    """How strongly each head writes into a subspace, ‖P W_O z‖, beside what ablating the head costs.

    A fit is made at `attn_out` of each layer; by default the frame. `ablation` is a report that holds every head alone;
    with none, that battery is run on `n` sequences. **Raises** as `intervene` does, and where a head is not in it.
    """
    job = InterventionJob.of(model, task, subspace, kind="remove", at=Place(ATTN_OUT), n=n, seed=seed)
    job.model.require((Z, W_O), by="write strength")
    damages = ablation or ablate(job.model, job.task, every_head(job.model), n=n, seed=seed)
    sample = job.sample()
    subspaces = job.fit.fitted(sample, range(job.model.spec.n_layers))
    run = job.model.run(job.task.stream(n, seed=derived_seed(seed, _HELD)), record=(Z,), n_recorded=min(n, N_HELD))
    return write_report(job.model, run, subspaces, damages.damage_by_head, seed=derived_seed(seed, _DRAWS))


def fit_subspace(
    model: ModelLike, task: TaskLike | None, subspace: Fit, *, at: Place | None = None, seed: int = 0
) -> dict[int, Subspace]:
    """The subspaces that `intervene` would act on with the same arguments, by layer."""
    job = InterventionJob.of(model, task, subspace, kind="remove", at=at, n=1, seed=seed)
    return job.fit.fitted(job.sample(), job.layers)


@final
@dataclass(frozen=True, kw_only=True)
class InterventionJob:
    """A checked intervention, ready to run."""

    model: Model
    task: WindTunnel
    fit: Fit
    kind: SubspaceKind
    place: Place
    n: int
    seed: int

    @classmethod
    def of(
        cls, model: ModelLike, task: TaskLike | None, subspace: Subspace | Fit | None, *,
        kind: SubspaceKind, at: Place | None, n: int, seed: int,
    ) -> "InterventionJob":  # fmt: skip
        """Check everything that can be checked before anything runs."""
        subject = as_model(model)
        chosen, place = scored_task_of(subject, task), at or Place()
        if kind not in SUBSPACE_KINDS:
            raise InvalidArgument(f"kind must be one of {', '.join(SUBSPACE_KINDS)}; got {kind!r}.")
        check_count(n)
        place.check_in(subject)
        one = chosen.sample(1, seed=seed, device=subject.spec.device)
        subject.check_fits(one)
        fit = frame() if subspace is None else fixed(subspace) if isinstance(subspace, Subspace) else subspace
        fit.check(Setting(model=subject, place=place, trials=one))
        if kind == "swap":
            _check_pairs(chosen, seed)
        return cls(model=subject, task=chosen, fit=fit, kind=kind, place=place, n=n, seed=seed)

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that are acted on."""
        return self.place.layers_of(self.model.spec)

    def pairs(self, n: int) -> Iterator[Pair]:
        """The trials that are scored, in blocks; donors only where they are swapped in."""
        device = self.model.spec.device
        if self.kind != "swap":
            yield from (
                (trials, None) for trials in self.task.stream(n, seed=derived_seed(self.seed, _PAIRS), device=device)
            )
            return
        for block, start in enumerate(range(0, n, BLOCK)):
            both = self.task.sample_pair(BLOCK, seed=derived_seed(self.seed, _PAIRS, block), device=device)
            originals, donors = (trials.rows(slice(0, n - start)) for trials in both)
            yield originals, donors

    def sample(self) -> Sample:
        """The trials that subspaces and read-outs are fitted on, and what the model left there."""
        return self._sample(N_FIT, _FIT)

    def run(self) -> InterventionReport:
        """Fit, act, score."""
        sample, layers = self.sample(), self.layers
        subspaces = self.fit.fitted(sample, layers)
        random = {layer: self.random_of(layer, subspaces[layer].rank) for layer in layers}
        edits = {layer: self.edits_of(sample, layer, subspaces[layer].basis, random[layer]) for layer in layers}
        bands, weights = bands_of(sample.run.trials.n_scored)
        replayer, means = self.model.replayer(), self._means()

        def scored(n: int, arms: slice) -> Totals:
            chosen = {layer: edits[layer][arms] for layer in layers}
            plan = Plan(replayer=replayer, spec=self.model.spec, means=means, arms=chosen, bands=weights)
            label = f"{self.kind} {self.fit.label}" if arms.start == 0 else "random subspaces"
            return score_pairs(self._shown(n, label), plan, n)

        return intervention_report(
            scored(self.n, slice(0, 2)),
            scored(min(self.n, N_FLOOR), slice(2, None)),
            Context(
                kind=self.kind,
                site=self.place.site.name,
                label=self.fit.label,
                bands=bands,
                subspaces=subspaces,
                n_layers=self.model.spec.n_layers,
                r2=self._r2(sample, subspaces, random),
                seed=derived_seed(self.seed, Branch.RESAMPLING),
            ),
        )

    def _sample(self, n: int, branch: int) -> Sample:
        stream = self.task.stream(n, seed=derived_seed(self.seed, branch), device=self.model.spec.device)
        run = self.model.run(stream, record=(self.place.site,), n_recorded=n)
        return Sample(model=self.model, run=run, place=self.place, seed=derived_seed(self.seed, branch, 1))

    def random_of(self, layer: int, rank: int) -> Float64[Tensor, "draw d rank"]:
        """Random subspaces of this rank in one layer."""
        width = self.place.width_in(self.model.spec)
        return random_subspaces(width, rank, draws=N_RANDOM, seed=derived_seed(self.seed, _DRAWS, layer))

    def edits_of(
        self, sample: Sample, layer: int, basis: Float[Tensor, "d r"], random: Float64[Tensor, "draw d r"]
    ) -> list[Edit]:
        """The arms of one layer: the subspace, the ceiling, the random subspaces."""
        site, like = self.place.site, sample.run.at(self.place.site)
        turn = _turn(basis.shape[1], self.seed).to(like) if self.kind == "rotate" else None
        shift = (
            (sample.points(layer) @ basis.to(sample.points(layer))).std(dim=0).to(like) if self.kind == "add" else None
        )
        arms: list[Edit] = [
            InSubspace(site=site, layer=layer, kind=self.kind, basis=own.to(like), turn=turn, shift=shift, name=name)
            for own, name in ((basis, self.fit.label), *((drawn, "a random subspace") for drawn in random))
        ]
        ceiling = Replace(site=site, layer=layer, mode="resample" if self.kind == "swap" else "mean")
        return [arms[0], ceiling, *arms[1:]]

    def _means(self) -> Means:
        """Mean activation of each layer over the fitting trials: one vector for scored positions, one for the rest."""
        if self.kind == "swap":
            return {}
        replayer, sums = self.model.replayer(), dict[tuple[Site, int], Tensor]()
        places = [(self.place.site, layer) for layer in self.layers]
        is_scored = torch.zeros(0, dtype=torch.bool)
        for block in self.task.stream(N_FIT, seed=derived_seed(self.seed, _FIT), device=self.model.spec.device):
            for tile in tiles(block, self.model.spec):
                is_scored, held = tile.scored[0], replayer.baseline(tile).held
                for place in places:
                    sums[place] = sums.get(place, 0) + held[place].float().sum(dim=0) / N_FIT
        return {place: pooled_by_role(mean, is_scored) for place, mean in sums.items()}

    def _r2(
        self, sample: Sample, subspaces: dict[int, Subspace], random: dict[int, Float64[Tensor, "draw d r"]]
    ) -> dict[str, dict[int, Float64[np.ndarray, " subspace"]]]:
        """Held-out R² of entropy and belief from coordinates: in the subspace first, then in the random ones."""
        held = self._sample(N_HELD, _HELD)
        targets = {
            "entropy": (sample.entropies()[:, None], held.entropies()[:, None]),
            "belief": (sample.beliefs(), held.beliefs()),
        }
        found: dict[str, dict[int, Float64[np.ndarray, " subspace"]]] = {}
        for what, (fit_target, held_target) in targets.items():
            found[what] = {}
            for layer, subspace in subspaces.items():
                bases = torch.cat([subspace.basis[None].to(random[layer]), random[layer]])
                both = (sample.points(layer), fit_target), (held.points(layer), held_target)
                found[what][layer] = decoded_r2(*both, bases).numpy()
        return found

    def _shown(self, n: int, label: str) -> Iterator[Pair]:
        with bar(total=n, desc=label, unit="seq", leave=False) as progress:
            for pair in self.pairs(n):
                yield pair
                progress.update(len(pair[0]))


def _check_pairs(task: WindTunnel, seed: int) -> None:
    try:
        originals, donors = task.sample_pair(1, seed=seed)
    except NotImplementedError as error:
        raise InvalidArgument(f"a swap needs paired trials, which {task} does not draw; use remove or keep.") from error
    same = [torch.equal(vars(originals)[name], vars(donors)[name]) for name in ("scored", "answers")]
    if originals.tokens.shape != donors.tokens.shape or not all(same):
        raise InvalidArgument(
            f"the pairs of {task} do not score the same positions and answers: they cannot be swapped."
        )


def _turn(rank: int, seed: int) -> Float64[Tensor, "rank rank"]:
    """A random rotation of the coordinates; one coordinate is negated."""
    return -torch.ones(1, 1, dtype=torch.float64) if rank == 1 else random_subspaces(rank, rank, draws=1, seed=seed)[0]
