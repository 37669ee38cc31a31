"""`length_generalization`: errors far beyond the training length, position by position, of one model or several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Float
from torch import nn

from bayesgeom.core.errors import InvalidArgument, checked
from bayesgeom.core.run import RESID_POST, ModelSpec, Run
from bayesgeom.executors import Batch, Executor, Job, check_same, job_arguments, name_of
from bayesgeom.generalization.curves import errors_across, errors_along, mean_along, strongest, whole_means
from bayesgeom.generalization.length_report import ERRORS, LengthReport
from bayesgeom.generalization.longer_tasks import (
    LengthField,
    check_room,
    checked_lengths,
    distances_to_run,
    length_field_of,
    lengthened,
    with_room_for,
)
from bayesgeom.generalization.model_errors import (
    EARLIER,
    LengthSetting,
    ModelErrors,
    Window,
    can_read_layers,
    measured,
    windows_around,
    with_untrained_positions,
    without_top_attention,
)
from bayesgeom.models.base import Model, provenance
from bayesgeom.models.checkpoint import Checkpoint
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, load, scored_task_of
from bayesgeom.report.estimate import Baseline, Estimate, stacked
from bayesgeom.report.report import with_provenance
from bayesgeom.stats.windows import EquivalentWindow
from bayesgeom.tasks.base import Branch, WindTunnel, checked_seed, derived_seed, task_from_config

N_RECORDED = 128  # sequences whose residuals are read in every layer


@checked("task")
def length_generalization(
    model: ModelLike | Sequence[ModelLike],
    task: TaskLike | None = None,
    lengths: Sequence[int] | None = None,
    *,
    n: int = 512,
    seed: int = 0,
    threshold_bits: float = 0.01,
    top_attention_off: int = 0,
    executor: Executor | Batch | None = None,
) -> LengthReport:
    """Measure errors at and beyond the training length, for one model or several.

    Several models see the same sequences and must have been trained at the same length.

    Args:
        model: A model or several, as `as_model` takes them.
        task: A task, or its text as on the command line. Default: the task that the model was trained on.
        lengths: Lengths at which means over whole sequences are reported: steps of an HMM, pairs of a bijection with
            repeats, filler tokens of recall. Default: 1, 1.5, 2.5 and 5 times the training length, as far as models
            and task allow. A model whose position table ends at the training length needs `with_room` first.
        n: Number of sequences.
        seed: Seed of the sequences and of the intervals.
        threshold_bits: KL above which a position counts as failed.
        top_attention_off: Number of top layers without attention.
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
    is_one = isinstance(model, Model | Checkpoint | nn.Module | str | Path)
    models: list[ModelLike] = [model] if is_one else list(model)  # type: ignore[arg-type, list-item]
    batch = None if executor is None else Batch.of(executor)
    return _measured(
        models,
        task,
        lengths,
        n=n,
        seed=seed,
        threshold_bits=threshold_bits,
        top_attention_off=top_attention_off,
        executor=batch,
    )


def _measured(
    models: list[ModelLike],
    task: TaskLike | None,
    lengths: Sequence[int] | None,
    *,
    n: int,
    seed: int,
    threshold_bits: float,
    top_attention_off: int,
    executor: Batch | None,
) -> LengthReport:
    """Return the report with its provenance; check everything before a model runs."""
    names = [] if executor is None else [name_of(own) for own in models]
    if not models:
        raise InvalidArgument("models is empty: pass at least one name, directory or model.")
    if n < 2 or not threshold_bits > 0:
        raise InvalidArgument(f"n must be at least 2 and the threshold above 0 bits; got {n} and {threshold_bits}.")
    checked_seed(seed)
    # One of several named models is in memory at a time: each is loaded to be checked, and again to be measured.
    is_kept = executor is None and len(models) == 1
    found = [_Subject.of(own, task, top_attention_off, is_kept=is_kept) for own in models]
    setting, specs = _checked(found, lengths, seed=seed, threshold_bits=threshold_bits), [own.spec for own in found]
    if executor is None:
        measured = [_errors(own.resolved(top_attention_off), setting, n) for own in found]
    else:
        sent = zip(names, specs, strict=True)
        jobs = [_job(name, spec, setting, n=n, top_attention_off=top_attention_off) for name, spec in sent]
        measured = executor.results(jobs, desc="models")
    report = length_report(measured, setting)
    arguments = {
        "lengths": setting.lengths,
        "n": n,
        "seed": seed,
        "threshold_bits": threshold_bits,
        "top_attention_off": top_attention_off,
    }
    trained = setting.length_field.to(setting.task, setting.trained)
    where = _provenance(report, specs, setting.task, arguments)
    return with_provenance(report, where | {"trained_task": str(trained)})


