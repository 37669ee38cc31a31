"""Loops that numba compiles, where it is installed (the extra `fast`): who calls them has the same in torch, slower.

Nothing here is a plug-in, and `loops` is imported by who has asked `serves` only: it imports numba.
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
    """Whether the compiled loops can take these: on a CPU, in float32 or what widens to it, with numba there."""
    return has_numba() and all(
        tensor.device.type == "cpu" and torch.promote_types(tensor.dtype, torch.float32) == torch.float32
        for tensor in tensors
    )


@cache
def has_numba() -> bool:
    """Whether numba is installed."""
    return find_spec("numba") is not None


def refuse_second_derivatives() -> None:
    """Called in a backward pass. **Raises** `InvalidArgument` if that pass is to be differentiated in its turn."""
    if torch.is_grad_enabled():
        raise InvalidArgument(
            "the compiled loops of Mamba have first derivatives only, and create_graph=True asks for more: "
            "watch hook_state, so that every state goes through autograd, and give float64."
        )


def as_array(tensor: Tensor) -> NDArray[np.float32]:
    """A tensor as the loops take it: float32, laid out in order; not copied where it is so already."""
    array: NDArray[np.float32] = tensor.detach().float().contiguous().numpy()
    return array
