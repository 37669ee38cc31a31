"""The interface of ablations and interventions to a model: a baseline pass, and logits under variants of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from jaxtyping import Float, Int64
from torch import Tensor

from bayesgeom.core.edits import Edit, Reference
from bayesgeom.core.sites import ATTN_OUT, MLP_OUT, RESID_MID, RESID_POST, RESID_PRE, Site, Z
from bayesgeom.core.trials import Trials

STAGES: Mapping[Site, int] = {RESID_PRE: 0, Z: 1, ATTN_OUT: 2, RESID_MID: 3, MLP_OUT: 4, RESID_POST: 5}
Variant = Sequence[Edit]


@final
@dataclass(frozen=True, kw_only=True)
class BaselinePass:
    """The result of one unedited pass: activations by site and layer at all positions, and logits at scored rows."""

    trials: Trials
    rows: Int64[Tensor, " query_pos"]
    stored: Mapping[tuple[Site, int], Float[Tensor, "batch pos *rest"]]
    logits: Float[Tensor, "batch query_pos d_vocab"]


@runtime_checkable
class Replayer(Protocol):
    """Computes a baseline pass of a model, and logits under variants of it."""

    def baseline(self, trials: Trials) -> BaselinePass:
        """Run one unedited pass and keep its activations."""

    def logits(
        self, baseline: BaselinePass, variants: Sequence[Variant], reference: Reference
    ) -> Float[Tensor, "variant batch query_pos d_vocab"]:
        """Return the logits at the scored rows under each variant. All variants must have the same `entry`."""


def entry(variant: Variant) -> tuple[int, int]:
    """Return the layer and stage at which a variant first differs from the baseline."""
    return min((edit.layer, STAGES[edit.site]) for edit in variant)
