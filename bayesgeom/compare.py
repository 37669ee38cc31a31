"""`compare`: train what is missing, load what exists, and set every architecture beside the exact posterior."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from bayesgeom.comparison.cell import Cell, CellScores, cell, score
from bayesgeom.comparison.report import ComparisonReport, comparison_report
from bayesgeom.diagnosis import Diagnosis
from bayesgeom.errors import InvalidArgument, UnknownName
from bayesgeom.models.checkpoint import versions
from bayesgeom.training.compared import ARCHITECTURES, TASKS
from bayesgeom.training.kept import Kept

RUNS = Path("runs/compare")
N_SCORED = 2_000


def compare(
    architectures: Sequence[str] = ARCHITECTURES,
    tasks: Sequence[str] = tuple(TASKS),
    *,
    seeds: int = 1,
    n: int = N_SCORED,
    seed: int = 0,
    runs: Path = RUNS,
    is_trained: bool = True,
) -> ComparisonReport:
    """How far each architecture gets on each task: KL, entropy error, share of the gap closed, and a verdict.

    Models are taken from the named checkpoints, or from `runs`; what is in neither is trained there, for hours, and a
    training that was stopped goes on. Where `is_trained` is false, what is missing is left out and named as missing.
    `seeds` is how many trainings of each; `n` sequences score each model. A cell whose verdict differs from the one
    published is trained once more, with another seed and twice the budget.

    **Raises** `UnknownName` for tasks and architectures that are not compared, and where nothing may be trained and
    nothing is there; `InvalidArgument` for fewer than one seed; `CheckpointFault` where a checkpoint of
    that name was made by another recipe.
    """
    job = ComparisonJob(
        architectures=tuple(architectures), tasks=tuple(tasks), seeds=seeds, n=n, seed=seed, runs=runs,
        is_trained=is_trained,
    )  # fmt: skip
    return job.run()


@final
@dataclass(frozen=True, kw_only=True)
class ComparisonJob:
    """A checked comparison, ready to run. One model is in memory at a time."""

    architectures: tuple[str, ...]
    tasks: tuple[str, ...]
    seeds: int
    n: int
    seed: int
    runs: Path
    is_trained: bool

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.n < 2:
            raise InvalidArgument(f"seeds is at least 1 and n at least 2, got {self.seeds} and {self.n}.")
        if not self.architectures or not self.tasks:
            raise InvalidArgument("name at least one architecture and one task to compare.")
        self.cells()

    @property
    def _kept(self) -> Kept:
        return Kept(runs=self.runs, is_trained=self.is_trained)

    def cells(self) -> list[Cell]:
        """What is trained at the stated budget. **Raises** `UnknownName`."""
        rows = [(task, architecture) for task in self.tasks for architecture in self.architectures]
        return [cell(*row, seed=seed) for row in rows for seed in range(self.seeds)]

    def run(self) -> ComparisonReport:
        """Every cell, then a check of each that differs from what was published."""
        wanted = self.cells()
        cells = [own for own in wanted if self.is_trained or self._kept.has(own.recipe)]
        missing = [own.name for own in wanted if own not in cells]
        if not cells:
            raise UnknownName(
                f"none of {', '.join(missing)} is there, neither shipped nor in {self.runs}: leave out "
                f"--only-existing to have them trained, or compare others."
            )
        scores = [self._scored(own) for own in cells]
        first = comparison_report(cells, scores, seed=self.seed, missing=missing)
        differing = {
            (own.task, own.architecture)
            for own, standing in zip(cells, first.standings, strict=True)
            if standing.startswith("differs")
        }
        checks = [cell(*row, seed=1, is_check=True) for row in sorted(differing)]
        checks = [own for own in checks if self.is_trained or self._kept.has(own.recipe)]
        if not checks:
            return first
        return comparison_report(
            [*cells, *checks], [*scores, *(self._scored(own) for own in checks)], seed=self.seed, missing=missing
        )

    def diagnosis(self, report: ComparisonReport) -> Diagnosis:
        """The report with its provenance, ready to be saved."""
        named: Mapping[str, str] = {"name": ", ".join(self.architectures), "architecture": "several"}
        models = dict(zip(report.checkpoints, report.weights_hashes, strict=True))
        return Diagnosis(
            reports={report.name: report},
            skipped={},
            provenance={
                "model": named,
                "task_label": ", ".join(self.tasks),
                "arguments": {"seeds": self.seeds, "n": self.n, "seed": self.seed},
                "weights": models,
                "versions": versions(),
            },
        )

    def _scored(self, own: Cell) -> CellScores:
        return score(self._kept.model(own.recipe), own.recipe.task, n=self.n, seed=self.seed)
