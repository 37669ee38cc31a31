"""`bayesgeom selftest`."""

from dataclasses import dataclass
from typing import ClassVar, final

from bayesgeom.commands.base import Command, tell


@final
@dataclass(frozen=True)
class Selftest(Command):
    """Run every probe on planted data with known answers.

    Takes about ten seconds on two CPU cores.
    """

    name: ClassVar[str] = "selftest"
    order: ClassVar[int] = 200

    def __call__(self) -> int:
        from bayesgeom.selftest.run import selftest

        verdicts = selftest()
        failed = sum(not verdict.passed for verdict in verdicts)
        tell(
            *(f"{'ok    ' if own.passed else 'FAILED'}  {own.probe}: {own.control}" for own in verdicts),
            f"\n{len(verdicts) - failed} controls hold, {failed} do not",
        )
        return int(failed > 0)
