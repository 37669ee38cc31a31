"""Fits for a quantity: its covariance directions, the LEACE eraser, and the weights of a linear decoder.

References: Belrose et al. 2023, arXiv:2306.03819 (LEACE); Haufe et al. 2014, NeuroImage 87 (decoder weights do not
show where a quantity is represented).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument, unknown_name
from bayesgeom.stats.regression import ridge
from bayesgeom.subspaces.base import About, Fit, Sample, Setting
from bayesgeom.subspaces.erasers import JointMoments, covariance_subspace, leace_subspace, without
from bayesgeom.subspaces.quantity import CONFOUNDS, Quantity
from bayesgeom.subspaces.subspace import RANK_TOLERANCE, Subspace, span

_CONSTANT = 1e-9


@final
@dataclass(frozen=True)
class Eraser(Fit):
    """The subspace whose removal leaves no linear trace of the quantity at the scored positions.

    `oblique` uses LEACE's projector, otherwise the orthogonal projector onto Cov(x, y). The `given` quantities are
    erased from the activations and regressed out of the quantity before the subspace is fitted.
    """

    quantity: Quantity
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

    def check(self, setting: Setting) -> None:
        self.quantity.check(setting.trials)

    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        values = checked_values(sample, self.quantity)
        return {layer: self._one(sample, checked_points(sample, layer, self.label), values) for layer in layers}

    def _one(
        self, sample: Sample, points: Float64[Tensor, "point d"], values: Float64[Tensor, "point component"]
    ) -> Subspace:
        if not self.given:
            return self._of(points, values)
        confounds = sample.confounds(self.given)
        other = leace_subspace(f"{' and '.join(self.given)}", JointMoments.of(points, confounds))
        own = self._of(without(points, other), _residual(self.label, values, confounds))
        # Coordinates are read after the confounds are erased: D ← (1 − P)ᵀ D.
        dual = own.reads - other.reads @ (other.basis.T @ own.reads)
        return Subspace(self.label, own.basis, dual)

    def _of(self, points: Float64[Tensor, "point d"], values: Float64[Tensor, "point component"]) -> Subspace:
        moments = JointMoments.of(points, values)
        return leace_subspace(self.label, moments) if self.oblique else covariance_subspace(self.label, moments)


@final
@dataclass(frozen=True)
class Decoder(Fit):
    """The row space of the ridge map from vectors to the quantity: a read-out only."""

    quantity: Quantity

    @property
    def label(self) -> str:
        return f"decoder ({self.quantity.label})"

    @property
    def about(self) -> About:
        return About(quantity=self.quantity, is_readout=True, at_scored=True)

    def check(self, setting: Setting) -> None:
        self.quantity.check(setting.trials)

    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        values = checked_values(sample, self.quantity)
        target, found = values - values.mean(dim=0), {}
        for layer in layers:
            points = checked_points(sample, layer, self.label)
            centered = points - points.mean(dim=0)
            weights = ridge(centered.T @ centered, centered.T @ target)
            found[layer] = span(self.label, weights)
        return found


def checked_values(sample: Sample, quantity: Quantity) -> Float64[Tensor, "point component"]:
    """Return the quantity at each point.

    Raises:
        InvalidArgument: The quantity never varies.
    """
    values = sample.values(quantity)
    if float((values - values.mean(dim=0)).abs().max()) < _CONSTANT:
        raise InvalidArgument(
            f"the exact {quantity.label} is the same at every scored position, so it has no subspace."
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


def _residual(
    label: str, values: Float64[Tensor, "point component"], confounds: Float64[Tensor, "point column"]
) -> Float64[Tensor, "point component"]:
    """Return the quantity minus its best linear prediction; raise if nothing is left."""
    y, x = values - values.mean(dim=0), confounds - confounds.mean(dim=0)
    left: Tensor = y - x @ (torch.linalg.pinv(x.T @ x, rtol=1e-9) @ (x.T @ y))
    if float(left.square().sum()) <= 1e-6 * float(y.square().sum()):
        raise InvalidArgument(
            f"{label}: the quantities held fixed predict this quantity exactly, so nothing is left of it."
        )
    return left
