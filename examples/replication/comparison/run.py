"""`compare`: load or train every architecture on every task, and score them against the exact posterior.

`replicate` does the same for one recipe with several seeds. Existing trainings are loaded, missing ones are trained.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.files import RUNS
from bayesgeom.core.progress import phase
from bayesgeom.executors import Batch, Executor, Job, check_same
from bayesgeom.models.base import provenance
from bayesgeom.report.report import with_provenance
from bayesgeom.tasks.base import Branch, derived_seed
from bayesgeom.training.recipes import Recipe, recipe_from_dict
from bayesgeom.training.state import LOG, read_log
from examples.replication.comparison.cell import Cell, cell
from examples.replication.comparison.replication import Replica, ReplicationReport, replication_report
from examples.replication.comparison.report import ComparisonReport, comparison_report
from examples.replication.comparison.scores import N_SCORED, Scores, check_counts, score
from examples.replication.training.recipes import ALL_TASKS, ARCHITECTURES, TASKS, architectures_of
from examples.replication.training.recipes import recipe as named
from examples.replication.training.trained_models import TrainedModels

N_SEEDS = 5


def compare(
    architectures: str | Sequence[str] = ARCHITECTURES,
    tasks: str | Sequence[str] = TASKS,
    *,
    seeds: int = 1,
    n: int = N_SCORED,
    seed: int = 0,
    runs: str | Path = RUNS,
    train_missing: bool = True,
    executor: Executor | Batch | None = None,
    announce: Callable[[str], object] = str,
) -> ComparisonReport:
    """Compare architectures on tasks: KL, entropy error, share of the gap closed, baselines, and a verdict per cell.

    Models are loaded from the named checkpoints or from `runs`. An interrupted training continues. Existing second
    seeds with twice the budget are listed as checks and do not count for verdicts.

    Args:
        architectures: Name of an architecture, or several.
        tasks: Name of a task, or several.
        seeds: Number of trainings of each, at the same budget; one seed gives no verdict.
        n: Number of sequences that score each model.
        seed: Seed of the sequences and of the intervals.
        runs: Directory in which trainings are looked up and saved.
        train_missing: Whether to train missing models, which takes hours; else they are omitted and listed.
        executor: Where models are trained and scored, one job each (see `bayesgeom.executors`); `runs` is then a
            directory that all workers see. Default: this process.
        announce: Called with what is going to be trained.

    Returns:
        One cell for each architecture and task.

    Raises:
        UnknownName: A task or architecture is not part of the comparison, or no model exists and none may be trained.
        InvalidArgument: There is less than one seed.
        CheckpointFault: A checkpoint or run of this name was made by another recipe.
    """
    check_counts(seeds=seeds, n=n, seed=seed)
    available = TrainedModels(runs=Path(runs), train_missing=train_missing)
    wanted = _cells(architectures, tasks, seeds)
    # Second seeds with twice the budget, which are never trained here.
    checks = [cell(*row, seed=1, is_check=True) for row in dict.fromkeys((o.task, o.architecture) for o in wanted)]
    available.check(own.recipe for own in checks)
    plan = available.plan([own.recipe for own in wanted], announce)
    cells = [own for own in wanted if own.recipe not in plan.missing]
    cells += [own for own in checks if available.has(own.recipe)]
    scores = _scores([own.recipe for own in cells], available, n=n, seed=seed, executor=executor)
    missing = [own.name for own in plan.missing]
    report = comparison_report(cells, scores, seed=derived_seed(seed, Branch.RESAMPLING), missing=missing)
    model = {"name": ", ".join(_names(architectures)), "architecture": "several"}
    where = provenance(model, ", ".join(_names(tasks)), {"seeds": seeds, "n": n, "seed": seed})
    weights = dict(zip(report.checkpoints, report.weights_hashes, strict=True))
    by_task = {own.task: own.recipe.task.config() for own in cells}
    return with_provenance(report, where | {"task": by_task, "weights": weights})


def replicate(
    recipe: str | Recipe,
    *,
    seeds: int = N_SEEDS,
    n: int = N_SCORED,
    seed: int = 0,
    runs: str | Path = RUNS,
    train_missing: bool = True,
    executor: Executor | Batch | None = None,
    announce: Callable[[str], object] = str,
) -> ReplicationReport:
    """Measure mean and spread of a recipe's scores over several trainings.

    Seed 0 is the recipe itself; the others count from it. All are scored on the same sequences. Other arguments are
    those of `compare`.

    Args:
        recipe: Name of a recipe, or a recipe.
        seeds: Number of trainings.

    Returns:
        Scores of every training, with mean and interval over seeds.

    Raises:
        UnknownName: The recipe does not exist, or nothing may be trained and nothing exists.
        InvalidArgument: There is less than one seed.
        CheckpointFault: A checkpoint or run was made by another recipe.
    """
    check_counts(seeds=seeds, n=n, seed=seed)
    available = TrainedModels(runs=Path(runs), train_missing=train_missing, is_run_first=True)
    chosen = named(recipe) if isinstance(recipe, str) else recipe
    recipes = [chosen.reseeded(by) for by in range(seeds)]
    plan = available.plan(recipes, announce)
    wanted = [own for own in recipes if own not in plan.missing]
    scores = _scores(wanted, available, n=n, seed=seed, executor=executor)
    replicas = [
        Replica(name=own.name, scores=found, log=_log(available.path(own).parent / LOG))
        for own, found in zip(wanted, scores, strict=True)
    ]
    missing = [own.name for own in plan.missing]
    report = replication_report(chosen.name, replicas, missing=missing, seed=derived_seed(seed, Branch.RESAMPLING))
    model = {"name": chosen.name, "architecture": str(chosen.sizes["architecture"])}
    where = provenance(model, chosen.task, {"seeds": seeds, "n": n, "seed": seed})
    weights = dict(zip(report.replicas, report.weights_hashes, strict=True))
    return with_provenance(report, where | {"weights": weights, "recipe": chosen.to_dict()})


def _cells(architectures: str | Sequence[str], tasks: str | Sequence[str], seeds: int) -> list[Cell]:
    """Return the cells to compare at the stated budget; architectures without a recipe on a task are left out."""
    if not architectures or not tasks:
        empty = "tasks" if architectures else "architectures"
        raise InvalidArgument(f"{empty} is empty: pass at least one architecture and one task to compare.")
    names = _names(architectures)
    found = list[Cell]()
    for task in _names(tasks):
        there = architectures_of(task) if task in ALL_TASKS else ()
        chosen = [name for name in names if name in there] or names  # `cell` refuses where none has a recipe
        found += [cell(task, name, seed=by) for name in chosen for by in range(seeds)]
    return found


def _names(requested: str | Sequence[str]) -> tuple[str, ...]:
    return (requested,) if isinstance(requested, str) else tuple(dict.fromkeys(requested))


def _log(path: Path) -> Mapping[int, tuple[float, float]]:
    """Return a run's log by step, KL in bits and loss in nats; empty without a log."""
    return {int(line["step"]): (float(line["kl_bits"]), float(line["loss_nats"])) for line in read_log(path)}


