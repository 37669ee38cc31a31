"""`relabeling_invariance`: a paired test of the same latent problems, with hypotheses renamed consistently."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument, TaskMismatch, checked
from bayesgeom.core.run import Run, Trials
from bayesgeom.generalization.relabeling_report import RelabelingReport, Scored, relabeling_report
from bayesgeom.models.base import Model, provenance
from bayesgeom.models.captured.model import CapturedModel
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, task_of
from bayesgeom.report.report import with_provenance
from bayesgeom.stats.behavior import predicted_behavior
from bayesgeom.tasks.base import Branch, SymmetricTask, WindTunnel, derived_seed

_NAMES = 5  # branch of the seed


@checked("model", "task")
def relabeling_invariance(
    model: ModelLike, task: TaskLike | None = None, *, n: int = 512, seed: int = 0
) -> RelabelingReport:
    """Measure how the answers change when hypotheses are renamed: values of a bijection or recall, states of an HMM.

    The model sees each sequence as drawn, and again with its hypotheses renamed at random.

    Args:
        model: A model, or what `as_model` takes: a checkpoint's name or directory, a module, a Hugging Face model.
        task: A task, or its text as on the command line. Default: the task that the model was trained on.
        n: Number of sequences.
        seed: Seed of the sequences and of the intervals.

    Returns:
        Distance between both answers, with baselines.

    Raises:
        TaskMismatch: The task's hypotheses cannot be renamed.
        InvalidArgument: n is below 2.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> module = config.build(seed=0)
        >>> bayesgeom.relabeling_invariance(module, task, n=8).n
        8
    """
    subject = as_model(model)
    return Renaming.of(subject, task_of(subject, task), n=n, seed=seed).report()


@final
@dataclass(frozen=True, kw_only=True)
class Renaming:
    """A checked test, before it runs; `diagnose` reuses its own pass under the first names. Internal."""

    model: Model
    task: SymmetricTask
    n: int
    seed: int

    @classmethod
    def of(cls, model: Model, task: WindTunnel, *, n: int, seed: int) -> "Renaming":
        """Check all arguments before anything runs."""
        if n < 2:
            raise InvalidArgument(f"n, the number of sequences, must be at least 2 for an interval; got {n}.")
        if isinstance(model, CapturedModel):
            raise InvalidArgument(
                f"{model.folder} is a capture, which cannot be run on renamed sequences. Pass the model itself."
            )
        if not isinstance(task, SymmetricTask):
            raise TaskMismatch(
                f"the hypotheses of {task} cannot be renamed without changing the task: relabeling requires a task "
                f"whose answers have arbitrary names (bijection, hmm, recall)."
            )
        model.check_fits(task.sample(1, seed=0))
        return cls(model=model, task=task, n=n, seed=seed)

    def renamed(self) -> Run:
        """Run the sequences with new names."""
        return self._pass(is_renamed=True)

    def report(self, before: Run | None = None, after: Run | None = None) -> RelabelingReport:
        """Run the same sequences with their names and with new ones, and return the report.

        `before`, if given, replaces the first pass: a pass whose recorded sequences begin with these. `after` replaces
        that of `renamed`.
        """
        if before is None or before.n_recorded < self.n:
            before = self._pass(is_renamed=False)
        after = after or self.renamed()
        names = torch.cat([self._names(len(block), number) for number, block in enumerate(self._blocks())])
        given = before.log_answers[: self.n].exp()
        stuck = predicted_behavior(after.trials, given)
        entropies_bits = before.behavior.exact_entropy_bits[: len(given)]
        report = relabeling_report(
            _scored(before, given),
            _scored(after, _with_first_names(after.log_answers.exp(), names)),
            Scored(
                kl_bits=stuck.kl_bits,
                entropy_error_bits=np.abs(stuck.model_entropy_bits - stuck.exact_entropy_bits),
                answers=_with_first_names(given, names).cpu().numpy(),
            ),
            uniform_kl_bits=float(np.log2(given.shape[-1]) - entropies_bits.mean(dtype=np.float64)),
            seed=derived_seed(self.seed, Branch.RESAMPLING),
        )
        return with_provenance(report, provenance(self.model, self.task, {"n": self.n, "seed": self.seed}))

    def _pass(self, *, is_renamed: bool) -> Run:
        """Run one pass that keeps the answers of every sequence and no activations."""
        blocks = self._blocks()
        if is_renamed:
            numbered = enumerate(blocks)
            blocks = (self.task.relabeled(block, self._names(len(block), number)) for number, block in numbered)
        return self.model.run(blocks, n_recorded=self.n, seed=derived_seed(self.seed, Branch.RESAMPLING))

    def _blocks(self) -> Iterator[Trials]:
        return self.task.stream(self.n, seed=derived_seed(self.seed, Branch.TRIALS), device=self.model.spec.device)

    def _names(self, n: int, block: int) -> Int64[Tensor, "batch name"]:
        """Return a different renaming for every sequence."""
        generator = torch.Generator().manual_seed(derived_seed(self.seed, _NAMES, block))
        drawn = torch.rand(n, self.task.n_names, generator=generator, dtype=torch.float64)
        return drawn.argsort(dim=1).to(self.model.spec.device)


def _scored(run: Run, answers: Tensor) -> Scored:
    own, first = run.behavior, slice(len(answers))
    return Scored(
        kl_bits=own.kl_bits[first].astype(np.float64),
        entropy_error_bits=np.abs(own.model_entropy_bits[first].astype(np.float64) - own.exact_entropy_bits[first]),
        answers=answers.cpu().numpy(),
    )


def _with_first_names(answers: Tensor, names: Int64[Tensor, "batch name"]) -> Tensor:
    """Return probabilities under new names, in the order of the old ones."""
    return answers.gather(2, names[:, None, :].expand_as(answers))
