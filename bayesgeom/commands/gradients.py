"""`bayesgeom gradients`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, final

from bayesgeom.commands.base import Command, Of, TaskOption, check_target, conclude_report
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.results.tables import counted


@final
@dataclass(frozen=True)
class Gradients(Command):
    """Measure the loss gradients at each head, and check the laws that they obey.

    A shipped checkpoint takes 5 to 60 seconds on two CPU cores, and with --over-training as long for each snapshot.
    """

    name: ClassVar[str] = "gradients"
    order: ClassVar[int] = 80

    source: Of
    task: TaskOption = None
    targets: Literal["sampled", "exact"] = "sampled"
    """The loss: hard labels, or the exact predictive as soft labels."""
    over_training: bool = False
    """CHECKPOINT is the directory of a training run or the name of a packed training: measure every snapshot, on the
    run's own task."""
    n: int | None = None
    """Sequences to draw. Default: 64, or 32 per snapshot with --over-training."""
    seed: int = 0
    """Seed of sequences and intervals."""
    out: Path | None = None
    """Directory for the report. Default: the report is not saved."""

    def __call__(self) -> int:
        check_target(self.out)
        return self._over_training() if self.over_training else self._of_checkpoint()

    def _of_checkpoint(self) -> int:
        from bayesgeom.gradients.run import gradient_laws

        n = 64 if self.n is None else self.n
        report = gradient_laws(self.source.load(), self.task, targets=self.targets, n=n, seed=self.seed)
        return conclude_report(report, self.out, f"\n{counted(report.n, 'sequence')}, {report.targets} targets")

    def _over_training(self) -> int:
        from bayesgeom.gradients.run_movement import gradient_movement

        if self.task is not None:
            raise InvalidArgument(
                "--task is not allowed with --over-training: snapshots are measured on their own task."
            )
        source = self.source
        options = {"dtype": source.dtype, "device_map": source.device_map, "revision": source.revision}
        if given := [name for name, value in options.items() if value is not None]:
            raise InvalidArgument(
                f"{', '.join(given)} is for Hugging Face models; the snapshots of a training are bayesgeom's own."
            )
        report = gradient_movement(
            self.source.checkpoint,
            targets=self.targets,
            n=32 if self.n is None else self.n,
            seed=self.seed,
            device=self.source.device,
        )
        return conclude_report(report, self.out, f"\n{counted(report.n, 'sequence')}, {report.targets} targets")
