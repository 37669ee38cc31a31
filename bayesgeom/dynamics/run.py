"""`training_dynamics`: run the diagnostics at every snapshot of one training or of several seeds."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch

from bayesgeom.core import InvalidArgument, MissingSite, Run, TaskMismatch, checked, phase
from bayesgeom.core.parcels import read_parcel, write_parcel
from bayesgeom.core.progress import progress_in
from bayesgeom.core.torch_state import with_torch_defaults
from bayesgeom.diagnosis.plan import Named, check_probes, listed
from bayesgeom.diagnosis.run import diagnose
from bayesgeom.dynamics.measure import Bench, measured
from bayesgeom.dynamics.report import SnapshotNumbers, attention_maps, dynamics_report, film, viewed
from bayesgeom.dynamics.trainings import Snapshots, Source, TrainingRun, model_at, runs_of
from bayesgeom.executors import Batch, Executor, Job, check_same
from bayesgeom.measurements.base import Measurement, Subject
from bayesgeom.measurements.functions import function_name
from bayesgeom.models.base import Model, numerics, provenance, recording_bytes
from bayesgeom.models.resolve import check_device, of_module
from bayesgeom.report.diagnosis import Diagnosis, left_out
from bayesgeom.report.joined import join
from bayesgeom.report.report import Report
from bayesgeom.report.storage import PARTS
from bayesgeom.tasks.base import FUNCTIONS, WindTunnel, checked_seed, task_from_config

CACHE = "dynamics"  # the folder of a run for saved results of snapshots
N_LEAST = 4
_OWN = ("dynamics", "inside", "manifold_film", "attention_maps")  # names of its reports
_REFERENCES: dict[tuple[object, ...], Run] = {}  # at most one: many snapshots of one training are measured
Place = tuple[int, int, int | None]  # a training, a snapshot, and the index of a further probe
_METHOD = 13  # version of the measurements: increase it when they or their names change


@checked()
@with_torch_defaults
def training_dynamics(
    *runs: Source | Snapshots,
    n: int = 256,
    seed: int = 0,
    device: str = "cpu",
    probes: Named | Sequence[Named] | None = None,
    out: str | Path | None = None,
    executor: Executor | Batch | None = None,
) -> Diagnosis:
    """Measure every diagnostic at every snapshot of a training, on the same new sequences.

    One model is in memory at a time. Measurements are saved, in `dynamics/` of a run's directory or else in `parts/` of
    `out`: an interrupted analysis continues. With other versions or another precision of torch it starts again.

    Args:
        *runs: Directories that `bayesgeom train` wrote or names of packed trainings, one per seed; the checkpoints of
            one training; or its weights by step, `bayesgeom.dynamics.trainings.Snapshots`.
        n: Number of sequences: at least 4.
        seed: Seed of the sequences and of the intervals.
        device: Device: "cpu", "cuda", …
        probes: Further measurements of every snapshot of the first training, as in `diagnose`; each at its own cost.
        out: Directory for progress and the report, so that an interrupted analysis continues.
        executor: Where snapshots are measured, a job each (see `bayesgeom.executors`). Default: this process.

    Returns:
        Reports "dynamics", "inside" (the viewer) and, of some architectures, "manifold_film" and "attention_maps".
        Those of `probes` are joined: their estimates have a leading axis `training_step`.

    Raises:
        InvalidArgument: n is below 4, the device does not exist, there are fewer than two snapshots, they differ in
            architecture, task or recipe, two trainings have the same seed, or a sequence is too long to record two.
        UnknownName: There is no such training, or no such probe.
        CheckpointFault: A checkpoint is missing or altered.
        ExecutorFault: A job failed; the others' results are kept.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.training_dynamics("no-such-run")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        bayesgeom.core.errors.UnknownName: there is no training named 'no-such-run'.
    """
    if n < N_LEAST:
        raise InvalidArgument(
            f"n, the number of sequences, must be at least {N_LEAST}, because half are held out; got {n}."
        )
    batch = None if executor is None else Batch.of(executor)
    if batch is None:
        check_device(device)
    check_probes(probes)
    if taken := [text for text in listed(probes) or () if isinstance(text, str) and text in _OWN]:
        raise InvalidArgument(f"training dynamics has a report {taken[0]!r} of its own: leave it out of probes.")
    trainings = runs_of(runs)
    budget = recording_bytes(device if batch is None else "cpu")  # once, since the free memory changes meanwhile
    bench = Bench.of(_like(trainings[0], device), trainings[0].task, n=n, seed=checked_seed(seed), budget_bytes=budget)
    progress, further = None if out is None else Path(out) / PARTS, tuple(listed(probes) or ())
    analysis = _Analysis(runs=trainings, bench=bench, device=device, probes=further, progress=progress, batch=batch)
    return analysis.diagnosis()


def _like(run: TrainingRun, device: str) -> Model:
    """Return a model with the sites and sizes of the snapshots."""
    config = run.config
    return _model_at((run.paths[0], ""), device) if config is None else of_module(config.build(seed=0))


@final
@dataclass(frozen=True, kw_only=True)
class _Analysis:
    """A checked analysis of some trainings."""

    runs: tuple[TrainingRun, ...]
    bench: Bench
    device: str
    probes: tuple[Named, ...]
    progress: Path | None
    batch: Batch | None

    def diagnosis(self) -> Diagnosis:
        """Measure the missing snapshots and return all reports; the pictures and `probes` are of the first training."""
        n, first = self.bench.n, self.runs[0]
        snapshots = self._measured()
        further, skipped = self._joined(snapshots)
        numbers = [[snapshots[which, at, None] for at in range(len(first.steps))] for which in range(len(self.runs))]
        reports = (
            dynamics_report([run.name for run in self.runs], first.steps, numbers, n=n),
            film(first.name, first.steps, numbers[0]),
            attention_maps(first.name, first.steps, numbers[0]),
            viewed(self.bench.task, first.steps, numbers[0]),
        )
        arguments = {"n": n, "seed": self.bench.seed, "runs": [run.name for run in self.runs]}
        where = provenance(replace(numbers[0][-1].spec, name=first.name), self.bench.task, arguments)
        weights = {run.name: dict(zip(map(str, run.steps), run.hashes, strict=True)) for run in self.runs}
        where |= {"n_recorded": self.bench.n_recorded, "weights": weights, "recipe": first.recipe}
        present = {report.name: report for report in reports if report is not None}
        return Diagnosis(reports=present | further, skipped={**numbers[0][0].missing, **skipped}, provenance=where)

    def _joined(self, snapshots: Mapping[Place, Any]) -> tuple[dict[str, Report], dict[str, str]]:
        """Return the reports of `probes`, joined along the steps, and why others are missing."""
        reports, skipped = dict[str, Report](), dict[str, str]()
        for probe in range(len(self.probes)):
            every = [snapshots[0, at, probe] for at in range(len(self.runs[0].steps))]
            if faults := [each for each in every if isinstance(each, str)]:
                skipped[_name(self.probes[probe])] = faults[0]
                continue
            report = join(every, [*map(str, self.runs[0].steps)])
            reports[report.name] = report
        return reports, skipped

    def _measured(self) -> dict[Place, Any]:
        """Measure the snapshots that are not saved; return the numbers of all, and the reports of `probes`."""
        of_trainings = [(which, at) for which, run in enumerate(self.runs) for at in reversed(range(len(run.steps)))]
        places: list[Place] = [(which, at, None) for which, at in of_trainings]
        places += [(0, at, probe) for probe in range(len(self.probes)) for which, at in of_trainings if which == 0]
        files = {place: self.file(place) for place in places}
        known = {place: read_parcel(file) for place, file in files.items() if file and file.exists()}
        missing = [place for place in places if place not in known]
        jobs = [self._job(*place) for place in missing]
        results: Iterable[Any] = (job.function(**job.arguments) for job in jobs)
        if self.batch is not None:
            results = self.batch.results(jobs, desc="snapshots")
        try:
            where, n_known = self.folder(self.runs[0]), len(known)
            with progress_in(where), phase("snapshots", len(places), "snapshot", done=n_known) as shown:
                for place, numbers in zip(missing, results, strict=True):
                    known[place] = numbers
                    if file := files[place]:
                        write_parcel(file, numbers)
                    shown.update(1)
        finally:
            _REFERENCES.clear()
        return known

    def _job(self, which: int, at: int, probe: int | None) -> Job:
        if self.batch is not None and self.runs[which].config is None:
            raise InvalidArgument("executor= runs what workers can load: of Snapshots, leave it out.")
        job = snapshot_job(self.runs[which], at, self.bench, self.device)
        if probe is None:
            return job
        chosen, arguments = self.probes[probe], {name: job.arguments[name] for name in ("snapshot", "bench", "device")}
        if self.batch is not None and not isinstance(chosen, str):
            raise InvalidArgument(f"executor= takes probes by their names, which workers find; got {chosen!r}.")
        name = _name(chosen)
        return Job(name=f"{job.name} {name}", function=diagnosed_at, arguments={**arguments, "probe": chosen})

    def folder(self, run: TrainingRun) -> Path | None:
        """Return where the numbers of a training's snapshots are saved; None: nowhere."""
        return self.progress if run.folder is None else run.folder / CACHE

    def file(self, place: Place) -> Path | None:
        """Return the file of a snapshot's numbers, whose name is a hash of all inputs; None: not saved.

        A function, a task of functions, and a probe with arguments of its own have no text that stands for them.
        """
        which, at, probe = place
        run, named = self.runs[which], [] if probe is None else [self.probes[probe]]
        is_named = all(isinstance(name, str) for name in named) and FUNCTIONS not in vars(self.bench.task)
        if (folder := self.folder(run)) is None or not is_named:
            return None
        shared = {**vars(self.bench), "task": self.bench.task.config()}
        settings = {**shared, "device": torch.device(self.device).type}
        decides = [_METHOD, run.hashes[at], run.hashes[-1], settings, numerics(), *named, *filter(None, [run.made])]
        return folder / f"{hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:20]}.safetensors"


