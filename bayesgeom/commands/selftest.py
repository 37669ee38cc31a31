"""`bayesgeom selftest`."""

from dataclasses import dataclass
from typing import ClassVar, final

from bayesgeom.commands.base import Command


@final
@dataclass(frozen=True)
class Selftest(Command):
    """Run every probe against planted data with known answers."""

    name: ClassVar[str] = "selftest"

    def __call__(self) -> int:
        from bayesgeom.selftest import selftest

        verdicts = selftest()
        for verdict in verdicts:
            print(f"{'ok    ' if verdict.held else 'FAILED'}  {verdict.probe}: {verdict.control}")
        failed = sum(not verdict.held for verdict in verdicts)
        print(f"\n{len(verdicts) - failed} controls hold, {failed} do not")
        return int(failed > 0)
