"""`training_dynamics`: run the diagnostics at every snapshot of one training or of several seeds."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch

from bayesgeom.core import (
    InvalidArgument,
    Run,
    checked,
    phase,
    progress_in,
    read_parcel,
    with_torch_defaults,
    write_parcel,
)
from bayesgeom.dynamics.measure import Bench, measured
from bayesgeom.dynamics.report import SnapshotNumbers, attention_maps, dynamics_report, film, viewed
from bayesgeom.dynamics.trainings import Source, TrainingRun, model_at, runs_of
from bayesgeom.executors import Batch, Executor, Job, check_same
from bayesgeom.measurements.base import Subject
from bayesgeom.models.base import Model, numerics, provenance, recording_bytes
from bayesgeom.models.resolve import check_device, of_module
from bayesgeom.report import PARTS, Diagnosis
from bayesgeom.tasks.base import checked_seed, task_from_config

CACHE = "dynamics"  # the folder of a run for saved results of snapshots
N_LEAST = 4
_REFERENCES: dict[tuple[object, ...], Run] = {}  # at most one: many snapshots of one training are measured
_METHOD = 13  # version of the measurements: increase it when they or their names change


@checked()
@with_torch_defaults
def training_dynamics(
    *runs: Source,
    n: int = 256,
    seed: int = 0,
    device: str = "cpu",
    maps_at: Sequence[int] | None = None,
    out: str | Path | None = None,
    executor: Executor | Batch | None = None,
) -> Diagnosis:
    """Measure every diagnostic at every snapshot of a training, on the same new sequences.

    One model is in memory at a time. Measurements are saved, in `dynamics/` of a run's directory or else in `parts/` of
    `out`: an interrupted analysis continues. With other versions or another precision of torch it starts again.

    Args:
        *runs: Directories that `bayesgeom train` wrote or names of packed trainings, one per seed; or the checkpoints
            of one training.
        n: Number of sequences: at least 4.
        seed: Seed of the sequences and of the intervals.
        device: Device: "cpu", "cuda", …
        maps_at: Steps whose attention is drawn. Default: a few.
        out: Directory for progress and the report, so that an interrupted analysis continues.
        executor: Where snapshots are measured, a job each (see `bayesgeom.executors`). Default: this process.

    Returns:
        Reports "dynamics", "inside" (the viewer) and, of some architectures, "manifold_film" and "attention_maps".

    Raises:
        InvalidArgument: n is below 4, the device does not exist, there are fewer than two snapshots, they differ in
            architecture, task or recipe, two trainings have the same seed, or a sequence is too long to record two.
        UnknownName: There is no such training.
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
    found = runs_of(runs)
    steps = found[0].steps
    if maps_at is not None and not len(maps_at):
        raise InvalidArgument("maps_at names no step: leave it out for a few, or name snapshots.")
    if unknown := [step for step in maps_at or () if step not in steps]:
        listed = ", ".join(map(str, steps))
        raise InvalidArgument(f"there is no snapshot at step {unknown[0]}; available: {listed}.")
    budget = recording_bytes(device if batch is None else "cpu")  # once, since the free memory changes meanwhile
    untrained = of_module(found[0].config.build(seed=0))  # it has the sites and sizes of a snapshot
    bench = Bench.of(untrained, found[0].task, n=n, seed=checked_seed(seed), budget_bytes=budget)
    chosen = None if maps_at is None else sorted(set(maps_at))
    progress = None if out is None else Path(out) / PARTS
    return _Analysis(runs=found, bench=bench, device=device, progress=progress, batch=batch).diagnosis(chosen)


