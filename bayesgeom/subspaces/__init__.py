"""Subspaces of an activation: fitted to a quantity, computed from weights, trained, or random.

from bayesgeom import subspaces
subspaces.covariance("entropy"), subspaces.leace("belief"), subspaces.top_jacobian(16)

Subspaces for `bayesgeom.intervene(model, subspace=…)`:

    leace          the component that the least-change affine eraser of a quantity removes
    covariance     the span of the covariance with a quantity
    decoder        the weights of a ridge map to a quantity
    entropy_axis   one direction along which entropy increases
    frame          the span of the hypothesis tokens
    top_jacobian   the main directions of the gradients of the answer logits
    trained_swap   directions trained so that a swap moves the model's own quantity
    units          the single coordinates that covary most with a quantity
    random         a random subspace
    Subspace       orthonormal columns, and how activations are projected onto them
    basis          your own columns, the same in every layer
    fit_from_text  the fit that the command line writes as NAME or NAME:argument
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
