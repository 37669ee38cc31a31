"""Checks that a config matches a file of weights, before the model is built or the weights are read.

A small config can declare any number of layers or any width. The header of a safetensors file states every tensor's
shape and must match the length of the file, so it bounds the sizes in the config.
"""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from bayesgeom.core.errors import BayesGeomError, CheckpointFault
from bayesgeom.core.reading import check_regular
from bayesgeom.models.config import ModelConfig
from bayesgeom.models.shapes import shapes_only
from bayesgeom.results.tables import counted

Shapes = Mapping[str, tuple[int, ...]]
_NO_SHAPE = {"n_ctx"}  # often not the size of any tensor; where it is, the comparison of shapes covers it
_FLOATING = {"F64", "F32", "F16", "BF16"}


def tensor_shapes(file: Path, *, indices: str | None = None) -> dict[str, tuple[int, ...]]:
    """Read the shape of every tensor from a safetensors header, without reading weights.

    Args:
        file: The file.
        indices: How names of tensors end that may hold integers. None: there are none.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointFault: It is not a regular file, is truncated, or has tensors that are not floating-point.
    """
    try:
        shapes, types = read_header(file)
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError) as error:
        raise CheckpointFault(f"{file} is truncated or not a safetensors file ({error}). Copy it again.") from error
    weights = [name for name in types if indices is None or not name.endswith(indices)]
    if wrong := [name for name in weights if types[name] not in _FLOATING]:
        raise CheckpointFault(
            f"{file}: {wrong[0]} has type {types[wrong[0]]}; weights must be {', '.join(sorted(_FLOATING))}. "
            f"Save it again."
        )
    return shapes


def read_header(file: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Read the shape and the type of every tensor in a safetensors file.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointFault: It is not a regular file.
        SafetensorError: It is truncated.
    """
    check_regular(file)
    with safe_open(file, framework="pt") as opened:
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  (not a dict)
        types = {name: str(own.get_dtype()) for name, own in slices.items()}
        shapes = {name: tuple(own.get_shape()) for name, own in slices.items()}
    return shapes, types


def check_declared(config: ModelConfig, found: Shapes, file: Path) -> None:
    """Check that a config describes exactly the tensors in a file.

    Sizes are first bounded by the header. Then the model is built on torch's meta device, without memory for weights.

    Args:
        config: The config.
        found: The file's shapes, from `tensor_shapes`.
        file: The file, for the error message.

    Raises:
        CheckpointFault: It describes other tensors.
    """
    _check_bounds(config, found, file)
    try:
        with shapes_only():
            expected = {name: tuple(tensor.shape) for name, tensor in config.build(seed=0).state_dict().items()}
    except BayesGeomError:
        raise
    except (RuntimeError, ValueError, TypeError, ArithmeticError, LookupError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointFault(
            f"{config} cannot be built ({reason}), so it is not the config of {file}. Restore both files."
        ) from error
    missing, unknown = expected.keys() - found.keys(), found.keys() - expected.keys()
    for names, verb, noun in ((missing, "lacks", "tensor"), (unknown, "has", "unknown tensor")):
        if names:
            raise CheckpointFault(
                f"{file} {verb} {counted(len(names), noun)}: {', '.join(sorted(names)[:6])}. Restore it and its config."
            )
    for name, shape in found.items():
        if shape != expected[name]:
            raise CheckpointFault(
                f"{file}: {name} has shape {shape}, the config requires {expected[name]}. Restore both files."
            )


def _check_bounds(config: ModelConfig, found: Shapes, file: Path) -> None:
    """Check that there is a tensor per layer, and that no other size exceeds the number of weights."""
    assert is_dataclass(config), "a model config is a dataclass"
    n_weights = sum(map(math.prod, found.values()))
    for field in fields(config):
        size = vars(config)[field.name]
        if field.type is not int or field.name in _NO_SHAPE:
            continue
        most, there = (len(found), "tensors") if field.name == "n_layers" else (n_weights, "weights")
        if size > most:
            raise CheckpointFault(
                f"{field.name} is {size:,} in the config, but {file} holds {most:,} {there}: the two do not belong "
                f"together. Restore both files."
            )
