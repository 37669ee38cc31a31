"""Modules without values, for their shapes: no memory for weights, and no initialization."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# On the meta device torch computes these in Python: four fifths of the time to build a module.
_DRAWS = {
    *(fill for name, fill in vars(nn.init).items() if name.endswith("_") and not name.startswith("_")),
    *(Tensor.normal_, Tensor.uniform_, Tensor.bernoulli_, Tensor.exponential_, Tensor.log_normal_),
}


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """Build modules on torch's meta device inside the block, without drawing their weights.

    Example:
        >>> import torch
        >>> with shapes_only():
        ...     torch.nn.Linear(3, 2).weight
        Parameter containing:
        tensor(..., device='meta', size=(2, 3), requires_grad=True)
    """
    with torch.device("meta"), _WithoutDraws():
        yield


@final
class _WithoutDraws(TorchFunctionMode):
    """Leave tensors as they are where a random number generator or a function of `torch.nn.init` would fill them."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the tensor to be filled, or the result of any other function."""
        named = kwargs or {}
        if func in _DRAWS:
            return args[0] if args else named["tensor"]
        return func(*args, **named)
