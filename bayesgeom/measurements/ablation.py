"""`ablate`: run a battery of ablations on new sequences and report the KL increase of each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar, final

from bayesgeom.ablations._tally import Tally
from bayesgeom.ablations.batteries import Ablation, check_battery
from bayesgeom.ablations.report import AblationReport
from bayesgeom.ablations.run import BatteryRun, block_at
from bayesgeom.core import Ask, InvalidArgument, Mode, checked, phase
from bayesgeom.executors import Batch, Executor, Job, job_arguments, name_of
from bayesgeom.measurements.base import Control, Measurement, Needs, Subject
from bayesgeom.measurements.inside import N_SHOWN, Inside, InsideReport
from bayesgeom.measurements.running import first_run, further_runs
from bayesgeom.models.resolve import ModelLike, TaskLike, model_for, scored_task_of
from bayesgeom.report.report import with_provenance


@checked("model", "task")
def ablate(
    model: ModelLike,
    task: TaskLike | None = None,
    battery: str | Sequence[Ablation] = "all",
    *,
    mode: Mode = "mean",
    n: int = 512,
    seed: int = 0,
    out: str | Path | None = None,
    executor: Executor | Batch | None = None,
) -> AblationReport:
    """Measure the KL increase of each ablation of a battery, in bits of KL to the exact posterior.

    Args:
        model: A model, its name or its directory.
        task: A task or its name; by default the one that the model was trained on.
        battery: A name as on the command line ("heads", "attention", "mlps", "layers", "pairs", "all": the first four,
            each component alone; "neurons": the 64 with the largest estimates; "experts"), or a list of ablations.
        mode: "zero"; "mean", the task's mean at each position; "resample", the same position of another
            sequence; or a mode of another package.
        n: Sequences to draw.
        seed: Seed of the sequences, means and intervals.
        out: Directory where progress is saved after every block, so that an interrupted battery continues, and where
            the finished report is saved in its place, with the viewer on its page.
        executor: Where blocks of sequences are measured, a job each (see `bayesgeom.executors`); model and battery are
            then given by their names, and progress is in the jobs' results. Default: this process.

    Returns:
        The KL increase of every ablation, with paired intervals over sequences.

    Raises:
        InvalidArgument: n < 1, a layer or head that does not exist, or resampling with one sequence.
        UnknownName: There is no battery of this name.
        HookFault: No ablation of the battery changed anything.
        OutputFault: `out` holds the progress of another battery, or cannot be written.
        ExecutorFault: A job failed; the others' results are kept.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> module = config.build(seed=0)
        >>> bayesgeom.ablate(module, task, n=8).kl_increase_bits.value.shape
        (4,)
    """
    sent = None if executor is None else (Batch.of(executor), name_of(model))
    check_battery(battery, mode)
    subject, folder = model_for(model, task), None if out is None else Path(out)
    chosen = scored_task_of(subject, task)
    run = BatteryRun.of(subject, chosen, battery, mode=mode, n=n, seed=seed)
    if sent is None:
        return run.exact(folder, _viewed)
    if not isinstance(battery, str):
        raise InvalidArgument(
            f"executor= requires a battery's name, which workers find (heads, layers, all, …); got a list of "
            f"{len(battery)} ablations. Pass a name, or omit executor=."
        )
    batch, name = sent
    shared = job_arguments(name, subject.spec, chosen, battery=battery, mode=mode, n=n, seed=seed)
    return run.reported(_joined(batch, run, shared), folder, _viewed)


def _joined(batch: Batch, run: BatteryRun, shared: Mapping[str, Any]) -> Tally:
    """Return the sums of all blocks, each measured by a job."""
    jobs = [
        Job(name=f"{shared['battery']} block {block}", function=block_at, arguments={**shared, "block": block})
        for block, _ in enumerate(run.blocks())
    ]
    parts = batch.results(jobs, desc="blocks")
    whole = Tally.empty(run.n, len(run.battery), parts[0][1].profile.shape[-1])
    return reduce(lambda tally, part: tally.joined(*part), parts, whole)


def _viewed(run: BatteryRun) -> InsideReport:
    """Return what the viewer shows of the first sequences; every head is ablated if the battery has heads."""
    has_heads = any(component.kind == "head" for each in run.battery for component in each.components)
    first = first_run(run.model, run.task, n=min(N_SHOWN, run.n), seed=run.seed)
    shown = Inside(with_heads=has_heads, mode=run.mode).prepared(run.model, run.task, n=run.n, seed=run.seed)
    further = further_runs(run.model, shown, run.task, first, seed=run.seed)
    with phase("data of the viewer"):
        report = shown.of(Subject(run=first, task=run.task, seed=run.seed, further=further, model=run.model))
    return with_provenance(report, run.provenance("exact"))


@final
@dataclass(frozen=True, kw_only=True)
class AblationBattery(Measurement[AblationReport]):
    """The default battery on the sequences of a diagnosis."""

    name: ClassVar[str] = AblationReport.name
    needs: ClassVar[Needs] = Needs(posterior=True)
    asks: ClassVar[frozenset[Ask]] = frozenset({Ask.EDIT})
    is_default: ClassVar[bool] = False

    def of(self, subject: Subject, untrained: Sequence[AblationReport] = ()) -> AblationReport:
        return BatteryRun.of(subject.edited(), subject.known_task(), "all", n=subject.run.n, seed=subject.seed).exact()

    def controls(self) -> Iterator[Control[AblationReport]]:
        return iter(())  # its planted networks are in the selftest: an ablation needs a network
