"""`length_generalization`: errors far beyond the training length, position by position, of one model or several."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from torch import nn

from bayesgeom.core.arguments import checked
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import ModelSpec, Run
from bayesgeom.core.sites import RESID_POST
from bayesgeom.executors import Batch, Executor, Job, check_same, job_arguments, name_of
from bayesgeom.generalization.curves import errors_across, errors_along
from bayesgeom.generalization.depth import Window, can_read_layers, windows_around
from bayesgeom.generalization.length_report import LengthReport
from bayesgeom.generalization.model_errors import (
    ModelErrors,
    Setting,
    measured,
    with_untrained_positions,
    without_top_attention,
)
from bayesgeom.generalization.stretch import (
    Stretch,
    check_room,
    checked_lengths,
    distances_to_run,
    lengthened,
    stretch_of,
    with_room_for,
)
from bayesgeom.generalization.together import length_report
from bayesgeom.models.base import Model
from bayesgeom.models.checkpoint import Checkpoint
from bayesgeom.models.provenance import provenance
from bayesgeom.models.recording import recording_bytes
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, load, scored_task_of
from bayesgeom.report.report import with_provenance
from bayesgeom.tasks.base import Branch, WindTunnel, checked_seed, derived_seed, task_from_config

N_RECORDED = 128  # sequences whose residuals are read in every layer
PARAMETER_BYTES = 8  # at most, of a parameter in float64


@final
@dataclass(frozen=True, kw_only=True)
class Unmade:
    """A model that is built or trained only when it is needed; `like` returns one of the same shape and task."""

    like: Callable[[], Model]
    make: Callable[[], Model]


@checked("task")
def length_generalization(
    model: ModelLike | Unmade | Sequence[ModelLike | Unmade],
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
    is_one = isinstance(model, Model | Checkpoint | nn.Module | str | Path | Unmade)
    models: list[ModelLike | Unmade] = [model] if is_one else list(model)  # type: ignore[arg-type, list-item]
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
    models: list[ModelLike | Unmade],
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
    names = [] if executor is None else [_sendable(own) for own in models]
    if not models:
        raise InvalidArgument("models is empty: pass at least one name, directory or model.")
    if n < 2 or not threshold_bits > 0:
        raise InvalidArgument(f"n must be at least 2 and the threshold above 0 bits; got {n} and {threshold_bits}.")
    checked_seed(seed)
    room = 0 if executor is not None else math.inf if len(models) == 1 else recording_bytes("cpu")
    found = _subjects(models, task, top_attention_off=top_attention_off, room=room)
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
    trained = setting.stretch.to(setting.task, setting.trained)
    where = _provenance(report, specs, setting.task, arguments)
    return with_provenance(report, where | {"trained_task": str(trained)})


def _sendable(model: ModelLike | Unmade) -> str:
    """Return the name by which a worker loads a model.

    Raises:
        InvalidArgument: It is not trained yet.
    """
    if isinstance(model, Unmade):
        raise InvalidArgument("executor= needs models that exist: train them first, and pass names or directories.")
    return name_of(model)


def _job(name: str, spec: ModelSpec, setting: Setting, *, n: int, top_attention_off: int) -> Job:
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
    return _errors(own, Setting(task=chosen, stretch=stretch_of(chosen), **{**setting, "lengths": lengths}), n)


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
    longest = checked_lengths(known.stretch, known.trained, lengths)[-1]
    n_pos = lengthened(own.spec.name, known.task, known.stretch, longest).n_pos
    if own.spec.n_ctx is None or n_pos <= own.spec.n_ctx:
        return own
    return with_untrained_positions(own, n_pos, seed=seed)


def _subjects(
    models: Sequence[ModelLike | Unmade], task: TaskLike | None, *, top_attention_off: int, room: float
) -> list["_Subject"]:
    """Resolve every model once; named models are kept until their parameters no longer fit in `room` bytes.

    Those that do not fit are loaded again when they are measured, so only one of them is in memory at a time.
    """
    found = list[_Subject]()
    for model in models:
        own = _Subject.of(model, task, top_attention_off, room)
        if own.model is not None and isinstance(model, str | Path):
            room -= PARAMETER_BYTES * own.spec.n_parameters
        found.append(own)
    return found


def _checked(
    found: Sequence["_Subject"], lengths: Sequence[int] | None, *, seed: int, threshold_bits: float
) -> Setting:
    """Return the models' common setting; check everything before a model is trained or runs."""
    chosen, stretch, trained = _shared(found)
    wanted = checked_lengths(stretch, trained, lengths)
    if lengths is None:
        wanted = with_room_for([own.spec for own in found], chosen, stretch, trained, wanted)
    for own in found:
        check_room(own.spec, chosen, stretch, wanted[-1])
    return Setting(
        task=chosen, stretch=stretch, trained=trained, lengths=wanted, seed=seed, threshold_bits=threshold_bits
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


def _errors(model: Model, setting: Setting, n: int) -> ModelErrors:
    """Measure one model, along one long run or across runs of every length."""

    def run_at(length: int) -> Run:
        return run_on(model, setting.stretch.to(setting.task, length), n=n, seed=setting.seed)

    if setting.stretch.is_prefix:
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

    source: ModelLike | Unmade
    spec: ModelSpec
    task: WindTunnel
    stretch: Stretch
    trained: int
    model: Model | None = None

    @classmethod
    def of(
        cls, model: ModelLike | Unmade, task: TaskLike | None, top_attention_off: int = 0, room: float = 0
    ) -> "_Subject":
        """Return the task, how it is made longer, and the training length.

        A named model is kept if its parameters fit in `room` bytes. An object of the caller is always kept.
        """
        own = _silenced(model.like() if isinstance(model, Unmade) else as_model(model), top_attention_off)
        chosen = scored_task_of(own, task)
        stretch = stretch_of(chosen)
        known = own.task if own.task is not None and own.task.name == chosen.name else chosen
        has_room = not isinstance(model, str | Path) or PARAMETER_BYTES * own.spec.n_parameters <= room
        is_kept = has_room and not isinstance(model, Unmade)
        return cls(
            source=model,
            spec=own.spec,
            task=chosen,
            stretch=stretch,
            trained=stretch.of(known),
            model=own if is_kept else None,
        )

    def resolved(self, top_attention_off: int) -> Model:
        """Return the model: the one that was kept, or else load or train it."""
        if self.model is not None:
            return self.model
        whole = self.source.make() if isinstance(self.source, Unmade) else as_model(self.source)
        return _silenced(whole, top_attention_off)

    @property
    def trained_on(self) -> WindTunnel:
        """The task at the training length."""
        return self.stretch.to(self.task, self.trained)


def _shared(found: Sequence[_Subject]) -> tuple[WindTunnel, Stretch, int]:
    """Return the common task and training length; raise if they differ."""
    if len({str(own.trained_on) for own in found}) > 1:
        named = "; ".join(sorted({f"{own.trained_on}" for own in found}))
        raise InvalidArgument(
            f"models must have been trained on the same task at the same length; these differ: {named}. Run them "
            f"one by one, or pass a task with a length that all of them share."
        )
    return found[0].task, found[0].stretch, found[0].trained


def _silenced(model: Model, n_layers: int) -> Model:
    return without_top_attention(model, n_layers) if n_layers else model
