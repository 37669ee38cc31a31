"""Modules built for their shapes: on the meta device, and without drawing weights."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from bayesgeom.core.plugins import discover
from bayesgeom.models.config import ModelConfig, config_from_dict, shapes_only
from tests.whole.test_every_architecture import SIZES

ARCHITECTURES = sorted(discover("bayesgeom.models.native", ModelConfig))  # type: ignore[type-abstract]  # as discovery does


class Watch(TorchFunctionMode):
    """Note the names of the functions of torch that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.called: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        self.called.add(func.__name__)
        return func(*args, **(kwargs or {}))


def small(architecture: str) -> ModelConfig:
    sizes = {"architecture": architecture, "d_vocab": 11, "n_ctx": 7, "n_layers": 2}
    return config_from_dict(sizes | SIZES[architecture])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_names_shapes_and_dtypes_are_those_of_the_module_with_weights(architecture: str) -> None:
    config = small(architecture)
    with shapes_only():
        module = config.build(seed=0)
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    found, expected = (
        {name: (tensor.shape, tensor.dtype) for name, tensor in built.state_dict().items()}
        for built in (module, config.build(seed=0))
    )
    assert found == expected


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_weight_is_drawn(architecture: str) -> None:
    draws = {"normal_", "uniform_", "kaiming_uniform_"}
    with Watch() as plain, torch.device("meta"):
        small(architecture).build(seed=0)
    assert plain.called & draws
    with Watch() as watch, shapes_only():
        small(architecture).build(seed=0)
    assert watch.called
    assert not watch.called & draws
