"""One cell of the comparison: a task, an architecture, the recipe, and the terms that differ between cells."""

from dataclasses import dataclass
from typing import final

from bayesgeom.core.errors import unknown_name
from bayesgeom.training.recipes import Recipe
from examples.replication.comparison.verdict import has_published_sizes
from examples.replication.training.recipes import (
    ALL_TASKS,
    ARCHITECTURES,
    ON_REQUEST,
    architectures_of,
    compared,
    lengthened,
)

_COMMON = "none: one setting for all, chosen on the transformer"
_STAGED = "none: rates and the pooled first stage were tuned on the transformer"
_DECAY = "none: the decay schedule was tuned on the transformer"
_SEARCHED = {  # how the hyperparameters of each row were found
    "bijection": _COMMON,
    "repeats": _STAGED,
    "recall": _STAGED,
    "recall-16": _STAGED,
    "recall-64": _STAGED,
    "hmm": _DECAY,
    "hmm-sampled": _DECAY,
    "slow-hmm": _COMMON,
}


@final
@dataclass(frozen=True, kw_only=True)
class Cell:
    """A task and an architecture, trained once; `is_check` marks a training at twice the budget, not a seed."""

    task: str
    architecture: str
    recipe: Recipe
    is_check: bool

    @property
    def name(self) -> str:
        """Name of the checkpoint."""
        return self.recipe.name

    @property
    def place(self) -> tuple[str, str, bool]:
        """Task, architecture and whether it is a check: equal for all trainings that share a verdict."""
        return self.task, self.architecture, self.is_check

    @property
    def rate_search(self) -> str:
        """How the hyperparameters of this row were chosen."""
        return _SEARCHED[self.task]

    @property
    def targets(self) -> str:
        """Kind of training targets: exact posteriors distill the filter into the network."""
        return "exact (distilled)" if self.recipe.targets == "exact" else "sampled"

    @property
    def has_published_sizes(self) -> bool:
        """Whether the task has the sizes at which the papers report it."""
        return has_published_sizes(self.recipe.task)


def cell(task: str, architecture: str, *, seed: int = 0, is_check: bool = False) -> Cell:
    """Return the cell of this row and column.

    Args:
        task: A task of the comparison.
        architecture: An architecture that has a recipe on it.
        seed: 0 is the committed recipe's seed; others are counted from it.
        is_check: Whether to train at twice the budget, as the second trainings of earlier versions.

    Raises:
        UnknownName: The task is not part of the comparison, or the architecture has no recipe on this task.
    """
    if task not in ALL_TASKS:
        raise unknown_name("compared task", task, ALL_TASKS)
    if architecture not in (*ARCHITECTURES, *ON_REQUEST):
        raise unknown_name("compared architecture", architecture, (*ARCHITECTURES, *ON_REQUEST))
    if architecture not in architectures_of(task):
        raise unknown_name(f"architecture with a recipe on {task}", architecture, architectures_of(task))
    recipe = compared()[f"{task}-{architecture}"].reseeded(seed)
    return Cell(
        task=task, architecture=architecture, recipe=lengthened(recipe, 2) if is_check else recipe, is_check=is_check
    )