def _job(name: str, spec: ModelSpec, setting: LengthSetting, *, n: int, top_attention_off: int) -> Job:
    own = {
        "trained": setting.trained,
        "lengths": list(setting.lengths),
        "seed": setting.seed,
        "threshold_bits": setting.threshold_bits,
    }
    arguments = job_arguments(name, spec, setting.task, n=n, top_attention_off=top_attention_off, setting=own)
    return Job(name=spec.name, function=errors_at, arguments=arguments)


def errors_at(
    *,
    model: str,
    weights: str,
    device: str,
    task: Mapping[str, Any],
    n: int,
    top_attention_off: int,
    setting: Mapping[str, Any],
) -> ModelErrors:
    """Do the job of one model."""
    own, chosen = _silenced(load(model, device=device), top_attention_off), task_from_config(task)
    check_same(own, weights)
    lengths = tuple(setting["lengths"])
    return _errors(
        own, LengthSetting(task=chosen, length_field=length_field_of(chosen), **{**setting, "lengths": lengths}), n
    )


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
    own = as_model(model)
    known = _Subject.of(own, task)
    longest = checked_lengths(known.length_field, known.trained, lengths)[-1]
    n_pos = lengthened(own.spec.name, known.task, known.length_field, longest).n_pos
    if own.spec.n_ctx is None or n_pos <= own.spec.n_ctx:
        return own
    return with_untrained_positions(own, n_pos, seed=seed)


def _checked(
    found: Sequence["_Subject"], lengths: Sequence[int] | None, *, seed: int, threshold_bits: float
) -> LengthSetting:
    """Return the models' common setting; check everything before a model runs."""
    if len({str(own.trained_on) for own in found}) > 1:
        named = "; ".join(sorted({f"{own.trained_on}" for own in found}))
        raise InvalidArgument(
            f"models must have been trained on the same task at the same length; these differ: {named}. Run them "
            f"one by one, or pass a task with a length that all of them share."
        )
    chosen, length_field, trained = found[0].task, found[0].length_field, found[0].trained
    wanted = checked_lengths(length_field, trained, lengths)
    if lengths is None:
        wanted = with_room_for([own.spec for own in found], chosen, length_field, trained, wanted)
    for own in found:
        check_room(own.spec, chosen, length_field, wanted[-1])
    return LengthSetting(
        task=chosen,
        length_field=length_field,
        trained=trained,
        lengths=wanted,
        seed=seed,
        threshold_bits=threshold_bits,
    )


