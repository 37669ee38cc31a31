"""`intervene_together`: act on a subspace in several layers in the same pass, so that none reads what another lost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch

from bayesgeom.ablations.engine import tiles
from bayesgeom.core.edits import SUBSPACE_KINDS, Edit, SubspaceKind
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.progress import bar
from bayesgeom.core.sites import V
from bayesgeom.core.trials import Trials
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.job import InterventionJob
from bayesgeom.interventions.joint import Arm, Passes, orthogonal_to, score_arms
from bayesgeom.interventions.joint_report import JointInterventionReport
from bayesgeom.interventions.joint_summary import JointContext, joint_report
from bayesgeom.models.base import Model
from bayesgeom.models.provenance import provenance
from bayesgeom.models.replay.replayer import STAGES
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, scored_task_of
from bayesgeom.results.report import with_provenance
from bayesgeom.subspaces.base import Fit, Sample, Setting
from bayesgeom.subspaces.fits import covariance, fixed
from bayesgeom.subspaces.site import InterventionSite
from bayesgeom.subspaces.subspace import Subspace
from bayesgeom.tasks.base import WindTunnel, derived_seed

N_FIT, N_RANDOM = 256, 20  # sequences behind the mean activation, and random subspaces of the same rank
N_KEPT = 256  # sequences whose coordinates are correlated with entropy
EDITABLE = (*STAGES, V)
_TRIALS, _RESAMPLING, _FIT, _ORTHOGONAL = 8, 9, 10, 11  # branches of the seed
_WITHOUT_DONORS = tuple(kind for kind in SUBSPACE_KINDS if kind not in ("swap", "rotate"))


def intervene_together(
    model: ModelLike,
    task: TaskLike | None = None,
    subspace: Subspace | Fit | None = None,
    *,
    at: Sequence[InterventionSite],
    kind: SubspaceKind = "remove",
    n: int = 256,
    seed: int = 0,
) -> JointInterventionReport:
    """Act on one subspace in several layers in the same pass, and measure what happens to the answer.

    Each edit has 20 random subspaces of the same rank as controls, and 20 that are orthogonal to its own. Every
    condition is a whole pass.

    Args:
        model: A model, or what `as_model` takes: a checkpoint's name or directory, a module, a Hugging Face model.
        task: A task, or its text as on the command line. Default: the task that the model was trained on.
        subspace: One of `bayesgeom.subspaces`, a `Subspace`, or its text as on the command line. Default: the key
            frame.
        at: One entry for each edit, which acts in all its layers at once, such as `InterventionSite(RESID_PRE, (8,
            12))`.
        kind: "remove", "keep" or "add", as in `intervene`.
        n: Number of sequences.
        seed: Seed of the sequences and of the intervals.

    Returns:
        Effect of every edit, with controls.

    Raises:
        InvalidArgument: As for `intervene`.
        MissingSite: The model lacks the site.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=2, n_heads=1, d_model=8, d_mlp=8)
        >>> module = config.build(seed=0)
        >>> both = bayesgeom.InterventionSite(layers=(0, 1))
        >>> bayesgeom.intervene_together(module, task, bayesgeom.subspaces.random(2), at=[both], n=8).n
        8
    """
    job = JointJob.of(model, task, subspace, at=at, kind=kind, n=n, seed=seed)
    return with_provenance(job.run(), provenance(job.model, job.task, {"n": n, "seed": seed, "kind": kind}))


@final
@dataclass(frozen=True, kw_only=True)
class JointJob:
    """A checked intervention in several layers at once, ready to run. `single` acts at one layer, and knows how."""

    single: InterventionJob
    sets: tuple[tuple[int, ...], ...]

    @classmethod
    def of(
        cls,
        model: ModelLike,
        task: TaskLike | None,
        subspace: Subspace | Fit | None,
        *,
        at: Sequence[InterventionSite],
        kind: SubspaceKind,
        n: int,
        seed: int,
    ) -> "JointJob":
        """Check everything that can be checked before anything runs."""
        subject = as_model(model)
        chosen = scored_task_of(subject, task)
        if kind not in _WITHOUT_DONORS:
            allowed = ", ".join(_WITHOUT_DONORS)
            raise InvalidArgument(f"in several layers at once kind is one of {allowed}; {kind!r} is for one at a time.")
        if n < 2:
            raise InvalidArgument(f"n is the number of trials: at least 2 to correlate anything, got {n}.")
        if not at or len({place.site for place in at}) > 1:
            raise InvalidArgument("name one place or more, all at one site: at=[InterventionSite(RESID_PRE, (1, 3))].")
        for place in at:
            place.check_in(subject, editable=EDITABLE)
        everywhere = InterventionSite(at[0].site)
        one = chosen.sample(1, seed=seed, device=subject.spec.device)
        subject.check_fits(one)
        fit = covariance() if subspace is None else fixed(subspace) if isinstance(subspace, Subspace) else subspace
        fit.check(Setting(model=subject, place=everywhere, trials=one))
        job = InterventionJob(
            model=subject,
            task=chosen,
            fit=fit,
            design=Design(kind, n_random=N_RANDOM),
            place=everywhere,
            donors="",
            n=n,
            seed=seed,
        )
        return cls(single=job, sets=tuple(place.layers_of(subject.spec) for place in at))

    @property
    def model(self) -> Model:
        """What is acted on."""
        return self.single.model

    @property
    def task(self) -> WindTunnel:
        """What it is asked."""
        return self.single.task

    def run(self) -> JointInterventionReport:
        """Fit, act, score."""
        single, sample = self.single, self.single.sample()
        edited = sorted({layer for layers in self.sets for layer in layers})
        subspaces = single.fit.fitted(sample, edited) | self._elsewhere(sample, edited)
        passes = Passes(self.model, single.place.site)
        means = passes.means(self._blocks(N_FIT, _FIT), edited)
        arms = [Arm(label="no edit", edits={}), *self._arms(sample, subspaces)]
        n, context = single.n, self._context(subspaces)
        with bar(total=n, desc=f"{single.kind} {single.fit.label}", unit="seq", leave=False) as progress:

            def shown() -> Iterator[Trials]:
                for block in self._blocks(n, _TRIALS):
                    yield block
                    progress.update(len(block))

            scores = score_arms(passes, shown(), arms, subspaces, means, n=n, n_kept=N_KEPT)
        return joint_report(scores, context)

    def _elsewhere(self, sample: Sample, edited: Sequence[int]) -> dict[int, Subspace]:
        """The subspaces of the other layers, where there are any: their coordinates are watched alone."""
        found: dict[int, Subspace] = {}
        for layer in set(range(self.model.spec.n_layers)).difference(edited):
            try:
                found |= self.single.fit.fitted(sample, (layer,))
            except InvalidArgument:  # such as layer 0 where one and the same token is asked about
                continue
        return found

    def _blocks(self, n: int, branch: int) -> Iterator[Trials]:
        spec = self.model.spec
        for block in self.task.stream(n, seed=derived_seed(self.single.seed, branch), device=spec.device):
            yield from tiles(block, spec)

    def _arms(self, sample: Sample, subspaces: dict[int, Subspace]) -> Iterator[Arm]:
        """Of each set: own, ceiling, random ones, orthogonal ones; draw i of every layer acts with draw i of others."""
        label = f"{self.single.kind} {self.single.fit.label}"
        for layers in self.sets:
            by_layer = {layer: self._edits(sample, layer, subspaces[layer]) for layer in layers}
            for index in range(2 + 2 * N_RANDOM):
                edits = {layer: edits[index] for layer, edits in by_layer.items()}
                yield Arm(label=f"{label} in layers {layers}", edits=edits)

    def _edits(self, sample: Sample, layer: int, subspace: Subspace) -> list[Edit]:
        """**Raises** `InvalidArgument` where the complement has no room for a subspace of the same rank."""
        width, rank = subspace.width, subspace.rank
        if 2 * rank > width:
            raise InvalidArgument(
                f"{subspace.name} has rank {rank} of {width} in layer {layer}: no subspace of that rank is orthogonal "
                f"to it. Use one of at most {width // 2}."
            )
        seed = derived_seed(self.single.seed, _ORTHOGONAL, layer)
        random = self.single.random_of(layer, rank)
        orthogonal = orthogonal_to(subspace.basis.cpu(), draws=N_RANDOM, seed=seed)
        arms = self.single.arms(sample, layer)
        return [arms.own(subspace), arms.ceiling(), *arms.controls(torch.cat([random, orthogonal]), subspace)]

    def _context(self, subspaces: dict[int, Subspace]) -> JointContext:
        single = self.single
        return JointContext(
            kind=single.kind,
            site=single.place.site.name,
            label=single.fit.label,
            rank=subspaces[self.sets[0][0]].rank,
            sets=self.sets,
            n_random=N_RANDOM,
            seed=derived_seed(single.seed, _RESAMPLING),
        )
