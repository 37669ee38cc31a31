"""`length_generalization`: errors far beyond the training length, position by position, of one model or several.

The layer where the errors first appear is found by reading each layer's residual through the final norm and output
matrix. Two windows of positions are compared, the last within the training length and the first beyond it. The baseline
is the same comparison one window earlier, entirely within the training length.

Reference: nostalgebraist 2020 (the logit lens).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from bayesgeom.core import RESID_POST, InvalidArgument, Run, checked, phase
from bayesgeom.executors import Batch, Executor, Job, check_same, job_arguments, name_of
from bayesgeom.generalization.curves import (
    Errors,
    critical_length,
    discontinuity,
    errors_across,
    errors_along,
    extrapolation_ratio,
    mean_along,
    strongest,
    whole_means,
)
from bayesgeom.generalization.length_report import EARLIER, ERRORS, LengthReport
from bayesgeom.generalization.longer_tasks import (
    LengthField,
    check_room,
    checked_lengths,
    distances_to_run,
    length_field_of,
    lengthened,
    position_kind,
    untrained_rows,
    with_room_for,
    with_untrained_positions,
)
from bayesgeom.models.base import Model, provenance, run_on
from bayesgeom.models.checkpoint import Checkpoint
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, check_names, load, scored_task_of
from bayesgeom.report.estimate import Baseline, Estimate, mean_estimate, stacked
from bayesgeom.report.report import with_provenance
from bayesgeom.stats.information import kl_bits
from bayesgeom.tasks.base import WindTunnel, checked_seed, task_from_config

N_RECORDED = 128  # sequences whose residuals are read in every layer
N_WINDOW = 5  # positions on either side of the training length


@checked("task")
def length_generalization(
    model: ModelLike | Sequence[ModelLike],
    task: TaskLike | None = None,
    lengths: Sequence[int] | None = None,
    *,
    n: int = 512,
    seed: int = 0,
    threshold_bits: float = 0.01,
    executor: Executor | Batch | None = None,
) -> LengthReport:
    """Measure errors at and beyond the training length, for one model or several.

    Several models see the same sequences and must have been trained at the same length.

    Args:
        model: A model or several, as `as_model` takes them; all are in memory together.
        task: A task, or its text as on the command line. Default: the task that the model was trained on.
        lengths: Lengths at which means over whole sequences are reported: steps of an HMM, pairs of a bijection with
            repeats, filler tokens of recall. Default: 1, 1.5, 2.5 and 5 times the training length, as far as models
            and task allow. A model whose position table ends at the training length needs `with_room` first.
        n: Number of sequences.
        seed: Seed of the sequences and of the intervals.
        threshold_bits: KL above which a position counts as failed.
        executor: Where models are measured, a job each (see `bayesgeom.executors`); they are then given by their names
            or directories. Default: this process.

    Returns:
        Errors by position, and the discontinuity at the training length.

    Raises:
        InvalidArgument: No length is beyond the training length, the task has no length, or the models were trained
            at different lengths.
        TaskMismatch: A model has too few positions for a length.
        ExecutorFault: A job failed; the others' results are kept.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.length_generalization("hmm-lstm", lengths=[21], n=8).n
        8
    """
    is_one = isinstance(model, Model | Checkpoint | nn.Module | str | Path) or callable(model)
    models: list[ModelLike] = [model] if is_one else list(model)  # type: ignore[arg-type, list-item]
    names = None if executor is None else [name_of(item) for item in models]
    _check(models, task, n=n, seed=seed, threshold_bits=threshold_bits)
    subjects = [as_model(item) for item in models]
    setting = LengthSetting.of(subjects, task, lengths, n=n, seed=seed, threshold_bits=threshold_bits)
    if executor is None or names is None:
        measured = [_errors(subject, setting) for subject in subjects]
    else:
        options = {"setting": {key: value for key, value in vars(setting).items() if key != "task"}}
        specs = [subject.spec for subject in subjects]
        each = [job_arguments(name, spec, setting.task, **options) for name, spec in zip(names, specs, strict=True)]
        jobs = [Job(name=spec.name, function=errors_at, arguments=at) for spec, at in zip(specs, each, strict=True)]
        measured = Batch.of(executor).results(jobs, desc="models")
    return _with_source(length_report(measured, setting), subjects, setting)


def _check(models: Sequence[ModelLike], task: TaskLike | None, *, n: int, seed: int, threshold_bits: float) -> None:
    """Check what can be checked before a model is loaded."""
    if not models:
        raise InvalidArgument("models is empty: pass at least one name, directory or model.")
    if n < 2 or not threshold_bits > 0:
        raise InvalidArgument(f"n must be at least 2 and the threshold above 0 bits; got {n} and {threshold_bits}.")
    checked_seed(seed)
    check_names(task, models)


@final
@dataclass(frozen=True, kw_only=True)
class LengthSetting:
    """Settings that all models share."""

    task: WindTunnel
    trained: int
    lengths: tuple[int, ...]
    n: int
    threshold_bits: float
    seed: int

    @property
    def length_field(self) -> LengthField:
        """How the task is made longer."""
        return length_field_of(self.task)

    @classmethod
    def of(
        cls,
        models: Sequence[Model],
        task: TaskLike | None,
        lengths: Sequence[int] | None,
        *,
        n: int,
        seed: int,
        threshold_bits: float,
    ) -> Self:
        """Return the setting that the models have in common; check everything before one runs."""
        known = [_trained_on(model, task) for model in models]
        at_training = [str(field.to(chosen, length)) for chosen, field, length in known]
        if len(set(at_training)) > 1:
            raise InvalidArgument(
                f"models must have been trained on the same task at the same length; these differ: "
                f"{'; '.join(sorted(set(at_training)))}. Run them one by one, or pass a task with a length that all of "
                f"them share."
            )
        chosen, field, trained = known[0]
        wanted = checked_lengths(field, trained, lengths)
        if lengths is None:
            wanted = with_room_for([model.spec for model in models], chosen, field, trained, wanted)
        for model in models:
            check_room(model.spec, chosen, field, wanted[-1])
        return cls(task=chosen, trained=trained, lengths=wanted, n=n, seed=seed, threshold_bits=threshold_bits)


def _trained_on(model: Model, task: TaskLike | None) -> tuple[WindTunnel, LengthField, int]:
    """Return the task to measure on, how it is made longer, and the training length."""
    chosen = scored_task_of(model, task)
    length_field = length_field_of(chosen)
    known = model.task if model.task is not None and model.task.name == chosen.name else chosen
    return chosen, length_field, length_field.of(known)


def _with_source(report: LengthReport, models: Sequence[Model], setting: LengthSetting) -> LengthReport:
    """Add the provenance: names and hashes of several models, or the description of one."""
    names = ("lengths", "n", "seed", "threshold_bits")
    arguments = {name: vars(setting)[name] for name in names}
    trained = {"trained_task": str(setting.length_field.to(setting.task, setting.trained))}
    if len(models) == 1:
        spec = replace(models[0].spec, weights_hash=report.weights_hashes[0])
        return with_provenance(report, provenance(spec, setting.task, arguments) | trained)
    weights = {"weights": dict(zip(report.models, report.weights_hashes, strict=True))}
    named = {"name": ", ".join(report.models), "architecture": "several"}
    return with_provenance(report, provenance(named, setting.task, arguments) | weights | trained)


def errors_at(
    *,
    model: str,
    weights: str,
    device: str,
    task: Mapping[str, Any],
    setting: Mapping[str, Any],
) -> "ModelErrors":
    """Do the job of one model."""
    subject = check_same(load(model, device=device), weights)
    lengths = tuple(setting["lengths"])
    return _errors(subject, LengthSetting(**{**setting, "task": task_from_config(task), "lengths": lengths}))


@checked("model", "task")
def with_room(
    model: ModelLike, task: TaskLike | None = None, lengths: Sequence[int] | None = None, *, seed: int = 0
) -> Model:
    """Return the model if it has positions for these lengths, else with its position table extended by untrained rows.

    Args:
        model: As in `length_generalization`.
        task: As in `length_generalization`.
        lengths: As in `length_generalization`.
        seed: Seed of the added rows.

    Raises:
        InvalidArgument: The model has no learned position table, or no length is beyond the training length.
    """
    check_names(task, [model])
    subject = as_model(model)
    chosen, length_field, trained = _trained_on(subject, task)
    longest = checked_lengths(length_field, trained, lengths)[-1]
    n_pos = lengthened(subject.spec.name, chosen, length_field, longest).n_pos
    if subject.spec.n_ctx is None or n_pos <= subject.spec.n_ctx:
        return subject
    return with_untrained_positions(subject, n_pos, seed=seed)


@final
@dataclass(frozen=True, kw_only=True)
class ModelErrors:
    """The measurements of one model, with one entry per layer of the last three; NaN if layers cannot be read.

    `within_kl_bits` is the KL of the read-out within the training length, `excess_bits` its excess beyond. `shift` is
    |mean residual beyond − mean residual within| over the spread within.
    """

    name: str
    position_kind: str
    untrained_rows: tuple[int, int]
    weights_hash: str
    errors: Errors
    discontinuity_bits: Estimate
    critical: Estimate
    ratio: Estimate
    within_kl_bits: Float[np.ndarray, " layer"]
    excess_bits: Estimate
    shift: Estimate


Window = tuple[Run, slice]  # scored positions of a run


def _errors(model: Model, setting: LengthSetting) -> ModelErrors:
    """Measure one model, along one long run or across runs of every length."""
    field, trained, seed = setting.length_field, setting.trained, setting.seed

    def run_at(length: int) -> Run:
        with phase(f"{model.spec.name} at length {length}"):
            record, n_recorded = (RESID_POST,) if _can_read_layers(model) else (), min(setting.n, N_RECORDED)
            task = field.to(setting.task, length)
            return run_on(model, task, n=setting.n, seed=seed, record=record, n_recorded=n_recorded)

    if field.is_prefix:
        run = run_at(setting.lengths[-1])
        errors = errors_along(run)
        width = max(1, min(N_WINDOW, trained // 2, run.trials.n_scored - trained))
        starts = (max(0, trained - 2 * width), trained - width, trained)
        windows = [(run, slice(start, start + width)) for start in starts]
    else:
        runs = {length: run_at(length) for length in distances_to_run(trained, setting.lengths)}
        errors = errors_across(runs)
        windows = [(runs[length], slice(None)) for length in (max(0, trained - 1), trained, trained + 1)]
    kl, at = errors.kl_bits, errors.at
    # A wide window is exact within most of a short training length.
    best = strongest({name: level for name, level in errors.predictor_kl_bits.items() if name not in errors.wide})
    shortcut = Baseline.of("baseline", best, errors.predictor_kl_bits[best])
    steps = [discontinuity(rows, at, trained, seed=seed) for rows in (kl, errors.entropy_error_bits)]
    within, excess, shift = _by_layer(model, windows)
    return ModelErrors(
        name=model.spec.name,
        position_kind=position_kind(model),
        untrained_rows=untrained_rows(model, field.to(setting.task, trained)),
        weights_hash=model.spec.weights_hash,
        errors=errors,
        discontinuity_bits=stacked(steps),
        critical=critical_length(kl, at, setting.threshold_bits, seed=seed),
        ratio=extrapolation_ratio(kl, at, trained, shortcut, seed=seed),
        within_kl_bits=within,
        excess_bits=excess,
        shift=shift,
    )


def _can_read_layers(model: Model) -> bool:
    """Return whether residuals can be read through the model's output: bayesgeom's transformers only."""
    return isinstance(model.module, Transformer) and RESID_POST in model.sites


@torch.no_grad()
def _by_layer(model: Model, windows: Sequence[Window]) -> tuple[Float[np.ndarray, " layer"], Estimate, Estimate]:
    """Compare windows before, within and beyond: KL within, its excess beyond, and the shift of the mean residual."""
    if not _can_read_layers(model):
        unknown = np.full(model.spec.n_layers, np.nan)
        without = Estimate.of(unknown, baselines=(Baseline.of("baseline", EARLIER, np.nan),))
        return unknown, without, without
    assert isinstance(model.module, Transformer), "its layers can be read"
    before, within, beyond = (_read(model.module, *window) for window in windows)
    resid = [run.at(RESID_POST)[:, :, positions] for run, positions in windows]
    earlier = Baseline.of("baseline", EARLIER, np.abs((within - before).mean(axis=0)))
    usual = Baseline.of("baseline", EARLIER, _shift(resid[1], resid[0]))
    excess = mean_estimate(beyond - within, seed=windows[0][0].seed, baselines=(earlier,))
    return within.mean(axis=0), excess, Estimate.of(_shift(resid[2], resid[1]), n=len(within), baselines=(usual,))


def _read(module: Transformer, run: Run, positions: slice) -> Float[np.ndarray, "sequence layer"]:
    """Return the KL of every layer's read-out to the exact answer, averaged over the window."""
    exact = run.trials.at_scored(run.trials.predictive)[:, positions]
    by_layer = []
    for resid in run.at(RESID_POST)[:, :, positions]:
        log_answers = module.logits(resid)[..., run.trials.answer_ids].double().log_softmax(-1)
        by_layer.append(kl_bits(exact, log_answers).mean(dim=1))
    return np.asarray(torch.stack(by_layer, dim=1).cpu().numpy())


