"""A named subspace: orthonormal columns in the coordinates of one site, and the columns that read its coordinates."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core.edits import check_dual, check_orthonormal
from bayesgeom.core.errors import InvalidArgument, check_types

RANK_TOLERANCE = 1e-6  # share of the largest singular value below which a direction is rounding error


@final
@dataclass(frozen=True, eq=False)
class Subspace:
    """A named subspace, and the projector onto it: orthogonal, P = B Bᵀ, or with a `dual` oblique, P = B Dᵀ.

    Args:
        name: Label in tables and figures.
        basis: Orthonormal columns B, one per dimension of the subspace.
        dual: Columns D that read the coordinates, DᵀB = 1. Default: the basis itself.

    Raises:
        InvalidArgument: The columns of `basis` are not orthonormal, or DᵀB is not the identity.

    Example:
        >>> import bayesgeom, torch
        >>> bayesgeom.subspaces.Subspace("first two", torch.eye(5)[:, :2]).rank
        2
    """

    name: str
    basis: Float[Tensor, "d r"]
    dual: Float[Tensor, "d r"] | None = None

    def __post_init__(self) -> None:
        check_types(self)
        check_orthonormal(self.basis)
        if self.dual is not None:
            check_dual(self.basis, self.dual)

    @property
    def reads(self) -> Float[Tensor, "d r"]:
        """Columns that read the coordinates: the dual, or the basis itself."""
        return self.basis if self.dual is None else self.dual

    def projector(self) -> Float64[Tensor, "d d"]:
        """Return P, which acts on column vectors."""
        return self.basis.double() @ self.reads.double().T

    def variance_share(self, covariance: Float64[Tensor, "d d"]) -> float:
        """Return tr(P Σ Pᵀ) / tr Σ: the share of the site's variance that removal deletes.

        Args:
            covariance: Covariance of the vectors at the site.
        """
        reads = self.reads.to(covariance)
        return float((reads * (covariance @ reads)).sum() / covariance.diagonal().sum())

    @property
    def width(self) -> int:
        """Dimensions of the ambient space."""
        return len(self.basis)

    @property
    def rank(self) -> int:
        """Dimensions of the subspace."""
        return self.basis.shape[1]

    def check_width(self, width: int, where: str) -> None:
        """Check the width against that of the vectors at a site.

        Args:
            width: Number of coordinates of the vectors.
            where: Name of the site, for the message.

        Raises:
            InvalidArgument: The widths differ.
        """
        if self.width != width:
            raise InvalidArgument(
                f"the basis of {self.name!r} is {self.width} wide; vectors at {where} are {width} wide."
            )


def span(name: str, columns: Float[Tensor, "d n"]) -> Subspace:
    """Return the span of some vectors: left singular vectors with singular values above 1e-6 of the largest.

    Raises:
        InvalidArgument: All vectors are zero, or one is not finite.
    """
    if not bool(columns.isfinite().all()) or not bool(columns.any()):
        raise InvalidArgument(
            f"{name}: the vectors are all zero, or not finite, so they span no subspace here. Choose another layer."
        )
    left, singular, _ = torch.linalg.svd(columns.double(), full_matrices=False)
    return Subspace(name, left[:, singular > RANK_TOLERANCE * singular[0]])
