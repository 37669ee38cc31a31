"""`bayesgeom share-controls`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from bayesgeom.commands.base import Command, Of, TaskOption, check_target, conclude_report


@final
@dataclass(frozen=True)
class ShareControls(Command):
    """Compare a swap with swaps of random subspaces that exchange the same share.

    A shipped checkpoint takes about a minute on two CPU cores. Time grows with n.
    """

    name: ClassVar[str] = "share-controls"
    order: ClassVar[int] = 42

    source: Of
    subspace: str = "frame"
    """The subspace, as for `bayesgeom intervene`."""
    task: TaskOption = None
    n: int = 64
    """Number of pairs."""
    seed: int = 0
    """Seed of pairs, controls and intervals."""
    out: Path | None = None
    """Directory for the report. Default: the report is not saved."""

    def __call__(self) -> int:
        from bayesgeom.interventions.run import share_controls

        check_target(self.out)
        report = share_controls(self.source.load(), self.task, self.subspace, n=self.n, seed=self.seed)
        return conclude_report(report, self.out)
