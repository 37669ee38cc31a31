"""`gradients`: measure the gradient laws of every head on fresh sequences, and check them against autograd."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from bayesgeom.core.errors import HookFault, InvalidArgument
from bayesgeom.core.run import ModelSpec
from bayesgeom.core.trials import Trials, concatenate
from bayesgeom.gradients.capture import SITES, Targets, captured
from bayesgeom.gradients.identities import identity_errors
from bayesgeom.gradients.precise import in_float64
from bayesgeom.gradients.report import GradientReport, gradient_report
from bayesgeom.gradients.tally import LayerTally, layer_tally, together
from bayesgeom.models.base import Model
from bayesgeom.models.provenance import provenance
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, scored_task_of
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.report import with_provenance
from bayesgeom.tasks.base import Branch, WindTunnel, checked_seed, derived_seed

BUDGET_BYTES = 256 * 2**20
TOLERANCE = 1e-8  # relative: beyond it attention is no softmax of q·k, or its values are not what is mixed
_COPIES = 12  # arrays of the size of one layer's attention that are held per layer and pass


def gradient_laws(
    model: ModelLike,
    trials_or_task: Trials | TaskLike | None = None,
    *,
    targets: Targets = "sampled",
    n: int = 64,
    seed: int = 0,
) -> GradientReport:
    """Advantage, responsibilities and value updates of every head, on `n` fresh sequences or on the trials given.

    The loss is the cross-entropy at scored positions, with hard labels ("sampled") or the exact predictive as soft
    labels ("exact"), as in training. A copy of the model in float64 does the work.

    **Raises** `InvalidArgument` for fewer than two sequences or other targets, `MissingSite` and `TaskMismatch` as
    `diagnose` does, `HookFault` where the laws do not hold: attention that is no plain softmax of q·k.
    """
    job = GradientJob.of(model, trials_or_task, targets=targets, n=n, seed=seed)
    report = job.run()
    return with_provenance(report, job.diagnosis(report).provenance)


@final
@dataclass(frozen=True, kw_only=True)
class GradientJob:
    """A checked measurement, ready to run. With `trials`, `task` only names them."""

    model: Model
    task: WindTunnel
    trials: Trials | None
    targets: Targets
    n: int
    seed: int

    @classmethod
    def of(
        cls,
        model: ModelLike,
        trials_or_task: Trials | TaskLike | None,
        *,
        targets: Targets = "sampled",
        n: int = 64,
        seed: int = 0,
    ) -> "GradientJob":
        """Check everything that can be checked before anything runs."""
        subject = as_model(model)
        trials = trials_or_task if isinstance(trials_or_task, Trials) else None
        task = scored_task_of(subject, None if isinstance(trials_or_task, Trials) else trials_or_task)
        if targets not in ("sampled", "exact"):
            raise InvalidArgument(f"targets is 'sampled' or 'exact', as in training; got {targets!r}.")
        count = n if trials is None else len(trials)
        if count < 2:
            raise InvalidArgument(f"n is the number of sequences: at least 2, so that one can stand in; got {count}.")
        subject.require(SITES, by="gradients")
        subject.check_fits(trials if trials is not None else task.sample(1, seed=seed))
        return cls(model=subject, task=task, trials=trials, targets=targets, n=count, seed=checked_seed(seed))

    def run(self) -> GradientReport:
        """Measure, a tile of sequences at a time."""
        wide = in_float64(self.model)
        losses, tallies, errors = list[torch.Tensor](), list[list[LayerTally]](), list[np.ndarray]()
        for tile in self._tiles(wide):
            loss, layers = captured(wide, tile, self.targets)
            losses.append(loss)
            tallies.append([layer_tally(layer, tile) for layer in layers])
            found = [identity_errors(layer, wide.spec.score_scale) for layer in layers]
            errors.append(torch.stack(found).numpy())
        worst = np.max(np.stack(errors), axis=0)
        self._check(worst)
        joined = [together(of_layer) for of_layer in zip(*tallies, strict=True)]
        return gradient_report(
            torch.cat(losses).cpu().numpy(),
            joined,
            worst,
            targets=self.targets,
            seed=derived_seed(self.seed, Branch.RESAMPLING),
        )

    def diagnosis(self, report: GradientReport) -> Diagnosis:
        """The report as a diagnosis of its own, with provenance, ready to be saved."""
        arguments: dict[str, Any] = {"n": self.n, "seed": self.seed, "targets": self.targets}
        where = provenance(self.model, self.task, arguments)
        return Diagnosis.of(report, where)

    def _tiles(self, model: Model) -> Iterator[Trials]:
        if self.trials is not None:
            return tiles(self.trials, model.spec)
        stream = self.task.stream(self.n, seed=derived_seed(self.seed, Branch.TRIALS), device=model.spec.device)
        return tiles(concatenate(list(stream)), model.spec)

    def _check(self, errors: np.ndarray) -> None:
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.nan_to_num(errors[..., 0] / errors[..., 1])
        if not relative.max() <= TOLERANCE:
            raise HookFault(
                f"the gradient laws are off by {relative.max():.1e} of the gradient on {self.model.spec.name}: its "
                f"attention is no plain causal softmax of q·k that mixes its values."
            )


def tiles(trials: Trials, spec: ModelSpec) -> Iterator[Trials]:
    """Sequences in even tiles whose gradients fit the budget, none of them of a single sequence."""
    each = 8 * _COPIES * spec.n_layers * spec.n_heads * trials.tokens.shape[1] ** 2
    return trials.batches(at_most=max(2, BUDGET_BYTES // each), at_least=2)
