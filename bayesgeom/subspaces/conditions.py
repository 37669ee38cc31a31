"""The conditions of one layer: the subspace, the ceiling, and the control subspaces."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core.edits import Edit, InSubspace, Replace, SubspaceKind
from bayesgeom.core.run import Site
from bayesgeom.stats.subspace import random_subspaces
from bayesgeom.subspaces.subspace import Subspace

RANDOM = "a random subspace"


@final
@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The edits of one kind in one layer; `like` gives device and precision, `points` the spread of coordinates."""

    site: Site
    layer: int
    kind: SubspaceKind
    like: Tensor
    points: Float64[Tensor, "point d"]
    seed: int

    def own(self, subspace: Subspace) -> Edit:
        """Return the edit of the subspace; "add" shifts each coordinate by one standard deviation."""
        return self._edit(subspace, self._spread(subspace.reads))

    def ceiling(self) -> Edit:
        """Return the edit of the whole activation: replaced by the donor's under a swap, else by its mean."""
        return Replace(site=self.site, layer=self.layer, mode="resample" if self.kind == "swap" else "mean")

    def controls(self, bases: Iterable[Float64[Tensor, "d _"]], like_own: Subspace | None = None) -> list[Edit]:
        """Return the edits of control subspaces; "add" shifts them as `like_own` if given, else by their own spread."""
        of_own = None if like_own is None else like_own.reads
        return [
            self._edit(Subspace(RANDOM, basis), self._spread(basis if of_own is None else of_own)) for basis in bases
        ]

    def filling(self, bases: Sequence[Float64[Tensor, "d _"]], n: int) -> list[Edit]:
        """Return the edits of `n` controls: a single one fills the conditions of all, and verdicts count it once."""
        return self.controls(bases) * (n // len(bases))

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
        """Return one standard deviation of each coordinate for "add", else None."""
        if self.kind != "add":
            return None
        return (self.points @ reads.to(self.points)).std(dim=0).to(self.like)


def turn(rank: int, seed: int) -> Float64[Tensor, "rank rank"]:
    """Return a random rotation of the coordinates; a single coordinate is negated."""
    return -torch.ones(1, 1, dtype=torch.float64) if rank == 1 else random_subspaces(rank, rank, draws=1, seed=seed)[0]
