"""Decoding of entropy and belief from a subspace's coordinates: fitted on one sample, scored on another."""

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.stats.regression import SplitMoments, ridge, split_moments, squared_error
from bayesgeom.stats.subspace import restricted

_TINY = 1e-9  # a target with less variance than this, per point, does not vary


def decoded_r2(
    fit: tuple[Float64[Tensor, "fit_point d"], Float64[Tensor, "fit_point target"]],
    held_out: tuple[Float64[Tensor, "held_point d"], Float64[Tensor, "held_point target"]],
    bases: Float64[Tensor, "draw d rank"],
) -> Float64[Tensor, " draw"]:
    """Return R² = 1 − Σ (y − ŷ)² / Σ (y − ȳ)² on the held-out points, with ŷ a ridge map of each basis's coordinates.

    ȳ is the mean of the fitting points, so predicting the mean scores 0. NaN if the target does not vary.
    """
    (points, targets), (held_out_points, held_out_targets) = fit, held_out
    moments = split_moments(
        torch.cat([points, held_out_points]) - points.mean(dim=0),
        torch.cat([targets, held_out_targets]) - targets.mean(dim=0),
        len(points),
    )
    power = float(moments.score_power.sum())
    if power < _TINY * held_out_targets.numel():
        return torch.full((len(bases),), torch.nan, dtype=torch.float64)
    return 1 - _errors(moments, bases.to(points)) / power


def _errors(moments: SplitMoments, bases: Float64[Tensor, "draw d rank"]) -> Float64[Tensor, " draw"]:
    weights = ridge(restricted(moments.fit_gram, bases), bases.mT @ moments.fit_cross)
    errors = squared_error(
        weights, restricted(moments.score_gram, bases), bases.mT @ moments.score_cross, moments.score_power
    )
    return errors.sum(dim=-1).cpu()
