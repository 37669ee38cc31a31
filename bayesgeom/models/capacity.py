"""Models of other architectures with as many parameters as a given one, to within 1 %.

Comparisons of architectures of very different sizes mean little. Capacity is the number of parameters, including
embeddings. Compute is not matched.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, final

from torch import nn

from bayesgeom.core import InvalidArgument, checked, with_plain_integers
from bayesgeom.models.base import Model
from bayesgeom.models.config import ModelConfig, architecture_named, config_from_dict, shapes_only
from bayesgeom.models.resolve import load

TOLERANCE = 0.01
# Widths are multiples of one of these; the value is the penalty, in doublings of the depth.
_STEPS = {8: 0.0, 4: 0.15, 2: 0.3, 1: 0.5}
_WIDEST, _DEEPEST = 8192, 129


@checked()
def capacity_matched(
    architecture: str, reference: ModelConfig | nn.Module | Model | str | Path, **sizes: Any
) -> ModelConfig:
    """Return the config of this architecture whose number of parameters is within 1 % of the reference's.

    Number of ids, context length and weight tying are those of the reference, unless `sizes` gives others. The search
    covers depths between half and twice the reference's, and all widths. It prefers the nearest depth, and widths that
    are multiples of 8. Other sizes follow from the width by the architecture's `proportions`.

    Args:
        architecture: Name of the architecture, such as "lstm".
        reference: A config, a module built from a config, a model, or a name for `load`.
        **sizes: Fixed sizes, by name.

    Returns:
        The config; its `build(seed=…)` makes the module.

    Raises:
        UnknownName: The architecture does not exist.
        InvalidArgument: The reference does not state its context, the architecture does not have one of the sizes, or
            no config is within 1 %.

    Example:
        >>> import bayesgeom
        >>> from bayesgeom.models.capacity import capacity_matched
        >>> reference = bayesgeom.TransformerConfig(d_vocab=40, n_ctx=39, n_layers=2, n_heads=4, d_model=64, d_mlp=256)
        >>> capacity_matched("lstm", reference).d_vocab
        40
    """
    kind, sizes = architecture_named(architecture), with_plain_integers(sizes)
    n_target, n_layers, known = _target(load(reference) if isinstance(reference, str | Path) else reference)
    taken = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # every config is a dataclass
    if unknown := sizes.keys() - taken:
        raise InvalidArgument(
            f"architecture {architecture!r} has no parameter {', '.join(sorted(unknown))}. It has: "
            f"{', '.join(sorted(taken))}."
        )
    fixed = {name: value for name, value in known.items() if name in taken} | sizes
    if missing := {"d_vocab", "n_ctx"} - fixed.keys():
        raise InvalidArgument(f"the reference does not state {' and '.join(sorted(missing))}: pass them by name.")
    family = _Family(kind, fixed)
    candidates = sorted(family.candidates(n_target, n_layers))
    for _, error, n_layers, d_model in candidates:
        if error <= TOLERANCE:
            return family.config(n_layers, d_model)
    found = "there is no valid config"
    if candidates:
        _, error, n_layers, d_model = min(candidates, key=lambda candidate: candidate[1])
        found = f"the nearest, {family.config(n_layers, d_model)}, is {100 * error:.1f} % off"
    given = "".join(f", {name} = {value!r}" for name, value in sizes.items())
    raise InvalidArgument(
        f"no {architecture} with {known.get('d_vocab')} ids{given} is within {100 * TOLERANCE:.0f} % of the "
        f"reference's {n_target:,} parameters: {found}. Fix fewer sizes, or use another reference."
    )


def n_parameters(config: ModelConfig) -> int:
    """Return the number of parameters of the module that the config builds; shared parameters count once."""
    with shapes_only():
        return sum(parameter.numel() for parameter in config.build(seed=0).parameters())


@final
class _Family:
    """The configs of an architecture with some sizes fixed."""

    def __init__(self, kind: type[ModelConfig], given: Mapping[str, Any]) -> None:
        self.kind, self.given = kind, given
        self._count = cache(self._counted)

    def candidates(self, n_target: int, near_layers: int) -> Iterator[tuple[float, float, int, int]]:
        """Yield, for each depth and each step, the two widths around the target.

        A candidate is a penalty for its shape, the relative error of the capacity, the depth and the width.
        """
        n_layers, width = self.given.get("n_layers"), self.given.get("d_model")
        near = range(-(-near_layers // 2), 2 * near_layers + 1)
        for depth in [n_layers] if n_layers else range(1, _DEEPEST) if width else near:
            widest = width or self._widest(depth, n_target)
            for step, cost in {1: 0.0}.items() if width else _STEPS.items():
                below = widest // step * step
                for d_model in {below, below if width else below + step} - {0}:
                    if (n := self.n_parameters(depth, d_model)) is not None:
                        yield cost + abs(math.log2(depth / near_layers)), abs(n / n_target - 1), depth, d_model

    def config(self, n_layers: int, d_model: int) -> ModelConfig:
        """Return the config of this depth and width."""
        conventional = self.kind.proportions(d_model)
        return config_from_dict({"architecture": self.kind.name, "n_layers": n_layers, **conventional, **self.given})

    def n_parameters(self, n_layers: int, d_model: int) -> int | None:
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
            if (n := self.n_parameters(n_layers, width)) is not None:
                return n
        return 0


def _target(reference: ModelConfig | nn.Module | Model) -> tuple[int, int, Mapping[str, Any]]:
    """Number of parameters and layers of a reference, and the sizes that its match must have.

    Raises `InvalidArgument` for an object of another type.
    """
    module = reference.module if isinstance(reference, Model) else reference
    config = module if isinstance(module, ModelConfig) else _config_of(module)
    if isinstance(reference, Model):
        n, sizes = reference.spec.n_parameters, vars(reference.spec) if config is None else vars(config)
    elif config is not None:
        n, sizes = n_parameters(config), vars(config)
    else:
        raise InvalidArgument(
            f"the reference must be a ModelConfig, a module built from one, or a Model; got a "
            f"{type(reference).__name__}. Wrap other models with bayesgeom.as_model(…)."
        )
    return (
        n,
        sizes["n_layers"],
        {name: sizes[name] for name in ("d_vocab", "n_ctx", "tied") if sizes.get(name) is not None},
    )


def _config_of(module: nn.Module) -> ModelConfig | None:
    """The `ModelConfig` that built a module, or None."""
    config = vars(module).get("config")
    return config if isinstance(config, ModelConfig) else None
