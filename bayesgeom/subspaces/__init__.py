"""Subspaces of an activation: fitted to a quantity, computed from weights, trained, or random.

from bayesgeom import subspaces
subspaces.covariance("entropy"), subspaces.leace("belief"), subspaces.top_jacobian(16)

Subspaces for `bayesgeom.intervene(model, subspace=…)`:

    leace          the component that the least-change affine eraser of a quantity removes
    covariance     the span of the covariance with a quantity
    decoder        the weights of a ridge map to a quantity
    belief_readout the row space of the ridge map to the exact belief
    entropy_axis   one direction along which entropy increases
    frame          the span of the hypothesis tokens
    top_jacobian   the main directions of the gradients of the answer logits
    trained_swap   directions trained so that a swap moves the model's own quantity
    random         a random subspace
    Subspace       orthonormal columns, and how activations are projected onto them
    basis, fixed   your own columns, or the same subspace in every layer
    fit_from_text  the fit that the command line writes as NAME or NAME:argument
"""

from typing import TYPE_CHECKING

from bayesgeom.core.plugins import names_on_demand

if TYPE_CHECKING:
    from bayesgeom.subspaces.base import Subspace as Subspace
    from bayesgeom.subspaces.fits import basis as basis
    from bayesgeom.subspaces.fits import belief_readout as belief_readout
    from bayesgeom.subspaces.fits import covariance as covariance
    from bayesgeom.subspaces.fits import decoder as decoder
    from bayesgeom.subspaces.fits import entropy_axis as entropy_axis
    from bayesgeom.subspaces.fits import fit_from_text as fit_from_text
    from bayesgeom.subspaces.fits import fixed as fixed
    from bayesgeom.subspaces.fits import frame as frame
    from bayesgeom.subspaces.fits import leace as leace
    from bayesgeom.subspaces.fits import random as random
    from bayesgeom.subspaces.fits import top_jacobian as top_jacobian
    from bayesgeom.subspaces.fits import trained_swap as trained_swap

_HOMES = dict.fromkeys(
    (
        "basis",
        "belief_readout",
        "covariance",
        "decoder",
        "entropy_axis",
        "fit_from_text",
        "fixed",
        "frame",
        "leace",
        "random",
        "top_jacobian",
        "trained_swap",
    ),
    "fits",
) | {"Subspace": "base"}
__all__ = list(_HOMES)
__getattr__, __dir__ = names_on_demand(__name__, _HOMES)
