"""`replicate`: one recipe with several seeds; existing trainings are loaded, missing ones are trained."""

from collections.abc import Mapping
from pathlib import Path

from bayesgeom.comparison.sent import scores_of
from bayesgeom.core.arguments import checked
from bayesgeom.core.files import RUNS
from bayesgeom.dynamics.replication import Replica, ReplicationReport, replication_report
from bayesgeom.engines.executor import Batch, Executor
from bayesgeom.models.provenance import provenance
from bayesgeom.results.report import with_provenance
from bayesgeom.tasks.base import Branch, derived_seed
from bayesgeom.training.recipe import Recipe
from bayesgeom.training.recipes import recipe as committed
from bayesgeom.training.scores import N_SCORED, check_counts
from bayesgeom.training.state import LOG, read_log
from bayesgeom.training.trained_models import Plan, TrainedModels

N_SEEDS = 5


@checked()
def replicate(
    recipe: str | Recipe,
    *,
    seeds: int = N_SEEDS,
    runs: str | Path = RUNS,
    n: int = N_SCORED,
    seed: int = 0,
    train_missing: bool = True,
    executor: Executor | Batch | None = None,
) -> ReplicationReport:
    """Measure mean and spread of a recipe's scores over several trainings.

    Seed 0 is the recipe itself; the others count from it. All are scored on the same sequences. An interrupted training
    continues.

    Args:
        recipe: Name of a recipe, or a recipe.
        seeds: Number of trainings.
        runs: Directory in which trainings are looked up and saved.
        n: Number of sequences that score each training.
        seed: Seed of the sequences and of the intervals.
        train_missing: Whether to train missing models, which takes hours; else they are omitted and listed.
        executor: Where trainings run, one job each (see `bayesgeom.engine`); `runs` is then a directory that all
            workers see. Default: this process.

    Returns:
        Scores of every training, with mean and interval over seeds.

    Raises:
        UnknownName: The recipe does not exist, or nothing may be trained and nothing exists.
        InvalidArgument: There is less than one seed.
        CheckpointFault: A checkpoint or run was made by another recipe.
        ExecutorFault: A job failed; the others' results are kept.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.replicate("no-such-recipe")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        bayesgeom.core.errors.UnknownName: there is no recipe named 'no-such-recipe'.
    """
    chosen = committed(recipe) if isinstance(recipe, str) else recipe
    check_counts(seeds=seeds, n=n, seed=seed)
    available = TrainedModels(runs=Path(runs), train_missing=train_missing, is_run_first=True)
    return _replicated(chosen, available, seeds=seeds, n=n, seed=seed, executor=executor)


def _replicated(
    recipe: Recipe, available: TrainedModels, *, seeds: int, n: int, seed: int, executor: Executor | Batch | None
) -> ReplicationReport:
    """Return the report with its provenance."""
    recipes = _recipes(recipe, seeds)
    plan = available.plan(recipes)
    wanted = [own for own in recipes if own not in plan.missing]
    scores = scores_of(wanted, available, n=n, seed=seed, executor=executor)
    replicas = [
        Replica(name=own.name, scores=found, log=_log(available.path(own).parent / LOG))
        for own, found in zip(wanted, scores, strict=True)
    ]
    missing = [own.name for own in plan.missing]
    report = replication_report(recipe.name, replicas, missing=missing, seed=derived_seed(seed, Branch.RESAMPLING))
    named = {"name": recipe.name, "architecture": str(recipe.sizes["architecture"])}
    where = provenance(named, recipe.task, {"seeds": seeds, "n": n, "seed": seed})
    weights = dict(zip(report.replicas, report.weights_hashes, strict=True))
    return with_provenance(report, where | {"weights": weights, "recipe": recipe.to_dict()})


def plan_replication(recipe: str | Recipe, *, seeds: int = N_SEEDS, runs: str | Path = RUNS) -> Plan:
    """Return which seeds exist, and which `replicate` would train, with the same arguments.

    Raises:
        UnknownName: As in `replicate`.
        InvalidArgument: As in `replicate`.
        CheckpointFault: As in `replicate`.
    """
    chosen = committed(recipe) if isinstance(recipe, str) else recipe
    check_counts(seeds=seeds, n=N_SCORED, seed=0)
    return TrainedModels(runs=Path(runs), train_missing=True, is_run_first=True).plan(_recipes(chosen, seeds))


def _recipes(recipe: Recipe, seeds: int) -> list[Recipe]:
    """Return the recipe with every seed."""
    return [recipe.reseeded(by) for by in range(seeds)]


def _log(path: Path) -> Mapping[int, tuple[float, float]]:
    """Return a run's log by step, KL in bits and loss in nats; empty without a log."""
    return {int(line["step"]): (float(line["kl_bits"]), float(line["loss_nats"])) for line in read_log(path)}
