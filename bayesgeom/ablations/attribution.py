"""Attribution: a first-order preview of every ablation from one forward and one backward pass.

KL increase ≈ Σ (a′ − a) · ∂KL/∂a over the activations a that the ablation replaces by a′. It is exact where KL is
linear in a. It does not replace the battery: saturated heads have small gradients and large effects.

References: Nanda 2023 (attribution patching); Michel, Levy & Neubig 2019 (head importance).
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bayesgeom.core.edits import Edit, Reference
from bayesgeom.core.run import Site, Trials
from bayesgeom.core.torch_state import SiteLayer, keeping
from bayesgeom.models.base import Model, Variant, hooked_sites
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import kl_bits


def attributed_kl_increase(
    model: Model, trials: Trials, variants: Sequence[Variant], reference: Reference
) -> Float[np.ndarray, "variant sequence"]:
    """Return the first-order increase in KL (bits, mean over scored positions) of every variant on every sequence."""
    places = sorted(
        {(edit.site, edit.layer) for variant in variants for edit in variant}, key=lambda p: (p[1], p[0].name)
    )
    values, gradients = _gradients(model, trials, places)
    with torch.no_grad():
        rows = [
            sum((_first_order(edit, values, gradients, reference) for edit in variant), torch.zeros(len(trials)))
            for variant in variants
        ]
    return torch.stack(rows).double().numpy()


def _first_order(
    edit: Edit,
    values: dict[tuple[Site, int], Float[Tensor, "..."]],
    gradients: dict[tuple[Site, int], Float[Tensor, "..."]],
    reference: Reference,
) -> Float[Tensor, " batch"]:
    place = (edit.site, edit.layer)
    change = edit.applied(values[place], reference) - values[place]
    return (change * gradients[place]).flatten(1).sum(1).cpu()


def _gradients(
    model: Model, trials: Trials, places: Sequence[tuple[Site, int]]
) -> tuple[dict[tuple[Site, int], Float[Tensor, "..."]], dict[tuple[Site, int], Float[Tensor, "..."]]]:
    """Return the activations at these sites and the gradient of each sequence's KL with respect to them."""
    stored: dict[SiteLayer, Tensor] = {}
    with hooked_sites(model, {place: keeping(stored, place) for place in places}), torch.enable_grad():
        log_answers, _ = answer_log_probabilities(model.logits(trials), trials)
    # Sequences are independent, so the gradient of the sum holds each sequence's gradient.
    total = kl_bits(trials.at_scored(trials.predictive), log_answers).mean(dim=1).sum()
    gradients = torch.autograd.grad(total, [stored[place] for place in places])
    return {p: stored[p].detach() for p in places}, dict(zip(places, gradients, strict=True))
