"""Write strength: how much each head puts into a subspace, in absolute norm, against what its ablation costs.

The absolute norm, not its share of all that the head writes: a share ranks idle heads first (the J-lens note's lesson).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import Run
from bayesgeom.core.sites import Z
from bayesgeom.models.base import Model
from bayesgeom.results.report import Headline, Report
from bayesgeom.stats.correlation import spearman
from bayesgeom.stats.subspace import random_subspaces
from bayesgeom.subspaces.anatomy import output_weights
from bayesgeom.subspaces.subspace import Subspace

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

N_RANDOM = 20


@final
@dataclass(frozen=True, kw_only=True)
class WriteReport(Report):
    """Mean over sequences and scored positions of ‖P W_O z‖ for every head, beside the damage of ablating it.

    `strength_null` is the mean over random subspaces of the same rank. The null of `rank_correlation` is what that
    gives: how well the sheer size of what a head writes ranks the damage.
    """

    name: ClassVar[str] = "write_strength"
    title: ClassVar[str] = "Write strength: which heads write into the subspace?"
    about: ClassVar[str] = (
        "The length of what each head adds to the residual stream within the subspace, averaged over scored positions, "
        "and the damage in bits of taking the head away. If writing there is what matters, the two rank heads alike: "
        "rank correlation near 1, and above what random subspaces of the same size give."
    )

    subspace: str
    strength: Float[np.ndarray, "layer head"]
    strength_null: Float[np.ndarray, "layer head"]
    damage_bits: Float[np.ndarray, "layer head"]
    rank_correlation: float
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        layer, head = np.unravel_index(self.strength.argmax(), self.strength.shape)
        most = Headline(
            metric="strength", label=f"strongest writer: L{layer}H{head}", value=float(self.strength[layer, head]),
            null=float(self.strength_null[layer, head]), null_label="random subspaces, mean",
        )  # fmt: skip
        correlation = self.scalar(
            "rank_correlation", "rank correlation of strength and damage", null_label="strength in random subspaces"
        )
        return correlation, most

    def figure(self) -> "Figure":
        from bayesgeom.charts.heads import add_heads, with_null
        from bayesgeom.results.theme import panels

        null = float(self.strength_null.mean())
        titles = (
            with_null(f"Written into {self.subspace}", null, "random subspaces, mean"),
            "Damage of ablation (null: 0)",
        )
        figure = panels(self.title, titles)
        add_heads(figure, (1, 1), self.strength, unit="‖P W_O z‖", null=null)
        add_heads(figure, (1, 2), self.damage_bits, unit="damage (bits)", null=0.0)
        return figure

    def table(self) -> str:
        """Heads by strength, strongest first, as the command line prints them."""
        order = np.argsort(-self.strength, axis=None, kind="stable")
        rows: list[tuple[str, ...]] = [("head", "strength", "random", "damage (bits)")]
        for layer, head in zip(*np.unravel_index(order, self.strength.shape), strict=True):
            own = (self.strength[layer, head], self.strength_null[layer, head], self.damage_bits[layer, head])
            rows.append((f"L{layer}H{head}", *(f"{value:.4f}" for value in own)))
        lines = ["  ".join(f"{cell:<13}" for cell in row).rstrip() for row in rows]
        return "\n".join([*lines, str(self.headlines()[0])])


def write_report(
    model: Model,
    run: Run,
    subspaces: Mapping[int, Subspace],
    damage: Float[np.ndarray, "layer head"],
    *,
    seed: int,
) -> WriteReport:
    """Strengths from a run that recorded z. **Raises** `InvalidArgument` where a head's damage is not known."""
    if not np.isfinite(damage).all():
        raise InvalidArgument(
            "write strength is compared with the damage of every head alone: ablate with the battery of heads."
        )
    strength, null = np.empty_like(damage), np.empty_like(damage)
    for layer, subspace in subspaces.items():
        weights, z = output_weights(model, layer), run.at(Z)[layer]
        width = weights.shape[2]
        drawn = random_subspaces(width, subspace.rank, draws=N_RANDOM, seed=seed + layer)
        by_basis = _strengths(z, weights, torch.cat([subspace.basis[None].to(drawn), drawn]))
        strength[layer], null[layer] = by_basis[0], by_basis[1:].mean(axis=0)
    return WriteReport(
        subspace=next(iter(subspaces.values())).name,
        strength=strength,
        strength_null=null,
        damage_bits=damage,
        rank_correlation=float(spearman(strength.ravel(), damage.ravel())),
        intervals={},
        nulls={"rank_correlation": float(spearman(null.ravel(), damage.ravel()))},
        n=run.n_recorded,
    )


def _strengths(
    z: Float[Tensor, "batch pos head d_head"],
    weights: Float[Tensor, "head d_head d_model"],
    bases: Float[Tensor, "draw d_model rank"],
) -> Float[np.ndarray, "draw head"]:
    """Mean of ‖Bᵀ W_O z‖ over sequences and positions; columns are orthonormal, so it is the projection's norm."""
    through = einsum(weights, bases.to(weights), "h e m, k m r -> k h e r")
    norms = [einsum(z, each, "b p h e, h e r -> b p h r").norm(dim=-1).mean(dim=(0, 1)) for each in through]
    return torch.stack(norms).double().cpu().numpy()
