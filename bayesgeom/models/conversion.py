"""Conversion of checkpoints: ours as a Hugging Face directory, and such a directory back, from path to path."""

from pathlib import Path

from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.models.checkpoint import save_checkpoint
from bayesgeom.models.export import export_huggingface, exported_from, import_huggingface
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.models.resolve import load
from bayesgeom.tasks.base import task_from_config


def export_checkpoint(name: str | Path, out: Path) -> str:
    """Write the named checkpoint for Hugging Face; gives the name of the architecture that holds it.

    **Raises** as `load` and `export_huggingface` do, and `InvalidArgument` for a checkpoint that is none of ours.
    """
    model = load(name)
    if not isinstance(model.module, Transformer):
        raise InvalidArgument(
            f"{model.spec.name} is a {type(model.module).__name__} of Hugging Face already: it needs no export."
        )
    return export_huggingface(model.module, out, task=model.task)


def import_checkpoint(name: str | Path, out: Path) -> str:
    """Write what `export_checkpoint` wrote as a checkpoint of ours again; gives the name of its architecture.

    **Raises** `CheckpointFault` where the directory holds no export.
    """
    path = Path(name)
    module = import_huggingface(path)
    task = (exported_from(path) or {}).get("task")
    if task is None:
        raise CheckpointFault(
            f"{path} does not say on what task its transformer was trained: it cannot be a checkpoint."
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
