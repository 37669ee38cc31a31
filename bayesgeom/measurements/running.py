"""Runs what a measurement asks for: one place that batches, counts and shows every sequence beyond the first run."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.core import Run, Trials, concatenate, phase
from bayesgeom.measurements.base import Further, Measurement, R, Subject
from bayesgeom.models.base import Model, provenance
from bayesgeom.models.resolve import ModelLike, TaskLike, model_for, task_of
from bayesgeom.report.report import with_provenance
from bayesgeom.stats.behavior import predicted_behavior
from bayesgeom.tasks.base import Branch, WindTunnel, check_count, derived_seed, scored_once

AT_ONCE = 64  # sequences of a block of answers


def measured(
    measurement: Measurement[R],
    model: ModelLike,
    task: TaskLike | None,
    *,
    n: int,
    seed: int,
) -> R:
    """Measure one thing of a model on its task, from the predictions on `n` sequences.

    Args:
        measurement: What is measured.
        model: Any argument of `as_model`.
        task: A task, or its text. None: the model's own.
        n: Number of sequences.
        seed: Seed of the sequences and of the intervals.

    Raises:
        InvalidArgument: The model cannot do what is asked for, or n is too small.
        TaskMismatch: The measurement does not apply to the task.
    """
    subject = model_for(model, task)
    chosen = task_of(subject, task)
    n, seed = subject.sequences(chosen, n=n, seed=seed)
    prepared = measurement.prepared(subject, chosen, n=n, seed=seed)
    subject.check_fits(chosen.sample(1, seed=0))
    check_count(n)
    subject.begin()
    run = first_run(subject, chosen, n=n, seed=seed)
    further = further_runs(subject, prepared, chosen, run, seed=seed)
    report = prepared.of(Subject(run=run, task=chosen, seed=seed, further=further, model=subject))
    arguments = prepared.settings() | {"n": n, "seed": seed}
    return with_provenance(report, provenance(subject, chosen, arguments))


def first_run(model: Model, task: WindTunnel, *, n: int, seed: int) -> Run:
    """Return the predictions on the first `n` sequences of a task, without activations."""
    start = derived_seed(seed, Branch.TRIALS)
    blocks = task.stream(n, seed=start, device=model.spec.device)
    with phase(model.spec.name, n, "sequence") as shown:
        return model.run(
            _shown(blocks, shown),
            n_recorded=n,
            baseline_predictives=task.baseline_predictives,
            seed=derived_seed(seed, Branch.RESAMPLING),
        )


def first_sequences(task: WindTunnel, run: Run, n: int, *, seed: int) -> Trials:
    """Return the first `n` sequences of a diagnosis: those of its run, or drawn again if the run holds fewer."""
    if run.n_recorded >= n:
        return run.trials.rows(slice(0, n))
    device = run.trials.tokens.device
    return concatenate([*task.stream(n, seed=derived_seed(seed, Branch.TRIALS), device=device)])


def further_runs(
    model: Model, measurement: Measurement[Any], task: WindTunnel, run: Run, *, seed: int
) -> tuple[Run, ...]:
    """Return the runs of the further sequences of a measurement, in their order."""
    runs = list[Run]()
    for (label, is_last_only), group in groupby(
        measurement.further(task, run, seed), key=lambda each: (each.label, each.is_last_only)
    ):
        model.require_asks(measurement.asks, by=measurement.name)
        if is_last_only:
            runs += _answered(model, [each.trials for each in group], run, label)
        else:
            runs += [_ran(model, each, seed) for each in group]
    return tuple(runs)


def _ran(model: Model, further: Further, seed: int) -> Run:
    trials = further.trials
    with phase(further.label, len(trials), "sequence") as shown:
        return model.run(
            _shown(trials.batches(at_most=AT_ONCE), shown),
            record=further.record,
            n_recorded=len(trials),
            seed=derived_seed(seed, Branch.RESAMPLING),
        )


def _answered(model: Model, wanted: Sequence[Trials], run: Run, label: str) -> list[Run]:
    """Return runs that hold the answers at the last scored position; each different sequence runs once.

    Few pieces of evidence are often drawn as they were, so many sequences of a task in text are repeats.
    """
    every = concatenate([at_last(trials) for trials in wanted])
    known, answers = run.trials, run.log_answers[:, -1].double()
    is_alike = known.tokens.shape[1] == every.tokens.shape[1]
    if is_alike:
        every = concatenate([at_last(known), every])
    keys = torch.cat([every.tokens, every.scored_positions()], dim=1)
    different, place = keys.unique(dim=0, return_inverse=True)
    order = torch.arange(len(place), device=place.device)
    first = place.new_full((len(different),), len(place)).scatter_reduce_(0, place, order, "amin")
    n_known = len(known) if is_alike else 0
    known_answers = answers.new_empty(len(different), every.answers.numel())
    known_answers[place[:n_known]] = answers[:n_known]
    missing = (first >= n_known).nonzero()[:, 0]
    if len(missing):
        with phase(label, len(missing), "sequence") as shown:
            blocks = _shown(every.rows(first[missing]).batches(at_most=AT_ONCE), shown)
            known_answers[missing] = model.run(blocks, n_recorded=len(missing)).log_answers[:, -1].to(known_answers)
    parts = known_answers[place[n_known:]].split([len(trials) for trials in wanted])
    return [_with_answers(run, trials, part) for trials, part in zip(wanted, parts, strict=True)]


def _with_answers(run: Run, trials: Trials, log_answers: Float64[Tensor, "batch answer"]) -> Run:
    """Return the run of sequences whose answers at the last scored position are known, with scores there."""
    once = at_last(trials)
    behavior = predicted_behavior(once, log_answers[:, None].exp())
    return replace(
        run,
        behavior=replace(behavior, off_answer_prob=np.full_like(behavior.off_answer_prob, np.nan)),
        exact_behavior=predicted_behavior(once, once.at_scored(once.predictive)),
        baseline_behaviors={},
        trials=trials,
        log_answers=log_answers[:, None],
        recorded={},
        windows=None,
        streamed=None,
    )


def at_last(trials: Trials) -> Trials:
    """Return the sequences with their last scored position alone scored, without relations and window observers."""
    return scored_once(trials, torch.full((len(trials),), -1, device=trials.tokens.device))


def _shown(blocks: Iterator[Trials], bar: Any) -> Iterator[Trials]:
    for block in blocks:
        yield block
        bar.update(len(block))
