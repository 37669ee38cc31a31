"""Models of other architectures with as many parameters as a given one, to within 1 %.

Comparisons of architectures of very different sizes mean little. Capacity is the number of parameters, including
embeddings. Compute is not matched.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, final

from torch import nn

from bayesgeom.core.errors import InvalidArgument, checked
from bayesgeom.core.plugins import find
from bayesgeom.models.base import Model
from bayesgeom.models.config import ModelConfig, config_from_dict, shapes_only
from bayesgeom.models.resolve import load

TOLERANCE = 0.01
# Widths are multiples of one of these; the value is the penalty, in doublings of the depth.
_STEPS = {8: 0.0, 4: 0.15, 2: 0.3, 1: 0.5}
_WIDEST, _DEEPEST = 8192, 129
_FIRST_GUESS, _GUESSES = 64, 4


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
    # mypy: an abstract class as a value is what discovery is about.
    kind = find("bayesgeom.models.native", ModelConfig, architecture, group="bayesgeom.models")  # type: ignore[type-abstract]
    target = _target(load(reference) if isinstance(reference, str | Path) else reference)
    taken = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # every config is a dataclass
    if unknown := sizes.keys() - taken:
        raise InvalidArgument(
            f"architecture {architecture!r} has no parameter {', '.join(sorted(unknown))}. It has: "
            f"{', '.join(sorted(taken))}."
        )
    carried = {name: value for name, value in target.carried.items() if name in taken}
    if missing := {"d_vocab", "n_ctx"} - (carried | sizes).keys():
        raise InvalidArgument(f"the reference does not state {' and '.join(sorted(missing))}: pass them by name.")
    family = _Family(kind, carried | sizes)
    candidates = sorted(family.candidates(target), key=lambda candidate: (candidate.cost, candidate.error))
    for candidate in candidates:
        if candidate.error <= TOLERANCE:
            return family.config(candidate.n_layers, candidate.d_model)
    nearest = min(candidates, key=lambda candidate: candidate.error, default=None)
    found = "there is no valid config"
    if nearest is not None:
        found = f"the nearest, {family.config(nearest.n_layers, nearest.d_model)}, is {100 * nearest.error:.1f} % off"
    given = "".join(f", {name} = {value!r}" for name, value in sizes.items())
    raise InvalidArgument(
        f"no {architecture} with {target.carried.get('d_vocab')} ids{given} is within {100 * TOLERANCE:.0f} % of the "
        f"reference's {target.n_parameters:,} parameters: {found}. Fix fewer sizes, or use another reference."
    )


def n_parameters(config: ModelConfig) -> int:
    """Return the number of parameters of the module that the config builds; shared parameters count once."""
    with shapes_only():
        return sum(parameter.numel() for parameter in config.build(seed=0).parameters())


@final
@dataclass(frozen=True, kw_only=True)
class _Target:
    """The sizes of the reference that its match must have."""

    n_parameters: int
    n_layers: int
    carried: Mapping[str, Any]


@final
@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A depth and a width, with a penalty for their shape and the relative error of the capacity."""

    n_layers: int
    d_model: int
    cost: float
    error: float


@final
class _Family:
    """The configs of an architecture with some sizes fixed."""

    def __init__(self, kind: type[ModelConfig], given: Mapping[str, Any]) -> None:
        self.kind, self.given = kind, given
        self._count = cache(self._counted)

    def candidates(self, target: _Target) -> Iterator[_Candidate]:
        """Yield, for each depth and each step, the two widths around the target."""
        n_layers, width = self.given.get("n_layers"), self.given.get("d_model")
        near = range(-(-target.n_layers // 2), 2 * target.n_layers + 1)
        for depth in [n_layers] if n_layers else range(1, _DEEPEST) if width else near:
            widest = width or self._widest(depth, target.n_parameters)
            for step, cost in {1: 0.0}.items() if width else _STEPS.items():
                below = widest // step * step
                for d_model in {below, below if width else below + step} - {0}:
                    if (n := self.n_parameters(depth, d_model)) is not None:
                        error = abs(n / target.n_parameters - 1)
                        cost_of_depth = abs(math.log2(depth / target.n_layers))
                        yield _Candidate(n_layers=depth, d_model=d_model, cost=cost + cost_of_depth, error=error)

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
        width = _FIRST_GUESS
        for _ in range(_GUESSES):  # the number of parameters grows about with the square of the width
            n_here = max(1, self._or_narrower(n_layers, width))
            width = max(1, min(_WIDEST, round(width * math.sqrt(n / n_here))))
        while width and self._or_narrower(n_layers, width) > n:
            width -= 1
        while width < _WIDEST and self._or_narrower(n_layers, width + 1) <= n:
            width += 1
        return width

    def _or_narrower(self, n_layers: int, d_model: int) -> int:
        """Number of parameters at this width, or at the next smaller valid one."""
        for width in range(d_model, 0, -1):
            if (n := self.n_parameters(n_layers, width)) is not None:
                return n
        return 0


def _target(reference: ModelConfig | nn.Module | Model) -> _Target:
    """The sizes of a reference; raises `InvalidArgument` for an object of another type."""
    sizes: Mapping[str, Any]
    if isinstance(reference, Model):
        config, n = _config_of(reference.module), reference.spec.n_parameters
        sizes = vars(reference.spec) if config is None else vars(config)
    elif isinstance(reference, ModelConfig):
        n, sizes = n_parameters(reference), vars(reference)
    elif (config := _config_of(reference)) is not None:
        n, sizes = sum(parameter.numel() for parameter in reference.parameters()), vars(config)
    else:
        raise InvalidArgument(
            f"the reference must be a ModelConfig, a module built from one, or a Model; got a "
            f"{type(reference).__name__}. Wrap other models with bayesgeom.as_model(…)."
        )
    carried = {name: sizes[name] for name in ("d_vocab", "n_ctx", "tied") if sizes.get(name) is not None}
    return _Target(n_parameters=n, n_layers=sizes["n_layers"], carried=carried)


def _config_of(module: nn.Module) -> ModelConfig | None:
    """The `ModelConfig` that built a module, or None."""
    config = vars(module).get("config")
    return config if isinstance(config, ModelConfig) else None
