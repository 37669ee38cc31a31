"""The directions of an activation on which the answers depend: second moments of gradients of answer logits.

Reference: the J-lens note of Agarwal, Dalal & Misra's repository (J-space at a layer and position).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from bayesgeom.core import Site, Trials
from bayesgeom.core.torch_state import SiteLayer, check_differentiable, lock_of, store_leaf
from bayesgeom.models.base import Model, hooked_sites
from bayesgeom.models.native.lstm import LSTM
from bayesgeom.models.replay.carried import CARRIED, logits_through_states
from bayesgeom.subspaces.base import Fit, Sample, Setting, Subspace, check_rank
from bayesgeom.tasks.base import torch_seed

N_SEQUENCES, N_LOGITS = 32, 48  # each logit costs one backward pass over all sequences


def jacobian_grams(
    model: Model, trials: Trials, site: Site, layers: Sequence[int], *, seed: int
) -> dict[int, Float64[Tensor, "d d"]]:
    """Return Σ g gᵀ per layer, g = ∂ logit[p, answer] / ∂ x[i], over sequences, positions i ≤ p, and (p, answer).

    It uses the first `N_SEQUENCES` sequences, and `N_LOGITS` pairs of scored position and answer drawn without
    replacement.
    """
    sums: dict[int, Tensor] = {}
    for gradients in answer_gradients(model, trials.rows(slice(0, N_SEQUENCES)), site, layers, seed=seed):
        for layer, gradient in gradients.items():
            rows = gradient.flatten(0, 1).flatten(1).double()
            sums[layer] = sums.get(layer, 0) + rows.T @ rows
    return sums


def answer_gradients(
    model: Model, trials: Trials, site: Site, layers: Sequence[int], *, seed: int
) -> Iterator[dict[int, Float[Tensor, "batch pos *rest"]]]:
    """Yield the gradients, by layer, of one answer logit at one position at a time, for every sequence."""
    if site == CARRIED:
        yield from _gradients_of_states(model, trials, layers, seed=seed)
        return
    stored, places = dict[SiteLayer, Tensor](), [(site, layer) for layer in layers]
    with hooked_sites(model, {place: store_leaf(stored, place) for place in places}), torch.enable_grad():
        logits = model.logits(trials)[:, :, trials.answer_ids]
    leaves = [stored[place] for place in places]
    for position, answer in _chosen(logits.shape[1], logits.shape[2], seed):
        # Sequences are independent, so the gradient of the sum holds each sequence's gradient.
        gradients = torch.autograd.grad(logits[:, position, answer].sum(), leaves, retain_graph=True)
        yield dict(zip(layers, gradients, strict=True))


def _gradients_of_states(
    model: Model, trials: Trials, layers: Sequence[int], *, seed: int
) -> Iterator[dict[int, Float[Tensor, "batch pos state"]]]:
    """Yield the same for the states (h, c) that an LSTM carries after each position."""
    assert isinstance(model.module, LSTM), "the site is checked before anything runs"
    with lock_of(model.module), torch.enable_grad():
        logits, states = logits_through_states(model.module, trials)
    logits, n_pos = logits[..., trials.answer_ids], len(states[0])
    nodes = [state for layer in layers for state in states[layer]]
    for position, answer in _chosen(logits.shape[1], logits.shape[2], seed):
        # States after the position do not influence its logits: their gradient is zero.
        grads = torch.autograd.grad(logits[:, position, answer].sum(), nodes, retain_graph=True, materialize_grads=True)
        parts = (grads[start : start + n_pos] for start in range(0, len(grads), n_pos))
        yield {layer: torch.stack(part, dim=1) for layer, part in zip(layers, parts, strict=True)}


def _chosen(n_positions: int, n_answers: int, seed: int) -> list[tuple[int, int]]:
    order = torch.randperm(n_positions * n_answers, generator=torch.Generator().manual_seed(torch_seed(seed)))
    kept: Int64[Tensor, " pair"] = order[:N_LOGITS]
    return [divmod(int(index), n_answers) for index in kept]


@final
@dataclass(frozen=True)
class TopJacobian(Fit):
    """The directions of one site on which the answer logits depend most."""

    r: int

    @property
    def label(self) -> str:
        return f"top-{self.r} Jacobian"

    def check(self, setting: Setting) -> None:
        if setting.place.site != CARRIED:  # `InterventionSite` checks CARRIED
            setting.model.require((setting.place.site,), by=self.label, layers=setting.place.layers)
        check_rank(self.r, setting, name="r")
        check_differentiable(setting.model.module, setting.model.spec.name)

    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        trials, site = sample.run.trials, sample.place.site
        grams = jacobian_grams(sample.model, trials, site, layers, seed=sample.seed)
        # eigh sorts eigenvalues in ascending order.
        tops = {at: torch.linalg.eigh(gram).eigenvectors[:, -self.r :] for at, gram in grams.items()}
        return {at: Subspace(self.label, top) for at, top in tops.items()}
