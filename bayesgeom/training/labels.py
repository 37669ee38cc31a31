"""Labels in a part of the sequence only: a loss on the first positions, and on a share of the later ones."""

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from bayesgeom.core.trials import NO_LABEL, Trials
from bayesgeom.tasks.base import derived_seed
from bayesgeom.training.recipe import Recipe

_LABELS = 2  # branch of the recipe's seed; the loop uses 0 for data and 1 for validation


def labeled(recipe: Recipe, trials: Trials, step: int) -> Trials:
    """Return this step's batch with labels only where the recipe has a loss.

    Which later positions have a label depends only on the recipe's seed and the step, so a resumed run draws the same
    ones.

    Args:
        recipe: The recipe; without `loss_positions`, the batch is returned unchanged.
        trials: The batch.
        step: The step.

    Example:
        >>> from bayesgeom.tasks import ModularRecurrence
        >>> first = Recipe(name="first", task=ModularRecurrence(modulus=3, length=5), sizes={}, loss_positions=2)
        >>> (labeled(first, first.task.sample(1, seed=0), step=0).labels != NO_LABEL).tolist()
        [[True, True, False, False, False]]
    """
    if recipe.loss_positions is None:
        return trials
    chosen = torch.zeros_like(trials.scored)
    chosen[trials.scored] = _chosen(recipe, trials, step).flatten().to(chosen.device)
    return replace(trials, labels=trials.labels.masked_fill(~chosen, NO_LABEL))


def _chosen(recipe: Recipe, trials: Trials, step: int) -> Bool[Tensor, "batch query_pos"]:
    """Return which scored positions have a label."""
    generator = torch.Generator().manual_seed(derived_seed(recipe.seed, _LABELS, step))
    drawn = torch.rand(len(trials), trials.n_scored, generator=generator, dtype=torch.float64)
    chosen = drawn < recipe.label_share
    chosen[:, : recipe.loss_positions] = True
    return chosen
