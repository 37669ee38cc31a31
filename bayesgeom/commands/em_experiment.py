"""`bayesgeom em-experiment`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from bayesgeom.commands.base import Command, check_target, conclude_report


@final
@dataclass(frozen=True)
class EMExperiment(Command):
    """Train one attention head with the EM-like schedule and with controls.

    The head is trained on a sticky chain; the report compares the speeds. Takes about five minutes on two CPU cores
    with five seeds.
    """

    name: ClassVar[str] = "em-experiment"
    order: ClassVar[int] = 190

    seeds: int = 5
    """How many of the paper's seeds (42, 2024, 1337, 7777, 9999): 2 to 5."""
    steps: int = 1_000
    """Full-batch training steps."""
    length: int = 2_000
    """Symbols per sequence."""
    out: Path | None = None
    """Directory for the report. Default: the report is not saved."""

    def __call__(self) -> int:
        from bayesgeom.experiments.em.run import em_experiment

        check_target(self.out)
        report = em_experiment(seeds=self.seeds, steps=self.steps, length=self.length)
        return conclude_report(report, self.out)
