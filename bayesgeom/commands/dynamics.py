"""`bayesgeom dynamics`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, final

import tyro

from bayesgeom.commands.base import HERE, Command, On, check_target, conclude, left_out_at
from bayesgeom.results.tables import counted

Runs = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN|CHECKPOINTS…")]


@final
@dataclass(frozen=True)
class Dynamics(Command):
    """Measure the geometry over the snapshots of a training.

    A snapshot takes 1 to 30 seconds on two CPU cores, depending on the size of the model and --n. Measured snapshots
    are kept: a repeated command continues.
    """

    name: ClassVar[str] = "dynamics"
    order: ClassVar[int] = 120

    runs: Runs = ()
    """Directories of runs, or names of packed trainings, one per seed; or the checkpoints of a single training."""
    n: int = 256
    """Number of sequences on which each snapshot is measured."""
    seed: int = 0
    """Seed of sequences and intervals."""
    maps_at: tuple[int, ...] = ()
    """Steps whose attention is plotted. Default: four, from first to last."""
    device: str = "cpu"
    """Where to run: cpu, cuda, cuda:1, …"""
    out: Path | None = None
    """Directory for the report. If a training has no directory of its own, a stopped analysis continues from it.
    Default: the report is not saved."""
    machines: On = HERE

    def __call__(self) -> int:
        from bayesgeom.dynamics.report import DynamicsReport
        from bayesgeom.dynamics.run import training_dynamics

        check_target(self.out)
        with self.machines.executor() as executor:
            diagnosis = training_dynamics(
                *self.runs,
                n=self.n,
                seed=self.seed,
                device=self.device,
                maps_at=self.maps_at or None,
                out=self.out,
                executor=executor,
            )
        report = diagnosis[DynamicsReport]
        counts = f"\n{counted(len(report.runs), 'training')}, {counted(report.n, 'sequence')}"
        missing = [f"not measured: {what}: {reason}" for what, reason in diagnosis.skipped.items()]
        return conclude(diagnosis, self.out, diagnosis.summary(left_out_at(self.out)), counts, *missing)
