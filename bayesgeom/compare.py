"""`compare`: train what is missing, load what exists, and set every architecture beside the exact posterior."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from bayesgeom.comparison.cell import Cell, cell
from bayesgeom.comparison.report import ComparisonReport, comparison_report
from bayesgeom.comparison.verdict import PUBLISHED
from bayesgeom.diagnosis import Diagnosis, provenance
from bayesgeom.errors import InvalidArgument
from bayesgeom.files import RUNS
from bayesgeom.training.compared import ARCHITECTURES, TASKS
from bayesgeom.training.kept import Kept, Plan
from bayesgeom.training.scores import N_SCORED, Scores, check_counts, scores_of


def compare(
    architectures: str | Sequence[str] = ARCHITECTURES,
    tasks: str | Sequence[str] = tuple(TASKS),
    *,
    seeds: int = 1,
    n: int = N_SCORED,
    seed: int = 0,
    runs: str | Path = RUNS,
    is_trained: bool = True,
) -> ComparisonReport:
    """How far each architecture gets on each task: KL, entropy error, share of the gap closed, and a verdict.

    Models are taken from the named checkpoints, or from `runs`; what is in neither is trained there, for hours, and a
    training that was stopped goes on. Where `is_trained` is false, what is missing is left out and named as missing.
    `seeds` is how many trainings of each; `n` sequences score each model. A cell whose verdict differs from the one
    published is trained once more, with another seed and twice the budget. One name may stand for a list of one.

    **Raises** `UnknownName` for tasks and architectures that are not compared, and where nothing may be trained and
    nothing is there; `InvalidArgument` for fewer than one seed; `CheckpointFault`, before anything is trained, where a
    checkpoint or a run of such a name was made by another recipe.
    """
    return ComparisonJob.of(
        architectures, tasks, seeds=seeds, n=n, seed=seed, kept=Kept(runs=Path(runs), is_trained=is_trained)
    ).run()


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
        rows = [(task, architecture) for task in self.tasks for architecture in self.architectures]
        return [cell(*row, seed=seed) for row in rows for seed in range(self.seeds)]

    def plan(self) -> Plan:
        """What is there and what is to be trained, checks aside. **Raises** as `Kept.plan` does, for checks too."""
        wanted = self.cells()
        self.kept.check(_check_of(own).recipe for own in wanted if own.architecture in PUBLISHED.get(own.task, {}))
        return self.kept.plan(own.recipe for own in wanted)

    def run(self) -> ComparisonReport:
        """Every cell, then a check of each that differs from what was published."""
        plan, wanted = self.plan(), self.cells()
        missing = [own.name for own in wanted if own.recipe in plan.missing]
        cells = [own for own in wanted if own.name not in missing]
        scores = self._scores(cells)
        first = comparison_report(cells, scores, seed=self.seed, missing=missing)
        differing = {
            (own.task, own.architecture): _check_of(own)
            for own, standing in zip(cells, first.standings, strict=True)
            if standing.startswith("differs")
        }
        checks = [own for own in differing.values() if self.kept.is_trained or self.kept.has(own.recipe)]
        if not checks:
            return first
        scores += self._scores(checks)
        return comparison_report([*cells, *checks], scores, seed=self.seed, missing=missing)

    def diagnosis(self, report: ComparisonReport) -> Diagnosis:
        """The report with its provenance, ready to be saved."""
        named = {"name": ", ".join(self.architectures), "architecture": "several"}
        where = provenance(named, ", ".join(self.tasks), {"seeds": self.seeds, "n": self.n, "seed": self.seed})
        weights = dict(zip(report.checkpoints, report.weights_hashes, strict=True))
        return Diagnosis.of(report, where | {"weights": weights})

    def _scores(self, cells: Sequence[Cell]) -> list[Scores]:
        return scores_of([own.recipe for own in cells], self.kept, n=self.n, seed=self.seed)


def _check_of(own: Cell) -> Cell:
    """The same with another seed and twice the budget."""
    return cell(own.task, own.architecture, seed=1, is_check=True)


def _names(asked: str | Sequence[str]) -> tuple[str, ...]:
    return (asked,) if isinstance(asked, str) else tuple(dict.fromkeys(asked))
