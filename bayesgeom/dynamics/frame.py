"""The key frame of a snapshot: the effect of swapping it on the answer, and whether the answer depends on it.

    answer shift = KL(original's exact ‖ model) − KL(donor's exact ‖ model), bits, with the donor's component swapped in
    frame ratio = ‖P_J P_F‖² / min(r, rank F), divided by its value for a random J; J: the top-r Jacobian directions

References: the J-lens note of Agarwal, Dalal & Misra's repository (both).
"""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64

from bayesgeom.core.edits import Edit, InSubspace, Replace
from bayesgeom.core.run import RESID_PRE, Run
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.engine import KL, KL_DONOR, Plan, score_pairs
from bayesgeom.interventions.intervention import Intervention
from bayesgeom.models.base import Model
from bayesgeom.stats.subspace import random_subspaces
from bayesgeom.subspaces.base import Sample
from bayesgeom.subspaces.fits import frame
from bayesgeom.subspaces.jacobian import jacobian_grams
from bayesgeom.subspaces.site import InterventionSite
from bayesgeom.subspaces.subspace import Subspace
from bayesgeom.tasks.base import WindTunnel, derived_seed

N_RANDOM, N_RANDOM_PAIRS = 20, 16  # random subspaces of the same rank, and the pairs on which they are scored
MAX_RANK = 8  # number of leading directions of the Jacobian
_DRAWS, _JACOBIAN = 7, 8  # branches of the seed


@final
@dataclass(frozen=True, kw_only=True)
class Frame:
    """The frame in every layer, and the swap that edits it."""

    model: Model
    swap: Intervention
    subspaces: dict[int, Subspace]

    @classmethod
    def of(cls, model: Model, task: WindTunnel, run: Run, *, n: int, seed: int) -> "Frame":
        """Return the span of the hypothesis tokens' embeddings at `resid_pre` of every layer.

        Raises:
            InvalidArgument: As in `intervene`, before anything runs.
        """
        place = InterventionSite(RESID_PRE)
        swap = Intervention.of(model, task, frame(), design=Design("swap"), place=place, n=n, seed=seed)
        sample = Sample(model=model, run=run, place=place, seed=seed)
        return cls(model=model, swap=swap, subspaces=swap.fit.fitted(sample, swap.layers))

    def answer_shifts(self) -> dict[str, Float64[np.ndarray, "..."]]:
        """Return the answer shift per pair and layer, and per layer those of the ceiling and of random subspaces."""
        chosen = {layer: self._edits(layer) for layer in self.swap.layers}
        swapped = self._scored({layer: edits[:2] for layer, edits in chosen.items()}, self.swap.n)
        random = self._scored({layer: edits[2:] for layer, edits in chosen.items()}, min(self.swap.n, N_RANDOM_PAIRS))
        return {
            "answer_shift_bits": swapped[:, :, 0],
            "whole_answer_shift_bits": swapped[:, :, 1].mean(axis=0),
            "random_answer_shift_bits": random.mean(axis=(0, 2)),
        }

    def ratios(self, run: Run) -> Float64[np.ndarray, " layer"]:
        """Return the overlap of the directions on which answers depend with the frame, over chance; 1 is chance."""
        layers, seed = self.swap.layers, derived_seed(self.swap.seed, _JACOBIAN)
        grams = jacobian_grams(self.model, run.trials, RESID_PRE, layers, seed=seed)
        return np.array([_overlap(grams[layer].cpu(), self.subspaces[layer].basis.cpu()) for layer in layers])

    def _edits(self, layer: int) -> list[Edit]:
        """Return the swaps of the frame, of the whole activation, and of random subspaces."""
        own = self.subspaces[layer]
        seed = derived_seed(self.swap.seed, _DRAWS, layer)
        random = random_subspaces(own.width, own.rank, draws=N_RANDOM, seed=seed)
        like = next(self.model.module.parameters())
        conditions: list[Edit] = [
            InSubspace(
                site=RESID_PRE, layer=layer, kind="swap", basis=basis.to(like), turn=None, shift=None, name=own.name
            )
            for basis in (own.basis, *random)
        ]
        return [conditions[0], Replace(site=RESID_PRE, layer=layer, mode="resample"), *conditions[1:]]

    def _scored(self, conditions: dict[int, list[Edit]], n: int) -> Float[np.ndarray, "pair layer condition"]:
        n_scored = self.swap.task.sample(1, seed=0).n_scored
        plan = Plan(
            replayer=self.model.replayer(),
            spec=self.model.spec,
            means={},
            conditions=conditions,
            bands=np.full((n_scored, 1), 1 / n_scored),
        )
        sums = score_pairs(self.swap.pairs(n), plan, n).conditions[..., 0]
        shift: np.ndarray = sums[..., KL] - sums[..., KL_DONOR]
        return shift


def _overlap(gram: Float64[torch.Tensor, "d d"], frame: Float[torch.Tensor, "d rank"]) -> float:
    rank = min(MAX_RANK, frame.shape[1])
    leading = torch.linalg.eigh(gram).eigenvectors[:, -rank:]
    shared = float((leading.T @ frame.double().to(leading)).square().sum()) / rank
    return shared / (frame.shape[1] / len(frame))
