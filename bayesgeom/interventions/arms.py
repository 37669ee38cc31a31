"""The conditions of one layer: the subspace, the ceiling, and the control subspaces."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core.edits import Edit, InSubspace, Replace, SubspaceKind
from bayesgeom.core.sites import Site
from bayesgeom.stats.subspace import random_subspaces
from bayesgeom.subspaces.subspace import Subspace

RANDOM = "a random subspace"


@final
@dataclass(frozen=True, kw_only=True)
class Arms:
    """Makes the edits of one kind in one layer. `like` gives device and precision, `points` what coordinates span."""

    site: Site
    layer: int
    kind: SubspaceKind
    like: Tensor
    points: Float64[Tensor, "point d"]
    seed: int

    def own(self, subspace: Subspace) -> Edit:
        """The edit of the subspace itself; "add" shifts each coordinate by one standard deviation."""
        return self._edit(subspace, self._spread(subspace.reads))

    def ceiling(self) -> Edit:
        """The whole activation: the donor's under a swap, else its mean."""
        return Replace(site=self.site, layer=self.layer, mode="resample" if self.kind == "swap" else "mean")

    def controls(self, bases: Float64[Tensor, "draw d rank"], like_own: Subspace | None = None) -> list[Edit]:
        """The edits of control subspaces; "add" shifts them as it does `like_own`, else by their own spread."""
        of_own = None if like_own is None else like_own.reads
        return [
            self._edit(Subspace(RANDOM, basis), self._spread(basis if of_own is None else of_own)) for basis in bases
        ]

    def _edit(self, subspace: Subspace, shift: Float[Tensor, " r"] | None) -> Edit:
        return InSubspace(
            site=self.site,
            layer=self.layer,
            kind=self.kind,
            basis=subspace.basis.to(self.like),
            dual=None if subspace.dual is None else subspace.dual.to(self.like),
            turn=turn(subspace.rank, self.seed).to(self.like) if self.kind == "rotate" else None,
            shift=shift,
            name=subspace.name,
        )

    def _spread(self, reads: Float[Tensor, "d r"]) -> Float[Tensor, " r"] | None:
        """One standard deviation of each coordinate, where coordinates are shifted."""
        if self.kind != "add":
            return None
        return (self.points @ reads.to(self.points)).std(dim=0).to(self.like)


def turn(rank: int, seed: int) -> Float64[Tensor, "rank rank"]:
    """A random rotation of the coordinates; one coordinate is negated."""
    return -torch.ones(1, 1, dtype=torch.float64) if rank == 1 else random_subspaces(rank, rank, draws=1, seed=seed)[0]
