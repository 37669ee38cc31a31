"""`compare`: load or train every architecture on every task, and score them against the exact posterior."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from bayesgeom.comparison.cell import Cell, cell
from bayesgeom.comparison.report import ComparisonReport, comparison_report
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.files import RUNS
from bayesgeom.models.provenance import provenance
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.report import with_provenance
from bayesgeom.training.compared import ALL_TASKS, ARCHITECTURES, TASKS, architectures_of
from bayesgeom.training.kept import Kept, Plan
from bayesgeom.training.scores import N_SCORED, check_counts, scores_of


def compare(
    architectures: str | Sequence[str] = ARCHITECTURES,
    tasks: str | Sequence[str] = tuple(TASKS),
    *,
    seeds: int = 1,
    n: int = N_SCORED,
    seed: int = 0,
    runs: str | Path = RUNS,
    train_missing: bool = True,
) -> ComparisonReport:
    """Compare architectures on tasks: KL, entropy error, share of the gap closed, baselines, and a verdict per cell.

    Models are taken from the named checkpoints, or from `runs`. A training that was stopped continues. Second seeds
    with twice the budget that exist already are listed as checks and decide nothing. `bayesgeom.diff` compares two
    models or diagnoses.

    Args:
        architectures: Name of an architecture, or several.
        tasks: Name of a task, or several.
        seeds: Number of trainings of each, at the same budget; one seed gives no verdict.
        n: Number of sequences that score each model.
        seed: Seed of the sequences and of the intervals.
        runs: Directory where trainings are looked for and kept.
        train_missing: Whether models that do not exist yet are trained, which takes hours; else they are left out and
            named.

    Returns:
        One cell for each architecture and task.

    Raises:
        UnknownName: A task or architecture is not compared, or nothing may be trained and nothing exists.
        InvalidArgument: There is less than one seed.
        CheckpointFault: A checkpoint or run of this name was made by another recipe.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.compare("no-such-architecture")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        bayesgeom.core.errors.UnknownName: there is no architecture named 'no-such-architecture'.
    """
    job = ComparisonJob.of(
        architectures, tasks, seeds=seeds, n=n, seed=seed, kept=Kept(runs=Path(runs), train_missing=train_missing)
    )
    report = job.run()
    return with_provenance(report, job.diagnosis(report).provenance)


@final
@dataclass(frozen=True, kw_only=True)
class ComparisonJob:
    """A checked comparison, ready to run. One model is in memory at a time."""

    architectures: tuple[str, ...]
    tasks: tuple[str, ...]
    seeds: int
    n: int
    seed: int
    kept: Kept

    @classmethod
    def of(
        cls,
        architectures: str | Sequence[str],
        tasks: str | Sequence[str],
        *,
        seeds: int,
        n: int,
        seed: int,
        kept: Kept,
    ) -> "ComparisonJob":
        """Names as a caller gives them: one, or several, each counted once."""
        return cls(architectures=_names(architectures), tasks=_names(tasks), seeds=seeds, n=n, seed=seed, kept=kept)

    def __post_init__(self) -> None:
        check_counts(seeds=self.seeds, n=self.n, seed=self.seed)
        if not self.architectures or not self.tasks:
            raise InvalidArgument("name at least one architecture and one task to compare.")
        self.cells()

    def cells(self) -> list[Cell]:
        """What is trained at the stated budget. **Raises** `UnknownName`."""
        rows = [(task, architecture) for task in self.tasks for architecture in self.architectures_on(task)]
        return [cell(*row, seed=seed) for row in rows for seed in range(self.seeds)]

    def architectures_on(self, task: str) -> tuple[str, ...]:
        """Return the requested architectures that have a recipe on this task; all of them where none has."""
        own = tuple(name for name in self.architectures if task in ALL_TASKS and name in architectures_of(task))
        return own or self.architectures

    def plan(self) -> Plan:
        """Return what is there and what is to be trained. **Raises** as `Kept.plan` does, for checks too."""
        self.kept.check(own.recipe for own in self._checks())
        return self.kept.plan(own.recipe for own in self.cells())

    def run(self) -> ComparisonReport:
        """Score every cell at the stated budget, and the checks that exist."""
        plan, wanted = self.plan(), self.cells()
        missing = [own.name for own in wanted if own.recipe in plan.missing]
        cells = [own for own in wanted if own.name not in missing]
        cells += [own for own in self._checks() if self.kept.has(own.recipe)]
        recipes = [own.recipe for own in cells]
        scores = scores_of(recipes, self.kept, n=self.n, seed=self.seed)
        return comparison_report(cells, scores, seed=self.seed, missing=missing)

    def diagnosis(self, report: ComparisonReport) -> Diagnosis:
        """The report with its provenance, ready to be saved."""
        named = {"name": ", ".join(self.architectures), "architecture": "several"}
        where = provenance(named, ", ".join(self.tasks), {"seeds": self.seeds, "n": self.n, "seed": self.seed})
        weights = dict(zip(report.checkpoints, report.weights_hashes, strict=True))
        return Diagnosis.of(report, where | {"weights": weights})

    def _checks(self) -> list[Cell]:
        """Second seeds with twice the budget: they are no seeds at equal budget, and none is trained."""
        rows = [(task, architecture) for task in self.tasks for architecture in self.architectures_on(task)]
        return [cell(*row, seed=1, is_check=True) for row in rows]


def _names(asked: str | Sequence[str]) -> tuple[str, ...]:
    return (asked,) if isinstance(asked, str) else tuple(dict.fromkeys(asked))
