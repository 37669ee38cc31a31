"""`gradient_laws` measures and checks the laws of every head; `gradient_movement` follows them over a training."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bayesgeom.core import (
    PATTERN,
    HookFault,
    InvalidArgument,
    ModelSpec,
    Trials,
    at_scored,
    checked,
    concatenate,
    phase,
)
from bayesgeom.core.torch_state import with_gradients, with_torch_defaults
from bayesgeom.dynamics.trainings import Source, run_of
from bayesgeom.gradients.capture import (
    PER_SEQUENCE,
    SITES,
    LayerTally,
    Targets,
    captured,
    identity_errors,
    in_float64,
    layer_tally,
    masks_of,
    together,
)
from bayesgeom.gradients.report import (
    Frame,
    GradientMovementReport,
    GradientReport,
    Moment,
    gradient_report,
    moment_of,
    movement_report,
)
from bayesgeom.models.base import Model, provenance
from bayesgeom.models.resolve import ModelLike, TaskLike, check_device, model_for, scored_task_of
from bayesgeom.report.report import with_provenance
from bayesgeom.tasks.base import Branch, at_most, checked_seed, derived_seed

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

    The loss is the cross-entropy at scored positions, as in training. A copy of the model in float64 is used; that of a
    Hugging Face model computes eager attention, with its own windows, soft caps, biases and sinks.

    Args:
        model: A model, or what `as_model` takes: a checkpoint's name or directory, a module, a Hugging Face model.
        trials_or_task: Sequences to use, or a task. Default: the task that the model was trained on.
        targets: "sampled": hard labels; "exact": the posterior as soft labels.
        n: Number of sequences.
        seed: Seed of the sequences and of the intervals.

    Returns:
        Gradients of every head, and the relative error of each law.

    Raises:
        InvalidArgument: There are fewer than two sequences, the targets are unknown, or the model has no float64.
        MissingSite: The model does not provide the sites.
        TaskMismatch: The task does not fit the model.
        HookFault: The laws do not hold: the attention is no softmax of scores applied to its values.

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
    n = at_most(task, n) if trials is None else len(trials)
    _check_count(n)
    subject.require(SITES, by="gradients")
    subject.check_fits(trials if trials is not None else task.sample(1, seed=seed))
    seed, wide = checked_seed(seed), in_float64(subject)
    if trials is None:
        trials = concatenate(list(task.stream(n, seed=derived_seed(seed, Branch.TRIALS), device=wide.spec.device)))
    report = _measured(wide, trials, targets, seed=derived_seed(seed, Branch.RESAMPLING))
    return with_provenance(report, provenance(subject, task, {"n": n, "seed": seed, "targets": targets}))


def _measured(model: Model, trials: Trials, targets: Targets, *, seed: int) -> GradientReport:
    """Return the report on a model in float64, measured one batch of sequences at a time."""
    losses, tallies, errors = list[torch.Tensor](), list[list[LayerTally]](), list[np.ndarray]()
    masks = masks_of(model, trials)
    with phase(model.spec.name, len(trials), "sequence") as shown:
        for batch in batches(trials, model.spec):
            loss, layers = captured(model, batch, targets)
            losses.append(loss)
            tallies.append([layer_tally(layer, batch, mask) for layer, mask in zip(layers, masks, strict=True)])
            layer_errors = [identity_errors(layer, model.spec.score_scale) for layer in layers]
            errors.append(torch.stack(layer_errors).numpy())
            shown.update(len(batch))
    worst = np.max(np.stack(errors), axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.nan_to_num(worst[..., 0] / worst[..., 1]).max()
    if not relative <= TOLERANCE:
        raise HookFault(
            f"the gradient laws are off by {relative:.1e} of the gradient on {model.spec.name}: its attention is no "
            f"softmax of scores applied to its values."
        )
    tallies_of_layers = [together(of_layer) for of_layer in zip(*tallies, strict=True)]
    return gradient_report(torch.cat(losses).cpu().numpy(), tallies_of_layers, worst, targets=targets, seed=seed)


def _check_count(n: int) -> None:
    if n < 2:
        raise InvalidArgument(f"n, the number of sequences, must be at least 2 for the baseline; got {n}.")


def batches(trials: Trials, spec: ModelSpec) -> Iterator[Trials]:
    """Yield batches of at least two sequences whose gradients fit the budget."""
    each = 8 * _COPIES * spec.n_layers * spec.n_heads * trials.tokens.shape[1] ** 2
    return trials.batches(at_most=max(2, BUDGET_BYTES // each), at_least=2)


@checked()
@with_torch_defaults
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
    _check_count(n)
    check_device(device)
    training, seed = run_of(run), checked_seed(seed)
    task, steps = training.task, training.steps
    trials = task.sample(n, seed=derived_seed(seed, Branch.TRIALS), device=device)
    # The last snapshot comes first, because distances refer to it.
    spec, last, measured_last = _snapshot_measured(training.load(-1, device=device), trials, targets)
    moments, before = list[Moment](), None
    with phase("snapshots", len(steps), "snapshot", done=1) as shown:
        for index in range(len(steps) - 1):
            _, now, measured = _snapshot_measured(training.load(index, device=device), trials, targets)
            moments.append(moment_of(measured, now, last, before))
            before = now
            shown.update(1)
    moments.append(moment_of(measured_last, last, last, before))
    report = movement_report(steps, moments, targets=targets, seed=derived_seed(seed, Branch.RESAMPLING))
    where = provenance(replace(spec, name=training.name), task, {"n": n, "seed": seed, "targets": targets})
    return with_provenance(report, where | {"recipe": training.recipe})


def _snapshot_measured(model: Model, trials: Trials, targets: Targets) -> tuple[ModelSpec, Frame, dict[str, Any]]:
    """Return a snapshot's spec, frame and per-sequence numbers; the model is freed on return."""
    model.require(SITES, by="gradient movement")
    wide, patterns, values = in_float64(model), list[torch.Tensor](), list[torch.Tensor]()
    numbers: dict[str, list[torch.Tensor]] = {"loss_nats": [], **{name: [] for name in PER_SEQUENCE}}
    masks = masks_of(wide, trials)
    for batch in batches(trials, wide.spec):
        loss, layers = captured(wide, batch, targets)
        patterns.append(torch.stack([at_scored(PATTERN, layer.pattern, batch).float().cpu() for layer in layers]))
        values.append(torch.stack([layer.values.float().cpu() for layer in layers]))
        tallies = [vars(layer_tally(layer, batch, mask)) for layer, mask in zip(layers, masks, strict=True)]
        numbers["loss_nats"].append(loss)
        for name in PER_SEQUENCE:
            numbers[name].append(torch.stack([of[name].mean(dim=1) for of in tallies]).mean(dim=0))
    frame = Frame(patterns=torch.cat(patterns, dim=1), values=torch.cat(values, dim=1))
    return model.spec, frame, {name: torch.cat(parts).cpu().numpy() for name, parts in numbers.items()}