def _scores(
    recipes: Sequence[Recipe], available: TrainedModels, *, n: int, seed: int, executor: Executor | Batch | None
) -> list[Scores]:
    """Return each recipe's scores, trained first where it is missing. One model is in memory at a time."""
    given: dict[str, Any] = {"runs": str(available.runs.resolve()), "is_run_first": available.is_run_first}
    jobs = [
        Job(
            name=own.name,
            function=scored,
            arguments={**given, "recipe": own.to_dict(), "weights": available.weights(own), "n": n, "seed": seed},
        )
        for own in recipes
    ]
    if executor is not None:
        return Batch.of(executor).results(jobs, desc="models")
    found = list[Scores]()
    with phase("models", len(jobs), "model") as shown:
        for job in jobs:
            found.append(scored(**job.arguments))
            shown.update(1)
    return found


def scored(
    *, recipe: Mapping[str, Any], runs: str, is_run_first: bool, weights: str | None, n: int, seed: int
) -> Scores:
    """Do the job of one recipe: train it where it is missing, which has no `weights` yet, and score it."""
    own = recipe_from_dict(recipe)
    model = TrainedModels(runs=Path(runs), is_run_first=is_run_first).model(own)
    return score(model if weights is None else check_same(model, weights), own.task, n=n, seed=seed)
