"""`bayesgeom sweep`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, final

import tyro

from bayesgeom.commands.base import HERE, Command, On, check_target, conclude
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.results.tables import counted

Varied = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE,VALUE,…")]
TaskText = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]


@final
@dataclass(frozen=True)
class Sweep(Command):
    """Vary one parameter of a task, and measure how fast the posterior converges.

    With a checkpoint, its distance to the posterior is measured, too. Takes seconds for each value on two CPU cores,
    and about as long again with a checkpoint.
    """

    name: ClassVar[str] = "sweep"
    order: ClassVar[int] = 70

    task: TaskText
    """The task, as NAME or NAME:key=value,key=value: hmm, sticky-markov:length=40, evidence. If NAME is the
    checkpoint's own task, other parameters keep the checkpoint's values; otherwise they take their defaults."""
    vary: Varied
    """The parameter and its values: floor=0.05,0.1,0.2 or noise=0.01,0.1,0.5. Give the option once."""
    checkpoint: str | None = None
    """A checkpoint to compare with the exact posterior: a name, a directory, or owner/name on Hugging Face's hub.
    Default: only the exact posterior is measured."""
    n: int = 512
    """Sequences to draw at each value."""
    seed: int = 0
    """Seed of sequences and intervals."""
    threshold: float = 0.05
    """The posterior has converged when its mean entropy is within this many bits of its floor."""
    out: Path | None = None
    """Directory for the report. Default: the report is not saved."""
    machines: On = HERE

    def __call__(self) -> int:
        from bayesgeom.generalization.sweeps import sweep
        from bayesgeom.results.diagnosis import Diagnosis

        check_target(self.out)
        key, values = self._varied()
        with self.machines.executor() as executor:
            report = sweep(
                self.task,
                key,
                values,
                self.checkpoint,
                n=self.n,
                seed=self.seed,
                threshold_bits=self.threshold,
                executor=executor,
            )
        diagnosis = Diagnosis.of(report)
        title = f"{diagnosis.title}, {counted(report.n, 'sequence')} at each value\n\n{report.table()}"
        return conclude(diagnosis, self.out, title)

    def _varied(self) -> tuple[str, list[Any]]:
        from bayesgeom.tasks.base import literal

        if len(self.vary) != 1:
            named = ", ".join(self.vary) or "none"
            raise InvalidArgument(f"--vary must be given once, because one parameter is varied at a time; got {named}.")
        key, equals, listed = self.vary[0].partition("=")
        parts = [part.strip() for part in listed.split(",") if part.strip()]
        if not equals or not parts:
            raise InvalidArgument(f"--vary takes NAME=VALUE,VALUE, such as floor=0.05,0.1; got {self.vary[0]!r}.")
        return key.strip(), [literal(part) for part in parts]
