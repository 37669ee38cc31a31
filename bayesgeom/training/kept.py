"""Models of recipes: of the named checkpoints, or of a folder of runs, where what is missing can be trained."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from bayesgeom.errors import CheckpointFault, UnknownName
from bayesgeom.models.base import Model
from bayesgeom.models.checkpoint import CONFIG, load_checkpoint
from bayesgeom.models.resolve import checkpoints, from_checkpoint
from bayesgeom.training.loop import RECIPE, Pace, train
from bayesgeom.training.publish import publish
from bayesgeom.training.recipe import Recipe, deciding

_CHECKPOINT = "checkpoint"


@final
@dataclass(frozen=True, kw_only=True)
class Kept:
    """A folder of runs, in which missing models are trained unless `is_trained` is false.

    A named checkpoint is taken before a run of that name, or after it with `is_run_first`: a run has a log.
    """

    runs: Path
    is_trained: bool
    is_run_first: bool = False

    def model(self, recipe: Recipe) -> Model:
        """The model that this recipe makes.

        **Raises** `UnknownName` where it is missing and may not be trained, `CheckpointFault` where what bears its name
        was made by another recipe.
        """
        path = self.path(recipe)
        if not (path / CONFIG).exists():
            self._train(recipe)
        loaded = load_checkpoint(path)
        if deciding(loaded.recipe) != deciding(recipe.to_dict()):
            raise CheckpointFault(
                f"{path} was made by another recipe than {recipe.name} is now; move it away to have it trained again."
            )
        return from_checkpoint(replace(loaded, name=recipe.name))  # of its own run's folder it bears the folder's

    def path(self, recipe: Recipe) -> Path:
        """Where the recipe's checkpoint lies, or will."""
        run = self.runs / recipe.name / _CHECKPOINT
        if self.is_run_first and (run / CONFIG).exists():
            return run
        return checkpoints().get(recipe.name, run)

    def has(self, recipe: Recipe) -> bool:
        """Whether it is there already."""
        return (self.path(recipe) / CONFIG).exists()

    def _train(self, recipe: Recipe) -> None:
        if not self.is_trained:
            raise UnknownName(
                f"there is no checkpoint named {recipe.name!r}, neither shipped nor in {self.runs}: leave out "
                f"--only-existing to have it trained on {recipe.n_sequences:,} sequences, or ask for others."
            )
        out = self.runs / recipe.name
        module = train(recipe, out, resume=(out / RECIPE).exists(), pace=Pace())
        publish(recipe, module, out / _CHECKPOINT)