def _name(probe: Named) -> str:
    if isinstance(probe, str):
        return probe.partition(":")[0]
    return probe.name if isinstance(probe, Measurement) else function_name(probe)


def snapshot_job(run: TrainingRun, index: int, bench: Bench, device: str) -> Job:
    """Return the job that measures one snapshot."""
    paths = [str(path.resolve()) if isinstance(path, Path) else path for path in run.paths]
    snapshot, last = ([paths[at], run.hashes[at]] for at in (index, -1))
    sent = {**vars(bench), "task": bench.task if run.config is None else bench.task.config()}
    arguments = {"snapshot": snapshot, "last": last, "bench": sent, "device": device}
    return Job(name=f"{run.name} step {run.steps[index]}", function=snapshot_at, arguments=arguments)


def _bench_of(sent: Mapping[str, Any]) -> Bench:
    task = sent["task"]
    return Bench(**{**sent, "task": task if isinstance(task, WindTunnel) else task_from_config(task)})


def snapshot_at(
    *, snapshot: Sequence[Any], last: Sequence[Any], bench: Mapping[str, Any], device: str
) -> SnapshotNumbers:
    """Do the job of one snapshot."""
    shared, is_last = _bench_of(bench), list(snapshot) == list(last)
    place = (*last, device, shared)
    reference = _REFERENCES.get(place)
    if reference is None and not is_last:
        reference = shared.passed(_model_at(last, device))
    model = _model_at(snapshot, device)
    run = shared.passed(model)
    reference = reference or run
    _REFERENCES.clear()
    _REFERENCES[place] = reference
    return measured(Subject(run=run, task=shared.task, seed=shared.seed, reference=reference, model=model))


def diagnosed_at(*, snapshot: Sequence[Any], probe: Named, bench: Mapping[str, Any], device: str) -> Report | str:
    """Do the job of one snapshot and probe: return its report, or why there is none."""
    shared, model = _bench_of(bench), _model_at(snapshot, device)
    try:
        found = diagnose(model, shared.task, probes=[probe], n=shared.n, seed=shared.seed, n_untrained=0)
    except (InvalidArgument, MissingSite, TaskMismatch) as reason:
        return str(reason)
    return found.reports.get(_name(probe)) or "; ".join(left_out(found).values())


def _model_at(snapshot: Sequence[Any], device: str) -> Model:
    path, weights = snapshot
    if isinstance(path, tuple):
        own: Snapshots = path[0]
        return own.load(path[1], device=device)
    return check_same(model_at(Path(path), device=device), weights)