def _provenance(
    report: LengthReport, specs: Sequence[ModelSpec], task: WindTunnel, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return names and hashes of several models, or the description of one with the hash of its measured weights."""
    if len(specs) > 1:
        weights = dict(zip(report.models, report.weights_hashes, strict=True))
        named = {"name": ", ".join(report.models), "architecture": "several"}
        return provenance(named, task, arguments) | {"weights": weights}
    return provenance(replace(specs[0], weights_hash=report.weights_hashes[0]), task, arguments)


def _errors(model: Model, setting: LengthSetting, n: int) -> ModelErrors:
    """Measure one model, along one long run or across runs of every length."""

    def run_at(length: int) -> Run:
        return run_on(model, setting.length_field.to(setting.task, length), n=n, seed=setting.seed)

    if setting.length_field.is_prefix:
        run = run_at(setting.lengths[-1])
        windows = windows_around(run, setting.trained) if can_read_layers(model) else None
        return measured(model, setting, errors_along(run), windows)
    runs = {length: run_at(length) for length in distances_to_run(setting.trained, setting.lengths)}
    earlier, beyond, everywhere = max(0, setting.trained - 1), setting.trained + 1, slice(None)
    windows = None
    if can_read_layers(model):
        before, within, after = (Window.of(runs[at], everywhere) for at in (earlier, setting.trained, beyond))
        windows = before, within, after
    return measured(model, setting, errors_across(runs), windows)


def run_on(model: Model, task: WindTunnel, *, n: int, seed: int) -> Run:
    """Run `n` sequences of the task, recording residuals of the first ones if layers can be read."""
    return model.run(
        task.stream(n, seed=derived_seed(seed, Branch.TRIALS), device=model.spec.device),
        record=(RESID_POST,) if can_read_layers(model) else (),
        n_recorded=min(n, N_RECORDED),
        baseline_predictives=task.baseline_predictives,
        seed=derived_seed(seed, Branch.RESAMPLING),
    )


@final
@dataclass(frozen=True, kw_only=True)
class _Subject:
    """Size, task and training length of a model, known before it is measured; `model` is None unless it is kept."""

    source: ModelLike
    spec: ModelSpec
    task: WindTunnel
    length_field: LengthField
    trained: int
    model: Model | None = None

    @classmethod
    def of(
        cls, model: ModelLike, task: TaskLike | None, top_attention_off: int = 0, *, is_kept: bool = True
    ) -> "_Subject":
        """Return the task, how it is made longer, and the training length.

        A named model is kept if `is_kept`. An object of the caller is always kept.
        """
        own = _silenced(as_model(model), top_attention_off)
        chosen = scored_task_of(own, task)
        length_field = length_field_of(chosen)
        known = own.task if own.task is not None and own.task.name == chosen.name else chosen
        return cls(
            source=model,
            spec=own.spec,
            task=chosen,
            length_field=length_field,
            trained=length_field.of(known),
            model=own if is_kept or not isinstance(model, str | Path) else None,
        )

    def resolved(self, top_attention_off: int) -> Model:
        """Return the model: the one that was kept, or else load it again."""
        if self.model is not None:
            return self.model
        return _silenced(as_model(self.source), top_attention_off)

    @property
    def trained_on(self) -> WindTunnel:
        """The task at the training length."""
        return self.length_field.to(self.task, self.trained)


def _silenced(model: Model, n_layers: int) -> Model:
    return without_top_attention(model, n_layers) if n_layers else model


def length_report(models: Sequence[ModelErrors], setting: LengthSetting) -> LengthReport:
    """Return the report on models that were measured on the same sequences."""
    first = models[0].errors
    best = strongest(first.predictor_kl_bits)
    predictors = (best, *(name for name in first.predictor_kl_bits if name != best))
    kl, entropy = ([model.errors.kl_bits for model in models], [model.errors.entropy_error_bits for model in models])
    windows = [model.errors.window for model in models]
    n_layers = max(model.n_layers for model in models)
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
        error_bits=stacked(
            [
                _curves(kl, first.predictor_kl_bits, predictors, setting.seed),
                _curves(entropy, first.predictor_entropy_error_bits, predictors, setting.seed),
            ]
        ),
        whole_error_bits=stacked([_whole(own, models, setting) for own in (kl, entropy)]),
        discontinuity_bits=stacked(
            [
                stacked([model.discontinuity_kl for model in models]),
                stacked([model.discontinuity_entropy for model in models]),
            ]
        ),
        critical_length=stacked([model.critical for model in models]),
        extrapolation_ratio=stacked([model.ratio for model in models]),
        layer_within_kl_bits=np.stack(
            [_padded(None if model.depth is None else model.depth.within_kl_bits, n_layers) for model in models]
        ),
        layer_excess_bits=_by_layer(
            [None if model.depth is None else model.depth.excess_bits for model in models], n_layers
        ),
        layer_shift=_by_layer(
            [None if model.depth is None else model.depth.shift for model in models], n_layers, has_interval=False
        ),
        equivalent_window_symbols=_equivalent_windows(windows),
        n=len(first.kl_bits),
    )


def _by_layer(found: Sequence[Estimate | None], n_layers: int, *, has_interval: bool = True) -> Estimate:
    """Return estimates by layer, padded with NaN to the layers of the deepest model."""

    def level(parts: Sequence[Float[np.ndarray, " layer"] | None]) -> Float[np.ndarray, "model padded"]:
        return np.stack([_padded(part, n_layers) for part in parts])

    low, high = (level([None if own is None else own.ends[end] for own in found]) for end in (0, 1))
    earlier = level([None if own is None else own.baseline(EARLIER).value for own in found])
    return Estimate.of(
        level([None if own is None else own.value for own in found]),
        (low, high) if has_interval else None,
        n=max(0 if own is None else own.n for own in found),
        baselines=(Baseline.of("baseline", EARLIER, earlier),),
    )


def _padded(values: Float[np.ndarray, " layer"] | None, n_layers: int) -> Float[np.ndarray, " padded"]:
    padded = np.full(n_layers, np.nan)
    if values is not None:
        padded[: len(values)] = values
    return padded


def _equivalent_windows(found: Sequence[EquivalentWindow | None]) -> Estimate:
    """Return effective memories of all models; NaN if the hidden state does not move."""
    known = [own for own in found if own is not None]
    if len(known) < len(found):
        return Estimate.of(np.full(len(found), np.nan))
    symbols = np.array([own.symbols for own in known])
    return Estimate.of(symbols, (symbols, [own.symbols_ends[1] for own in known]))


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Number repeated names: the directories of all runs are called checkpoint."""
    return tuple(
        f"{name} ({names[: index + 1].count(name)})" if name in names[:index] else name
        for index, name in enumerate(names)
    )


def _curves(
    errors: Sequence[Float[np.ndarray, "sequence position"]],
    levels: Mapping[str, Float[np.ndarray, " position"]],
    predictors: Sequence[str],
    seed: int,
) -> Estimate:
    """Return means along the sequence; the baselines are the predictors, the strongest first."""
    baselines = [Baseline.of("baseline", name, levels[name]) for name in predictors]
    return stacked([mean_along(own, seed=seed) for own in errors], baselines)


def _whole(
    errors: Sequence[Float[np.ndarray, "sequence position"]], models: Sequence[ModelErrors], setting: LengthSetting
) -> Estimate:
    """Return means over whole sequences of each length."""
    at, is_prefix = models[0].errors.at, setting.length_field.is_prefix
    return stacked([whole_means(own, at, setting.lengths, is_prefix=is_prefix, seed=setting.seed) for own in errors])
