"""Subspaces of an activation: fitted to a quantity, computed from weights, trained, or random.

from bayesgeom import subspaces
subspaces.covariance("entropy"), subspaces.leace("belief"), subspaces.top_jacobian(16)
"""

from typing import TYPE_CHECKING

from bayesgeom.core.lazy import names_on_demand

if TYPE_CHECKING:
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
)
__all__ = [*_HOMES]
__getattr__, __dir__ = names_on_demand(__name__, _HOMES)
