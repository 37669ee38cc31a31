"""`gradient_laws` measures and checks the laws of every head; `gradient_movement` follows them over a training."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bayesgeom.core.errors import HookFault, InvalidArgument, checked
from bayesgeom.core.progress import bar
from bayesgeom.core.run import ModelSpec, Trials, concatenate
from bayesgeom.core.torch_state import with_gradients
from bayesgeom.dynamics.trainings import Source, TrainingRun, run_of
from bayesgeom.gradients.capture import SITES, Targets, captured, in_float64
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
from bayesgeom.gradients.report import GradientReport, gradient_report
from bayesgeom.gradients.tally import LayerTally, identity_errors, layer_tally, together
from bayesgeom.models.base import Model, provenance
from bayesgeom.models.resolve import ModelLike, TaskLike, check_device, model_for, scored_task_of
from bayesgeom.report.report import with_provenance
from bayesgeom.tasks.base import Branch, WindTunnel, checked_seed, derived_seed

BUDGET_BYTES = 256 * 2**20
TOLERANCE = 1e-8  # relative error above which attention is not softmax(q·k) applied to its values
_COPIES = 12  # arrays of the size of one layer's attention in memory per layer and pass


@checked("model", "trials_or_task")
@with_gradients
def gradient_laws(
    model: ModelLike,
    trials_or_task: Trials | TaskLike | None = None,
    *,
    targets: Targets = "sampled",
    n: int = 64,
    seed: int = 0,
) -> GradientReport:
    """Measure advantages, responsibilities and value updates of every head, and check the gradient laws of attention.

    The loss is the cross-entropy at scored positions, as in training. A copy of the model in float64 is used.

    Args:
        model: A model, or what `as_model` takes: a checkpoint's name or directory, a module, a Hugging Face model.
        trials_or_task: Sequences to use, or a task. Default: the task that the model was trained on.
        targets: "sampled": hard labels; "exact": the posterior as soft labels.
        n: Number of sequences.
        seed: Seed of the sequences and of the intervals.

    Returns:
        Gradients of every head, and the relative error of each law.

    Raises:
        InvalidArgument: There are fewer than two sequences, or the targets are unknown.
        MissingSite: The model does not provide the sites.
        TaskMismatch: The task does not fit the model.
        HookFault: The laws do not hold: the attention is not a plain softmax of q·k.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> module = config.build(seed=0)
        >>> bayesgeom.gradient_laws(module, task, n=8).n
        8
    """
    subject = model_for(model, None if isinstance(trials_or_task, Trials) else trials_or_task)
    trials = trials_or_task if isinstance(trials_or_task, Trials) else None
    task = scored_task_of(subject, None if isinstance(trials_or_task, Trials) else trials_or_task)
    return _checked(subject, task, trials, targets=targets, n=n, seed=seed)


def _checked(
    model: Model, task: WindTunnel, trials: Trials | None, *, targets: Targets, n: int, seed: int
) -> GradientReport:
    """Check all arguments before anything runs, then measure; with `trials`, `task` is only their label."""
    if targets not in ("sampled", "exact"):
        raise InvalidArgument(f"targets must be 'sampled' or 'exact', as in training; got {targets!r}.")
    n = n if trials is None else len(trials)
    if n < 2:
        raise InvalidArgument(f"n, the number of sequences, must be at least 2 for the baseline; got {n}.")
    model.require(SITES, by="gradients")
    model.check_fits(trials if trials is not None else task.sample(1, seed=seed))
    seed, wide = checked_seed(seed), in_float64(model)
    if trials is None:
        stream = task.stream(n, seed=derived_seed(seed, Branch.TRIALS), device=wide.spec.device)
        trials = concatenate(list(stream))
    report = _measured(wide, trials, targets, seed=derived_seed(seed, Branch.RESAMPLING))
    return with_provenance(report, provenance(model, task, {"n": n, "seed": seed, "targets": targets}))


def _measured(model: Model, trials: Trials, targets: Targets, *, seed: int) -> GradientReport:
    """Return the report on a model in float64, measured one batch of sequences at a time."""
    losses, tallies, errors = list[torch.Tensor](), list[list[LayerTally]](), list[np.ndarray]()
    for batch in batches(trials, model.spec):
        loss, layers = captured(model, batch, targets)
        losses.append(loss)
        tallies.append([layer_tally(layer, batch) for layer in layers])
        found = [identity_errors(layer, model.spec.score_scale) for layer in layers]
        errors.append(torch.stack(found).numpy())
    worst = np.max(np.stack(errors), axis=0)
    _check_laws(worst, model.spec.name)
    joined = [together(of_layer) for of_layer in zip(*tallies, strict=True)]
    return gradient_report(torch.cat(losses).cpu().numpy(), joined, worst, targets=targets, seed=seed)


def _check_laws(errors: np.ndarray, name: str) -> None:
    """Raise `HookFault` if the laws do not hold."""
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.nan_to_num(errors[..., 0] / errors[..., 1])
    if not relative.max() <= TOLERANCE:
        raise HookFault(
            f"the gradient laws are off by {relative.max():.1e} of the gradient on {name}: its attention is not a "
            f"plain causal softmax of q·k applied to its values."
        )


def batches(trials: Trials, spec: ModelSpec) -> Iterator[Trials]:
    """Yield batches of at least two sequences whose gradients fit the budget."""
    each = 8 * _COPIES * spec.n_layers * spec.n_heads * trials.tokens.shape[1] ** 2
    return trials.batches(at_most=max(2, BUDGET_BYTES // each), at_least=2)


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
    task, steps = training.task, training.steps
    trials = task.sample(n, seed=derived_seed(seed, Branch.TRIALS), device=device)
    # The last snapshot comes first, because distances refer to it.
    spec, last, measured_last = _snapshot_measured(training.load(len(steps) - 1, device=device), trials, targets)
    moments, before = list[Moment](), None
    for index, step in enumerate(bar(steps[:-1], desc="snapshots", leave=False)):
        _, now, measured = _snapshot_measured(training.load(index, device=device), trials, targets)
        moments.append(moment_of(step, measured, now, last, before))
        before = now
    moments.append(moment_of(steps[-1], measured_last, last, last, before))
    report = movement_report(moments, targets=targets, seed=derived_seed(seed, Branch.RESAMPLING))
    where = provenance(replace(spec, name=training.name), task, {"n": n, "seed": seed, "targets": targets})
    return with_provenance(report, where | {"recipe": training.recipe})


def _snapshot_measured(model: Model, trials: Trials, targets: Targets) -> tuple[ModelSpec, Frame, dict[str, Any]]:
    """Return a snapshot's spec, frame and per-sequence numbers; the model is freed on return."""
    model.require(SITES, by="gradient movement")
    wide, frames, found = in_float64(model), list[Frame](), list[dict[str, torch.Tensor]]()
    for batch in batches(trials, wide.spec):
        loss, layers = captured(wide, batch, targets)
        frames.append(frame_of(layers, batch))
        found.append({"loss_nats": loss, **gradient_norms(layers, batch)})
    return model.spec, joined(frames), {name: torch.cat([f[name] for f in found]).cpu().numpy() for name in found[0]}
