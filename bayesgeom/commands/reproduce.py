"""`bayesgeom reproduce`."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import tyro

from bayesgeom.commands.base import HERE, Command, On, tell
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.files import RUNS
from bayesgeom.results.tables import counted

if TYPE_CHECKING:
    from bayesgeom.claims.claim import Claim
    from bayesgeom.executors import Batch

Ids = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ID …")]


@final
@dataclass(frozen=True)
class Reproduce(Command):
    """Measure a claim of the literature again, and compare with the recorded numbers.

    Values, ends of intervals, baselines and the verdict are compared. Most claims take under a minute of one CPU core.
    1 to 10 minutes: A3, A5, C1 to C4, C7, D3, H4, H5, L1 to L8, P1 to P3, Y2. 11 to 60 minutes: A1, A2, A4, G8, H3,
    H7, H8, J1 to J3, J5. Two hours: J6. `--all` prints the time of each, without running any.
    """

    name: ClassVar[str] = "reproduce"
    order: ClassVar[int] = 180

    ids: Ids = ()
    """Ids of claims, such as B1 or G3. Required without --all."""
    all: bool = False
    """Print the table of all claims with their verdicts. With --run: reproduce all of them."""
    run: bool = False
    """With --all: run every claim's commands. Takes hours."""
    out: Path | None = None
    """Directory for the reports, a folder per claim: one folder per run, and the comparison in `reproduction`. Default:
    the reports are not saved."""
    runs: Path = RUNS
    """Folder of trainings, searched for checkpoints that are not shipped."""
    machines: On = HERE
    record: bool = False
    """For maintainers: write the measured numbers into the package, including newly defined ones. Missing reports are
    created under docs/."""
    fresh: bool = False
    """With --record: recompute the reports instead of reading the existing ones."""
    write_docs: bool = False
    """For maintainers: write the generated parts of README.md and docs/claims.md."""

    def __call__(self) -> int:
        from bayesgeom.claims.loading import find, load
        from bayesgeom.claims.pages import overview, write
        from bayesgeom.results.tables import aligned

        if not (self.ids or self.all or self.write_docs):
            raise InvalidArgument("name a claim, such as B1, or pass --all for the table of all claims.")
        chosen = [find(claim_id) for claim_id in self.ids] or (list(load().values()) if self.all else [])
        status = 0
        if self.record:
            self._record(chosen)
        elif self.ids or self.run:
            with self.machines.executor() as executor:
                status = self._reproduce(chosen, executor)
        elif self.all:
            tell("\n".join(aligned(overview(chosen))))
        if self.write_docs:
            for path in write(Path()):
                tell(f"written: {path}")
        return status

    def _reproduce(self, claims: "Iterable[Claim]", executor: "Batch | None") -> int:
        """Run each claim. A claim that cannot be run is reported; if it was named in `ids`, it is an error."""
        from bayesgeom.claims.reproduction import reproduce
        from bayesgeom.core.errors import BayesGeomError

        are_same = True
        for claim in claims:
            tell(f"{claim.id}: {claim.claim}{claim.duration and f' About {claim.duration} of one CPU core.'}")
            try:
                out = None if self.out is None else self.out / claim.id
                again = reproduce(claim, out=out, runs=self.runs, executor=executor)
            except BayesGeomError as error:
                if self.ids:
                    raise
                tell(f"not run: {error}\n")
                continue
            if out is not None:
                again.save(out / "reproduction")
            tell(f"{again.output if not again.numbers else ''}\n{again.table()}\n")
            are_same &= again.is_reproduced
        return 0 if are_same else 1

    def _record(self, claims: "Iterable[Claim]") -> None:
        from bayesgeom.claims.recording import record
        from bayesgeom.claims.verdicts import verdict
        from bayesgeom.core.errors import BayesGeomError

        chosen = list(claims)
        reports = {Path(run.report) for claim in chosen for run in claim.runs if run.report is not None}
        stale = reports if self.fresh else set()
        for claim in chosen:
            if not claim.recordable:
                tell(f"{claim.id}: no numbers to record")
                continue
            try:
                measured = record(claim, Path(), stale=stale)
            except BayesGeomError as error:
                if self.ids:
                    raise
                tell(f"{claim.id}: not recorded: {error}")
                continue
            new = f", new: {', '.join(claim.unrecorded)}" if claim.unrecorded else ""
            tell(f"{claim.id}: {counted(len(measured.numbers), 'number')}{new}, {verdict(claim, measured.numbers)}")
