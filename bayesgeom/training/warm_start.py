"""Start a training from the weights of a shipped checkpoint."""

from torch import nn

from bayesgeom.core.errors import CheckpointFault, unknown_name
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.models.checkpoint_files import checkpoints
from bayesgeom.training.recipe import Recipe


def start_from_shipped(recipe: Recipe, module: nn.Module) -> None:
    """Load the weights that `recipe.warm_start` names into the module.

    Args:
        recipe: A recipe with `warm_start` = "checkpoint@hash".
        module: The recipe's module, whose weights are replaced.

    Raises:
        UnknownName: There is no shipped checkpoint of that name.
        CheckpointFault: Its weights have another hash, or its architecture differs from the recipe's.
    """
    assert recipe.warm_start is not None, "called for recipes that have a warm start"
    name, digest = recipe.warm_start.split("@")
    shipped = checkpoints()
    if name not in shipped:
        raise unknown_name("shipped checkpoint", name, shipped)
    start = load_checkpoint(shipped[name])
    if start.weights_hash != digest:
        raise CheckpointFault(
            f"{recipe.name} starts from {name} with weights {digest}, but the shipped {name} has {start.weights_hash}; "
            f"restore that checkpoint, or give the recipe a new name and the new hash."
        )
    if start.config != recipe.model_config():
        raise CheckpointFault(
            f"{recipe.name} builds {recipe.model_config()}, but {name} is {start.config}. Give the recipe the sizes "
            f"of that checkpoint."
        )
    module.load_state_dict(start.module.state_dict(), strict=True)
