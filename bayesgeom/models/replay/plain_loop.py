"""The plain loop: every variant a whole forward pass with ordinary PyTorch hooks.

The obvious way, and slow: what replays are compared with, and what serves architectures that cannot be replayed.
"""

from collections.abc import Callable, Sequence
from typing import final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from bayesgeom.core.edits import Edit, Reference
from bayesgeom.core.errors import HookFault
from bayesgeom.core.sites import Site
from bayesgeom.core.threads import alone
from bayesgeom.core.trials import Trials
from bayesgeom.models.base import Model
from bayesgeom.models.replay.replayer import STAGES, Baseline, Variant


@final
class PlainLoop:
    """A `Replayer` that replays nothing."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @alone("model.module")
    @torch.no_grad()
    def baseline(self, trials: Trials) -> Baseline:
        """One pass over trials, every replayable site kept at all positions."""
        held: dict[tuple[Site, int], Tensor] = {}

        def keeping(site: Site, layer: int) -> Callable[[nn.Module, object, Tensor], None]:
            def keep(_module: nn.Module, _inputs: object, output: Tensor) -> None:
                held[site, layer] = output

            return keep

        places = [
            (site, layer) for site in STAGES if site in self.model.sites for layer in range(self.model.spec.n_layers)
        ]
        handles = [self.model.point(*place).register_forward_hook(keeping(*place)) for place in places]
        try:
            logits = self.model.logits(trials)
        finally:
            for handle in handles:
                handle.remove()
        return Baseline(trials=trials, rows=trials.scored_positions()[0], held=held, logits=logits)

    @alone("model.module")
    @torch.no_grad()
    def logits(
        self, baseline: Baseline, variants: Sequence[Variant], reference: Reference
    ) -> Float[Tensor, "variant batch query_pos d_vocab"]:
        """One whole pass per variant. **Raises** `HookFault` when an edit's hook did not fire exactly once."""
        return torch.stack([self._one(baseline.trials, variant, reference) for variant in variants])

    def _one(self, trials: Trials, variant: Variant, reference: Reference) -> Float[Tensor, "batch query_pos d_vocab"]:
        fired = [0] * len(variant)

        def editing(number: int, edit: Edit) -> Callable[[nn.Module, object, Tensor], Shaped[Tensor, "..."]]:
            def replace(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
                fired[number] += 1
                return edit.applied(output, reference)

            return replace

        handles = [
            self.model.point(edit.site, edit.layer).register_forward_hook(editing(number, edit))
            for number, edit in enumerate(variant)
        ]
        try:
            logits = self.model.logits(trials)
        finally:
            for handle in handles:
                handle.remove()
        for times, edit in zip(fired, variant, strict=True):
            if times != 1:
                raise HookFault(
                    f"the hook of {edit.label!r} fired {times} times in one pass of {self.model.spec.name}."
                )
        return logits
