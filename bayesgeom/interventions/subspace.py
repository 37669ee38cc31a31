"""A subspace under its name: orthonormal columns in the coordinates of one site."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from bayesgeom.edits import check_orthonormal
from bayesgeom.errors import InvalidArgument

RANK_TOLERANCE = 1e-6  # of the largest singular value: below it a direction is rounding


@final
@dataclass(frozen=True, eq=False)
class Subspace:
    """A named subspace. **Raises** `InvalidArgument` unless the columns of `basis` are orthonormal."""

    name: str
    basis: Float[Tensor, "d r"]

    def __post_init__(self) -> None:
        check_orthonormal(self.basis)

    @property
    def width(self) -> int:
        """Dimensions of the space around it."""
        return len(self.basis)

    @property
    def rank(self) -> int:
        """Dimensions of the subspace."""
        return self.basis.shape[1]

    def check_width(self, width: int, where: str) -> None:
        """**Raises** `InvalidArgument` where vectors at the named place have another width."""
        if self.width != width:
            raise InvalidArgument(
                f"the basis of {self.name!r} is {self.width} wide; vectors at {where} are {width} wide."
            )


def span(name: str, columns: Float[Tensor, "d n"]) -> Subspace:
    """The span of some vectors: left singular vectors whose singular value exceeds a millionth of the largest.

    **Raises** `InvalidArgument` where all vectors are zero or one is not finite.
    """
    if not bool(columns.isfinite().all()) or not bool(columns.any()):
        raise InvalidArgument(
            f"{name}: the vectors to span are all zero, or not finite; there is no such subspace here."
        )
    left, singular, _ = torch.linalg.svd(columns.double(), full_matrices=False)
    return Subspace(name, left[:, singular > RANK_TOLERANCE * singular[0]])
