"""Where numbers come from: what every result carries beside its values."""

import importlib.metadata
from collections.abc import Mapping
from typing import Any

import torch

from bayesgeom.core.run import ModelSpec
from bayesgeom.models.base import Model
from bayesgeom.models.checkpoint import versions
from bayesgeom.tasks.base import WindTunnel


def provenance(
    model: Model | ModelSpec | Mapping[str, Any], task: WindTunnel | str, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Where numbers come from: model, weights, task, arguments, versions. No clock: same seed, same file.

    Of several models or tasks, their name and architecture, and what they are called together. `foreign_hooks` names
    the submodules whose forward hooks bayesgeom did not set, where there are any: they may have edited activations.
    """
    foreign = model.foreign_hooks() if isinstance(model, Model) else ()
    spec = model.spec if isinstance(model, Model) else model
    return {
        "model": spec.to_dict() if isinstance(spec, ModelSpec) else dict(spec),
        **({"foreign_hooks": list(foreign)} if foreign else {}),
        **({} if isinstance(task, str) else {"task": task.config()}),
        "task_label": str(task),
        "arguments": dict(arguments),
        "versions": {"bayesgeom": _own_version(), **versions()},
        "threads": torch.get_num_threads(),
    }


def _own_version() -> str:
    """Of bayesgeom as installed; "unknown" in a copy of the source that is not."""
    try:
        return importlib.metadata.version("bayesgeom")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
