"""`sweep`: vary one parameter of a task and compare a model with the exact posterior at each value."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from bayesgeom.core import (
    NO_LABEL,
    Behavior,
    InvalidArgument,
    Run,
    TaskMismatch,
    Trials,
    Verdict,
    checked,
    number_text,
    phase,
)
from bayesgeom.core.errors import check_fields
from bayesgeom.core.text import aligned_table
from bayesgeom.executors import Batch, Executor, Job, check_same, name_of
from bayesgeom.generalization.curves import floor_bits, strongest, tokens_to_converge
from bayesgeom.measurements.calibration import wider_baselines
from bayesgeom.models.base import Model, provenance
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, as_task, check_names, load, task_of
from bayesgeom.report.estimate import Baseline, Estimate, NonNegative, Quantity, Unit, mean_estimate, stacked
from bayesgeom.report.findings import Finding, Opening
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report, with_provenance
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.behavior import BehaviorLog
from bayesgeom.stats.windows import equivalent_window
from bayesgeom.tasks.base import Branch, TextTask, WindTunnel, check_draws, checked_seed, derived_seed, task_from_config

Task = WindTunnel | TextTask
_INNER = "task"  # the field of a text task that holds the task it renders
_NAMED = 6  # missing tokens that an error lists
SHORTCUT = "strongest shortcut"
NO_MODEL = {"name": "the exact posterior", "architecture": "none"}
EXACT_BITS = 1e-9  # a smaller KL is rounding
_HEADER = (
    "entropy floor (bits)",
    "tokens, exact",
    "tokens, model",
    "KL (bits)",
    "KL, shortcut",
    "entropy error (bits)",
    "entropy error, shortcut",
)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class SweepReport(Report):
    """One parameter of the task varies; everything else, including seeds, is the same.

    The first panel shows the entropy of the exact posterior (wide) and of the model (thin) at each position. The second
    shows how many observations each needs to converge. The others show the model's error at each value, and the error
    of the task's strongest shortcut; their axes begin at 10⁻⁶ bits or at the model's smallest error. A model that
    infers follows the exact posterior at values on which it was not trained; a model that memorized the speed of
    convergence does not. Where the shortcut is exact, no model can be better.

    Fields: one row per value of the parameter; the model's numbers are NaN without a model, or if it cannot be run.

    `notes` states for each value why the model could not be run, else it is empty. `…_tokens` count scored positions
    until mean entropy is within `threshold_bits` of its floor, the mean over the last quarter of the positions; exact
    posterior and model have separate floors. The baseline is the task's strongest shortcut (`shortcuts`). On tasks with
    latent dynamics it may be a window observer of up to ten symbols, chosen as for calibration (see
    `bayesgeom.stats.windows.wider_window`).
    """

    name: ClassVar[str] = "sweep"
    title: ClassVar[str] = "Sweep: how fast does it converge?"

    task: str
    vary: str
    values: tuple[str, ...]
    trained_value: str  # "" without a model
    notes: Annotated[tuple[str, ...], "value"]
    shortcuts: Annotated[tuple[str, ...], "value"]  # the strongest at each value
    threshold_bits: float
    exact_entropy_bits: Annotated[Float[np.ndarray, "value position"], Unit("bits")]
    model_entropy_bits: Annotated[Float[np.ndarray, "value position"], Unit("bits")]
    exact_floor_bits: Annotated[Float[np.ndarray, " value"], Unit("bits")]
    model_floor_bits: Annotated[Float[np.ndarray, " value"], Unit("bits")]
    exact_tokens: Annotated[Estimate, Quantity("value", unit="tokens", label="tokens to converge, exact")]
    model_tokens: Annotated[Estimate, Quantity("value", unit="tokens", label="tokens to converge, model")]
    kl_bits: Annotated[Estimate, NonNegative("value", unit="bits", better="lower", label="KL(exact ‖ model)")]
    entropy_mae_bits: Annotated[Estimate, NonNegative("value", unit="bits", better="lower", label="entropy error")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        lines = list[Headline]()
        for index, value in enumerate(self.values):
            place, shortcut = f"{self.vary}={value}", self.kl_bits.baseline(SHORTCUT).value[index]
            if np.isfinite(self.kl_bits.value[index]):
                verdict = str(Verdict.NOT_APPLICABLE) if shortcut <= EXACT_BITS else None
                label = f"{place}: KL (shortcut: {self.shortcuts[index].replace('_', ' ')})"
                lines.append(headline_of(self, "kl_bits", (index,), label, verdict=verdict))
                lines.append(headline_of(self, "model_tokens", (index,), f"{place}: tokens to converge, model"))
            lines.append(headline_of(self, "exact_tokens", (index,), f"{place}: tokens to converge, exact"))
        return lines

    def answer(self) -> Opening:
        kl, places = self.kl_bits.value, [f"{self.vary}={value}" for value in self.values]
        if not np.isfinite(kl).any():
            return Finding.CONVERGENCE.of(tokens=dict(zip(places, self.exact_tokens.value, strict=True)))
        worst, verdicts = int(np.nanargmax(kl)), [line.verdict for line in self.headlines() if line.metric == "kl_bits"]
        better = sum(verdict in (Verdict.YES, Verdict.BARELY) for verdict in verdicts)
        return Finding.BEATS_SHORTCUT.of(better=better, values=len(verdicts), worst=places[worst], bits=kl[worst])

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.lines import LEAST_BITS, add_estimate, add_line, add_reference
        from bayesgeom.report.theme import SERIES, at_least, escaped, label_axes

        curves = Panel.blank("Entropy by position (exact: wide and pale)")
        steps = np.arange(1, self.exact_entropy_bits.shape[1] + 1)
        for index, label in enumerate(self.values):
            color, name = SERIES[index % len(SERIES)], f"{self.vary}={label}"
            exact, model = self.exact_entropy_bits[index], self.model_entropy_bits[index]
            is_alone = not np.isfinite(model).any()
            add_reference(curves.figure, steps, exact, name=f"{name}, exact" if not is_alone else name, color=color)
            curves.figure.data[-1].showlegend = is_alone  # else it has the color of the model's curve
            if not is_alone:
                add_line(curves.figure, steps, model, name=name, color=color)
        label_axes(curves.figure, "scored position (1 is the first)", "entropy (bits)")
        at_least(curves.figure, LEAST_BITS)
        x, is_ordinal = _places(self.values)
        known, kl_title = self.kl_bits.value, "KL to the exact posterior"
        if np.isfinite(known).any():
            kl_title += f" is largest for {self.vary}={self.values[int(np.nanargmax(known))]}"
        converged = Panel.blank("Observations until the entropy has converged")
        kl, error = Panel.blank(f"{kl_title} (log scale)"), Panel.blank("Entropy error (log scale)")
        add_reference(converged.figure, x, self.exact_tokens.value, name="exact")
        converged.figure.update_yaxes(rangemode="tozero")
        units = ("observations", "KL(exact ‖ model) (bits)", "|H model − H exact| (bits)")
        measured = (self.model_tokens, self.kl_bits, self.entropy_mae_bits)
        for panel, estimate, unit in zip((converged, kl, error), measured, units, strict=True):
            add_estimate(panel.figure, x, estimate, is_log=panel is not converged)
            label_axes(panel.figure, self.vary, unit)
            if is_ordinal:
                panel.figure.update_xaxes(tickvals=list(x), ticktext=[*map(escaped, self.values)])
        return [curves, converged, kl, error]

    def table(self) -> str:
        """Return one row per value, then the reasons why the model could not be run."""
        rows = [(self.vary, *_HEADER), *(self._row(index) for index in range(len(self.values)))]
        notes = [f"{self.vary}={v}: {note}" for v, note in zip(self.values, self.notes, strict=True) if note]
        return "\n".join([*aligned_table(rows), *([""] if notes else []), *notes])

    def _row(self, index: int) -> tuple[str, ...]:
        trained = " (trained)" if self.values[index] == self.trained_value else ""
        kl, error = (estimate.baseline(SHORTCUT).value[index] for estimate in (self.kl_bits, self.entropy_mae_bits))
        return (
            self.values[index] + trained,
            number_text(self.exact_floor_bits[index]),
            number_text(self.exact_tokens.value[index]),
            number_text(self.model_tokens.value[index]),
            self.kl_bits[index].text(),
            f"{number_text(kl)} ({self.shortcuts[index]})",
            self.entropy_mae_bits[index].text(),
            number_text(error),
        )


@final
@dataclass(frozen=True, kw_only=True)
class Value:
    """The measurements at one value of the parameter; without a model `behavior` is None, and `note` may state why.

    `shortcut` is the name of the predictor with the lowest mean KL, its mean KL and its mean entropy error.
    """

    label: str
    note: str
    exact_entropy_bits: Float[np.ndarray, "sequence position"]
    behavior: Behavior | None
    shortcut: tuple[str, float, float]


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
    sent = None if executor is None else (Batch.of(executor), None if model is None else name_of(model))
    known = check_names(task, [model])
    if known is not None and vary not in known - {_INNER}:
        raise _no_parameter(task, vary, known)
    subject = None if model is None else as_model(model)
    chosen = as_task(task, trained=None if subject is None else subject.task)
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
    tasks = [bound_task(varied_task(task, vary, value), model) for value in values]
    labels = tuple(f"{value}" for value in values)
    if executor is None:
        measured = list[Value]()
        with phase(f"values of {vary}", len(labels), "value") as shown:
            for label, varied in zip(labels, tasks, strict=True):
                measured.append(_value(label, varied, model, n=n, seed=seed))
                shown.update(1)
    else:
        batch, name = executor  # the name under which workers load the model
        shared = {"model": name, "weights": "" if model is None else model.spec.weights_hash, "n": n, "seed": seed}
        jobs = [
            Job(name=label, function=value_at, arguments={"label": label, "task": varied.config(), **shared})
            for label, varied in zip(labels, tasks, strict=True)
        ]
        measured = batch.results(jobs, desc="values")
    if model is not None and all(value.behavior is None for value in measured):
        raise TaskMismatch(
            f"{model.spec.name} cannot be run at any value of {vary}; at {labels[0]}: {measured[0].note} "
            f"Omit the model to see the exact posterior alone."
        )
    trained = {} if model is None or model.task is None else vars(model.task)
    report = sweep_report(
        measured,
        task=str(task),
        vary=vary,
        trained_value=f"{trained[vary]}" if vary in trained else "",
        threshold_bits=threshold_bits,
        seed=derived_seed(seed, Branch.RESAMPLING),
    )
    arguments = {"vary": vary, "values": labels, "n": n, "seed": seed, "threshold_bits": threshold_bits}
    where = provenance(NO_MODEL if model is None else model, tasks[0], arguments)
    return with_provenance(report, where | {"task_label": str(task)})


def _value(label: str, task: WindTunnel, model: Model | None, *, n: int, seed: int) -> Value:
    """Measure one value of the parameter: without a model, or where it cannot be run (`note`), the exact posterior."""
    run, note = None, ""
    if model is not None:
        try:
            run = _run(task, model, n=n, seed=seed)
        except TaskMismatch as reason:
            note = str(reason)
    of_model = None if run is None else run.behavior
    if run is not None:
        exact, predictors, windows = run.behavior, run.baseline_behaviors, run.windows
    else:
        log = BehaviorLog()
        for block in task.stream(n, seed=derived_seed(seed, Branch.TRIALS), device="cpu"):
            certain = block.at_scored(block.predictive)
            log.add(block, certain.log(), torch.zeros_like(certain[..., 0]), task.baseline_predictives(block))
        (exact, _, predictors), windows = log.finished(), log.windows()
    entropies_bits = exact.exact_entropy_bits
    kl = {name: predictor.kl_bits.mean(axis=0, dtype=np.float64) for name, predictor in predictors.items()}
    errors = {name: float(predictor.entropy_error_bits.mean()) for name, predictor in predictors.items()}
    if windows is not None:  # the window observer that decides may be none of the task's own baselines
        resamples = derived_seed(seed, Branch.RESAMPLING)
        symbols = math.nan if of_model is None else equivalent_window(windows, of_model.kl_bits, seed=resamples).symbols
        for name, wider_kl, profile in wider_baselines(windows, symbols):
            kl[name], errors[name] = np.array([wider_kl]), float(profile.mean())
    best = strongest(kl)
    shortcut = best, float(kl[best].mean()), errors[best]
    return Value(label=label, note=note, exact_entropy_bits=entropies_bits, behavior=of_model, shortcut=shortcut)


def _run(task: WindTunnel, model: Model, *, n: int, seed: int) -> Run:
    """Run the model; raise `TaskMismatch` if it lacks ids or positions for this value."""
    there, back = known_ids(task, model.task if model.task is not None else task)
    stream = task.stream(n, seed=derived_seed(seed, Branch.TRIALS), device=model.spec.device)
    return model.run(
        (in_ids(block, there) for block in stream),
        baseline_predictives=lambda trials: task.baseline_predictives(in_ids(trials, back)),
        seed=derived_seed(seed, Branch.RESAMPLING),
    )


def varied_task(task: Task, vary: str, value: Any) -> Task:
    """Return the task with one parameter changed; for a text task, also a parameter of the task that it renders.

    Raises:
        InvalidArgument: There is no such parameter, or the value has the wrong type or is out of range.
    """
    assert is_dataclass(task), "a task is a dataclass"
    parameters = {field.name: getattr(task, field.name) for field in fields(task)}
    inner = parameters.get(_INNER)
    changes: dict[str, Any] = {}
    if vary not in parameters and isinstance(inner, WindTunnel):
        changes[_INNER] = varied_task(inner, vary, value)
    elif vary not in parameters or vary == _INNER:
        raise _no_parameter(task, vary, parameters)
    else:
        check_fields(type(task), {vary: value})
        changes[vary] = value
    varied: Task = replace(task, **changes)
    return varied


def _no_parameter(task: object, vary: str, known: Iterable[str]) -> InvalidArgument:
    listed = ", ".join(sorted({*known} - {_INNER})) or "none"
    return InvalidArgument(f"{task} has no parameter {vary!r} to vary. It has: {listed}.")


def _listed(values: Any) -> list[Any]:
    """Return the values of a list or an array as Python values; raise if there are none."""
    listed = list(values)
    if not listed:
        raise InvalidArgument(f"values must be a list with at least one value; got {values!r}.")
    return [value.item() if isinstance(value, np.generic) else value for value in listed]


def bound_task(task: Task, model: Model | None) -> WindTunnel:
    """Return a text task in the model's ids, another task unchanged; raise if its posterior is unknown."""
    if isinstance(task, TextTask):
        if model is None:
            raise InvalidArgument(f"{task} is text and needs the ids of a model's tokenizer: pass a model.")
        task = task_of(model, task)
    check_draws(task)
    if not task.has_posterior:
        raise TaskMismatch(f"a task with an exact posterior is required; {task} has none.")
    return task


