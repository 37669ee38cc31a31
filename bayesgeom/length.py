"""`length`: errors far beyond the training length, position by position, for one model or for several side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import nn

from bayesgeom.activations import Run
from bayesgeom.diagnosis import Diagnosis, provenance
from bayesgeom.errors import InvalidArgument
from bayesgeom.generalisation.arm import (
    Arm,
    Setting,
    measured,
    with_untrained_positions,
    without_top_attention,
)
from bayesgeom.generalisation.curves import errors_across, errors_along
from bayesgeom.generalisation.depth import Window, can_read_layers, windows_around
from bayesgeom.generalisation.length_report import LengthReport
from bayesgeom.generalisation.stretch import Stretch, check_room, checked_lengths, stretch_of
from bayesgeom.generalisation.together import length_report
from bayesgeom.models.base import Model
from bayesgeom.models.checkpoint import Checkpoint
from bayesgeom.models.resolve import ModelLike, as_model, scored_task_of
from bayesgeom.sites import RESID_POST
from bayesgeom.tasks.base import TextTask, WindTunnel, derived_seed

N_RECORDED = 128  # sequences whose residuals are read layer by layer
_TRIALS, _RESAMPLING = 0, 2  # branches of the seed, as in diagnose


def length(
    model: ModelLike | Sequence[ModelLike],
    task: WindTunnel | TextTask | None = None,
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
    return LengthJob.of(
        models, task, lengths, n=n, seed=seed, threshold_bits=threshold_bits, top_attention_off=top_attention_off
    ).run()  # fmt: skip


def with_room(
    model: ModelLike, task: WindTunnel | TextTask | None = None, lengths: Sequence[int] | None = None, *, seed: int = 0
) -> Model:
    """The model itself where it has positions for these lengths, else its learned table continued by untrained rows.

    **Raises** `InvalidArgument` where it has no such table, or no length lies beyond the training length.
    """
    own = as_model(model)
    chosen, stretch, trained = _task_and_trained(own, task)
    n_pos = stretch.to(chosen, checked_lengths(stretch, trained, lengths)[-1]).n_pos
    if own.spec.n_ctx is None or n_pos <= own.spec.n_ctx:
        return own
    return with_untrained_positions(own, n_pos, seed=seed)


@final
@dataclass(frozen=True, kw_only=True)
class LengthJob:
    """A checked measurement, ready to run; models are held by name until their turn comes, one at a time."""

    models: tuple[ModelLike, ...]
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
        models: Sequence[ModelLike],
        task: WindTunnel | TextTask | None,
        lengths: Sequence[int] | None,
        *,
        n: int,
        seed: int,
        threshold_bits: float = 0.01,
        top_attention_off: int = 0,
    ) -> "LengthJob":
        """Check everything that can be checked before anything runs."""
        if not models:
            raise InvalidArgument("name at least one model whose length is to be studied.")
        if n < 2 or not threshold_bits > 0:
            raise InvalidArgument(f"n is at least 2 and the threshold above 0 bits; got {n} and {threshold_bits}.")
        found = [_task_and_trained(as_model(model), task) for model in models]
        chosen, stretch, trained = found[0]
        if len({str(stretch.to(own, length)) for own, _, length in found}) > 1:
            named = "; ".join(sorted({f"{stretch.to(own, length)}" for own, _, length in found}))
            raise InvalidArgument(
                f"models side by side must have been trained on one task at one length; these have: {named}. Run them "
                f"one by one, or pass a task of the length that all of them share."
            )
        wanted = checked_lengths(stretch, trained, lengths)
        job = cls(
            models=tuple(models), task=chosen, stretch=stretch, trained=trained, lengths=wanted, n=n, seed=seed,
            threshold_bits=threshold_bits, top_attention_off=top_attention_off,
        )  # fmt: skip
        for model in job._loaded():
            check_room(model, chosen, stretch, wanted[-1])
        return job

    def run(self) -> LengthReport:
        """Every model in turn, then all together."""
        arms = [self._arm(model) for model in self._loaded()]
        return length_report(arms, self._setting())

    def diagnosis(self, report: LengthReport) -> Diagnosis:
        """The report with its provenance, ready to be saved."""
        arguments: dict[str, Any] = {
            "lengths": self.lengths, "n": self.n, "seed": self.seed, "threshold_bits": self.threshold_bits,
            "top_attention_off": self.top_attention_off,
        }  # fmt: skip
        where = provenance(next(self._loaded()).spec, self.task, arguments)
        if len(self.models) > 1:
            where["model"] = {"name": ", ".join(report.arms), "architecture": "several"}
            where["weights"] = dict(zip(report.arms, report.weights_hashes, strict=True))
        return Diagnosis(reports={report.name: report}, skipped={}, provenance=where)

    def _loaded(self) -> Iterator[Model]:
        for model in self.models:
            own = as_model(model)
            yield without_top_attention(own, self.top_attention_off) if self.top_attention_off else own

    def _setting(self) -> Setting:
        return Setting(
            task=self.task, stretch=self.stretch, trained=self.trained, lengths=self.lengths, seed=self.seed,
            threshold_bits=self.threshold_bits,
        )  # fmt: skip

    def _arm(self, model: Model) -> Arm:
        if self.stretch.is_prefix:
            run = self._run(model, self.lengths[-1])
            windows = windows_around(run, self.trained) if can_read_layers(model) else None
            return measured(model, self._setting(), errors_along(run), windows)
        runs = {length: self._run(model, length) for length in self.lengths}
        beyond = next(length for length in self.lengths if length > self.trained)
        earlier = max((length for length in self.lengths if length < self.trained), default=self.trained)
        everywhere = slice(None)
        windows = None
        if can_read_layers(model):
            before, within, after = (Window.of(runs[at], everywhere) for at in (earlier, self.trained, beyond))
            windows = before, within, after
        return measured(model, self._setting(), errors_across(runs), windows)

    def _run(self, model: Model, length: int) -> Run:
        task = self.stretch.to(self.task, length)
        blocks = task.stream(self.n, seed=derived_seed(self.seed, _TRIALS), device=model.spec.device)
        return model.run(
            blocks,
            record=(RESID_POST,) if can_read_layers(model) else (),
            n_recorded=min(self.n, N_RECORDED),
            null_predictives=task.null_predictives,
            seed=derived_seed(self.seed, _RESAMPLING),
        )


def _task_and_trained(model: Model, task: WindTunnel | TextTask | None) -> tuple[WindTunnel, Stretch, int]:
    """What a model is asked, how that is made longer, and the length that it was trained at."""
    chosen = scored_task_of(model, task)
    stretch = stretch_of(chosen)
    known = model.task if model.task is not None and model.task.name == chosen.name else chosen
    return chosen, stretch, stretch.of(known)