def _shift(
    there: Float[Tensor, "layer batch query_pos d_model"], here: Float[Tensor, "layer batch query_pos d_model"]
) -> Float[np.ndarray, " layer"]:
    away = (there.double().mean(dim=(1, 2)) - here.double().mean(dim=(1, 2))).norm(dim=-1)
    centered = here.double() - here.double().mean(dim=(1, 2), keepdim=True)
    spread = centered.square().sum(-1).mean(dim=(1, 2)).sqrt()
    return np.asarray((away / spread).cpu().numpy())


def length_report(models: Sequence[ModelErrors], setting: LengthSetting) -> LengthReport:
    """Return the report on models that were measured on the same sequences."""
    first, seed, is_prefix = models[0].errors, setting.seed, setting.length_field.is_prefix
    best = strongest(first.predictor_kl_bits)
    predictors = (best, *(name for name in first.predictor_kl_bits if name != best))
    n_layers = max(len(model.within_kl_bits) for model in models)
    curves, wholes = list[Estimate](), list[Estimate]()
    for metric in ("kl_bits", "entropy_error_bits"):
        errors = [vars(model.errors)[metric] for model in models]
        levels = vars(first)[f"predictor_{metric}"]
        baselines = [Baseline.of("baseline", name, levels[name]) for name in predictors]
        curves.append(stacked([mean_along(rows, seed=seed) for rows in errors], baselines))
        whole = [whole_means(rows, first.at, setting.lengths, is_prefix=is_prefix, seed=seed) for rows in errors]
        wholes.append(stacked(whole))
    windows = [model.errors.window for model in models]
    symbols = [
        Estimate.of(np.nan) if window is None else Estimate.of(window.symbols, (window.symbols, window.most_symbols))
        for window in windows
    ]
    return LengthReport(
        unit=setting.length_field.unit,
        trained=setting.trained,
        threshold_bits=setting.threshold_bits,
        models=_distinct([model.name for model in models]),
        position_kinds=tuple(model.position_kind for model in models),
        unreached_rows=np.array([model.untrained_rows for model in models]),
        weights_hashes=tuple(model.weights_hash for model in models),
        lengths=tuple(map(str, setting.lengths)),
        at=first.at,
        errors=ERRORS,
        error_bits=stacked(curves),
        whole_error_bits=stacked(wholes),
        discontinuity_bits=stacked([stacked([model.discontinuity_bits[at] for model in models]) for at in range(2)]),
        critical_length=stacked([model.critical for model in models]),
        extrapolation_ratio=stacked([model.ratio for model in models]),
        layer_within_kl_bits=np.stack([_padded(model.within_kl_bits, n_layers) for model in models]),
        layer_excess_bits=_padded_estimates([model.excess_bits for model in models], n_layers),
        layer_shift=_padded_estimates([model.shift for model in models], n_layers),
        equivalent_window_symbols=stacked(symbols),
        n=len(first.kl_bits),
    )


def _padded_estimates(found: Sequence[Estimate], n_layers: int) -> Estimate:
    return stacked([estimate.mapped(lambda values: _padded(values, n_layers)) for estimate in found])


def _padded(values: Float[np.ndarray, " layer"], n_layers: int) -> Float[np.ndarray, " padded"]:
    """Return values by layer, padded with NaN to the layers of the deepest model."""
    return np.pad(values, (0, n_layers - len(values)), constant_values=np.nan)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Number repeated names: the directories of all runs are called checkpoint."""
    return tuple(
        f"{name} ({names[: index + 1].count(name)})" if name in names[:index] else name
        for index, name in enumerate(names)
    )
