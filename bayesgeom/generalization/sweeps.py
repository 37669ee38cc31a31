"""`sweep`: vary one parameter of a task and compare a model with the exact posterior at each value."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument, TaskMismatch, check_fields, checked
from bayesgeom.core.run import NO_LABEL, Behavior, Trials, WindowScores
from bayesgeom.executors import Batch, Executor, Job, check_same, name_of
from bayesgeom.generalization.sweep_report import SweepReport, Value, sweep_report
from bayesgeom.models.base import Model, provenance
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, as_task, load, task_of
from bayesgeom.report.report import with_provenance
from bayesgeom.stats.behavior import BehaviorLog
from bayesgeom.stats.observers import STARTS
from bayesgeom.stats.windows import equivalent_window, wider_window, window_name
from bayesgeom.tasks.base import Branch, TextTask, WindTunnel, checked_seed, derived_seed, task_from_config

Task = WindTunnel | TextTask
_INNER = "task"  # the field of a text task that holds the task it renders
_NAMED = 6  # missing tokens that an error lists


@checked("task", "model")
def sweep(
    task: TaskLike,
    vary: str,
    values: Iterable[Any],
    model: ModelLike | None = None,
    *,
    n: int = 512,
    seed: int = 0,
    threshold_bits: float = 0.05,
    executor: Executor | Batch | None = None,
) -> SweepReport:
    """Measure how fast the exact posterior converges at each value of one parameter, and how far a model is from it.

    Args:
        task: A task, or its text as on the command line.
        vary: Parameter of the task, such as the floor of an HMM.
        values: Values of the parameter.
        model: A model to compare; `notes` state where it cannot be run. Default: the exact posterior alone.
        n: Number of sequences.
        seed: Seed of the sequences and of the intervals.
        threshold_bits: Distance of the mean entropy from its floor at which the posterior has converged.
        executor: Where values are computed, a job each (see `bayesgeom.executors`); the model is then given by its name
            or directory. Default: this process.

    Returns:
        Convergence and error at every value.

    Raises:
        InvalidArgument: The task has no such parameter, or it does not take a value.
        TaskMismatch: The model cannot be run at any value.
        ExecutorFault: A job failed; the others' results are kept.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.sweep(bayesgeom.tasks.Bijection(n_values=5, n_pairs=3), "n_pairs", [2, 3], n=8).n
        8
    """
    batch = None if executor is None else Batch.of(executor)
    name = None if executor is None or model is None else name_of(model)
    subject = None if model is None else as_model(model)
    chosen = as_task(task, trained=None if subject is None else subject.task)
    sent = None if batch is None else (batch, name)
    return _swept(chosen, vary, _listed(values), subject, n=n, seed=seed, threshold_bits=threshold_bits, executor=sent)


def value_at(*, label: str, task: Mapping[str, Any], model: str | None, weights: str, n: int, seed: int) -> Value:
    """Do the job of one value."""
    subject = None if model is None else check_same(load(model), weights)
    return _value(label, task_from_config(task), subject, n=n, seed=seed)


def _swept(
    task: Task,
    vary: str,
    values: list[Any],
    model: Model | None,
    *,
    n: int,
    seed: int,
    threshold_bits: float,
    executor: tuple[Batch, str | None] | None,
) -> SweepReport:
    """Return the report with its provenance; check everything before anything runs."""
    if n < 2 or not threshold_bits > 0:
        raise InvalidArgument(f"a sweep needs n ≥ 2 and a threshold above 0 bits; got {n} and {threshold_bits}.")
    checked_seed(seed)
    tasks = [_bound(varied_task(task, vary, value), model) for value in values]
    labels = tuple(f"{value}" for value in values)
    if executor is None:
        found = [_value(label, own, model, n=n, seed=seed) for label, own in zip(labels, tasks, strict=True)]
    else:
        batch, name = executor  # the name under which workers load the model
        weights = "" if model is None else model.spec.weights_hash
        jobs = []
        for label, own in zip(labels, tasks, strict=True):
            sent = {"label": label, "task": own.config(), "model": name, "weights": weights, "n": n, "seed": seed}
            jobs.append(Job(name=label, function=value_at, arguments=sent))
        found = batch.results(jobs, desc="values")
    if model is not None and all(value.own is None for value in found):
        raise TaskMismatch(
            f"{model.spec.name} cannot be run at any value of {vary}; at {labels[0]}: {found[0].note} "
            f"Omit the model to see the exact posterior alone."
        )
    report = sweep_report(
        found,
        task=str(task),
        vary=vary,
        trained_value=_trained_value(model, vary),
        threshold_bits=threshold_bits,
        seed=derived_seed(seed, Branch.RESAMPLING),
    )
    arguments = {"vary": vary, "values": labels, "n": n, "seed": seed, "threshold_bits": threshold_bits}
    exact = {"name": "the exact posterior", "architecture": "none"}
    where = provenance(exact if model is None else model, tasks[0], arguments)
    return with_provenance(report, where | {"task_label": str(task)})


def _value(label: str, task: WindTunnel, model: Model | None, *, n: int, seed: int) -> Value:
    """Measure one value of the parameter: without a model, or where it cannot be run (`note`), the exact posterior."""
    note = ""
    if model is not None:
        try:
            return _measured(label, task, model, n=n, seed=seed)
        except TaskMismatch as reason:
            note = str(reason)
    log = BehaviorLog()
    for block in task.stream(n, seed=derived_seed(seed, Branch.TRIALS), device="cpu"):
        certain = block.at_scored(block.predictive)
        log.add(block, certain.log(), torch.zeros_like(certain[..., 0]), task.baseline_predictives(block))
    exact: Behavior
    exact, _, predictors = log.finished()
    return Value(
        label=label,
        note=note,
        exact_entropy_bits=exact.exact_entropy_bits,
        own=None,
        predictors=predictors,
        wider=_wider(log.windows(), None, seed=seed),
    )


def _measured(label: str, task: WindTunnel, model: Model, *, n: int, seed: int) -> Value:
    """Measure the model; raise `TaskMismatch` if it lacks ids or positions for this value."""
    vocabulary = Vocabulary.between(task, model.task if model.task is not None else task)
    stream = task.stream(n, seed=derived_seed(seed, Branch.TRIALS), device=model.spec.device)
    run = model.run(
        (vocabulary.rendered(block) for block in stream),
        baseline_predictives=vocabulary.baselines(task),
        seed=derived_seed(seed, Branch.RESAMPLING),
    )
    return Value(
        label=label,
        note="",
        exact_entropy_bits=run.behavior.exact_entropy_bits,
        own=run.behavior,
        predictors=run.baseline_behaviors,
        wider=_wider(run.windows, run.behavior.kl_bits, seed=run.seed),
    )


def _wider(
    windows: WindowScores | None, kl_bits: Float[np.ndarray, "sequence position"] | None, *, seed: int
) -> dict[str, tuple[float, float]]:
    """Return KL and entropy error of the window observer that decides, if it is none of the task's own baselines.

    Without a model it is that of ten symbols.
    """
    if windows is None:
        return {}
    symbols = math.nan if kl_bits is None else equivalent_window(windows, kl_bits, seed=seed).symbols
    means = windows.kl_bits.mean(axis=2)
    at = wider_window(means, symbols)
    if at is None:
        return {}
    return {window_name(at[1], STARTS[at[0]]): (float(means[at]), float(windows.entropy_error_bits[at].mean()))}


def _trained_value(model: Model | None, vary: str) -> str:
    """Return the label of the value at which the model was trained."""
    trained = None if model is None else model.task
    if trained is None or not is_dataclass(trained) or vary not in {field.name for field in fields(trained)}:
        return ""
    return f"{getattr(trained, vary)}"


def varied_task(task: Task, vary: str, value: Any) -> Task:
    """Return the task with one parameter changed; for a text task, also a parameter of the task that it renders.

    Raises:
        InvalidArgument: There is no such parameter, or the value has the wrong type or is out of range.
    """
    assert is_dataclass(task), "a task is a dataclass"
    own = {field.name: getattr(task, field.name) for field in fields(task)}
    inner = own.get(_INNER)
    changes: dict[str, Any] = {}
    if vary not in own and isinstance(inner, WindTunnel):
        changes[_INNER] = varied_task(inner, vary, value)
    elif vary not in own or vary == _INNER:
        known = {*own} - {_INNER}
        raise InvalidArgument(f"{task} has no parameter {vary!r} to vary. It has: {', '.join(sorted(known))}.")
    else:
        check_fields(type(task), {vary: value})
        changes[vary] = value
    varied: Task = replace(task, **changes)
    return varied


def _listed(values: Any) -> list[Any]:
    """Return the values of a list or an array as Python values; raise if there are none."""
    try:
        listed = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else []
    except TypeError:  # an array without axes
        listed = []
    if not listed:
        raise InvalidArgument(f"values must be a list with at least one value; got {values!r}.")
    return [value.item() if isinstance(value, np.generic) else value for value in listed]


def _bound(task: Task, model: Model | None) -> WindTunnel:
    """Return a text task in the model's ids, another task unchanged; raise if its posterior is unknown."""
    if isinstance(task, TextTask):
        if model is None:
            raise InvalidArgument(f"{task} is text and needs the ids of a model's tokenizer: pass a model.")
        task = task_of(model, task)
    if not task.has_posterior:
        raise TaskMismatch(f"a sweep requires a task with an exact posterior; {task} has none.")
    return task


