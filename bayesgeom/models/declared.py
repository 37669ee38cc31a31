"""What a config claims, compared with what a file of weights holds, before anything is built or read.

A config is a few bytes that can ask for any number of layers or any width. The header of a safetensors file states
every tensor's shape, and the file is as long as the header says, so it bounds what the config may ask for.
"""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from bayesgeom.core.errors import BayesGeomError, CheckpointFault
from bayesgeom.core.reading import check_regular
from bayesgeom.models.config import ModelConfig

Shapes = Mapping[str, tuple[int, ...]]
_NO_SHAPE = {"n_ctx"}  # many architectures run on any length: where it is the size of a tensor, shapes tell
_FLOATING = {"F64", "F32", "F16", "BF16"}


def tensor_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Read the shape of every tensor from a safetensors header; no weight is read.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointFault: it is no regular file, not whole, or holds what is no floating-point number.
    """
    try:
        shapes, types = read_header(file)
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError) as error:
        raise CheckpointFault(f"{file} is truncated or no safetensors file ({error}). Copy it again.") from error
    if wrong := [name for name, kind in types.items() if kind not in _FLOATING]:
        raise CheckpointFault(
            f"{file}: {wrong[0]} has type {types[wrong[0]]}; weights are {', '.join(sorted(_FLOATING))}. Save it again."
        )
    return shapes


def read_header(file: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Read the shape and the type of every tensor in a safetensors file.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointFault: it is no regular file.
        SafetensorError: it is not whole.
    """
    check_regular(file)
    with safe_open(file, framework="pt") as opened:
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  (not a dict)
        types = {name: str(own.get_dtype()) for name, own in slices.items()}
        shapes = {name: tuple(own.get_shape()) for name, own in slices.items()}
    return shapes, types


def check_declared(config: ModelConfig, found: Shapes, file: Path) -> None:
    """Check that a config asks for exactly the tensors that a file holds.

    Sizes are bounded by the header first, so that a model of the right order of magnitude is laid out, on torch's meta
    device: shapes alone, without memory for weights.

    Args:
        config: What is to be built.
        found: The file's shapes, as `tensor_shapes` returns them.
        file: The file, for the message.

    Raises:
        CheckpointFault: it asks for others.
    """
    _check_bounds(config, found, file)
    try:
        with torch.device("meta"):
            expected = {name: tuple(tensor.shape) for name, tensor in config.build(seed=0).state_dict().items()}
    except BayesGeomError:
        raise
    except (RuntimeError, ValueError, TypeError, ArithmeticError, LookupError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointFault(
            f"{config} cannot be built ({reason}), so it is not the config of {file}. Restore the pair."
        ) from error
    for what, names in (("lacks", expected.keys() - found.keys()), ("has unknown", found.keys() - expected.keys())):
        if names:
            raise CheckpointFault(f"{file} {what} {len(names)} tensor(s): {', '.join(sorted(names)[:6])}.")
    for name, shape in found.items():
        if shape != expected[name]:
            raise CheckpointFault(f"{file}: {name} has shape {shape}, the config asks for {expected[name]}.")


def _check_bounds(config: ModelConfig, found: Shapes, file: Path) -> None:
    """Every layer has a tensor, and every other size is the length of some row of weights."""
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
                f"together. Restore the pair."
            )
