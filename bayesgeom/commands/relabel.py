"""`bayesgeom relabel`."""

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from bayesgeom.commands.base import Command, Of, TaskOption, check_target, conclude
from bayesgeom.core.text import number_text
from bayesgeom.results.tables import counted


@final
@dataclass(frozen=True)
class Relabel(Command):
    """Test invariance to renaming the hypotheses.

    Hypotheses are the values of a map, or the hidden states of an HMM. A shipped checkpoint takes 5 to 30 seconds on
    two CPU cores with --n 512.
    """

    name: ClassVar[str] = "relabel"
    order: ClassVar[int] = 60

    source: Of
    task: TaskOption = None
    n: int = 512
    """Sequences to draw."""
    seed: int = 0
    """Seed of sequences, names and intervals."""
    out: Path | None = None
    """Directory for the report. Default: the report is not saved."""

    def __call__(self) -> int:
        from bayesgeom.generalization.relabeling import relabeling_invariance
        from bayesgeom.results.diagnosis import Diagnosis

        check_target(self.out)
        report = relabeling_invariance(self.source.load(), self.task, n=self.n, seed=self.seed)
        diagnosis = Diagnosis.of(report)
        before, after, bound = (
            number_text(own) for own in (report.kl_before_bits, report.kl_after_bits, report.bound_bits)
        )
        levels = (
            f"\nKL before {before}, after {after} bits; bound {bound} bits; correlation over "
            f"{counted(report.n, 'sequence')} {number_text(report.sequence_correlation)}\n"
        )
        return conclude(diagnosis, self.out, str(report), levels, textwrap.fill(report.rule, 100))
