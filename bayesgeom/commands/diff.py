"""`bayesgeom diff`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, final

import tyro

from bayesgeom.commands.base import Command, TaskOption, check_target, conclude

Side = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT-OR-REPORT")]


@final
@dataclass(frozen=True)
class Diff(Command):
    """Compare two checkpoints on the same sequences, or two saved diagnoses.

    Every difference has an interval. With the default --n, two shipped checkpoints take about half a minute on two CPU
    cores. Time grows with n.
    """

    name: ClassVar[str] = "diff"
    order: ClassVar[int] = 90

    a: Side
    """A checkpoint, or the directory of a saved diagnosis. Intervals are paired over sequences; between diagnoses, only
    those of calibration are, and all others are conservative (wider)."""
    b: Side
    """Another of the same kind; differences are B − A."""
    task: TaskOption = None
    n: int | None = None
    """Number of sequences for checkpoints. Default: 512."""
    seed: int | None = None
    """Seed of the sequences and intervals, for checkpoints. Default: 0."""
    out: Path | None = None
    """Directory for the report. Default: the report is not saved."""

    def __call__(self) -> int:
        from bayesgeom.comparison.difference import diff
        from bayesgeom.results.diagnosis import Diagnosis

        check_target(self.out)
        report = diff(self.a, self.b, self.task, n=self.n, seed=self.seed)
        return conclude(Diagnosis.of(report), self.out, f"{report.conclusion()}\n\n{report.table()}")
