"""`dynamics`: the diagnostics over the snapshots of a training, or of several seeds of it, on the same trials."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.progress import bar, kept_in
from bayesgeom.core.run import Run
from bayesgeom.dynamics.measure import Bench, Measured, Reference, Setting, measured, passed, reference_of
from bayesgeom.dynamics.pictures import attention_maps, film
from bayesgeom.dynamics.runs import KEPT, Source, TrainingRun, runs_of
from bayesgeom.dynamics.shelf import Shelf
from bayesgeom.dynamics.summary import dynamics_report, settling_report, stacked
from bayesgeom.models.base import Model
from bayesgeom.models.provenance import provenance
from bayesgeom.models.resolve import check_device
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.tasks.base import checked_seed

N_DEFAULT, N_LEAST = 256, 4


def training_dynamics(
    *runs: Source, n: int = N_DEFAULT, seed: int = 0, device: str = "cpu", progress: Path | None = None
) -> Diagnosis:
    """Measure every diagnostic at every snapshot of a training, on the same `n` new sequences.

    Returns a diagnosis with the reports "dynamics" (the curves), "settling" (what settles first, and what falls
    again), and, of the first training, "manifold_film" and "attention_maps" where its architecture has them.

    `runs`: directories that `bayesgeom train` wrote, or names of packed trainings, one per seed; or the checkpoints of
    a single training. One model is in memory at a time, with the last snapshot's attention on a bounded sample. The
    measurement of each snapshot is saved, in `dynamics/` of a run's directory or else in `progress`, and not repeated:
    a stopped analysis continues.

    **Raises** `InvalidArgument` for n < 4, a device that is not there, fewer than two snapshots, snapshots of different
    architectures or tasks, and several recipes; `UnknownName` for a training that is not there; `CheckpointFault` for
    one that cannot be trusted.
    """
    return DynamicsJob.of(runs, n=n, seed=seed, device=device, progress=progress).run()


@final
@dataclass(frozen=True, kw_only=True)
class DynamicsJob:
    """A checked analysis, ready to run. `maps_at`: steps whose attention is drawn; by default a few."""

    runs: tuple[TrainingRun, ...]
    bench: Bench
    device: str
    progress: Path | None
    maps_at: tuple[int, ...] | None

    @classmethod
    def of(
        cls,
        runs: Sequence[Source],
        *,
        n: int = N_DEFAULT,
        seed: int = 0,
        device: str = "cpu",
        progress: Path | None = None,
        maps_at: Sequence[int] | None = None,
    ) -> "DynamicsJob":
        """Check everything that can be checked before anything runs."""
        if n < N_LEAST:
            raise InvalidArgument(
                f"n is the number of sequences: at least {N_LEAST}, so that half can be held out; got {n}."
            )
        check_device(device)
        found = runs_of(runs)
        steps = found[0].steps
        if unknown := [step for step in maps_at or () if step not in steps]:
            listed = ", ".join(map(str, steps))
            raise InvalidArgument(f"no snapshot was taken at step {unknown[0]}; there are {listed}.")
        bench = Bench(task=found[0].wind_tunnel(), n=n, seed=checked_seed(seed))
        chosen = None if maps_at is None else tuple(sorted(set(maps_at)))
        return cls(runs=found, bench=bench, device=device, progress=progress, maps_at=chosen)

    def run(self) -> Diagnosis:
        """Measure what is not measured yet; the curves, and film and attention maps of the first training."""
        total = sum(len(run.steps) for run in self.runs)
        before = [self._held(run) for run in self.runs]
        n_before = sum(map(len, before))
        with bar(total=total, initial=n_before, desc="snapshots", unit="snapshot", leave=False) as shown:
            found = [self._measured(run, held, shown) for run, held in zip(self.runs, before, strict=True)]
        numbers = stacked(found)
        curves = dynamics_report(self.runs, numbers, n=self.bench.n, seed=self.bench.seed)
        settled = settling_report(curves, numbers, seed=self.bench.seed)
        pictures = (
            film(self.runs[0], found[0], n=self.bench.n, seed=self.bench.seed),
            attention_maps(self.runs[0], found[0], self.maps_at),
        )
        reports = {own.name: own for own in (curves, settled, *pictures) if own is not None}
        return Diagnosis(reports=reports, skipped=dict(found[0][0].missing), provenance=self._provenance())

    def _held(self, run: TrainingRun) -> dict[int, Measured]:
        """The snapshots that were measured before, by index."""
        shelf, last = self._shelf(run), run.hashes[-1]
        return {index: held for index, digest in enumerate(run.hashes) if (held := shelf.find(digest, last))}

    def _measured(self, run: TrainingRun, found: dict[int, Measured], shown: Any) -> list[Measured]:
        """Every snapshot of one training, the last one first, since distances are to it; `found` are there already."""
        shelf, last, end = self._shelf(run), run.hashes[-1], len(run.steps) - 1
        missing = [index for index in range(len(run.steps)) if index not in found]
        if not missing:
            return [found[index] for index in range(len(run.steps))]
        with kept_in(shelf.folder):
            reference, own = self._last(run.load(end, device=self.device), is_wanted=end in missing)
            for index in reversed(missing):
                held = own or self._snapshot(run.load(index, device=self.device), reference)
                own = None
                shelf.put(run.hashes[index], last, held)
                found[index] = held
                shown.update(1)
        return [found[index] for index in range(len(run.steps))]

    def _last(self, model: Model, *, is_wanted: bool) -> tuple[Reference, Measured | None]:
        """What the others are compared with, and what the last snapshot's own numbers are."""
        one = passed(model, self.bench)
        reference = reference_of(self.bench, one)
        return reference, self._at(model, one, reference) if is_wanted else None

    def _snapshot(self, model: Model, reference: Reference) -> Measured:
        return self._at(model, passed(model, self.bench), reference)

    def _at(self, model: Model, run: Run, reference: Reference) -> Measured:
        return measured(Setting(model=model, bench=self.bench, run=run, reference=reference))

    def _shelf(self, run: TrainingRun) -> Shelf:
        folder = self.progress if run.folder is None else run.folder / KEPT
        settings = {
            "n": self.bench.n,
            "seed": self.bench.seed,
            "task": self.bench.task.config(),
            "torch": torch.__version__,
        }
        return Shelf(folder=folder, settings=settings)

    def _provenance(self) -> dict[str, Any]:
        arguments = {"n": self.bench.n, "seed": self.bench.seed, "runs": [run.name for run in self.runs]}
        where = provenance(self.runs[0].spec(device=self.device), self.bench.task, arguments)
        weights = {run.name: dict(zip(map(str, run.steps), run.hashes, strict=True)) for run in self.runs}
        return {**where, "weights": weights, "recipe": self.runs[0].recipe}
