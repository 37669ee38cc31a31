"""`training_dynamics`: run the diagnostics at every snapshot of one training or of several seeds."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import torch

from bayesgeom.core.errors import InvalidArgument, checked
from bayesgeom.core.parcels import read_parcel, write_parcel
from bayesgeom.core.progress import bar, progress_in
from bayesgeom.core.run import ModelSpec
from bayesgeom.dynamics.measure import (
    Bench,
    LastSnapshot,
    SnapshotNumbers,
    SnapshotPass,
    bench_of,
    measured,
    passed,
    reference_of,
)
from bayesgeom.dynamics.pictures import attention_maps, film
from bayesgeom.dynamics.summary import dynamics_report, stacked
from bayesgeom.dynamics.trainings import CACHE, Source, TrainingRun, model_at, runs_of
from bayesgeom.executors import Batch, Executor, Job, check_same
from bayesgeom.models.base import Model, provenance, recording_bytes
from bayesgeom.models.resolve import check_device
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.storage import PARTS
from bayesgeom.tasks.base import checked_seed, task_from_config

_METHOD = 9  # version of the measurements: increase it when they or their names change


@final
@dataclass(frozen=True, kw_only=True)
class SnapshotCache:
    """A cache folder whose file names are hashes of all inputs; without a folder nothing is saved."""

    folder: Path | None
    settings: Mapping[str, Any]

    def find(self, weights: str, last: str) -> SnapshotNumbers | None:
        """Return the saved measurements of the snapshot with these weights and last snapshot, or None.

        Raises:
            OutputFault: The file cannot be read.
        """
        if self.folder is None or not (file := self._file(weights, last)).exists():
            return None
        found: SnapshotNumbers = read_parcel(file)
        return found

    def put(self, weights: str, last: str, found: SnapshotNumbers) -> None:
        """Save the measurements of a snapshot."""
        if self.folder is not None:
            write_parcel(self._file(weights, last), found)

    def _file(self, weights: str, last: str) -> Path:
        assert self.folder is not None, "callers check that there is a folder"
        decides = json.dumps([_METHOD, weights, last, dict(self.settings)], sort_keys=True)
        return self.folder / f"{hashlib.sha256(decides.encode()).hexdigest()[:20]}.safetensors"


N_DEFAULT, N_LEAST = 256, 4


@checked()
def training_dynamics(
    *runs: Source,
    n: int = N_DEFAULT,
    seed: int = 0,
    device: str = "cpu",
    maps_at: Sequence[int] | None = None,
    out: str | Path | None = None,
    executor: Executor | Batch | None = None,
) -> Diagnosis:
    """Measure every diagnostic at every snapshot of a training, on the same new sequences.

    One model is in memory at a time. The measurement of each snapshot is saved, in `dynamics/` of a run's directory or
    else in `parts/` of `out`, and not repeated: an interrupted analysis continues.

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
        The report "dynamics" and, where the architecture has them, "manifold_film" and "attention_maps".

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
    bench = bench_of(found[0].blank(), found[0].task, n=n, seed=checked_seed(seed), budget_bytes=budget)
    chosen = None if maps_at is None else tuple(sorted(set(maps_at)))
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

    def diagnosis(self, maps_at: tuple[int, ...] | None) -> Diagnosis:
        """Measure the missing snapshots and return all reports; the pictures are of the first training."""
        total = sum(len(run.steps) for run in self.runs)
        before = [self._cached(run) for run in self.runs]
        if self.batch is not None:
            self._send(self.batch, before)
        n_before = sum(map(len, before))
        with bar(total=total, initial=n_before, desc="snapshots", unit="snapshot", leave=False) as shown:
            each = [self._measured(run, cached, shown) for run, cached in zip(self.runs, before, strict=True)]
        found, specs = [own for own, _ in each], [spec for _, spec in each]
        numbers = stacked(found)
        counts = {name: found[0][0].count(name, self.bench.n) for name in numbers}
        curves = dynamics_report(self.runs, numbers, counts, n=self.bench.n, seed=self.bench.seed)
        pictures = (
            film(self.runs[0], found[0], n=self.bench.n, seed=self.bench.seed),
            attention_maps(self.runs[0], found[0], maps_at),
        )
        reports = {own.name: own for own in (curves, *pictures) if own is not None}
        return Diagnosis(reports=reports, skipped=dict(found[0][0].missing), provenance=self._provenance(specs[0]))

    def _cached(self, run: TrainingRun) -> dict[int, SnapshotNumbers]:
        """Return the saved measurements by index of the snapshot."""
        cache, last = self._cache(run), run.hashes[-1]
        return {index: cached for index, digest in enumerate(run.hashes) if (cached := cache.find(digest, last))}

    def _send(self, batch: Batch, found: list[dict[int, SnapshotNumbers]]) -> None:
        """Measure every snapshot that is not in `found`, each by a job, and add it."""
        missing = [
            (run, known, index)
            for run, known in zip(self.runs, found, strict=True)
            for index in range(len(run.steps))
            if index not in known
        ]
        jobs = [snapshot_job(run, index, self.bench, self.device) for run, _, index in missing]
        for (run, known, index), snapshot in zip(missing, batch.results(jobs, desc="snapshots"), strict=True):
            self._cache(run).put(run.hashes[index], run.hashes[-1], snapshot)
            known[index] = snapshot

    def _measured(
        self, run: TrainingRun, found: dict[int, SnapshotNumbers], shown: Any
    ) -> tuple[list[SnapshotNumbers], ModelSpec | None]:
        """Measure every snapshot of one training that is not in `found`, starting with the last, the reference.

        Returns:
            All measurements, and the spec of the last snapshot if it was loaded.
        """
        cache, last, end = self._cache(run), run.hashes[-1], len(run.steps) - 1
        missing = [index for index in range(len(run.steps)) if index not in found]

        def at(index: int, reference: LastSnapshot | None) -> tuple[ModelSpec, LastSnapshot, SnapshotNumbers | None]:
            model = run.load(index, device=self.device)
            one = passed(model, self.bench)
            reference = reference or reference_of(self.bench, one)
            own = SnapshotPass(model=model, bench=self.bench, run=one, reference=reference)
            return model.spec, reference, measured(own) if index in missing else None

        if not missing:
            return [found[index] for index in range(len(run.steps))], None
        with progress_in(cache.folder):
            spec, reference, numbers = at(end, None)
            for index in reversed(missing):
                _, _, numbers = at(index, reference) if index != end else (spec, reference, numbers)
                assert numbers is not None, "it was missing"
                cache.put(run.hashes[index], last, numbers)
                found[index] = numbers
                shown.update(1)
        return [found[index] for index in range(len(run.steps))], spec

    def _cache(self, run: TrainingRun) -> SnapshotCache:
        folder = self.progress if run.folder is None else run.folder / CACHE
        settings = {
            "n": self.bench.n,
            "seed": self.bench.seed,
            "n_recorded": self.bench.n_recorded,
            "device": torch.device(self.device).type,
            "task": self.bench.task.config(),
            "torch": torch.__version__,
        }
        return SnapshotCache(folder=folder, settings=settings)

    def _provenance(self, last: ModelSpec | None) -> dict[str, Any]:
        """Return the origin of the results; `last` is the spec of the first training's last snapshot, if known."""
        first = self.runs[0]
        spec = first.spec(device=self.device) if last is None else replace(last, name=first.name)
        arguments = {"n": self.bench.n, "seed": self.bench.seed, "runs": [run.name for run in self.runs]}
        where = provenance(spec, self.bench.task, arguments)
        weights = {run.name: dict(zip(map(str, run.steps), run.hashes, strict=True)) for run in self.runs}
        return {**where, "n_recorded": self.bench.n_recorded, "weights": weights, "recipe": first.recipe}


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
    shared = Bench(**{**bench, "task": task_from_config(bench["task"])})
    reference = _reference_at(tuple(last), device, shared)
    model = _model_at(snapshot, device)
    return measured(SnapshotPass(model=model, bench=shared, run=passed(model, shared), reference=reference))


@lru_cache(maxsize=1)  # a worker measures many snapshots of one training
def _reference_at(last: tuple[str, ...], device: str, bench: Bench) -> LastSnapshot:
    return reference_of(bench, passed(_model_at(last, device), bench))


def _model_at(snapshot: Sequence[str], device: str) -> Model:
    path, weights = snapshot
    return check_same(model_at(Path(path), device=device), weights)
