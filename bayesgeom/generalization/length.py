"""`length`: errors far beyond the training length, position by position, for one model or for several side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from torch import nn

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import ModelSpec, Run
from bayesgeom.core.sites import RESID_POST
from bayesgeom.generalization.arm import (
    Arm,
    Setting,
    measured,
    with_untrained_positions,
    without_top_attention,
)
from bayesgeom.generalization.curves import errors_across, errors_along
from bayesgeom.generalization.depth import Window, can_read_layers, windows_around
from bayesgeom.generalization.length_report import LengthReport
from bayesgeom.generalization.stretch import Stretch, check_room, checked_lengths, distances_to_run, stretch_of
from bayesgeom.generalization.together import length_report
from bayesgeom.models.base import Model
from bayesgeom.models.checkpoint import Checkpoint
from bayesgeom.models.provenance import provenance
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, scored_task_of
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.report import with_provenance
from bayesgeom.tasks.base import Branch, WindTunnel, checked_seed, derived_seed

N_RECORDED = 128  # sequences whose residuals are read layer by layer


def length_generalization(
    model: ModelLike | Sequence[ModelLike],
    task: TaskLike | None = None,
    lengths: Sequence[int] | None = None,
    *,
    n: int = 512,
    seed: int = 0,
    threshold_bits: float = 0.01,
    top_attention_off: int = 0,
) -> LengthReport:
    """Errors of a model, or of several, at and beyond the length that it was trained on, on `n` fresh sequences.

    `lengths` are those at which whole-sequence means are given, the longest being run: steps of an HMM, pairs of a
    bijection with repeats, filler of recall. Default: 1, 1.5, 2.5 and 5 times the training length. `task` replaces the
    task that the model was trained on, and its length the training length where the model does not say. Several models
    see the same sequences and must have been trained at the same length. `top_attention_off` silences attention in so
    many top layers.

    **Raises** `InvalidArgument` where no length lies beyond the training length, the task has none, or models were
    trained at different ones; `TaskMismatch` for more positions than a model's table holds, with the kinds that can.
    """
    models: list[ModelLike] = [model] if isinstance(model, Model | Checkpoint | nn.Module | str | Path) else list(model)
    job = LengthJob.of(
        models, task, lengths, n=n, seed=seed, threshold_bits=threshold_bits, top_attention_off=top_attention_off
    )
    report = job.run()
    return with_provenance(report, job.diagnosis(report).provenance)


def with_room(
    model: ModelLike, task: TaskLike | None = None, lengths: Sequence[int] | None = None, *, seed: int = 0
) -> Model:
    """The model itself where it has positions for these lengths, else its learned table continued by untrained rows.

    **Raises** `InvalidArgument` where it has no such table, or no length lies beyond the training length.
    """
    own = as_model(model)
    known = _Subject.of(own, task)
    n_pos = known.stretch.to(known.task, checked_lengths(known.stretch, known.trained, lengths)[-1]).n_pos
    if own.spec.n_ctx is None or n_pos <= own.spec.n_ctx:
        return own
    return with_untrained_positions(own, n_pos, seed=seed)


@final
@dataclass(frozen=True, kw_only=True)
class Unmade:
    """A model that is made when its turn comes, trained perhaps; `like` has its shape and its task, and may be it."""

    like: Callable[[], Model]
    make: Callable[[], Model]


@final
@dataclass(frozen=True, kw_only=True)
class LengthJob:
    """A checked measurement, ready to run. Of several models one is held at a time: each is made anew for its turn."""

    models: tuple[ModelLike | Unmade, ...]
    specs: tuple[ModelSpec, ...]
    task: WindTunnel
    stretch: Stretch
    trained: int
    lengths: tuple[int, ...]
    n: int
    seed: int
    threshold_bits: float
    top_attention_off: int

    @classmethod
    def of(
        cls,
        models: Sequence[ModelLike | Unmade],
        task: TaskLike | None,
        lengths: Sequence[int] | None,
        *,
        n: int,
        seed: int,
        threshold_bits: float = 0.01,
        top_attention_off: int = 0,
    ) -> "LengthJob":
        """Check everything that can be checked before anything is trained or runs."""
        if not models:
            raise InvalidArgument("name at least one model whose length is to be studied.")
        if n < 2 or not threshold_bits > 0:
            raise InvalidArgument(f"n is at least 2 and the threshold above 0 bits; got {n} and {threshold_bits}.")
        checked_seed(seed)
        if len(models) == 1 and not isinstance(models[0], Unmade):
            models = [as_model(models[0])]
        found = [_Subject.of(model, task, top_attention_off) for model in models]
        chosen, stretch, trained = _shared(found)
        wanted = checked_lengths(stretch, trained, lengths)
        for own in found:
            check_room(own.spec, chosen, stretch, wanted[-1])
        return cls(
            models=tuple(models),
            specs=tuple(own.spec for own in found),
            task=chosen,
            stretch=stretch,
            trained=trained,
            lengths=wanted,
            n=n,
            seed=seed,
            threshold_bits=threshold_bits,
            top_attention_off=top_attention_off,
        )

    @property
    def trained_task(self) -> WindTunnel:
        """The task at the training length."""
        return self.stretch.to(self.task, self.trained)

    def run(self) -> LengthReport:
        """Every model in turn, then all together."""
        arms = [self._arm(_silenced(_made(model), self.top_attention_off)) for model in self.models]
        return length_report(arms, self._setting())

    def diagnosis(self, report: LengthReport) -> Diagnosis:
        """The report with its provenance, ready to be saved."""
        arguments: dict[str, Any] = {
            "lengths": self.lengths,
            "n": self.n,
            "seed": self.seed,
            "threshold_bits": self.threshold_bits,
            "top_attention_off": self.top_attention_off,
        }
        if len(self.models) > 1:
            weights = dict(zip(report.arms, report.weights_hashes, strict=True))
            named = {"name": ", ".join(report.arms), "architecture": "several"}
            return Diagnosis.of(report, provenance(named, self.task, arguments) | {"weights": weights})
        spec = replace(self.specs[0], weights_hash=report.weights_hashes[0])
        return Diagnosis.of(report, provenance(spec, self.task, arguments))

    def _setting(self) -> Setting:
        return Setting(
            task=self.task,
            stretch=self.stretch,
            trained=self.trained,
            lengths=self.lengths,
            seed=self.seed,
            threshold_bits=self.threshold_bits,
        )

    def _arm(self, model: Model) -> Arm:
        if self.stretch.is_prefix:
            run = self._run(model, self.lengths[-1])
            windows = windows_around(run, self.trained) if can_read_layers(model) else None
            return measured(model, self._setting(), errors_along(run), windows)
        runs = {length: self._run(model, length) for length in distances_to_run(self.trained, self.lengths)}
        earlier, beyond, everywhere = max(0, self.trained - 1), self.trained + 1, slice(None)
        windows = None
        if can_read_layers(model):
            before, within, after = (Window.of(runs[at], everywhere) for at in (earlier, self.trained, beyond))
            windows = before, within, after
        return measured(model, self._setting(), errors_across(runs), windows)

    def _run(self, model: Model, length: int) -> Run:
        task = self.stretch.to(self.task, length)
        blocks = task.stream(self.n, seed=derived_seed(self.seed, Branch.TRIALS), device=model.spec.device)
        return model.run(
            blocks,
            record=(RESID_POST,) if can_read_layers(model) else (),
            n_recorded=min(self.n, N_RECORDED),
            baseline_predictives=task.baseline_predictives,
            seed=derived_seed(self.seed, Branch.RESAMPLING),
        )


@final
@dataclass(frozen=True, kw_only=True)
class _Subject:
    """What is known of a model before its turn."""

    spec: ModelSpec
    task: WindTunnel
    stretch: Stretch
    trained: int

    @classmethod
    def of(cls, model: ModelLike | Unmade, task: TaskLike | None, top_attention_off: int = 0) -> "_Subject":
        """What it is asked, how that is made longer, and the length that it was trained at. The model is not kept."""
        own = _silenced(model.like() if isinstance(model, Unmade) else as_model(model), top_attention_off)
        chosen = scored_task_of(own, task)
        stretch = stretch_of(chosen)
        known = own.task if own.task is not None and own.task.name == chosen.name else chosen
        return cls(spec=own.spec, task=chosen, stretch=stretch, trained=stretch.of(known))

    @property
    def trained_on(self) -> WindTunnel:
        """The task at the training length."""
        return self.stretch.to(self.task, self.trained)


def _shared(found: Sequence[_Subject]) -> tuple[WindTunnel, Stretch, int]:
    """What all are asked, and the length that all were trained at. **Raises** `InvalidArgument` where they differ."""
    if len({str(own.trained_on) for own in found}) > 1:
        named = "; ".join(sorted({f"{own.trained_on}" for own in found}))
        raise InvalidArgument(
            f"models side by side must have been trained on one task at one length; these have: {named}. Run them "
            f"one by one, or pass a task of the length that all of them share."
        )
    return found[0].task, found[0].stretch, found[0].trained


def _made(model: ModelLike | Unmade) -> Model:
    return model.make() if isinstance(model, Unmade) else as_model(model)


def _silenced(model: Model, n_layers: int) -> Model:
    return without_top_attention(model, n_layers) if n_layers else model