def known_ids(task: WindTunnel, known: WindTunnel) -> tuple[Int64[Tensor, " id"], Int64[Tensor, " known"]]:
    """Return the map from the ids of `task` to those of `known`, and its inverse, −1 where there is none.

    An HMM with a higher floor has fewer probability tokens, and so other ids for the same symbols. Token labels are
    unique in a task, so ids can be mapped by label to the vocabulary on which a model was trained.

    Raises:
        TaskMismatch: `known` lacks tokens of `task`.
    """
    labels, places = task.token_labels(), {label: index for index, label in enumerate(known.token_labels())}
    if missing := [label for label in labels if label not in places]:
        shown = ", ".join(missing[:_NAMED]) + (", …" if len(missing) > _NAMED else "")
        raise TaskMismatch(f"{task} uses tokens that {known} lacks: {shown}.")
    there = torch.tensor([places[label] for label in labels])
    return there, torch.full((len(places),), -1).scatter_(0, there, torch.arange(len(labels)))


def in_ids(trials: Trials, to: Int64[Tensor, " id"]) -> Trials:
    """Return trials with every id i as `to[i]`."""
    to = to.to(trials.tokens.device)
    is_labeled = trials.labels != NO_LABEL
    return replace(
        trials,
        tokens=to[trials.tokens],
        answers=to[trials.answers],
        labels=torch.where(is_labeled, to[trials.labels * is_labeled], NO_LABEL),
        token_sets={name: to[members] for name, members in trials.token_sets.items()},
    )


