"""Trainings in miniature, without training: weights of snapshots lie on the way from one draw to another."""

from collections.abc import Sequence
from pathlib import Path

import torch

from bayesgeom.models.checkpoint import save_checkpoint
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training.recipes import Recipe

SIZES = {"architecture": "transformer", "n_layers": 2, "n_heads": 3, "d_model": 21, "d_mlp": 13}
TASK = Bijection(n_values=5, n_pairs=4)
STEPS = (0, 10, 30, 100)
WAY = {0: 0.0, 10: 0.02, 30: 0.9, 100: 1.0}  # how far each snapshot is


def a_recipe(seed: int = 0, **others: object) -> Recipe:
    return Recipe(**{"name": "small", "task": TASK, "sizes": SIZES, "steps": 100, "seed": seed} | others)


def a_run(folder: Path, recipe: Recipe | None = None, steps: Sequence[int] = STEPS, *, draw: int | None = None) -> Path:
    """A run's directory, as the training loop leaves it; weights follow from the recipe's seed, or from `draw`."""
    made = recipe or a_recipe()
    seed = made.seed if draw is None else draw
    module = made.model_config().build(seed=seed)
    start = {name: value.clone() for name, value in module.state_dict().items()}
    end = made.model_config().build(seed=seed + 1).state_dict()
    for step in steps:
        share = WAY.get(step, step / max(steps))
        module.load_state_dict({k: torch.lerp(start[k], 3 * end[k], share) for k in start})
        path = folder / "snapshots" / f"step-{step:07d}"
        save_checkpoint(path, module, made.model_config(), recipe=made.to_dict(), step=step, card="tiny\n")
    return folder
