"""Decodability of a quantity, from the whole site and from a subspace's coordinates, reported with an effect."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.subspaces.base import Sample
from bayesgeom.subspaces.decoding import decoded_r2
from bayesgeom.subspaces.quantity import Quantity
from bayesgeom.subspaces.readout import Erasure, Read, erasure
from bayesgeom.subspaces.subspace import Subspace

_SCORED = 256  # sequences of the fitting sample used for the coordinates


def reads(sample: Sample, quantity: Quantity, layers: Sequence[int]) -> dict[int, Read]:
    """Return activations and the quantity, sequence by sequence, in each layer."""
    values = quantity.exact(sample.run.trials)
    return {at: Read(points=sample.points(at).unflatten(0, tuple(values.shape[:2])), values=values) for at in layers}


def erasures(
    read: Mapping[int, Read], subspaces: Mapping[int, Subspace], *, n_fit: int, seed: int
) -> dict[int, Erasure]:
    """Return R² of the quantity before and after each subspace is removed; the first `n_fit` sequences fit the map."""
    found = {}
    for layer, subspace in subspaces.items():
        points, values = read[layer].points, read[layer].values
        fit, held_out = (Read(points=points[rows], values=values[rows]) for rows in (slice(n_fit), slice(n_fit, None)))
        found[layer] = erasure(fit, held_out, subspace, seed=seed + layer)
    return found


def coordinate_r2(
    sample: Sample,
    read: Sample,
    subspaces: Mapping[int, Subspace],
    random: Mapping[int, Float64[Tensor, "draw d r"]],
    *,
    n_held_out: int,
) -> dict[str, dict[int, Float64[np.ndarray, " subspace"]]]:
    """Return held-out R² of entropy and belief from coordinates, of the subspace first, then of the random ones."""
    found: dict[str, dict[int, Float64[np.ndarray, " subspace"]]] = {"entropy": {}, "belief": {}}
    n_scored = read.run.trials.n_scored
    first, last = slice(min(_SCORED, sample.run.n_recorded) * n_scored), slice(-n_held_out * n_scored, None)
    targets = {
        "entropy": (sample.entropies()[first, None], read.entropies()[last, None]),
        "belief": (sample.beliefs()[first], read.beliefs()[last]),
    }
    for layer, subspace in subspaces.items():
        points, held_out = sample.points(layer)[first], read.points(layer)[last]
        own = torch.linalg.qr(subspace.reads.to(random[layer])).Q  # orthonormal
        bases = torch.cat([own[None], random[layer]])
        for what, (fit_target, held_out_target) in targets.items():
            found[what][layer] = decoded_r2((points, fit_target), (held_out, held_out_target), bases).numpy()
    return found
