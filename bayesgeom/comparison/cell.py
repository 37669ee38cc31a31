"""One cell of the comparison: a task and an architecture, and the recipe that trains the one on the other."""

from dataclasses import dataclass
from typing import final

from bayesgeom.errors import unknown_name
from bayesgeom.training.compared import ARCHITECTURES, ON_REQUEST, TASKS, compared
from bayesgeom.training.recipe import Recipe


@final
@dataclass(frozen=True, kw_only=True)
class Cell:
    """A task and an architecture, trained once. `is_check`: with another seed and twice the budget."""

    task: str
    architecture: str
    recipe: Recipe
    is_check: bool

    @property
    def name(self) -> str:
        """Of the checkpoint."""
        return self.recipe.name


def cell(task: str, architecture: str, *, seed: int = 0, is_check: bool = False) -> Cell:
    """The cell of this row and column. Seed 0 is the committed recipe's own; others are counted from it.

    **Raises** `UnknownName` for a task or architecture that is not compared.
    """
    architectures = (*ARCHITECTURES, *ON_REQUEST)
    for what, name, known in (("compared task", task, TASKS), ("compared architecture", architecture, architectures)):
        if name not in known:
            raise unknown_name(what, name, known)
    recipe = compared()[f"{task}-{architecture}"].reseeded(seed)
    return Cell(
        task=task, architecture=architecture, recipe=recipe.lengthened(2) if is_check else recipe, is_check=is_check
    )  # fmt: skip
