"""`bayesgeom sinks`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from bayesgeom.commands.base import Command, Of, TaskOption, check_target, conclude


@final
@dataclass(frozen=True)
class Sinks(Command):
    """Measure the attention sink of a checkpoint, with untrained networks as a baseline."""

    name: ClassVar[str] = "sinks"

    source: Of
    task: TaskOption = None
    n: int = 128
    """Number of sequences."""
    seed: int = 0
    """Seed of the sequences."""
    out: Path | None = None
    """Directory for the report."""

    def __call__(self) -> int:
        from bayesgeom.diagnosis.run import diagnose

        check_target(self.out)
        diagnosis = diagnose(self.source.load(), self.task, probes=["attention_sink"], n=self.n, seed=self.seed)
        return conclude(diagnosis, self.out, diagnosis.summary())
