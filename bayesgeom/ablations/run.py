"""A battery of ablations on new sequences: the exact replay behind `ablate`, and a first-order preview."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bayesgeom.ablations._tally import Tally
from bayesgeom.ablations.batteries import Ablation, Battery, check_battery
from bayesgeom.ablations.batteries import battery as named_battery
from bayesgeom.ablations.engine import (
    BatchScores,
    Exact,
    Means,
    batches_with_donors,
    position_means,
    references,
    score_batch,
)
from bayesgeom.ablations.neurons import strongest_neurons
from bayesgeom.ablations.report import AblationReport, ablation_report, with_attribution
from bayesgeom.core import HookFault, InvalidArgument, Mode, Reference, Replace, Trials, checked, concatenate, phase
from bayesgeom.core.progress import progress_in
from bayesgeom.core.torch_state import SiteLayer, check_differentiable, store_leaf, with_gradients
from bayesgeom.executors import check_same
from bayesgeom.models.base import Model, Replayer, Variant, hooked_sites, numerics, provenance
from bayesgeom.models.resolve import ModelLike, TaskLike, load, model_for, scored_task_of
from bayesgeom.report.report import Report, with_provenance
from bayesgeom.report.storage import PROGRESS
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import entropy_bits, kl_bits
from bayesgeom.tasks.base import Branch, WindTunnel, at_most, derived_seed, score_task, task_from_config

N_REFERENCE = 256  # sequences that give the means of mean ablation
_MEANS = 3  # branch of the seed
Viewer = Callable[["BatteryRun"], Report]  # what a saved report shows of single sequences
BatchScorer = Callable[[Trials, Trials], BatchScores]  # of a batch and the sequence before it


def block_at(
    *, model: str, weights: str, device: str, task: Mapping[str, Any], block: int, **named: Any
) -> tuple[int, Tally]:
    """Do the job of one block of sequences of a battery."""
    subject = check_same(load(model, device=device), weights)
    settings = {"mode": named["mode"], "n": int(named["n"]), "seed": int(named["seed"])}
    run = BatteryRun.of(subject, task_from_config(task), str(named["battery"]), **settings)
    return run.block_tally(block).part()


@checked("model", "task")
@with_gradients
def attribution_preview(
    model: ModelLike,
    task: TaskLike | None = None,
    battery: str | Sequence[Ablation] = "all",
    *,
    mode: Mode = "mean",
    n: int = 512,
    seed: int = 0,
    exact: AblationReport | None = None,
) -> AblationReport:
    """Estimate to first order, from one backward pass, what `ablate` measures with the same arguments.

    Args:
        model: As in `ablate`.
        task: As in `ablate`.
        battery: As in `ablate`.
        mode: As in `ablate`.
        n: As in `ablate`.
        seed: As in `ablate`.
        exact: The report that `ablate` returned for the same arguments.

    Returns:
        `exact` with `attribution_bits` and their rank correlation with the KL increase. Without `exact`, a report in
        which `kl_increase_bits`, too, holds the preview.

    Raises:
        InvalidArgument: `exact` has other ablations, another n or another mode; and as in `ablate`.

    Example:
        >>> import bayesgeom
        >>> from bayesgeom import ablations
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> module = config.build(seed=0)
        >>> ablations.attribution_preview(module, task, n=8).attribution_bits.shape
        (4,)
    """
    check_battery(battery, mode)
    subject = model_for(model, task)
    check_differentiable(subject.module, subject.spec.name)
    run = BatteryRun.of(subject, scored_task_of(subject, task), battery, mode=mode, n=n, seed=seed)
    labels = tuple(ablation.label for ablation in run.battery)
    if exact is not None and (exact.ablations, exact.mode, exact.n) != (labels, mode, run.n):
        raise InvalidArgument(
            f"exact is a report on {len(exact.ablations)} ablations, mode {exact.mode!r}, {exact.n} sequences; the "
            f"preview is of {len(run.battery)}, mode {mode!r}, {run.n} sequences. Use the same arguments."
        )
    return run.preview(exact)


@final
@dataclass(frozen=True, kw_only=True)
class BatteryRun:
    """A checked battery, shared by the exact replay and the first-order preview. Internal."""

    model: Model
    task: WindTunnel
    battery: Battery
    mode: Mode
    n: int
    seed: int

    @classmethod
    def of(
        cls,
        model: Model,
        task: WindTunnel,
        battery: str | Sequence[Ablation],
        *,
        mode: Mode = "mean",
        n: int,
        seed: int,
    ) -> "BatteryRun":
        """Check all arguments before anything runs."""
        if battery == "neurons":
            chosen = strongest_neurons(model, task, mode=mode, seed=seed)
            task = score_task(task)  # neurons that were chosen on texts with labels are scored on others
        else:
            chosen = named_battery(battery, model) if isinstance(battery, str) else list(battery)
        if not chosen:
            raise InvalidArgument("battery is empty: pass at least one ablation, or omit it for the default battery.")
        check_battery(battery, mode)
        n, edits = at_most(task, n), [edit for ablation in chosen for edit in ablation.edits(mode)]
        is_resampled = any(isinstance(edit, Replace) and edit.uses_donor for edit in edits)
        if n < 1 + is_resampled:
            reason = " to resample from another sequence" if is_resampled else ""
            raise InvalidArgument(f"n, the number of sequences, must be at least {1 + is_resampled}{reason}, got {n}.")
        for ablation in chosen:
            for component in ablation.components:
                component.check_in(model.spec)
        for edit in edits:
            model.require((edit.site,), by=f"ablation {edit.label!r}", layers=(edit.layer,))
        return cls(model=model, task=task, battery=chosen, mode=mode, n=n, seed=seed)

    def describe(self) -> dict[str, Any]:
        """Return all inputs that determine the numbers; saved progress is used only if these are equal."""
        return {
            "weights": self.model.spec.weights_hash,
            "task": self.task.config(),
            "battery": [repr(ablation) for ablation in self.battery],  # labels may be given, and given twice
            "mode": self.mode,
            "n": self.n,
            "seed": self.seed,
            "numerics": numerics(self.model),
        }

    def exact(self, out: Path | None = None, viewer: Viewer | None = None) -> AblationReport:
        """Replay every ablation. With `out`, save progress there after every block, and at the end the report too."""
        return self.reported(self._tally(self._replayed(), out), out, viewer)

    def reported(self, tally: Tally, out: Path | None = None, viewer: Viewer | None = None) -> AblationReport:
        """Return the report on a finished tally; with `out`, save both there, with what the viewer shows.

        Raises:
            HookFault: No ablation changed anything.
        """
        if bool(tally.inert.all()):
            raise HookFault(
                f"none of {len(self.battery)} ablations changed a logit of {self.model.spec.name}: no edit took "
                f"effect. Check that its hook points lie on the path to the logits."
            )
        report = self._report(tally, "exact")
        if out is not None:
            report.save(out, viewer(self) if viewer else None)
            if self.model.spec.is_identified:
                tally.save(out, self.describe())  # so that the same call reads it back
        return report

    def blocks(self) -> Iterator[Trials]:
        """Yield the blocks of sequences; a last one of one sequence joins the block before it, to be resampled."""
        stream = self._stream(self.n)
        stored = next(stream)
        for block in stream:
            if len(block) == 1:
                stored = concatenate([stored, block])
            else:
                yield stored
                stored = block
        yield stored

    def block_tally(self, index: int) -> Tally:
        """Return the sums of one block alone, among the units of all `n` sequences."""
        blocks = self.blocks()
        done = sum(len(block) for block in islice(blocks, index))
        return self._plus_block(None, next(blocks), self._replayed(), done=done)

    def _stream(self, n: int) -> Iterator[Trials]:
        return self.task.stream(n, seed=derived_seed(self.seed, Branch.TRIALS), device=self.model.spec.device)

    def preview(self, exact: AblationReport | None) -> AblationReport:
        """Return the first-order estimate, added to the exact report if there is one."""
        variants, replayer = [ablation.edits(self.mode) for ablation in self.battery], self.model.replayer()
        means = self._means(variants, replayer)
        tally = self._tally(lambda *batch: self._attributed(batch, variants, means, replayer), None)
        bits = (tally.sums[:, 0] - tally.baseline[0]).sum(axis=1) / tally.done
        if exact is not None:
            return with_provenance(with_attribution(exact, bits), self.provenance("both"))
        return with_attribution(self._report(tally, "attribution"), bits)

    def _report(self, tally: Tally, method: str) -> AblationReport:
        total = 0.0
        for block in self._stream(self.n):
            exact = entropy_bits(block.at_scored(block.predictive))
            total += float((math.log2(len(block.answers)) - exact).mean(dim=1).sum())
        report = ablation_report(
            tally,
            self.battery,
            mode=self.mode,
            shape=(self.model.spec.n_layers, self.model.spec.n_heads),
            seed=derived_seed(self.seed, Branch.RESAMPLING),
            uniform_kl_bits=total / self.n,
        )
        return with_provenance(report, self.provenance(method))

    def provenance(self, method: str) -> dict[str, Any]:
        """Return the provenance of what was measured by this method."""
        counts = {"n": self.n, "seed": self.seed, "battery": len(self.battery)}
        return provenance(self.model, self.task, {**counts, "mode": self.mode, "method": method})

    def _replayed(self) -> BatchScorer:
        variants, replayer = [ablation.edits(self.mode) for ablation in self.battery], self.model.replayer()
        means = self._means(variants, replayer)
        return lambda batch, before: score_batch(replayer, batch, before, variants, means)

    def _plus_block(self, tally: Tally | None, block: Trials, score: BatchScorer, done: int = 0) -> Tally:
        """Return the tally with a block added; without one, a new tally whose first `done` sequences are missing."""
        tally = tally or replace(Tally.empty(self.n, len(self.battery), block.n_scored), done=done)
        for batch, before in batches_with_donors(block, self.model.spec):
            tally = tally.plus(score(batch, before))
        return tally

    def _tally(self, score: BatchScorer, out: Path | None) -> Tally:
        """Score the sequences batch by batch; with `out`, continue from saved progress and save new progress.

        Weights without a hash save nothing and continue nothing: the progress could be that of another model.
        """
        out = out if self.model.spec.is_identified else None
        tally = None if out is None else Tally.load(out, self.describe())
        label = f"{len(self.battery)} ablations"
        with progress_in(out, saved=PROGRESS), phase(label, self.n, "sequence") as progress:
            seen = 0
            for block in self.blocks():
                seen += len(block)
                if tally is None or seen > tally.done:
                    tally = self._plus_block(tally, block, score)
                    if out is not None:
                        tally.save(out, self.describe())
                progress.update(len(block))
        assert tally is not None, "a stream has at least one block"
        return tally

    def _means(self, variants: Sequence[Variant], replayer: Replayer) -> Means:
        """Return the task's mean activation per position at every site that needs it, from separate sequences."""
        places = {
            (edit.site, edit.layer)
            for variant in variants
            for edit in variant
            if not isinstance(edit, Replace) or edit.mode == "mean" or edit.by is not None
        }
        spec, seed, n = self.model.spec, derived_seed(self.seed, _MEANS), at_most(self.task, N_REFERENCE)
        blocks = self.task.stream(n, seed=seed, device=spec.device)
        return position_means(replayer, blocks, spec, places, n)

    def _attributed(
        self, batch: tuple[Trials, Trials], variants: Sequence[Variant], means: Means, replayer: Replayer
    ) -> BatchScores:
        """Return first-order scores in the form of `score_batch`; metrics other than KL are NaN."""
        trials, before = batch
        reference = references(replayer, trials, before, variants, means)
        increase = attributed_kl_increase(self.model, trials, variants, reference)
        untouched = Exact.of(trials).scores(reference.baseline.logits)
        after = np.full((len(variants), *untouched.shape), np.nan)
        after[:, 0] = untouched[0] + increase[:, :, None]
        return BatchScores(baseline=untouched, variants=after, inert=np.zeros(len(variants), dtype=bool))


