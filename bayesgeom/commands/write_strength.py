"""`bayesgeom write-strength`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from bayesgeom.commands.base import Command, Of, TaskOption, check_target, conclude_report


@final
@dataclass(frozen=True)
class WriteStrength(Command):
    """Measure how strongly each head writes into a subspace.

    It is compared with the effect of ablating the head. A shipped checkpoint takes about half a minute on two CPU cores
    with --n 256. Time grows with n.
    """

    name: ClassVar[str] = "write-strength"
    order: ClassVar[int] = 40

    source: Of
    subspace: str = "frame"
    """The subspace, as for `bayesgeom intervene`. It is fitted at the output of each attention sublayer."""
    task: TaskOption = None
    n: int = 256
    """Number of sequences."""
    seed: int = 0
    """Seed of sequences and intervals."""
    out: Path | None = None
    """Directory for the report. Default: the report is not saved."""

    def __call__(self) -> int:
        from bayesgeom.interventions.run import write_strength

        check_target(self.out)
        report = write_strength(self.source.load(), self.task, self.subspace, n=self.n, seed=self.seed)
        return conclude_report(report, self.out)
