"""Provenance: the origin of the numbers, which every result stores."""

import importlib.metadata
from collections.abc import Mapping
from typing import Any

import torch

from bayesgeom.core.run import ModelSpec
from bayesgeom.core.torch_state import reduced_precision
from bayesgeom.models.base import Model
from bayesgeom.models.checkpoint_files import versions
from bayesgeom.tasks.base import WindTunnel


def provenance(
    model: Model | ModelSpec | Mapping[str, Any], task: WindTunnel | str, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the origin of a result: model, weights, task, arguments and versions.

    There is no time stamp, so the same seed gives the same file. `foreign_hooks` lists submodules whose forward hooks
    bayesgeom did not set, if there are any: they may have edited activations. `float32_matmul_precision` is there where
    torch was allowed to round products of float32 matrices: other numbers follow from it.

    Args:
        model: The model. For several models, a mapping with their name and architecture.
        task: The task. For several tasks, their common name.
        arguments: Arguments of the measurement.
    """
    foreign = model.foreign_hooks() if isinstance(model, Model) else ()
    spec = model.spec if isinstance(model, Model) else model
    return {
        "model": spec.to_dict() if isinstance(spec, ModelSpec) else dict(spec),
        **({"foreign_hooks": list(foreign)} if foreign else {}),
        **({"float32_matmul_precision": precision} if (precision := reduced_precision()) else {}),
        **({} if isinstance(task, str) else {"task": task.config()}),
        "task_label": str(task),
        "arguments": dict(arguments),
        "versions": {"bayesgeom": own_version(), **versions()},
        "threads": torch.get_num_threads(),
    }


def own_version() -> str:
    """Return the version of the installed bayesgeom, or "unknown" if it is not installed."""
    try:
        return importlib.metadata.version("bayesgeom")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
