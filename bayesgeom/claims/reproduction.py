"""Run the commands of a claim again and compare what they give with what is recorded."""

import contextlib
import io
import platform
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesgeom.claims.claim import Claim, Run, Value
from bayesgeom.claims.loading import find
from bayesgeom.claims.needs import arguments_of, check_needs, runnable, ways_to
from bayesgeom.claims.reading import differing, provenance_of, values_of
from bayesgeom.claims.reproduction_report import ReproductionReport, reproduction_report
from bayesgeom.claims.verdicts import verdict
from bayesgeom.core.arguments import checked
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.files import RUNS
from bayesgeom.engines.executor import Batch, Executor, Job, path_of
from bayesgeom.results.report import with_provenance


@checked()
def reproduce(
    claim: str | Claim,
    *,
    out: str | Path | None = None,
    runs: str | Path = RUNS,
    executor: Executor | Batch | None = None,
) -> ReproductionReport:
    """Run a claim's commands and compare their numbers with the recorded ones.

    Only commands from which the claim reads numbers are run, and of these only the ones whose checkpoints exist, unless
    they have a committed report. `not_run` of the report lists the others. If the claim reads no number yet, all are
    run, and `output` holds what they printed.

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
        InvalidArgument: The claim has no command yet; the message states what is missing.
        CheckpointFault: If a checkpoint is absent; the message states how to make it and how long that takes.
        ExecutorFault: A job failed; the others' results are kept.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.reproduce("Z9")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        bayesgeom.core.errors.UnknownName: there is no claim named 'Z9'.
    """
    own = find(claim) if isinstance(claim, str) else claim
    if not own.runs:
        missing = f" {own.hold.reason}" if own.hold else ""
        raise InvalidArgument(f"{own.id} cannot be run, because it has no command yet.{missing}")
    check_needs(own, Path(runs))
    if executor is not None:
        return _sent(own, Batch.of(executor), out, Path(runs))
    chosen = runnable(own, Path(runs))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if out is None else Path(out)
        output = io.StringIO()
        for run in chosen:
            with contextlib.redirect_stdout(output):
                _command(run, folder, Path(runs))
        return _read(own, chosen, folder, output.getvalue(), Path(runs))


def _read(claim: Claim, chosen: Sequence[Run], folder: Path, output: str, runs: Path) -> ReproductionReport:
    """The report from what the commands saved in the folder; `runs` is where they looked for trainings."""
    found: dict[str, Value] = {}
    for run in chosen:
        found.update(values_of(run, folder / run.name))
    sources = [provenance_of(folder / run.name) for run in chosen]
    source = _source(sources)
    if source:
        source |= {"claim": claim.id, "commands": [run.command for run in chosen]}
    return with_provenance(compared(claim, found, output, chosen=chosen, runs=runs), source)


def _source(sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The provenance of the first report, with the models, weights and tasks of all."""
    if not sources:
        return {}
    models = {str(own["model"].get("name", "")): own["model"] for own in sources}
    several = {"name": ", ".join(models), "architecture": "several"}
    weights = {name: str(model.get("weights_hash") or "") for name, model in models.items()}
    tasks = dict.fromkeys(str(own["task_label"]) for own in sources)
    return {
        **sources[0],
        "model": several if len(models) > 1 else sources[0]["model"],
        "weights": {name: value for name, value in weights.items() if value},
        "task_label": "; ".join(tasks),
    }


def _sent(claim: Claim, batch: Batch, out: str | Path | None, runs: Path) -> ReproductionReport:
    """The claim, a job for each of its commands."""
    folder = (batch.folder / "claims" / claim.id if out is None else Path(out)).resolve()
    shared = {"claim": claim.id, "out": str(folder), "runs": str(runs.resolve())}
    chosen = runnable(claim, runs)
    jobs = [
        Job(
            name=f"{claim.id} {run.name}",
            function=path_of(run_at),
            arguments={**shared, "run": run.name, "command": run.command},
        )
        for run in chosen
    ]
    return _read(claim, chosen, folder, "".join(batch.results(jobs, desc=claim.id)), runs)


def run_at(*, claim: str, run: str, command: str, out: str, runs: str) -> str:
    """Do the job of one command of a claim, and return what it printed."""
    chosen = next((own for own in find(claim).runs if (own.name, own.command) == (run, command)), None)
    if chosen is None:
        raise InvalidArgument(
            f"claim {claim} has no run {run!r} with the command {command!r} on this worker. Install the driver's "
            f"version of bayesgeom there."
        )
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        _command(chosen, Path(out), Path(runs))
    return output.getvalue()


def _command(run: Run, folder: Path, runs: Path) -> None:
    """Run one command of a claim; its report is written into its own folder."""
    from bayesgeom.cli import parsed

    parsed([*arguments_of(run, runs), "--out", str(folder / run.name)])()


def compared(
    claim: Claim,
    found: Mapping[str, Value],
    output: str = "",
    *,
    chosen: Sequence[Run] | None = None,
    runs: Path = RUNS,
) -> ReproductionReport:
    """Compare reproduced numbers with the recorded ones; `chosen` are the runs that were made (default: `decisive`).

    The others are listed as left out, with the way to make the checkpoints that `runs` lacks.
    """
    differs = {}
    if claim.measured is not None:
        is_same = claim.measured.machine == machine()
        for name, value in found.items():
            number, recorded = claim.numbers[name], claim.measured.numbers.get(name)
            if recorded is not None:
                differs[name] = differing(value, recorded, number.tolerance, is_same_machine=is_same)
    verdicts = verdict(claim, found or None), verdict(claim)
    left_out = [
        f"{run.command} ({ways_to(run, runs) or 'the claim reads no number from it'})"
        for run in claim.runs
        if run not in (claim.decisive if chosen is None else chosen)
    ]
    return reproduction_report(claim, found, differs, verdicts=verdicts, not_run=left_out, output=output)


def machine() -> str:
    """Return the type of this machine, which determines the rounding of the numbers."""
    import torch

    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
