"""`bayesgeom swap-shares`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, final

import tyro

from bayesgeom.commands.base import Command, check_target, conclude_report

Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]


@final
@dataclass(frozen=True)
class SwapShares(Command):
    """Compare how far swaps move the answer with the share of the difference exchanged.

    It reads saved interventions of several networks, and takes seconds.
    """

    name: ClassVar[str] = "swap-shares"
    order: ClassVar[int] = 41

    folder: Folder
    """A folder with a folder for each network, which holds the saved interventions."""
    subspace: str = "frame"
    """Name of the intervention's folder in each of them."""
    out: Path | None = None
    """Directory for the report. Default: the report is not saved."""

    def __call__(self) -> int:
        from bayesgeom.interventions.shares import swap_shares

        check_target(self.out)
        report = swap_shares(self.folder, self.subspace)
        return conclude_report(report, self.out)
