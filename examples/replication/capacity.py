"""Models of other architectures with as many parameters as a given one, to within 1 %.

Comparisons of architectures of very different sizes mean little. Capacity is the number of parameters, including
embeddings. Compute is not matched.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import final

import torch

from bayesgeom.core import InvalidArgument
from bayesgeom.models.config import ModelConfig, config_from_dict

TOLERANCE = 0.01
# Widths are multiples of one of these; the value is the penalty, in doublings of the depth.
_STEPS = {8: 0.0, 4: 0.15, 2: 0.3, 1: 0.5}
_WIDEST = 8192
_PROPORTIONS: Mapping[str, Callable[[int], dict[str, int]]] = {  # sizes that follow from the width
    "mamba2": lambda d_model: {"d_head": d_model // 2 if d_model % 2 == 0 else d_model},
    "rwkv": lambda d_model: {"d_mlp": 4 * d_model},
}


def capacity_matched(architecture: str, reference: ModelConfig) -> ModelConfig:
    """Return the config of this architecture whose number of parameters is within 1 % of the reference's.

    Number of ids, context length and weight tying are those of the reference. The search covers depths between half
    and twice the reference's, and all widths. It prefers the nearest depth, and widths that are multiples of 8.

    Args:
        architecture: "lstm", "mamba", "mamba2" or "rwkv".
        reference: The config of a model with layers.

    Raises:
        InvalidArgument: No config is within 1 %.

    Example:
        >>> import bayesgeom
        >>> reference = bayesgeom.TransformerConfig(d_vocab=40, n_ctx=39, n_layers=2, n_heads=4, d_model=64, d_mlp=256)
        >>> capacity_matched("lstm", reference)
        LSTMConfig(d_vocab=40, n_ctx=39, n_layers=2, d_model=79, tied=True)
    """
    sizes, n_target, family = vars(reference), n_parameters(reference), _Family(architecture, vars(reference))
    candidates = sorted(family.candidates(n_target, sizes["n_layers"]))
    for _, error, n_layers, d_model in candidates:
        if error <= TOLERANCE:
            return family.config(n_layers, d_model)
    raise InvalidArgument(
        f"no {architecture} is within {100 * TOLERANCE:.0f} % of the reference's {n_target:,} parameters. Use another "
        f"reference."
    )


def n_parameters(config: ModelConfig) -> int:
    """Return the number of parameters of the module that the config builds; shared parameters count once."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in config.build(seed=0).parameters())


@final
class _Family:
    """The configs of an architecture with the ids, context length and weight tying of a reference."""

    def __init__(self, architecture: str, reference: Mapping[str, int]) -> None:
        given = ("d_vocab", "n_ctx", *(("tied",) if architecture in {"lstm", "mamba"} else ()))
        self._architecture = architecture
        self._given = {"architecture": architecture, **{name: reference[name] for name in given}}
        self._count = cache(self._counted)

    def candidates(self, n_target: int, near_layers: int) -> Iterator[tuple[float, float, int, int]]:
        """Yield, for each depth and each step, the two widths around the target.

        A candidate is a penalty for its shape, the relative error of the capacity, the depth and the width.
        """
        for depth in range(-(-near_layers // 2), 2 * near_layers + 1):
            widest = self._widest(depth, n_target)
            for step, cost in _STEPS.items():
                below = widest // step * step
                for d_model in {below, below + step} - {0}:
                    if (n := self._n_parameters(depth, d_model)) is not None:
                        yield cost + abs(math.log2(depth / near_layers)), abs(n / n_target - 1), depth, d_model

    def config(self, n_layers: int, d_model: int) -> ModelConfig:
        """Return the config of this depth and width."""
        sizes = {**self._given, "n_layers": n_layers, "d_model": d_model}
        if (proportions := _PROPORTIONS.get(self._architecture)) is not None:
            sizes |= proportions(d_model)
        return config_from_dict(sizes)

    def _n_parameters(self, n_layers: int, d_model: int) -> int | None:
        """Return the exact number of parameters, extrapolated from depths 2 and 3; None if the config is invalid."""
        two, three = (self._count(depth, d_model) for depth in (2, 3))
        return None if two is None or three is None else two + (n_layers - 2) * (three - two)

    def _counted(self, n_layers: int, d_model: int) -> int | None:
        try:
            config = self.config(n_layers, d_model)
        except InvalidArgument:
            return None
        return n_parameters(config)

    def _widest(self, n_layers: int, n: int) -> int:
        """The largest width at this depth with at most n parameters; 0 if there is none."""
        return bisect_right(range(1, _WIDEST + 1), n, key=lambda width: self._or_narrower(n_layers, width))

    def _or_narrower(self, n_layers: int, d_model: int) -> int:
        """Number of parameters at this width, or at the next smaller valid one."""
        for width in range(d_model, 0, -1):
            if (n := self._n_parameters(n_layers, width)) is not None:
                return n
        return 0
