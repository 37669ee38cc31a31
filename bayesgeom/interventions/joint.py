"""Edits in several layers at once: whole passes, and what arrives at each layer's own axis on the way.

The coordinate along a layer's axis is read as it arrives, before that layer's own edit: after a cut it is constant by
construction, and that its correlation with entropy vanishes there says nothing. What earlier cuts left of it, or what
the layers between have put back, does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from bayesgeom.ablations.engine import Means
from bayesgeom.core.behavior import answer_log_probabilities
from bayesgeom.core.edits import Edit, Reference
from bayesgeom.core.hooks import Change
from bayesgeom.core.sites import Site
from bayesgeom.core.threads import alone
from bayesgeom.core.trials import Trials
from bayesgeom.interventions.engine import MAX_UNITS, PairReference, pooled_by_role, scored
from bayesgeom.models.base import Model
from bayesgeom.models.watching import hooked_sites
from bayesgeom.stats.information import entropy_bits
from bayesgeom.stats.subspace import random_subspaces
from bayesgeom.subspaces.subspace import Subspace

Edits = Mapping[int, Edit]
Watch = Callable[[int, Tensor], None]


@final
@dataclass(frozen=True, kw_only=True)
class Arm:
    """Edits that act together, by layer; none is the model as it is."""

    label: str
    edits: Edits


@final
@dataclass(frozen=True, kw_only=True)
class Scores:
    """Per arm, sums over the sequences of a unit, averaged over positions; of the first sequences also what arrives.

    - `bits`: KL to the exact posterior and entropy error. `own_entropy`: the model's own, over the answers.
    - `coordinates`: along each layer's axis at scored positions; NaN where the subspace is no single direction.
    """

    counts: Int[np.ndarray, " unit"]
    bits: Float64[np.ndarray, "arm unit metric"]
    own_entropy: Float64[np.ndarray, "arm kept position"]
    coordinates: Float64[np.ndarray, "arm layer kept position"]
    exact_entropy: Float64[np.ndarray, "kept position"]


def orthogonal_to(basis: Float[Tensor, "d rank"], *, draws: int, seed: int) -> Float64[Tensor, "draw d rank"]:
    """Random subspaces of the same rank within the complement of a subspace; less than the rank where that is full."""
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
        """One pass; `watch` is given every layer's activation as it arrives, before the edit of that layer.

        **Raises** `HookFault` where a layer's activation did not pass by exactly once.
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
        """Mean activation of each layer: one vector for scored positions, one for the others."""
        sums, n, is_scored = dict[int, Tensor](), 0, torch.zeros(0, dtype=torch.bool)
        for block in blocks:

            def add(layer: int, values: Tensor) -> None:
                if layer in layers:
                    sums[layer] = sums.get(layer, 0) + values.float().sum(dim=0)

            self.logits(block, add, {}, None)
            n, is_scored = n + len(block), block.scored[0]
        return {(self.site, at): pooled_by_role(total / n, is_scored.to(total.device)) for at, total in sums.items()}


def score_arms(
    passes: Passes,
    blocks: Iterator[Trials],
    arms: Sequence[Arm],
    subspaces: Mapping[int, Subspace],
    means: Means,
    *,
    n: int,
    n_kept: int,
) -> Scores:
    """Every arm on every block of `n` sequences in all; coordinates and entropies of the first `n_kept`."""
    per_unit, reference, done = -(-n // MAX_UNITS), PairReference(means, None), 0
    counts, bits = np.zeros(-(-n // per_unit), dtype=np.int64), np.zeros((len(arms), -(-n // per_unit), 2))
    entropies, coordinates, exact = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    for block in blocks:
        room = max(0, min(len(block), n_kept - done))
        unit = np.arange(done, done + len(block)) // per_unit
        found = [_scored(passes, block, arm, subspaces, reference) for arm in arms]
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
    passes: Passes, block: Trials, arm: Arm, subspaces: Mapping[int, Subspace], reference: Reference
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

    logits = passes.logits(block, watch, arm.edits, reference)
    kl, _, error = np.moveaxis(scored(logits, (block, None), arm.label).mean(axis=2), 1, 0)
    log_answers, _ = answer_log_probabilities(logits, block)
    return np.stack([kl, error], axis=1), entropy_bits(log_answers.exp()).cpu().numpy(), along