@final
@dataclass(frozen=True, kw_only=True)
class _Analysis:
    """A checked analysis of some trainings."""

    runs: tuple[TrainingRun, ...]
    bench: Bench
    device: str
    progress: Path | None
    batch: Batch | None

    def diagnosis(self, maps_at: Sequence[int] | None) -> Diagnosis:
        """Measure the missing snapshots and return all reports; the pictures are of the first training."""
        n, first = self.bench.n, self.runs[0]
        found = self._measured()
        reports = (
            dynamics_report([run.name for run in self.runs], first.steps, found, n=n),
            film(first.name, first.steps, found[0]),
            attention_maps(first.name, first.steps, found[0], maps_at),
            viewed(self.bench.task, first.steps, found[0]),
        )
        arguments = {"n": n, "seed": self.bench.seed, "runs": [run.name for run in self.runs]}
        where = provenance(replace(found[0][-1].spec, name=first.name), self.bench.task, arguments)
        weights = {run.name: dict(zip(map(str, run.steps), run.hashes, strict=True)) for run in self.runs}
        where |= {"n_recorded": self.bench.n_recorded, "weights": weights, "recipe": first.recipe}
        present = {own.name: own for own in reports if own is not None}
        return Diagnosis(reports=present, skipped=dict(found[0][0].missing), provenance=where)

    def _measured(self) -> list[list[SnapshotNumbers]]:
        """Measure the snapshots that are not saved, and return those of every training."""
        places = [(which, index) for which, run in enumerate(self.runs) for index in reversed(range(len(run.steps)))]
        files = {(which, index): self.file(self.runs[which], index) for which, index in places}
        known = {place: read_parcel(file) for place, file in files.items() if file and file.exists()}
        missing = [place for place in places if place not in known]
        jobs = [snapshot_job(self.runs[which], index, self.bench, self.device) for which, index in missing]
        results: Iterable[SnapshotNumbers] = (job.function(**job.arguments) for job in jobs)
        if self.batch is not None:
            results = self.batch.results(jobs, desc="snapshots")
        try:
            where, n_known = self.folder(self.runs[0]), len(known)
            with progress_in(where), phase("snapshots", len(places), "snapshot", done=n_known) as shown:
                for place, own in zip(missing, results, strict=True):
                    known[place] = own
                    if file := files[place]:
                        write_parcel(file, own)
                    shown.update(1)
        finally:
            _REFERENCES.clear()
        return [[known[which, index] for index in range(len(run.steps))] for which, run in enumerate(self.runs)]

    def folder(self, run: TrainingRun) -> Path | None:
        """Return where the numbers of a training's snapshots are saved; None: nowhere."""
        return self.progress if run.folder is None else run.folder / CACHE

    def file(self, run: TrainingRun, index: int) -> Path | None:
        """Return the file of a snapshot's numbers, whose name is a hash of all inputs."""
        shared = {**vars(self.bench), "task": self.bench.task.config()}
        settings = {**shared, "device": torch.device(self.device).type}
        decides = json.dumps([_METHOD, run.hashes[index], run.hashes[-1], settings, numerics()], sort_keys=True)
        name = f"{hashlib.sha256(decides.encode()).hexdigest()[:20]}.safetensors"
        return None if (folder := self.folder(run)) is None else folder / name


def snapshot_job(run: TrainingRun, index: int, bench: Bench, device: str) -> Job:
    """Return the job that measures one snapshot."""
    snapshot, last = ([str(run.paths[at].resolve()), run.hashes[at]] for at in (index, -1))
    sent = {**vars(bench), "task": bench.task.config()}
    arguments = {"snapshot": snapshot, "last": last, "bench": sent, "device": device}
    return Job(name=f"{run.name} step {run.steps[index]}", function=snapshot_at, arguments=arguments)


def snapshot_at(
    *, snapshot: Sequence[str], last: Sequence[str], bench: Mapping[str, Any], device: str
) -> SnapshotNumbers:
    """Do the job of one snapshot."""
    shared, is_last = Bench(**{**bench, "task": task_from_config(bench["task"])}), list(snapshot) == list(last)
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


def _model_at(snapshot: Sequence[str], device: str) -> Model:
    path, weights = snapshot
    return check_same(model_at(Path(path), device=device), weights)
