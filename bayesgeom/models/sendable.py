"""Models by name: what a job holds in place of a model, and the model that a worker loads for it."""

from pathlib import Path
from typing import Any

from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.core.run import ModelSpec
from bayesgeom.models.base import Model
from bayesgeom.models.checkpoint import Checkpoint
from bayesgeom.models.checkpoint_files import checkpoints
from bayesgeom.models.resolve import ModelLike, load
from bayesgeom.tasks.base import WindTunnel


def name_of(model: ModelLike) -> str:
    """Return the name or absolute path by which a worker can load a model.

    Raises:
        InvalidArgument: The model is an object of this process.
    """
    if not isinstance(model, str | Path):
        kind = type(model).__name__
        known = f" (of {model.spec.name})" if isinstance(model, Model) else ""
        known = f" (of {model.name})" if isinstance(model, Checkpoint) else known
        raise InvalidArgument(
            f"executor= needs a model that workers can load; got a {kind}{known}. Pass its name or its directory."
        )
    path = Path(model)
    is_name = isinstance(model, str) and (model in checkpoints() or not path.exists())
    return str(model) if is_name else str(path.expanduser().resolve())


def job_arguments(name: str, spec: ModelSpec, task: WindTunnel, **others: Any) -> dict[str, Any]:
    """Return the arguments of a job on one model and one task.

    Args:
        name: What `name_of` returned for the model.
        spec: Of the model. A worker refuses other weights (`load_same`).
        task: The task. A worker rebuilds it with `task_from_config`.
        **others: Further arguments of the job.
    """
    return {"model": name, "weights": spec.weights_hash, "device": spec.device, "task": task.config(), **others}


def load_same(name: str, weights: str, *, device: str = "cpu") -> Model:
    """Return the model of this name.

    Raises:
        CheckpointFault: Its weights are not those that the driver saw under this name, or have no hash.
    """
    model = load(name, device=device)
    check_same(model, name, weights)
    return model


def check_same(model: Model, name: str, weights: str) -> None:
    """Check that a model has the weights that the driver saw.

    Raises:
        CheckpointFault: It has others, or weights without a hash.
    """
    if not model.spec.is_identified:
        raise CheckpointFault(
            f"the weights of {name} have no hash, so its results could be another model's. Omit executor=."
        )
    if model.spec.weights_hash != weights:
        raise CheckpointFault(
            f"{name} has weights {model.spec.weights_hash} on this worker, and {weights} where the job was made: "
            f"copy the same files, or name a directory that both see."
        )
