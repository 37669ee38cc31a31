"""Scores of several recipes, one after another or each as a job on an executor."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesgeom.core.errors import ExecutorFault
from bayesgeom.core.progress import bar
from bayesgeom.engines.executor import Batch, Executor, Job, path_of
from bayesgeom.models.checkpoint_files import read_description
from bayesgeom.training.recipe import Recipe, recipe_from_dict
from bayesgeom.training.scores import Scores, score
from bayesgeom.training.trained_models import TrainedModels


def scores_of(
    recipes: Sequence[Recipe], available: TrainedModels, *, n: int, seed: int, executor: Executor | Batch | None = None
) -> list[Scores]:
    """Return each recipe's scores, trained first where it is missing. One model is in memory at a time.

    With an executor each recipe is a job.

    Raises:
        ExecutorFault: A job failed, or a result that is there is of other weights than the checkpoint.
    """
    if executor is None:
        shown = bar(recipes, desc="models", leave=False)
        return [score(available.model(recipe), recipe.task, n=n, seed=seed) for recipe in shown]
    batch = Batch.of(executor)
    found: list[Scores] = batch.results([_job(recipe, available, n=n, seed=seed) for recipe in recipes], desc="models")
    for recipe, own in zip(recipes, found, strict=True):
        if own.weights_hash != (there := read_description(available.path(recipe))["weights_hash"]):
            raise ExecutorFault(
                f"{batch.folder} holds scores of {recipe.name} with weights {own.weights_hash}, but its checkpoint has "
                f"{there}. Delete them, or name another folder of jobs."
            )
    return found


def _job(recipe: Recipe, available: TrainedModels, *, n: int, seed: int) -> Job:
    arguments = {
        "recipe": recipe.to_dict(),
        "runs": str(available.runs.resolve()),
        "train_missing": available.train_missing,
        "is_run_first": available.is_run_first,
        "n": n,
        "seed": seed,
    }
    return Job(name=recipe.name, function=path_of(scored), arguments=arguments)


def scored(
    *, recipe: Mapping[str, Any], runs: str, train_missing: bool, is_run_first: bool, n: int, seed: int
) -> Scores:
    """Do the job of one recipe: train it where it is missing, and score it."""
    own = recipe_from_dict(recipe)
    available = TrainedModels(runs=Path(runs), train_missing=train_missing, is_run_first=is_run_first)
    return score(available.model(own), own.task, n=n, seed=seed)
