"""Edits in several layers at once, for `intervene(sites=[…])`: whole passes, with each layer's input coordinate read.

The coordinate along a layer's axis is read before that layer's own edit. After the edit it is constant by
construction, so its correlation with entropy would be zero whatever the model does. Before the edit, the correlation
shows what earlier edits left and what the layers in between restored.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.ablations.engine import Means, batches
from bayesgeom.core.edits import SUBSPACE_KINDS, Edit, Reference, SubspaceKind
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.hooks import Change
from bayesgeom.core.progress import bar
from bayesgeom.core.sites import Site, V
from bayesgeom.core.torch_state import alone
from bayesgeom.core.trials import Trials
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.engine import MAX_UNITS, PairReference, pooled_by_role, scored
from bayesgeom.interventions.intervention import Intervention
from bayesgeom.interventions.joint_report import JointInterventionReport
from bayesgeom.interventions.joint_summary import JointContext, Scores, joint_report
from bayesgeom.models.base import Model, hooked_sites
from bayesgeom.models.provenance import provenance
from bayesgeom.models.replay.replayer import STAGES
from bayesgeom.report.report import with_provenance
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import entropy_bits
from bayesgeom.stats.subspace import random_subspaces
from bayesgeom.subspaces.base import Fit, Sample, Setting
from bayesgeom.subspaces.site import InterventionSite
from bayesgeom.subspaces.subspace import Subspace
from bayesgeom.tasks.base import WindTunnel, derived_seed

N_FIT, N_RANDOM = 256, 20  # sequences for the mean activation, and random subspaces of the same rank
N_KEPT = 256  # sequences whose coordinates are correlated with entropy
EDITABLE = (*STAGES, V)
_TRIALS, _RESAMPLING, _FIT, _ORTHOGONAL = 8, 9, 10, 11  # branches of the seed
_WITHOUT_DONORS = tuple(kind for kind in SUBSPACE_KINDS if kind not in ("swap", "rotate"))

Edits = Mapping[int, Edit]
Watch = Callable[[int, Tensor], None]


@final
@dataclass(frozen=True, kw_only=True)
class Condition:
    """Edits that act together, by layer; without edits it is the unedited model."""

    label: str
    edits: Edits


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
        kind: SubspaceKind,
        n: int,
        seed: int,
    ) -> "JointIntervention":
        """Check all arguments before anything runs."""
        if kind not in _WITHOUT_DONORS:
            allowed = ", ".join(_WITHOUT_DONORS)
            raise InvalidArgument(
                f"in several layers at once kind must be one of {allowed}; {kind!r} edits one layer at a time."
            )
        if n < 2:
            raise InvalidArgument(f"n, the number of sequences, must be at least 2 for a correlation; got {n}.")
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
        fit.check(Setting(model=model, place=everywhere, trials=one))
        single = Intervention(
            model=model,
            task=task,
            fit=fit,
            design=Design(kind, n_random=N_RANDOM),
            place=everywhere,
            donors="",
            n=n,
            seed=seed,
        )
        return cls(single=single, sets=tuple(place.layers_of(model.spec) for place in sites))

    @property
    def model(self) -> Model:
        """The edited model."""
        return self.single.model

    @property
    def task(self) -> WindTunnel:
        """The task."""
        return self.single.task

    def report(self) -> JointInterventionReport:
        """Fit the subspaces, edit, score and return the report."""
        single, sample = self.single, self.single.sample()
        edited = sorted({layer for layers in self.sets for layer in layers})
        subspaces = single.fit.fitted(sample, edited) | self._elsewhere(sample, edited)
        passes = Passes(self.model, single.place.site)
        means = passes.means(self._blocks(N_FIT, _FIT), edited)
        conditions = [Condition(label="no edit", edits={}), *self._conditions(sample, subspaces)]
        n, context = single.n, self._context(subspaces)
        with bar(total=n, desc=f"{single.kind} {single.fit.label}", unit="seq", leave=False) as progress:

            def shown() -> Iterator[Trials]:
                for block in self._blocks(n, _TRIALS):
                    yield block
                    progress.update(len(block))

            scores = score_conditions(passes, shown(), conditions, subspaces, means, n=n, n_kept=N_KEPT)
        return with_provenance(joint_report(scores, context), self._provenance())

    def _provenance(self) -> dict[str, Any]:
        arguments = {
            "n": self.single.n,
            "seed": self.single.seed,
            "kind": self.single.kind,
            "subspace": self.single.fit.label,
            "site": self.single.place.site.name,
            "layers": ",".join("+".join(map(str, layers)) for layers in self.sets),
            "controls": N_RANDOM,
        }
        return provenance(self.model, self.task, arguments)

    def _elsewhere(self, sample: Sample, edited: Sequence[int]) -> dict[int, Subspace]:
        """Return the subspaces of the other layers, where only the coordinates are read."""
        found: dict[int, Subspace] = {}
        for layer in set(range(self.model.spec.n_layers)).difference(edited):
            try:
                found |= self.single.fit.fitted(sample, (layer,))
            except InvalidArgument:  # such as layer 0 if every query is the same token
                continue
        return found

    def _blocks(self, n: int, branch: int) -> Iterator[Trials]:
        spec = self.model.spec
        for block in self.task.stream(n, seed=derived_seed(self.single.seed, branch), device=spec.device):
            yield from batches(block, spec)

    def _conditions(self, sample: Sample, subspaces: dict[int, Subspace]) -> Iterator[Condition]:
        """Yield own, ceiling, random and orthogonal conditions of each set; all layers use the same draw number."""
        label = f"{self.single.kind} {self.single.fit.label}"
        for layers in self.sets:
            by_layer = {layer: self._edits(sample, layer, subspaces[layer]) for layer in layers}
            for index in range(2 + 2 * N_RANDOM):
                edits = {layer: edits[index] for layer, edits in by_layer.items()}
                yield Condition(label=f"{label} in layers {layers}", edits=edits)

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


def orthogonal_to(basis: Float[Tensor, "d rank"], *, draws: int, seed: int) -> Float64[Tensor, "draw d rank"]:
    """Return random subspaces of the same rank orthogonal to a subspace; of lower rank if the complement is smaller."""
    d, rank = basis.shape
    own = basis.double()
    drawn = random_subspaces(d, min(rank, d - rank), draws=draws, seed=seed).to(own)
    rest: Tensor = torch.linalg.qr(drawn - own @ (own.T @ drawn)).Q
    return rest


@final
class Passes:
    """Whole passes of a model under edits at one site."""

    def __init__(self, model: Model, site: Site) -> None:
        self.model, self.site = model, site

    @alone("model.module")
    @torch.no_grad()
    def logits(
        self, trials: Trials, watch: Watch, edits: Edits, reference: Reference | None
    ) -> Float[Tensor, "batch query_pos d_vocab"]:
        """Run one pass; `watch` receives every layer's activation before the edit of that layer.

        Raises:
            HookFault: A layer's hook did not run exactly once.
        """

        def hook(layer: int) -> Change:
            def act(output: Tensor) -> Tensor | None:
                watch(layer, output)
                if layer not in edits:
                    return None
                assert reference is not None, "edits come with a reference"
                return edits[layer].applied(output, reference)

            return act

        layers = range(self.model.spec.n_layers)
        with hooked_sites(self.model, {(self.site, layer): hook(layer) for layer in layers}):
            return self.model.logits(trials)

    def means(self, blocks: Iterator[Trials], layers: Sequence[int]) -> Means:
        """Return the mean activation of each layer: one vector for scored positions, one for the others."""
        sums, n, is_scored = dict[int, Tensor](), 0, torch.zeros(0, dtype=torch.bool)
        for block in blocks:

            def add(layer: int, values: Tensor) -> None:
                if layer in layers:
                    sums[layer] = sums.get(layer, 0) + values.float().sum(dim=0)

            self.logits(block, add, {}, None)
            n, is_scored = n + len(block), block.scored[0]
        return {(self.site, at): pooled_by_role(total / n, is_scored.to(total.device)) for at, total in sums.items()}


def score_conditions(
    passes: Passes,
    blocks: Iterator[Trials],
    conditions: Sequence[Condition],
    subspaces: Mapping[int, Subspace],
    means: Means,
    *,
    n: int,
    n_kept: int,
) -> Scores:
    """Score every condition on `n` sequences in blocks; keep coordinates and entropies of the first `n_kept`."""
    per_unit, reference, done = -(-n // MAX_UNITS), PairReference(means, None), 0
    counts, bits = np.zeros(-(-n // per_unit), dtype=np.int64), np.zeros((len(conditions), -(-n // per_unit), 2))
    entropies, coordinates, exact = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    for block in blocks:
        room = max(0, min(len(block), n_kept - done))
        unit = np.arange(done, done + len(block)) // per_unit
        found = [_scored(passes, block, condition, subspaces, reference) for condition in conditions]
        np.add.at(counts, unit, 1)
        for row, (own, _, _) in zip(bits, found, strict=True):
            np.add.at(row, unit, own)
        if room:
            entropies.append(np.stack([own[:room] for _, own, _ in found]))
            coordinates.append(np.stack([along[:, :room] for _, _, along in found]))
            exact.append(entropy_bits(block.at_scored(block.predictive))[:room].cpu().numpy())
        done += len(block)
    return Scores(
        counts=counts,
        bits=bits,
        own_entropy=np.concatenate(entropies, axis=1),
        coordinates=np.concatenate(coordinates, axis=2),
        exact_entropy=np.concatenate(exact),
    )


def _scored(
    passes: Passes, block: Trials, condition: Condition, subspaces: Mapping[int, Subspace], reference: Reference
) -> tuple[
    Float64[np.ndarray, "sequence metric"],
    Float64[np.ndarray, "sequence position"],
    Float64[np.ndarray, "layer sequence position"],
]:
    along = np.full((passes.model.spec.n_layers, len(block), block.n_scored), np.nan)

    def watch(layer: int, values: Tensor) -> None:
        if layer in subspaces and subspaces[layer].rank == 1:
            flat = block.at_scored(values).flatten(2)
            along[layer] = (flat.double() @ subspaces[layer].basis.to(flat.device).double())[..., 0].cpu().numpy()

    logits = passes.logits(block, watch, condition.edits, reference)
    kl, _, error = np.moveaxis(scored(logits, (block, None), condition.label).mean(axis=2), 1, 0)
    log_answers, _ = answer_log_probabilities(logits, block)
    return np.stack([kl, error], axis=1), entropy_bits(log_answers.exp()).cpu().numpy(), along
