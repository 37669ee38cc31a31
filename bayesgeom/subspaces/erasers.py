"""Where a quantity lies in an activation: the span of its covariance, and projectors that erase it.

    covariance   P = U Uᵀ, U an orthonormal basis of the span of Σxy = Cov(x, y)
    LEACE        P = W⁺ Π W, W = (Σxx^½)⁺, Π the orthogonal projector onto the span of W Σxy

Both leave Cov(x − P x, y) = 0, so that no linear map predicts y from what is left. LEACE changes x least of all affine
maps that do so. The weights of a linear read-out, Σxx⁻¹ Σxy, have neither property: they may lie along directions with
almost no variance (Haufe et al. 2014), and removing them leaves y decodable.

References: Belrose et al. 2023, arXiv:2306.03819, theorem 4.2 (LEACE); Haufe et al. 2014, NeuroImage 87.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.subspaces.subspace import Subspace

RANK_TOLERANCE = 1e-6  # of the largest singular value of Σxy: below it a direction is rounding
VARIANCE_TOLERANCE = 1e-9  # of the largest eigenvalue of Σxx: below it a direction does not vary


@final
@dataclass(frozen=True, kw_only=True)
class JointMoments:
    """Second moments of centered activations x and quantities y, over the same points."""

    within: Float64[Tensor, "d d"]
    cross: Float64[Tensor, "d component"]

    @classmethod
    def of(cls, points: Float64[Tensor, "point d"], values: Float64[Tensor, "point component"]) -> "JointMoments":
        """Moments about the means."""
        x, y = points - points.mean(dim=0), values - values.mean(dim=0)
        return cls(within=x.T @ x / len(x), cross=x.T @ y / len(x))


def covariance_subspace(name: str, moments: JointMoments) -> Subspace:
    """The span of Cov(x, y), with its orthogonal projector. **Raises** `InvalidArgument` where nothing covaries."""
    return Subspace(name, _span(name, moments.cross, moments))


def leace_subspace(name: str, moments: JointMoments) -> Subspace:
    """The range of the LEACE projector, which is the span of Cov(x, y), with the projector's own dual columns."""
    whiten, color = _roots(moments.within)
    span = _span(name, whiten @ moments.cross, moments)
    basis, mixing = torch.linalg.qr(color @ span)
    return Subspace(name, basis, whiten @ span @ mixing.T)


def without(points: Float64[Tensor, "point d"], eraser: Subspace) -> Float64[Tensor, "point d"]:
    """x − P (x − mean) for each point."""
    centered = points - points.mean(dim=0)
    return points - centered @ eraser.reads.to(points) @ eraser.basis.to(points).T


def _roots(within: Float64[Tensor, "d d"]) -> tuple[Float64[Tensor, "d d"], Float64[Tensor, "d d"]]:
    """Σ^−½ and Σ^½ on the directions that vary, both symmetric."""
    values, vectors = torch.linalg.eigh(within)
    varies = values > VARIANCE_TOLERANCE * values[-1].clamp_min(1e-300)
    kept, roots = vectors[:, varies], values[varies].sqrt()
    return (kept / roots) @ kept.T, (kept * roots) @ kept.T


def _span(name: str, columns: Float64[Tensor, "d component"], moments: JointMoments) -> Float64[Tensor, "d rank"]:
    """Orthonormal basis of the columns' span. **Raises** where the quantity and the activations do not covary."""
    left: Tensor
    left, singular, _ = torch.linalg.svd(columns, full_matrices=False)
    spread = moments.within.diagonal().sum().sqrt()
    if not bool(moments.cross.isfinite().all()) or float(moments.cross.norm()) <= 1e-9 * float(spread):
        raise InvalidArgument(f"{name}: the quantity or the activation does not vary here, so there is no subspace.")
    return left[:, singular > RANK_TOLERANCE * singular[0]]
