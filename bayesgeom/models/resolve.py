"""From what users have in hand (a name, a path, a module) to a `Model`; and where shipped checkpoints lie."""

import os
from pathlib import Path

import torch

from bayesgeom.errors import CheckpointFault, InvalidArgument, TaskMismatch, unknown_name
from bayesgeom.models.base import Model
from bayesgeom.models.checkpoint import CONFIG, WEIGHTS, Checkpoint, load_checkpoint
from bayesgeom.models.hooked import HookedModel, from_checkpoint
from bayesgeom.models.transformer import Transformer
from bayesgeom.tasks.base import WindTunnel

ModelLike = Model | Checkpoint | Transformer | str | Path
FOLDER_VARIABLE = "BAYESGEOM_CHECKPOINTS"
_PACKAGE = Path(__file__).resolve().parents[1]


def checkpoint_folder() -> Path:
    """Where named checkpoints lie: the folder that $BAYESGEOM_CHECKPOINTS names, else the shipped ones.

    Shipped ones lie beside the package in a source checkout and inside it once installed from a wheel.
    """
    if FOLDER_VARIABLE in os.environ:
        return Path(os.environ[FOLDER_VARIABLE])
    beside, inside = _PACKAGE.parent / "checkpoints", _PACKAGE / "_checkpoints"
    return beside if beside.is_dir() else inside


def checkpoints() -> dict[str, Path]:
    """Every named checkpoint's directory, by name."""
    folder = checkpoint_folder()
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.name: path for path in found if (path / CONFIG).is_file()}


def load(name: str | Path, *, device: str | torch.device = "cpu") -> Model:
    """The model of a shipped checkpoint's name, or of a checkpoint directory.

    **Raises** `UnknownName` where there is neither, `CheckpointFault` where the directory cannot be trusted,
    `InvalidArgument` for a device that is not there.
    """
    check_device(device)
    known = checkpoints()
    path = known.get(str(name), Path(name))
    if not path.exists():
        raise unknown_name("checkpoint", str(name), known)
    if not path.is_dir():
        raise CheckpointFault(f"{path} is a file; a checkpoint is a directory of {WEIGHTS} and {CONFIG}.")
    return from_checkpoint(load_checkpoint(path, device=device))


def check_device(device: str | torch.device) -> None:
    """**Raises** `InvalidArgument` unless torch can put a tensor on this device."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidArgument(f"device {str(device)!r} cannot be used here ({reason}); use cpu.") from error


def as_model(model: ModelLike) -> Model:
    """Whatever stands for a model, as a `Model`. **Raises** `InvalidArgument` for anything else."""
    match model:
        case Model():
            return model
        case str() | Path():
            return load(model)
        case Checkpoint():
            return from_checkpoint(model)
        case Transformer():
            return HookedModel(model)
        case _:
            raise InvalidArgument(
                f"cannot diagnose a {type(model).__name__}: pass a checkpoint's name or directory, bayesgeom.load(…), "
                f"or a bayesgeom Transformer."
            )


def task_of(model: Model, task: WindTunnel | None) -> WindTunnel:
    """The task to measure on: the given one, else the one that the model was trained on.

    **Raises** `InvalidArgument` where there is neither, `TaskMismatch` where the two have different vocabularies.
    """
    chosen = task or model.task
    if chosen is None:
        raise InvalidArgument(f"{model.spec.name} does not say what it was trained on: pass task=….")
    if model.task is not None and chosen.d_vocab != model.task.d_vocab:
        raise TaskMismatch(
            f"{chosen} has {chosen.d_vocab} ids; {model.spec.name} was trained on {model.task}, which has "
            f"{model.task.d_vocab}: the same id would mean different things. Use parameters that keep the vocabulary."
        )
    return chosen
