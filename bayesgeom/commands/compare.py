"""`bayesgeom compare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, final

import tyro

from bayesgeom.commands.base import Command, TaskOption, check_target, conclude

Sides = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT-OR-REPORT …")]


@final
@dataclass(frozen=True)
class Compare(Command):
    """Compare checkpoints on the same sequences, or saved diagnoses.

    With the default --n, two shipped checkpoints take about 30 seconds on two CPU cores. Time grows with n.
    """

    name: ClassVar[str] = "compare"
    order: ClassVar[int] = 90

    models: Sides = ()
    """Checkpoints, or directories of saved diagnoses: two or more. Required."""
    task: TaskOption = None
    n: int | None = None
    """Number of sequences for checkpoints. Default: 512."""
    seed: int | None = None
    """Seed of the sequences and intervals, for checkpoints. Default: 0."""
    out: Path | None = None
    """Directory for the report. Default: the report is not saved."""

    def __call__(self) -> int:
        from bayesgeom.generalization.comparison import compare
        from bayesgeom.results.diagnosis import Diagnosis

        check_target(self.out)
        report = compare(self.models, self.task, n=self.n, seed=self.seed)
        return conclude(Diagnosis.of(report), self.out, report.table())
