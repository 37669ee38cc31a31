"""Modules whose weights are large enough for every term to show."""

from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def perturbed(module: M, amount: float, *, seed: int = 1) -> M:
    """The module, with Gaussian noise of this standard deviation added to every parameter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=amount)
    return module
