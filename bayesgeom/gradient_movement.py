"""`gradient_movement`: the gradient laws over a run's snapshots, one model in memory at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from tqdm.auto import tqdm

from bayesgeom.activations import ModelSpec
from bayesgeom.diagnosis import Diagnosis, provenance
from bayesgeom.errors import InvalidArgument
from bayesgeom.gradient_laws.capture import SITES, Targets, captured
from bayesgeom.gradient_laws.movement import (
    Frame,
    GradientMovementReport,
    Moment,
    frame_of,
    gradient_norms,
    joined,
    moment_of,
    movement_report,
)
from bayesgeom.gradient_laws.precise import in_float64
from bayesgeom.gradients import tiles
from bayesgeom.models.checkpoint import load_checkpoint, read_description
from bayesgeom.models.resolve import from_checkpoint
from bayesgeom.tasks.base import WindTunnel, derived_seed, task_from_config
from bayesgeom.trials import Trials

SNAPSHOTS = "snapshots"
_TRIALS, _RESAMPLING = 0, 2  # branches of the seed, as in diagnose


def gradient_movement(
    run: str | Path | Sequence[str | Path], *, targets: Targets = "sampled", n: int = 32, seed: int = 0
) -> GradientMovementReport:
    """Gradients of scores and values, and how far both are from where they end, at every snapshot of a training run.

    `run`: the directory that `bayesgeom train` wrote, or checkpoint directories of one training. The same `n` sequences
    are used throughout.

    **Raises** `InvalidArgument` for fewer than two snapshots, or ones of different architectures or tasks, or n < 2;
    `CheckpointFault` for one that cannot be read.
    """
    return MovementJob.of(run, targets=targets, n=n, seed=seed).run()


@final
@dataclass(frozen=True, kw_only=True)
class MovementJob:
    """Checked snapshots in order of their steps, ready to be measured."""

    snapshots: tuple[tuple[int, Path], ...]
    task: WindTunnel
    targets: Targets
    n: int
    seed: int

    @classmethod
    def of(
        cls, run: str | Path | Sequence[str | Path], *, targets: Targets = "sampled", n: int = 32, seed: int = 0
    ) -> "MovementJob":
        """Read every description, and no weights."""
        if targets not in ("sampled", "exact") or n < 2:
            raise InvalidArgument(f"targets is 'sampled' or 'exact' and n at least 2; got {targets!r}, {n}.")
        paths = _paths(run)
        described = [read_description(path) for path in paths]
        for key in ("model", "task"):
            kinds = {
                str(sorted(description[key].items())): path for description, path in zip(described, paths, strict=True)
            }
            if len(kinds) > 1:
                one, other = list(kinds.values())[:2]
                raise InvalidArgument(f"snapshots of one training share their {key}; {one} and {other} differ.")
        steps = [description["step"] for description in described]
        if len(set(steps)) < max(2, len(steps)):
            raise InvalidArgument(f"movement takes two snapshots or more, each of another step; got steps {steps}.")
        in_order = sorted(zip(steps, paths, strict=True))
        task = task_from_config(described[0]["task"])
        return cls(snapshots=tuple(in_order), task=task, targets=targets, n=n, seed=seed)

    def run(self) -> GradientMovementReport:
        """Measure every snapshot; the last first, since distances are to it."""
        trials = self.task.sample(self.n, seed=derived_seed(self.seed, _TRIALS))
        last_step, last_path = self.snapshots[-1]
        last, measured_last = self._measure(last_path, trials)
        moments, before = list[Moment](), None
        for step, path in tqdm(self.snapshots[:-1], desc="snapshots", disable=None, leave=False):
            now, measured = self._measure(path, trials)
            moments.append(moment_of(step, measured, now, last, before))
            before = now
        moments.append(moment_of(last_step, measured_last, last, last, before))
        return movement_report(moments, targets=self.targets, seed=derived_seed(self.seed, _RESAMPLING))

    def diagnosis(self, report: GradientMovementReport) -> Diagnosis:
        """The report as a diagnosis of its own; the provenance's model is the last snapshot."""
        arguments: dict[str, Any] = {"n": self.n, "seed": self.seed, "targets": self.targets}
        where = provenance(self._spec(), self.task, arguments)
        recipe = read_description(self.snapshots[-1][1])["recipe"]
        return Diagnosis(reports={report.name: report}, skipped={}, provenance={**where, "recipe": recipe})

    def _spec(self) -> ModelSpec:
        return from_checkpoint(load_checkpoint(self.snapshots[-1][1])).spec

    def _measure(self, path: Path, trials: Trials) -> tuple[Frame, dict[str, Any]]:
        """A snapshot's frame and per-sequence numbers; its model is gone when this returns."""
        model = from_checkpoint(load_checkpoint(path))
        model.require(SITES, by="gradient movement")
        wide, frames, found = in_float64(model), list[Frame](), list[dict[str, torch.Tensor]]()
        for tile in tiles(trials, wide.spec):
            loss, layers = captured(wide, tile, self.targets)
            frames.append(frame_of(layers, tile))
            found.append({"loss_nats": loss, **gradient_norms(layers, tile)})
        return joined(frames), {name: torch.cat([f[name] for f in found]).cpu().numpy() for name in found[0]}


def _paths(run: str | Path | Sequence[str | Path]) -> list[Path]:
    """Checkpoint directories: those given, or all under a run's `snapshots`."""
    if not isinstance(run, (str, Path)):
        return [Path(path) for path in run]
    folder = Path(run) / SNAPSHOTS
    if not folder.is_dir():
        raise InvalidArgument(
            f"{run} holds no {SNAPSHOTS}: name a directory that bayesgeom train wrote, or pass checkpoint directories."
        )
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
