"""The plain loop: a full forward pass with PyTorch hooks for every variant.

It is slow and simple. Faster replays are tested against it, and architectures that cannot be replayed use it.
"""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from bayesgeom.core.edits import Edit, Reference
from bayesgeom.core.hooks import Change, SiteLayer, hooked, keeping, site_hook
from bayesgeom.core.threads import alone
from bayesgeom.core.trials import Trials
from bayesgeom.models.base import Model
from bayesgeom.models.replay.replayer import STAGES, Baseline, Variant
from bayesgeom.models.watching import hooked_sites


@final
class PlainLoop:
    """A `Replayer` that runs the full model for every variant."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @alone("model.module")
    @torch.no_grad()
    def baseline(self, trials: Trials) -> Baseline:
        """Run one pass and keep every replayable site at all positions."""
        stored: dict[SiteLayer, Tensor] = {}
        places = [(site, layer) for site in STAGES for layer in self.model.layers_of(site)]
        with hooked_sites(self.model, {place: keeping(stored, place) for place in places}):
            logits = self.model.logits(trials)
        return Baseline(trials=trials, rows=trials.scored_positions()[0], stored=stored, logits=logits)

    @alone("model.module")
    @torch.no_grad()
    def logits(
        self, baseline: Baseline, variants: Sequence[Variant], reference: Reference
    ) -> Float[Tensor, "variant batch query_pos d_vocab"]:
        """Run one full pass per variant.

        Raises:
            HookFault: The hook of an edit did not fire exactly once.
        """
        return torch.stack([self._one(baseline.trials, variant, reference) for variant in variants])

    def _one(self, trials: Trials, variant: Variant, reference: Reference) -> Float[Tensor, "batch query_pos d_vocab"]:
        def editing(edit: Edit) -> Change:
            return lambda output: edit.applied(output, reference)

        hooks = [
            site_hook((edit.site, edit.layer), self.model.point(edit.site, edit.layer), editing(edit))
            for edit in variant
        ]
        with hooked(self.model.module, hooks, by=self.model.spec.name):
            return self.model.logits(trials)
