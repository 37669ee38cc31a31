"""Conversion of bayesgeom checkpoints to Hugging Face directories and back."""

from pathlib import Path

from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.models.checkpoint import save_checkpoint
from bayesgeom.models.export import export_huggingface, exported_from, import_huggingface
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.models.resolve import load
from bayesgeom.tasks.base import task_from_config


def export_checkpoint(name: str | Path, out: Path) -> str:
    """Export a checkpoint as a Hugging Face directory.

    Args:
        name: Name or directory of a bayesgeom checkpoint.
        out: Directory to write.

    Returns:
        Name of the Hugging Face architecture.

    Raises:
        InvalidArgument: It is not a bayesgeom checkpoint. Errors of `load` and `export_huggingface` propagate.
    """
    model = load(name)
    if not isinstance(model.module, Transformer):
        raise InvalidArgument(
            f"{model.spec.name} is a {type(model.module).__name__}: only transformers of bayesgeom can be exported. A "
            f"model that Hugging Face's transformers loaded needs no export."
        )
    return export_huggingface(model.module, out, task=model.task)


def import_checkpoint(name: str | Path, out: Path) -> str:
    """Convert the output of `export_checkpoint` back to a bayesgeom checkpoint.

    Args:
        name: Directory that `export_checkpoint` wrote.
        out: Directory to write.

    Returns:
        Name of the architecture.

    Raises:
        CheckpointFault: The directory is not such an export.
    """
    path = Path(name)
    module = import_huggingface(path)
    task = (exported_from(path) or {}).get("task")
    if task is None:
        raise CheckpointFault(
            f"{path} does not state the task of its transformer, which a checkpoint needs. Export a model with a task."
        )
    save_checkpoint(
        out,
        module,
        module.config,
        recipe={"task": task},
        step=0,
        card=f"# {path.name}\n\nTask: `{task_from_config(task)}`\nWeights: `{{weights_hash}}`\n\n"
        f"Read back from a Hugging Face directory.\n",
    )
    return module.config.name
