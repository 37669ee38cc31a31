"""`compare`: load or train every architecture on every task, and score them against the exact posterior."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from bayesgeom.comparison.cell import Cell, cell
from bayesgeom.comparison.report import ComparisonReport, comparison_report
from bayesgeom.comparison.sent import scores_of
from bayesgeom.core.arguments import check_argument, checked
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.files import RUNS
from bayesgeom.core.text import shown
from bayesgeom.engines.executor import Batch, Executor
from bayesgeom.models.base import Model
from bayesgeom.models.checkpoint_files import checkpoints
from bayesgeom.models.provenance import provenance
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.report import with_provenance
from bayesgeom.tasks.base import Branch, derived_seed
from bayesgeom.training.compared import ALL_TASKS, ARCHITECTURES, TASKS, architectures_of
from bayesgeom.training.scores import N_SCORED, check_counts
from bayesgeom.training.trained_models import Plan, TrainedModels


@checked("architectures", "tasks")
def compare(
    architectures: str | Sequence[str] = ARCHITECTURES,
    tasks: str | Sequence[str] = tuple(TASKS),
    *,
    seeds: int = 1,
    n: int = N_SCORED,
    seed: int = 0,
    runs: str | Path = RUNS,
    train_missing: bool = True,
    executor: Executor | Batch | None = None,
) -> ComparisonReport:
    """Compare architectures on tasks: KL, entropy error, share of the gap closed, baselines, and a verdict per cell.

    Models are loaded from the named checkpoints or from `runs`. An interrupted training continues. Existing second
    seeds with twice the budget are listed as checks and do not count for verdicts. `bayesgeom.diff` compares two models
    or diagnoses.

    Args:
        architectures: Name of an architecture, or several.
        tasks: Name of a task, or several.
        seeds: Number of trainings of each, at the same budget; one seed gives no verdict.
        n: Number of sequences that score each model.
        seed: Seed of the sequences and of the intervals.
        runs: Directory in which trainings are looked up and saved.
        train_missing: Whether to train missing models, which takes hours; else they are omitted and listed.
        executor: Where models are trained and scored, one job each (see `bayesgeom.engine`); `runs` is then a
            directory that all workers see. Default: this process.

    Returns:
        One cell for each architecture and task.

    Raises:
        UnknownName: A task or architecture is not part of the comparison, or no model exists and none may be trained.
        InvalidArgument: There is less than one seed, or a model, a checkpoint or a diagnosis is passed, which
            `bayesgeom.diff` compares.
        CheckpointFault: A checkpoint or run of this name was made by another recipe.
        ExecutorFault: A job failed; the others' results are kept.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.compare("no-such-architecture")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        bayesgeom.core.errors.UnknownName: there is no architecture named 'no-such-architecture'.
    """
    _check_names(architectures=architectures, tasks=tasks)
    check_counts(seeds=seeds, n=n, seed=seed)
    available, wanted = TrainedModels(runs=Path(runs), train_missing=train_missing), _cells(architectures, tasks, seeds)
    report, trained = _compared(wanted, available, n=n, seed=seed, executor=executor)
    named = {"name": ", ".join(_names(architectures)), "architecture": "several"}
    where = provenance(named, ", ".join(_names(tasks)), {"seeds": seeds, "n": n, "seed": seed})
    return with_provenance(report, where | trained)


def _compared(
    wanted: Sequence[Cell], available: TrainedModels, *, n: int, seed: int, executor: Executor | Batch | None
) -> tuple[ComparisonReport, dict[str, Any]]:
    """Return the report, and the tasks and weights for its provenance."""
    checks = _checks(wanted)
    plan = _planned(wanted, checks, available)
    missing = [own.name for own in wanted if own.recipe in plan.missing]
    cells = [own for own in wanted if own.name not in missing]
    cells += [own for own in checks if available.has(own.recipe)]
    scores = scores_of([own.recipe for own in cells], available, n=n, seed=seed, executor=executor)
    report = comparison_report(cells, scores, seed=derived_seed(seed, Branch.RESAMPLING), missing=missing)
    weights = dict(zip(report.checkpoints, report.weights_hashes, strict=True))
    by_task = {own.task: own.recipe.task.config() for own in cells}
    return report, {"task": by_task, "weights": weights}


def plan_comparison(
    architectures: str | Sequence[str], tasks: str | Sequence[str], *, seeds: int = 1, runs: str | Path = RUNS
) -> Plan:
    """Return which models exist, and which `compare` would train, with the same arguments.

    Raises:
        UnknownName: As in `compare`.
        InvalidArgument: As in `compare`.
        CheckpointFault: As in `compare`.
    """
    _check_names(architectures=architectures, tasks=tasks)
    check_counts(seeds=seeds, n=N_SCORED, seed=0)
    wanted = _cells(architectures, tasks, seeds)
    return _planned(wanted, _checks(wanted), TrainedModels(runs=Path(runs), train_missing=True))


def _planned(wanted: Sequence[Cell], checks: Sequence[Cell], available: TrainedModels) -> Plan:
    """Return which models exist and which must be trained; raise as `TrainedModels.plan`, for checks, too."""
    available.check(own.recipe for own in checks)
    return available.plan(own.recipe for own in wanted)


def _cells(architectures: str | Sequence[str], tasks: str | Sequence[str], seeds: int) -> list[Cell]:
    """Return the cells to compare at the stated budget; raise for unknown names or empty lists."""
    if not architectures or not tasks:
        empty = "tasks" if architectures else "architectures"
        raise InvalidArgument(f"{empty} is empty: pass at least one architecture and one task to compare.")
    names = _names(architectures)
    rows = [(task, architecture) for task in _names(tasks) for architecture in architectures_on(task, names)]
    return [cell(*row, seed=seed) for row in rows for seed in range(seeds)]


def _check_names(**arguments: object) -> None:
    """Check that these arguments are names of architectures or of tasks.

    Raises:
        InvalidArgument: They are not. The message names `bayesgeom.diff` where two models or diagnoses are meant.
    """
    shipped = checkpoints()
    for name, given in arguments.items():
        several = given if isinstance(given, list | tuple) else [given]
        if any(_is_measurable(own, shipped) for own in several):
            raise InvalidArgument(
                f"{name} of compare must be names, such as 'transformer' or 'bijection', got {shown(several[0])}: "
                f"compare measures architectures on tasks. Compare two models, checkpoints or diagnoses by "
                f"bayesgeom.diff(a, b)."
            )
        check_argument(name, given, str | Sequence[str])


def _is_measurable(own: object, shipped: Collection[str]) -> bool:
    """Return whether this is a model, a checkpoint or a report: what `bayesgeom.diff` takes."""
    if not isinstance(own, str) or own in {"", *ARCHITECTURES, *ALL_TASKS}:
        return isinstance(own, nn.Module | Model | Diagnosis | Path)
    try:
        return own in shipped or Path(own).is_dir()
    except OSError:  # too long for a path
        return False


def architectures_on(task: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the requested architectures that have a recipe on this task; all of them if none has."""
    return tuple(name for name in names if task in ALL_TASKS and name in architectures_of(task)) or names


def _checks(wanted: Sequence[Cell]) -> list[Cell]:
    """Return the checks: second seeds with twice the budget, which are never trained here."""
    rows = dict.fromkeys((own.task, own.architecture) for own in wanted)
    return [cell(*row, seed=1, is_check=True) for row in rows]


def _names(requested: str | Sequence[str]) -> tuple[str, ...]:
    return (requested,) if isinstance(requested, str) else tuple(dict.fromkeys(requested))