@final
@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Map between the ids of two tasks: `there` to the known ids, `back` from them; −1 where there is none.

    An HMM with a higher floor has fewer probability tokens, and so other ids for the same symbols. Token labels are
    unique in a task, so ids can be mapped by label to the vocabulary on which a model was trained.
    """

    there: Int64[Tensor, " id"]
    back: Int64[Tensor, " known"]

    @classmethod
    def between(cls, task: WindTunnel, known: WindTunnel) -> "Vocabulary":
        """Return the map from the ids of `task` to those of `known`.

        Raises:
            TaskMismatch: `known` lacks tokens of `task`.
        """
        own, places = task.token_labels(), {label: index for index, label in enumerate(known.token_labels())}
        if missing := [label for label in own if label not in places]:
            shown = ", ".join(missing[:_NAMED]) + (", …" if len(missing) > _NAMED else "")
            raise TaskMismatch(f"{task} uses tokens that {known} lacks: {shown}.")
        there = torch.tensor([places[label] for label in own])
        back = torch.full((len(places),), -1).scatter_(0, there, torch.arange(len(own)))
        return cls(there=there, back=back)

    def rendered(self, trials: Trials) -> Trials:
        """Return trials of the task in known ids."""
        return _mapped(trials, self.there)

    def read(self, trials: Trials) -> Trials:
        """Return trials in known ids in the ids of the task, the inverse of `rendered`."""
        return _mapped(trials, self.back)

    def baselines(
        self, task: WindTunnel
    ) -> Callable[[Trials], Mapping[str, Float64[Tensor, "batch query_pos answer"]]]:
        """Return the task's shortcut predictors, for trials in known ids."""
        return lambda trials: task.baseline_predictives(self.read(trials))


def _mapped(trials: Trials, to: Int64[Tensor, " id"]) -> Trials:
    to = to.to(trials.tokens.device)
    is_labeled = trials.labels != NO_LABEL
    return replace(
        trials,
        tokens=to[trials.tokens],
        answers=to[trials.answers],
        labels=torch.where(is_labeled, to[trials.labels * is_labeled], NO_LABEL),
        token_sets={name: to[members] for name, members in trials.token_sets.items()},
    )
