"""The subspace of a quantity in an activation: the span of its covariance, and projectors that erase it.

    covariance   P = U Uᵀ, U an orthonormal basis of the span of Σxy = Cov(x, y)
    LEACE        P = W⁺ Π W, W = (Σxx^½)⁺, Π the orthogonal projector onto the span of W Σxy

Both give Cov(x − P x, y) = 0, so no linear map predicts y from x − P x. LEACE changes x least among all affine maps
with this property. The weights of a linear read-out, Σxx⁻¹ Σxy, have neither property: they can point along directions
with almost no variance (Haufe et al. 2014), and after removing them y is still decodable.

References: Belrose et al. 2023, arXiv:2306.03819, theorem 4.2 (LEACE); Haufe et al. 2014, NeuroImage 87.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.core import InvalidArgument, unknown_name
from bayesgeom.stats.regression import ridge
from bayesgeom.subspaces.base import RANK_TOLERANCE, About, Fit, Sample, Subspace, span
from bayesgeom.subspaces.quantity import CONFOUNDS, FORMS, PosteriorQuantity

VARIANCE_TOLERANCE = 1e-9  # share of the largest eigenvalue of Σxx below which a direction does not vary
_UNRELATED = 1e-9  # share of the standard deviations below which a covariance is rounding error
_CONSTANT = 1e-9


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
    # Symmetric Σ^−½ and Σ^½ on the directions that vary.
    values, vectors = torch.linalg.eigh(moments.within)
    varies = values > VARIANCE_TOLERANCE * values[-1].clamp_min(1e-300)
    kept, roots = vectors[:, varies], values[varies].sqrt()
    whiten, color = (kept / roots) @ kept.T, (kept * roots) @ kept.T
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
    most, least = (float(torch.linalg.eigvalsh(moments.within)[-1]) for moments in (before, after))
    spread = before.within.diagonal().sum().sqrt() * values.var(dim=0, correction=0).sum().sqrt()
    return least > VARIANCE_TOLERANCE * most and float(after.cross.norm()) > _UNRELATED * float(spread)


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


class NothingLeft(InvalidArgument):
    """Erasing the quantities held fixed leaves nothing in a layer to fit; `reason` says so without the layer."""

    def __init__(self, layer: int, reason: str) -> None:
        super().__init__(f"layer {layer}: {reason}. Choose other layers, or hold fewer quantities fixed.")
        self.reason = reason


@final
@dataclass(frozen=True)
class Eraser(Fit):
    """The subspace whose removal leaves no linear trace of the quantity at the scored positions.

    `oblique` uses LEACE's projector, otherwise the orthogonal projector onto Cov(x, y). The `given` quantities are
    erased from the activations and regressed out of the quantity before the subspace is fitted.
    """

    quantity: PosteriorQuantity
    oblique: bool
    given: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.given:
            if name not in CONFOUNDS:
                raise unknown_name("quantity to hold fixed", name, CONFOUNDS)

    @property
    def label(self) -> str:
        kind = "LEACE" if self.oblique else "covariance"
        return f"{kind} ({self.quantity.label}{', given ' + ' and '.join(self.given) if self.given else ''})"

    @property
    def about(self) -> About:
        return About(quantity=self.quantity, at_scored=True)

    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        values = checked_values(sample, self.quantity)
        return {layer: self._one(sample, layer, values) for layer in layers}

    def _one(self, sample: Sample, layer: int, values: Float64[Tensor, "point component"]) -> Subspace:
        points = checked_points(sample, layer, self.label)
        if not self.given:
            return self._of(JointMoments.of(points, values))
        confounds, names = sample.confounds(self.given), " and ".join(self.given)
        before = JointMoments.of(points, confounds)
        other = leace_subspace(names, before)
        y, x = values - values.mean(dim=0), confounds - confounds.mean(dim=0)
        residual: Tensor = y - x @ (torch.linalg.pinv(x.T @ x, rtol=1e-9) @ (x.T @ y))
        if float(residual.square().sum()) <= 1e-6 * float(y.square().sum()):
            raise InvalidArgument(
                f"{self.label}: the quantities held fixed predict this quantity exactly, so nothing is left of it. "
                f"Hold fewer fixed."
            )
        after = JointMoments.of(without(points, other), residual)
        if not is_left(after, before, residual):
            removed = f"erasing {names} ({other.rank} of {points.shape[1]} dimensions)"
            raise NothingLeft(layer, f"{removed} leaves nothing that covaries with the {self.quantity.label}")
        subspace = self._of(after)
        # Coordinates are read after the confounds are erased: D ← (1 − P)ᵀ D.
        dual = subspace.reads - other.reads @ (other.basis.T @ subspace.reads)
        return Subspace(self.label, subspace.basis, dual)

    def _of(self, moments: JointMoments) -> Subspace:
        return leace_subspace(self.label, moments) if self.oblique else covariance_subspace(self.label, moments)


@final
@dataclass(frozen=True)
class Decoder(Fit):
    """The row space of the ridge map from vectors to the quantity: a read-out only."""

    quantity: PosteriorQuantity

    @property
    def label(self) -> str:
        return f"decoder ({self.quantity.label})"

    @property
    def about(self) -> About:
        return About(quantity=self.quantity, is_readout=True, at_scored=True)

    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        values = checked_values(sample, self.quantity)
        target, subspaces = values - values.mean(dim=0), {}
        for layer in layers:
            points = checked_points(sample, layer, self.label)
            centered = points - points.mean(dim=0)
            weights = ridge(centered.T @ centered, centered.T @ target)
            subspaces[layer] = span(self.label, weights)
        return subspaces


def checked_values(sample: Sample, quantity: PosteriorQuantity) -> Float64[Tensor, "point component"]:
    """Return the quantity at each point.

    Raises:
        InvalidArgument: The quantity never varies.
    """
    values = sample.values(quantity)
    if float((values - values.mean(dim=0)).abs().max()) < _CONSTANT:
        raise InvalidArgument(
            f"the exact {quantity.label} is the same at every scored position, so it has no subspace: choose another "
            f"quantity ({', '.join(FORMS)}) or another task."
        )
    return values


def checked_points(sample: Sample, layer: int, label: str) -> Float64[Tensor, "point d"]:
    """Return the vectors of one layer.

    Raises:
        InvalidArgument: All vectors are equal.
    """
    points = sample.points(layer)
    if float((points - points.mean(dim=0)).abs().max()) <= RANK_TOLERANCE * float(points.abs().max()):
        raise InvalidArgument(
            f"layer {layer} holds the same vector at every scored position, so {label} has no subspace there. Choose "
            f"later layers."
        )
    return points