def attributed_kl_increase(
    model: Model, trials: Trials, variants: Sequence[Variant], reference: Reference
) -> Float[np.ndarray, "variant sequence"]:
    """Return the first-order increase in KL (bits, mean over scored positions) of every variant on every sequence.

    KL increase ≈ Σ (a′ − a) · ∂KL/∂a over the activations a that the ablation replaces by a′. It is exact where KL is
    linear in a. It does not replace the battery: saturated heads have small gradients and large effects.

    References: Nanda 2023 (attribution patching); Michel, Levy & Neubig 2019 (head importance).
    """
    places = sorted(
        {(edit.site, edit.layer) for variant in variants for edit in variant}, key=lambda p: (p[1], p[0].name)
    )
    stored: dict[SiteLayer, Tensor] = {}
    with hooked_sites(model, {place: store_leaf(stored, place) for place in places}), torch.enable_grad():
        log_answers, _ = answer_log_probabilities(model.logits(trials), trials)
    # Sequences are independent, so the gradient of the sum holds each sequence's gradient.
    total = kl_bits(trials.at_scored(trials.predictive), log_answers).mean(dim=1).sum()
    gradients = dict(zip(places, torch.autograd.grad(total, [stored[place] for place in places]), strict=True))
    rows = []
    with torch.no_grad():
        for variant in variants:
            row = torch.zeros(len(trials))
            for edit in variant:
                place = edit.site, edit.layer
                values = stored[place].detach()
                change = edit.applied(values, reference) - values
                row = row + (change * gradients[place]).flatten(1).sum(1).cpu()
            rows.append(row)
    return torch.stack(rows).double().numpy()
