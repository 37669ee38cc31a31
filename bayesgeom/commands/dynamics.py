"""`bayesgeom dynamics`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, final

import tyro

from bayesgeom.commands.base import HERE, Command, On, check_target, conclude

Runs = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN|CHECKPOINTS…")]


@final
@dataclass(frozen=True)
class Dynamics(Command):
    """Follow the geometry over a training's snapshots: what settles first, by how much, does anything fall again."""

    name: ClassVar[str] = "dynamics"

    runs: Runs = ()
    """Directories of runs, or names of packed trainings, one per seed; or the checkpoints of a single training."""
    n: int = 256
    """Sequences that every snapshot is measured on."""
    seed: int = 0
    """Seed of trials and intervals."""
    maps_at: tuple[int, ...] = ()
    """Steps whose attention is drawn. Default: four, from first to last."""
    device: str = "cpu"
    """Where to run: cpu, cuda, cuda:1, …"""
    from_report: Path | None = None
    """A saved report instead of runs: decide the order again from the curves that it stores; nothing is measured."""
    out: Path | None = None
    """Directory for the report; of a run without a directory of its own, a stopped analysis goes on from there."""
    machines: On = HERE

    def __call__(self) -> int:
        from bayesgeom.core.errors import InvalidArgument
        from bayesgeom.dynamics.again import decided_again
        from bayesgeom.dynamics.report import DynamicsReport
        from bayesgeom.dynamics.run import training_dynamics
        from bayesgeom.dynamics.settling_report import SettlingReport

        check_target(self.out)
        if self.from_report is not None and self.runs:
            raise InvalidArgument(f"name runs or --from-report, not both; got {', '.join(self.runs)}.")
        if self.from_report is not None:
            diagnosis = decided_again(self.from_report)
        else:
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
        report, settled = diagnosis[DynamicsReport], diagnosis[SettlingReport]
        title = f"{diagnosis.title}, {len(report.runs)} training(s), {report.n} sequences"
        tables = f"{title}\n\n{report.table()}\n\n{settled.table()}\n"
        headlines = [*settled.headlines(), *report.headlines()]
        missing = [f"not measured: {what}: {reason}" for what, reason in diagnosis.skipped.items()]
        return conclude(diagnosis, self.out, tables, *map(str, headlines), *missing)
