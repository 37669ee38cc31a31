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
from bayesgeom.claims.claim import Claim, Run, Value, Verdict
from bayesgeom.claims.loading import find
from bayesgeom.claims.needs import arguments_of, check_needs
from bayesgeom.claims.reading import agree, values_of
from bayesgeom.claims.verdicts import verdict
from bayesgeom.cli import parsed
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.files import RUNS
from bayesgeom.core.numbers import number_text
from bayesgeom.engines.executor import Batch, Executor, Job, path_of
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
def reproduce(
    claim: str | Claim,
    *,
    out: str | Path | None = None,
    runs: str | Path = RUNS,
    executor: Executor | Batch | None = None,
) -> Reproduction:
    """Run a claim's commands and compare their numbers with the recorded ones.

    Args:
        claim: The claim or its id.
        out: Directory for the reports, one folder per run. Default: they are not saved.
        runs: Folder of training runs, searched for checkpoints that are not shipped.
        executor: Where the claim's commands run, one job each (see `bayesgeom.engine`); `out`, by default a folder of
            the jobs, and `runs` are then directories that all workers see. Default: this process.

    Returns:
        Recorded and reproduced numbers, and the verdicts that follow from them.

    Raises:
        UnknownName: If there is no claim with this id.
        CheckpointFault: If a checkpoint is absent; the message states how to make it and how long that takes.
        ExecutorFault: A job failed; the others' results are kept.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.reproduce("Z9")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        bayesgeom.core.errors.UnknownName: there is no claim named 'Z9'.
    """
    own = find(claim) if isinstance(claim, str) else claim
    check_needs(own, Path(runs))
    if executor is not None:
        return _sent(own, Batch.of(executor), out, Path(runs))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if out is None else Path(out)
        output, found = io.StringIO(), {}
        for run in own.runs:
            with contextlib.redirect_stdout(output):
                _command(run, folder, Path(runs))
            found.update(values_of(run, folder / run.name))
    return compared(own, found, output.getvalue())


def _sent(claim: Claim, batch: Batch, out: str | Path | None, runs: Path) -> Reproduction:
    """The claim, a job for each of its commands."""
    folder = (batch.folder / "claims" / claim.id if out is None else Path(out)).resolve()
    shared = {"claim": claim.id, "out": str(folder), "runs": str(runs.resolve())}
    jobs = [
        Job(
            name=f"{claim.id} {run.name}",
            function=path_of(run_at),
            arguments={**shared, "run": run.name, "command": run.command},
        )
        for run in claim.runs
    ]
    output = "".join(batch.results(jobs, desc=claim.id))
    found: dict[str, Value] = {}
    for run in claim.runs:
        found.update(values_of(run, folder / run.name))
    return compared(claim, found, output)


def run_at(*, claim: str, run: str, command: str, out: str, runs: str) -> str:
    """Do the job of one command of a claim, and return what it printed."""
    chosen = next((own for own in find(claim).runs if (own.name, own.command) == (run, command)), None)
    if chosen is None:
        raise InvalidArgument(f"claim {claim} has no run {run!r} with the command {command!r} on this worker.")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        _command(chosen, Path(out), Path(runs))
    return output.getvalue()


def _command(run: Run, folder: Path, runs: Path) -> None:
    """Run one command of a claim; its report is written into its own folder."""
    parsed([*arguments_of(run, runs), "--out", str(folder / run.name)])()


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
