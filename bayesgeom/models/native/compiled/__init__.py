"""Loops compiled by numba, if it is installed (extra `fast`). Callers fall back to slower torch code.

Call `serves` before you import `loops`, which imports numba. Nothing here is a plug-in.
"""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument


def serves(tensors: Sequence[Tensor]) -> bool:
    """Return whether the compiled loops support these tensors: on a CPU, in float32 or narrower, with numba."""
    return has_numba() and all(
        tensor.device.type == "cpu" and torch.promote_types(tensor.dtype, torch.float32) == torch.float32
        for tensor in tensors
    )


@cache
def has_numba() -> bool:
    """Return whether numba is installed."""
    return find_spec("numba") is not None


def refuse_second_derivatives() -> None:
    """Check, in a backward pass, that this pass is not differentiated itself.

    Raises:
        InvalidArgument: It is (`create_graph=True`).
    """
    if torch.is_grad_enabled():
        raise InvalidArgument(
            "the compiled loops of Mamba have first derivatives only, but create_graph=True needs more. "
            "Use float64 and set a hook on hook_state, so that every state goes through autograd."
        )


def as_array(tensor: Tensor) -> NDArray[np.float32]:
    """Return a tensor as a contiguous float32 array, without a copy if possible."""
    array: NDArray[np.float32] = tensor.detach().float().contiguous().numpy()
    return array
