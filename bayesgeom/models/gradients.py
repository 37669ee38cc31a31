"""Gradients whatever mode the caller is in."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def with_gradients(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that computes gradients, so that it can be called under `no_grad` and `inference_mode`.

    Example:
        >>> @with_gradients
        ... def slope(x: float) -> float:
        ...     at = torch.tensor(x, requires_grad=True)
        ...     return float(torch.autograd.grad(at**2, [at])[0])
        >>> with torch.inference_mode():
        ...     slope(3.0)
        6.0
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(mode=False), torch.enable_grad():
            return function(*args, **kwargs)

    return call
