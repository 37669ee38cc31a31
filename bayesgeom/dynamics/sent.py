"""Snapshots on an executor: one job gives what the last snapshot is the reference for, then each snapshot is a job."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesgeom.dynamics.measure import Bench, Measured, Reference, Setting, measured, passed, reference_of
from bayesgeom.dynamics.runs import TrainingRun, model_at
from bayesgeom.engines.executor import Batch, Job, path_of
from bayesgeom.engines.parcels import read_parcel
from bayesgeom.models.base import Model
from bayesgeom.models.sendable import check_same
from bayesgeom.tasks.base import task_from_config

Missing = Sequence[tuple[TrainingRun, Sequence[int]]]  # indices of snapshots


def measure_missing(batch: Batch, missing: Missing, bench: Bench, *, device: str) -> list[dict[int, Measured]]:
    """Measure snapshots, by training and index.

    Args:
        batch: Where jobs run.
        missing: Trainings, and the indices of the snapshots to measure.
        bench: The sequences.
        device: Of every worker.

    Raises:
        ExecutorFault: A job failed.
    """
    shared = {"bench": {**vars(bench), "task": bench.task.config()}, "device": device}
    wanted = [(run, indices) for run, indices in missing if indices]
    ends = [_job(reference_at, run, len(run.steps) - 1, shared) for run, _ in wanted]
    references = batch.run(ends, desc="references")
    jobs = [
        _job(snapshot_at, run, index, {**shared, "reference": str(reference)})
        for (run, indices), reference in zip(wanted, references, strict=True)
        for index in indices
    ]
    found = iter(batch.results(jobs, desc="snapshots"))
    return [{index: next(found) for index in indices} for _, indices in missing]


def _job(function: Callable[..., Any], run: TrainingRun, index: int, shared: Mapping[str, Any]) -> Job:
    own = {"path": str(run.paths[index].resolve()), "weights": run.hashes[index]}
    name = f"{run.name} step {run.steps[index]}" + (" as reference" if function is reference_at else "")
    return Job(name=name, function=path_of(function), arguments={**shared, **own})


def reference_at(*, path: str, weights: str, bench: Mapping[str, Any], device: str) -> dict[str, np.ndarray | None]:
    """Do the job of the last snapshot, with which the others are compared."""
    shared = _bench(bench)
    found = reference_of(shared, passed(_model(path, weights, device), shared))
    patterns = None if found.patterns is None else found.patterns.cpu().numpy()
    return {"patterns": patterns, "axes": found.axes.numpy()}


def snapshot_at(*, path: str, weights: str, bench: Mapping[str, Any], device: str, reference: str) -> Measured:
    """Do the job of one snapshot."""
    shared, stored = _bench(bench), read_parcel(Path(reference))
    model = _model(path, weights, device)
    patterns = None if stored["patterns"] is None else torch.from_numpy(stored["patterns"]).to(device)
    kept = Reference(patterns=patterns, axes=torch.from_numpy(stored["axes"]))
    return measured(Setting(model=model, bench=shared, run=passed(model, shared), reference=kept))


def _bench(sent: Mapping[str, Any]) -> Bench:
    return Bench(**{**sent, "task": task_from_config(sent["task"])})


def _model(path: str, weights: str, device: str) -> Model:
    model = model_at(Path(path), device=device)
    check_same(model, path, weights)
    return model
