"""Models of recipes, from named checkpoints or a folder of runs; missing ones can be trained."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from bayesgeom.core.errors import CheckpointFault, UnknownName
from bayesgeom.core.files import differences
from bayesgeom.models.base import Model
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.models.checkpoint_files import CONFIG, FINISHED, checkpoints, read_description
from bayesgeom.models.resolve import from_checkpoint
from bayesgeom.training.loop import RECIPE, check_run
from bayesgeom.training.publish import make_checkpoint
from bayesgeom.training.recipes import Recipe, deciding


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """The requested recipes: those with a model, those to be trained in `runs`, and missing ones."""

    there: tuple[Recipe, ...]
    to_train: tuple[Recipe, ...]
    missing: tuple[Recipe, ...]
    runs: Path

    def __str__(self) -> str:
        lines = [f"there: {_names(self.there)}"]
        if self.missing:
            lines.append(f"not there: {_names(self.missing)}")
        if self.to_train:
            lines.append(f"to be trained, in {str(self.runs)!r}:")
            for own in self.to_train:
                begun = ", continues where it stopped" if (self.runs / own.name / RECIPE).exists() else ""
                n_steps = sum(stage.steps for stage in own.stages())
                lines.append(f"  {own.name}: {own.n_sequences:,} sequences in {n_steps:,} steps{begun}")
        return "\n".join(lines)


@final
@dataclass(frozen=True, kw_only=True)
class TrainedModels:
    """A folder of runs, in which missing models are trained if `train_missing`.

    A named checkpoint is preferred to a run of that name, unless `is_run_first`, for callers that need the run's log.
    """

    runs: Path
    train_missing: bool = True
    is_run_first: bool = False

    def plan(self, recipes: Iterable[Recipe], announce: Callable[[str], object] = str) -> Plan:
        """Check these recipes before any training, announce what is to be trained, and return which have a model.

        Raises:
            UnknownName: None of them has a model and `train_missing` is false.
            CheckpointFault: As `check`.
        """
        wanted = tuple(recipes)
        self.check(wanted)
        there = tuple(own for own in wanted if self.has(own))
        absent = tuple(own for own in wanted if own not in there)
        if absent and not there and not self.train_missing:
            raise UnknownName(
                f"there is no checkpoint named {' or '.join(repr(own.name) for own in absent)}, neither shipped nor in "
                f"{str(self.runs)!r}: omit --only-existing to train missing ones there, "
                f"or request others."
            )
        to_train, missing = (absent, ()) if self.train_missing else ((), absent)
        plan = Plan(there=there, to_train=to_train, missing=missing, runs=self.runs)
        if to_train:
            announce(str(plan))
        return plan

    def check(self, recipes: Iterable[Recipe]) -> None:
        """Check that checkpoints and runs with the recipes' names were made by these recipes.

        Raises:
            CheckpointFault: One was made by another recipe.
        """
        for recipe in recipes:
            path = self.path(recipe)
            if not self.has(recipe):
                check_run(recipe, self.runs / recipe.name)
            elif found := differences(deciding(read_description(path)["recipe"]), deciding(recipe.to_dict())):
                raise CheckpointFault(
                    f"{path} was made by a different recipe than the current {recipe.name} ({found}); move it away to "
                    f"train it again."
                )

    def model(self, recipe: Recipe) -> Model:
        """Return the model of this recipe, trained first if it is missing. Errors are those of `plan`."""
        if recipe in self.plan([recipe]).to_train:
            out = self.runs / recipe.name
            make_checkpoint(recipe, out, resume=(out / RECIPE).exists())
        return from_checkpoint(replace(load_checkpoint(self.path(recipe)), name=recipe.name))

    def path(self, recipe: Recipe) -> Path:
        """Return the path of the recipe's checkpoint, which may not exist yet."""
        run = self.runs / recipe.name / FINISHED
        if self.is_run_first and (run / CONFIG).exists():
            return run
        return named[recipe.name] if recipe.name in (named := checkpoints()) else run

    def weights(self, recipe: Recipe) -> str | None:
        """Return the hash of the weights of the recipe's checkpoint; None without one."""
        return str(read_description(self.path(recipe))["weights_hash"]) if self.has(recipe) else None

    def has(self, recipe: Recipe) -> bool:
        """Return whether the recipe's checkpoint exists."""
        return (self.path(recipe) / CONFIG).exists()


def _names(recipes: Iterable[Recipe]) -> str:
    return ", ".join(own.name for own in recipes) or "nothing"
