"""`gradient_movement`: the gradient laws at every snapshot of a run, with one model in memory at a time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from bayesgeom.core.arguments import checked
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.progress import bar
from bayesgeom.core.run import ModelSpec
from bayesgeom.core.torch_state import with_gradients
from bayesgeom.core.trials import Trials
from bayesgeom.dynamics.runs import Source, TrainingRun, run_of
from bayesgeom.gradients.capture import SITES, Targets, captured
from bayesgeom.gradients.movement import (
    Frame,
    GradientMovementReport,
    Moment,
    frame_of,
    gradient_norms,
    joined,
    moment_of,
    movement_report,
)
from bayesgeom.gradients.precise import in_float64
from bayesgeom.gradients.run import batches
from bayesgeom.models.base import Model
from bayesgeom.models.provenance import provenance
from bayesgeom.models.resolve import check_device
from bayesgeom.report.report import with_provenance
from bayesgeom.tasks.base import Branch, checked_seed, derived_seed


@checked()
@with_gradients
def gradient_movement(
    run: Source | Sequence[Source], *, targets: Targets = "sampled", n: int = 32, seed: int = 0, device: str = "cpu"
) -> GradientMovementReport:
    """Measure gradients of scores and values, and the distance of both from the last snapshot, at every snapshot.

    All snapshots use the same sequences. The provenance names the last snapshot.

    Args:
        run: Directory that `bayesgeom train` wrote, name of a packed training, or checkpoint directories of one
            training.
        targets: "sampled": hard labels; "exact": the posterior as soft labels.
        n: Number of sequences.
        seed: Seed of the sequences and of the intervals.
        device: Device: "cpu", "cuda", …

    Returns:
        Gradients and distances at every snapshot.

    Raises:
        InvalidArgument: There is more than one training, n is below 2, or the targets are unknown.
        UnknownName: There is no such training.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.gradient_movement("no-such-run")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        bayesgeom.core.errors.UnknownName: there is no training named 'no-such-run'.
    """
    if targets not in ("sampled", "exact") or n < 2:
        raise InvalidArgument(f"targets must be 'sampled' or 'exact' and n at least 2; got {targets!r} and n={n}.")
    check_device(device)
    return _followed(run_of(run), targets=targets, n=n, seed=checked_seed(seed), device=device)


def _followed(training: TrainingRun, *, targets: Targets, n: int, seed: int, device: str) -> GradientMovementReport:
    """Return the report with its provenance."""
    task, steps = training.wind_tunnel(), training.steps
    trials = task.sample(n, seed=derived_seed(seed, Branch.TRIALS), device=device)
    # The last snapshot comes first, because distances refer to it.
    spec, last, measured_last = _measured(training.load(len(steps) - 1, device=device), trials, targets)
    moments, before = list[Moment](), None
    for index, step in enumerate(bar(steps[:-1], desc="snapshots", leave=False)):
        _, now, measured = _measured(training.load(index, device=device), trials, targets)
        moments.append(moment_of(step, measured, now, last, before))
        before = now
    moments.append(moment_of(steps[-1], measured_last, last, last, before))
    report = movement_report(moments, targets=targets, seed=derived_seed(seed, Branch.RESAMPLING))
    where = provenance(replace(spec, name=training.name), task, {"n": n, "seed": seed, "targets": targets})
    return with_provenance(report, where | {"recipe": training.recipe})


def _measured(model: Model, trials: Trials, targets: Targets) -> tuple[ModelSpec, Frame, dict[str, Any]]:
    """Return a snapshot's spec, frame and per-sequence numbers; the model is freed on return."""
    model.require(SITES, by="gradient movement")
    wide, frames, found = in_float64(model), list[Frame](), list[dict[str, torch.Tensor]]()
    for batch in batches(trials, wide.spec):
        loss, layers = captured(wide, batch, targets)
        frames.append(frame_of(layers, batch))
        found.append({"loss_nats": loss, **gradient_norms(layers, batch)})
    return model.spec, joined(frames), {name: torch.cat([f[name] for f in found]).cpu().numpy() for name in found[0]}
