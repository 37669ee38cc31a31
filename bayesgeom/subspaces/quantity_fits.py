"""Fits for a quantity: its covariance directions, the LEACE eraser, and the weights of a linear decoder.

References: Belrose et al. 2023, arXiv:2306.03819 (LEACE); Haufe et al. 2014, NeuroImage 87 (decoder weights do not
show where a quantity is represented).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument, unknown_name
from bayesgeom.stats.regression import ridge
from bayesgeom.subspaces.base import About, Fit, Sample, Setting
from bayesgeom.subspaces.erasers import JointMoments, covariance_subspace, is_left, leace_subspace, without
from bayesgeom.subspaces.quantity import CONFOUNDS, FORMS, Quantity
from bayesgeom.subspaces.subspace import RANK_TOLERANCE, Subspace, span

_CONSTANT = 1e-9


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
        return {layer: self._one(sample, layer, values) for layer in layers}

    @property
    def without_given(self) -> "Eraser":
        """The same fit with nothing held fixed."""
        return replace(self, given=())

    def _one(self, sample: Sample, layer: int, values: Float64[Tensor, "point component"]) -> Subspace:
        points = checked_points(sample, layer, self.label)
        if not self.given:
            return self._of(JointMoments.of(points, values))
        confounds, names = sample.confounds(self.given), " and ".join(self.given)
        before = JointMoments.of(points, confounds)
        other = leace_subspace(names, before)
        residual = _residual(self.label, values, confounds)
        after = JointMoments.of(without(points, other), residual)
        if not is_left(after, before, residual):
            removed = f"erasing {names} ({other.rank} of {points.shape[1]} dimensions)"
            raise NothingLeft(layer, f"{removed} leaves nothing that covaries with the {self.quantity.label}")
        own = self._of(after)
        # Coordinates are read after the confounds are erased: D ← (1 − P)ᵀ D.
        dual = own.reads - other.reads @ (other.basis.T @ own.reads)
        return Subspace(self.label, own.basis, dual)

    def _of(self, moments: JointMoments) -> Subspace:
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


def _residual(
    label: str, values: Float64[Tensor, "point component"], confounds: Float64[Tensor, "point column"]
) -> Float64[Tensor, "point component"]:
    """Return the quantity minus its best linear prediction; raise if nothing is left."""
    y, x = values - values.mean(dim=0), confounds - confounds.mean(dim=0)
    left: Tensor = y - x @ (torch.linalg.pinv(x.T @ x, rtol=1e-9) @ (x.T @ y))
    if float(left.square().sum()) <= 1e-6 * float(y.square().sum()):
        raise InvalidArgument(
            f"{label}: the quantities held fixed predict this quantity exactly, so nothing is left of it. Hold fewer "
            f"fixed."
        )
    return left
