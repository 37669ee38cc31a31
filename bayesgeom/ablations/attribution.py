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

from bayesgeom.core.edits import Reference
from bayesgeom.core.hooks import SiteLayer, keeping
from bayesgeom.core.trials import Trials
from bayesgeom.models.base import Model, hooked_sites
from bayesgeom.models.replay.replayer import Variant
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import kl_bits


def attributed_kl_increase(
    model: Model, trials: Trials, variants: Sequence[Variant], reference: Reference
) -> Float[np.ndarray, "variant sequence"]:
    """Return the first-order increase in KL (bits, mean over scored positions) of every variant on every sequence."""
    places = sorted(
        {(edit.site, edit.layer) for variant in variants for edit in variant}, key=lambda p: (p[1], p[0].name)
    )
    stored: dict[SiteLayer, Tensor] = {}
    with hooked_sites(model, {place: keeping(stored, place) for place in places}), torch.enable_grad():
        log_answers, _ = answer_log_probabilities(model.logits(trials), trials)
    # Sequences are independent, so the gradient of the sum holds each sequence's gradient.
    total = kl_bits(trials.at_scored(trials.predictive), log_answers).mean(dim=1).sum()
    gradients = dict(zip(places, torch.autograd.grad(total, [stored[place] for place in places]), strict=True))
    rows = []
    with torch.no_grad():
        for variant in variants:
            row = torch.zeros(len(trials))
            for edit in variant:
                place = edit.site, edit.layer
                values = stored[place].detach()
                change = edit.applied(values, reference) - values
                row = row + (change * gradients[place]).flatten(1).sum(1).cpu()
            rows.append(row)
    return torch.stack(rows).double().numpy()
