"""Run the commands of a claim again and compare what they give with what is recorded."""

import contextlib
import io
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from bayesgeom.checks.arguments import checked
from bayesgeom.claims.claim import Claim, Value, Verdict
from bayesgeom.claims.loading import find
from bayesgeom.claims.needs import arguments_of, check_needs
from bayesgeom.claims.reading import agree, values_of
from bayesgeom.claims.verdicts import verdict
from bayesgeom.cli import parsed
from bayesgeom.core.files import RUNS
from bayesgeom.core.numbers import number_text
from bayesgeom.results.tables import aligned


@final
@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """The numbers of a claim measured again, and whether they agree with the recorded ones.

    `agrees` holds one entry per number that has a recorded value; `output` is the text that the commands printed.
    """

    claim: Claim
    found: Mapping[str, Value]
    agrees: Mapping[str, bool]
    verdict: Verdict
    recorded_verdict: Verdict
    output: str

    @property
    def is_reproduced(self) -> bool:
        """Whether every recorded number and the verdict were reproduced."""
        return all(self.agrees.values()) and self.verdict == self.recorded_verdict

    def table(self) -> str:
        """Return recorded and reproduced numbers side by side, then the verdicts."""
        rows = [("number", "recorded", "reproduced", "agrees")]
        for name, value in self.found.items():
            number, recorded = self.claim.numbers[name], self._recorded(name)
            told = "–" if recorded is None else text(recorded, number.unit)
            rows.append((number.label, told, text(value, number.unit), self._agreement(name)))
        verdicts = f"verdict: recorded {self.recorded_verdict}, reproduced {self.verdict}"
        reason = [f"on hold: {self.claim.hold.reason}"] if self.claim.hold is not None else []
        return "\n".join([*(aligned(rows) if self.found else ["no numbers are defined yet"]), "", verdicts, *reason])

    def _recorded(self, name: str) -> Value | None:
        return None if self.claim.measured is None else self.claim.measured.numbers.get(name)

    def _agreement(self, name: str) -> str:
        return {True: "yes", False: "no", None: "–"}[self.agrees.get(name)]


@checked()
def reproduce(claim: str | Claim, *, out: str | Path | None = None, runs: str | Path = RUNS) -> Reproduction:
    """Run a claim's commands and compare their numbers with the recorded ones.

    Args:
        claim: The claim or its id.
        out: Directory for the reports, one folder per run. Default: they are not saved.
        runs: Folder of training runs, searched for checkpoints that are not shipped.

    Returns:
        Recorded and reproduced numbers, and the verdicts that follow from them.

    Raises:
        UnknownName: If there is no claim with this id.
        CheckpointFault: If a checkpoint is absent; the message states how to make it and how long that takes.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.reproduce("Z9")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        bayesgeom.core.errors.UnknownName: there is no claim named 'Z9'.
    """
    own = find(claim) if isinstance(claim, str) else claim
    check_needs(own, Path(runs))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if out is None else Path(out)
        output, found = io.StringIO(), {}
        for run in own.runs:
            with contextlib.redirect_stdout(output):
                parsed([*arguments_of(run, Path(runs)), "--out", str(folder / run.name)])()
            found.update(values_of(run, folder / run.name))
    return compared(own, found, output.getvalue())


def compared(claim: Claim, found: Mapping[str, Value], output: str = "") -> Reproduction:
    """Compare reproduced numbers with the recorded ones."""
    agrees = {}
    if claim.measured is not None:
        is_same = claim.measured.machine == machine()
        for name, value in found.items():
            number, recorded = claim.numbers[name], claim.measured.numbers.get(name)
            if recorded is not None:
                agrees[name] = agree(value, recorded, number.tolerance, is_same_machine=is_same)
    return Reproduction(
        claim=claim,
        found=found,
        agrees=agrees,
        verdict=verdict(claim, found or None),
        recorded_verdict=verdict(claim),
        output=output,
    )


def machine() -> str:
    """Return the type of this machine, which determines the rounding of the numbers."""
    import torch

    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def text(value: Value, unit: str = "") -> str:
    """Return a number with its interval and unit."""
    told = short(value.value)
    if value.lo == value.lo and (value.lo, value.hi) != (value.value, value.value):
        told += f" [{short(value.lo)}, {short(value.hi)}]"
    return f"{told} {unit}".strip()


def short(number: float) -> str:
    """Return a number as all tables print it; small ones as a power of ten, because records are compared."""
    return number_text(number, is_exact=True)
