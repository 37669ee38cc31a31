"""The subspace of a quantity in an activation: the span of its covariance, and projectors that erase it.

    covariance   P = U Uᵀ, U an orthonormal basis of the span of Σxy = Cov(x, y)
    LEACE        P = W⁺ Π W, W = (Σxx^½)⁺, Π the orthogonal projector onto the span of W Σxy

Both give Cov(x − P x, y) = 0, so no linear map predicts y from x − P x. LEACE changes x least among all affine maps
with this property. The weights of a linear read-out, Σxx⁻¹ Σxy, have neither property: they can point along directions
with almost no variance (Haufe et al. 2014), and after removing them y is still decodable.

References: Belrose et al. 2023, arXiv:2306.03819, theorem 4.2 (LEACE); Haufe et al. 2014, NeuroImage 87.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.subspaces.subspace import Subspace

RANK_TOLERANCE = 1e-6  # share of the largest singular value of Σxy below which a direction is rounding error
VARIANCE_TOLERANCE = 1e-9  # share of the largest eigenvalue of Σxx below which a direction does not vary
_UNRELATED = 1e-9  # share of the standard deviations below which a covariance is rounding error


@final
@dataclass(frozen=True, kw_only=True)
class JointMoments:
    """Second moments of centered activations x and quantities y, over the same points."""

    within: Float64[Tensor, "d d"]
    cross: Float64[Tensor, "d component"]

    @classmethod
    def of(cls, points: Float64[Tensor, "point d"], values: Float64[Tensor, "point component"]) -> "JointMoments":
        """Return the moments about the means."""
        x, y = points - points.mean(dim=0), values - values.mean(dim=0)
        return cls(within=x.T @ x / len(x), cross=x.T @ y / len(x))


def covariance_subspace(name: str, moments: JointMoments) -> Subspace:
    """Return the span of Cov(x, y) with its orthogonal projector.

    Raises:
        InvalidArgument: The quantity and the activations do not covary.
    """
    return Subspace(name, _span(name, moments.cross, moments))


def leace_subspace(name: str, moments: JointMoments) -> Subspace:
    """Return the range of the LEACE projector, which is the span of Cov(x, y), with the projector's dual columns.

    Raises:
        InvalidArgument: The quantity and the activations do not covary.
    """
    whiten, color = _roots(moments.within)
    span = _span(name, whiten @ moments.cross, moments)
    basis, mixing = torch.linalg.qr(color @ span)
    return Subspace(name, basis, whiten @ span @ mixing.T)


def without(points: Float64[Tensor, "point d"], eraser: Subspace) -> Float64[Tensor, "point d"]:
    """Return x − P (x − mean) for each point."""
    centered = points - points.mean(dim=0)
    return points - centered @ eraser.reads.to(points) @ eraser.basis.to(points).T


def is_left(after: JointMoments, before: JointMoments, values: Float64[Tensor, "point component"]) -> bool:
    """Return whether an edited activation varies, and covaries with some values, by more than rounding error.

    Both are measured by the variance before the edit: where the edit removed everything, the largest variance after it
    is itself rounding error, and a share of it would keep directions of noise.
    """
    most, least = (float(torch.linalg.eigvalsh(own.within)[-1]) for own in (before, after))
    spread = before.within.diagonal().sum().sqrt() * values.var(dim=0, correction=0).sum().sqrt()
    return least > VARIANCE_TOLERANCE * most and float(after.cross.norm()) > _UNRELATED * float(spread)


def _roots(within: Float64[Tensor, "d d"]) -> tuple[Float64[Tensor, "d d"], Float64[Tensor, "d d"]]:
    """Return symmetric Σ^−½ and Σ^½ on the directions that vary."""
    values, vectors = torch.linalg.eigh(within)
    varies = values > VARIANCE_TOLERANCE * values[-1].clamp_min(1e-300)
    kept, roots = vectors[:, varies], values[varies].sqrt()
    return (kept / roots) @ kept.T, (kept * roots) @ kept.T


def _span(name: str, columns: Float64[Tensor, "d component"], moments: JointMoments) -> Float64[Tensor, "d rank"]:
    """Return an orthonormal basis of the columns' span; raise if quantity and activations do not covary."""
    left: Tensor
    left, singular, _ = torch.linalg.svd(columns, full_matrices=False)
    spread = moments.within.diagonal().sum().sqrt()
    if not bool(moments.cross.isfinite().all()) or float(moments.cross.norm()) <= _UNRELATED * float(spread):
        raise InvalidArgument(
            f"{name}: the quantity or the activation does not vary here, so there is no subspace. Choose later layers "
            f"or another quantity."
        )
    return left[:, singular > RANK_TOLERANCE * singular[0]]