def sweep_report(
    found: Sequence[Value], *, task: str, vary: str, trained_value: str, threshold_bits: float, seed: int
) -> SweepReport:
    """Return the report on all values, in the given order."""
    names, *levels = zip(*(value.shortcut for value in found), strict=True)
    shortcuts = [(Baseline.of("baseline", SHORTCUT, np.array(level)),) for level in levels]
    n_positions = max(value.exact_entropy_bits.shape[1] for value in found)
    unknown = Estimate.of(np.nan, (np.nan, np.nan))
    exact = [value.exact_entropy_bits.astype(np.float64) for value in found]
    seen = [value.behavior for value in found]
    of_model = [None if each is None else each.model_entropy_bits.astype(np.float64) for each in seen]
    kl = [None if each is None else each.kl_bits.mean(axis=1, dtype=np.float64) for each in seen]
    errors = [None if each is None else each.entropy_error_bits.mean(axis=1) for each in seen]

    def means(by_sequence: Sequence[Float[np.ndarray, " sequence"] | None]) -> list[Estimate]:
        return [unknown if each is None else mean_estimate(each, seed=seed) for each in by_sequence]

    return SweepReport(
        task=task,
        vary=vary,
        values=tuple(value.label for value in found),
        trained_value=trained_value,
        notes=tuple(value.note for value in found),
        shortcuts=names,
        threshold_bits=threshold_bits,
        exact_entropy_bits=np.stack([_padded(of, n_positions) for of in exact]),
        model_entropy_bits=np.stack([_padded(of, n_positions) for of in of_model]),
        exact_floor_bits=np.array([floor_bits(of) for of in exact]),
        model_floor_bits=np.array([np.nan if of is None else floor_bits(of) for of in of_model]),
        exact_tokens=stacked([tokens_to_converge(of, threshold_bits, seed=seed) for of in exact]),
        model_tokens=stacked(
            [unknown if of is None else tokens_to_converge(of, threshold_bits, seed=seed) for of in of_model]
        ),
        kl_bits=stacked(means(kl), shortcuts[0]),
        entropy_mae_bits=stacked(means(errors), shortcuts[1]),
        n=len(exact[0]),
    )


def _padded(values: Float[np.ndarray, "sequence position"] | None, n_positions: int) -> Float[np.ndarray, " longest"]:
    """Return the mean at each position, padded with NaN to the longest sequence."""
    padded = np.full(n_positions, np.nan)
    if values is not None:
        padded[: values.shape[1]] = values.mean(axis=0, dtype=np.float64)
    return padded


def _places(labels: Sequence[str]) -> tuple[Float[np.ndarray, " value"], bool]:
    """Return numeric values, or indices for other values, and whether they are indices."""
    try:
        return np.array([float(label) for label in labels]), False
    except ValueError:
        return np.arange(len(labels), dtype=float), True
