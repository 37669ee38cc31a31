"""`ablate`: run a battery of ablations on fresh trials and report what each costs."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from torch import Tensor

from bayesgeom.ablations.attribution import attributed_kl_increase
from bayesgeom.ablations.batteries import Battery, everything
from bayesgeom.ablations.component import Ablation
from bayesgeom.ablations.engine import Means, TileScores, references, score_tile, tiles, tiles_with_donors
from bayesgeom.ablations.report import AblationReport, Context, ablation_report
from bayesgeom.ablations.scoring import scores_of
from bayesgeom.ablations.tally import Tally
from bayesgeom.core.allocator import keep_freed_memory
from bayesgeom.core.edits import Mode, Replace
from bayesgeom.core.errors import HookFault, InvalidArgument
from bayesgeom.core.progress import bar, kept_in
from bayesgeom.core.sites import Site
from bayesgeom.core.trials import Trials, concatenate
from bayesgeom.models.base import Model
from bayesgeom.models.provenance import provenance
from bayesgeom.models.replay.replayer import Replayer, Variant
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, scored_task_of
from bayesgeom.probes.key_overlap import KeyOverlap, overlap_by_view
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.report import with_provenance
from bayesgeom.stats.information import entropy_bits
from bayesgeom.tasks.base import Branch, WindTunnel, derived_seed

Method = Literal["exact", "attribution", "both"]
N_REFERENCE = 256  # sequences behind the means that mean ablation puts in place
N_KEYS = 64  # sequences, at most, behind the key overlap that is set beside the battery
_MEANS = 3  # branch of the seed


def ablate(
    model: ModelLike,
    task: TaskLike | None = None,
    battery: Sequence[Ablation] | None = None,
    *,
    mode: Mode = "mean",
    n: int = 512,
    seed: int = 0,
    method: Method = "exact",
) -> AblationReport:
    """What each ablation of a battery costs, in bits of KL to the exact posterior, on `n` fresh sequences.

    With no battery: every head, attention sublayer, MLP and block, each alone. `mode`: "zero"; "mean", the task's mean
    at each position; "resample", the same position of another trial. `method` "attribution" gives the first-order
    preview alone (`kl_increase_bits` then holds it), "both" gives both and their rank correlation.

    **Raises** `InvalidArgument` for n < 1, a layer or head that is not there, or resampling with one trial; `HookFault`
    where no ablation of the battery changed anything.
    """
    job = AblationJob.of(model, task, battery, mode=mode, n=n, seed=seed, method=method)
    report = job.run()
    return with_provenance(report, job.diagnosis(report).provenance)


@final
@dataclass(frozen=True, kw_only=True)
class AblationJob:
    """A checked battery, ready to run: here, or into a directory from which it resumes."""

    model: Model
    task: WindTunnel
    battery: Battery
    mode: Mode
    n: int
    seed: int
    method: Method

    @classmethod
    def of(
        cls,
        model: ModelLike,
        task: TaskLike | None,
        battery: Sequence[Ablation] | None,
        *,
        mode: Mode,
        n: int,
        seed: int,
        method: Method = "exact",
    ) -> "AblationJob":
        """Check everything that can be checked before anything runs."""
        subject = as_model(model)
        chosen = everything(subject) if battery is None else list(battery)
        if not chosen:
            raise InvalidArgument("the battery is empty: pass at least one ablation, or none for the default battery.")
        if mode not in ("zero", "mean", "resample") or method not in ("exact", "attribution", "both"):
            raise InvalidArgument(
                f"mode is zero, mean or resample, method exact, attribution or both; got {mode!r}, {method!r}."
            )
        if n < 1 or (n < 2 and any((ablation.mode or mode) == "resample" for ablation in chosen)):
            raise InvalidArgument(
                f"n is the number of sequences: at least 1, and 2 to resample from one another; got {n}."
            )
        for ablation in chosen:
            for component in ablation.components:
                component.check_in(subject.spec)
        for edit in (edit for ablation in chosen for edit in ablation.edits(mode)):
            subject.require((edit.site,), by=f"ablation {edit.label!r}")
        return cls(
            model=subject, task=scored_task_of(subject, task), battery=chosen, mode=mode, n=n, seed=seed, method=method
        )

    def describe(self) -> dict[str, Any]:
        """What decides the numbers: progress on disk belongs to a job with the same description."""
        return {
            "weights": self.model.spec.weights_hash,
            "task": self.task.config(),
            "battery": [repr(ablation) for ablation in self.battery],  # labels may be given, and given twice
            "mode": self.mode,
            "n": self.n,
            "seed": self.seed,
        }

    def run(self, out: Path | None = None) -> AblationReport:
        """Measure. With `out`, progress is kept there after every block, and a stopped battery goes on from it."""
        keep_freed_memory()  # a tile's activations are as large as the last one's: 4 % of a battery was page faults
        variants: list[Variant] = [ablation.edits(self.mode) for ablation in self.battery]
        replayer = self.model.replayer()
        means = self._means(variants, replayer)
        attribution = np.full(len(variants), np.nan)
        first_order = exact = None
        if self.method != "exact":
            first_order = self._tally(lambda *tile: self._attributed(tile, variants, means, replayer), None)
            attribution = (first_order.sums[:, 0] - first_order.baseline[0]).sum(axis=1) / first_order.done
        if self.method != "attribution":
            exact = self._tally(lambda t, before: score_tile(replayer, t, before, variants, means), out)
        tally = exact or first_order
        assert tally is not None, "the method was checked on construction"
        if bool(tally.inert.all()):
            raise HookFault(
                f"none of {len(variants)} ablations changed a logit of {self.model.spec.name}: no edit took effect."
            )
        context = Context(
            battery=self.battery,
            mode=self.mode,
            n_layers=self.model.spec.n_layers,
            n_heads=self.model.spec.n_heads,
            seed=derived_seed(self.seed, Branch.RESAMPLING),
            attribution_bits=attribution,
            key_overlap_pick=self._key_overlap_pick(),
            uniform_kl_bits=self.uniform_kl_bits(),
        )
        return ablation_report(tally, context)

    def diagnosis(self, report: AblationReport) -> Diagnosis:
        """The report as a diagnosis of its own, with provenance, ready to be saved."""
        arguments = {
            "n": self.n,
            "seed": self.seed,
            "mode": self.mode,
            "method": self.method,
            "battery": len(self.battery),
        }
        where = provenance(self.model, self.task, arguments)
        return Diagnosis.of(report, where)

    def uniform_kl_bits(self) -> float:
        """Return the KL of uniform predictions over the answers, on the sequences of the battery; needs no model."""
        stream = self.task.stream(self.n, seed=derived_seed(self.seed, Branch.TRIALS), device=self.model.spec.device)
        total = 0.0
        for block in stream:
            exact = entropy_bits(block.at_scored(block.predictive))
            total += float((math.log2(len(block.answers)) - exact).mean(dim=1).sum())
        return total / self.n

    def _tally(self, score: Callable[[Trials, Trials], TileScores], out: Path | None) -> Tally:
        """Score the stream tile by tile; with `out`, skip what is already there and keep what is new."""
        stream = self.task.stream(self.n, seed=derived_seed(self.seed, Branch.TRIALS), device=self.model.spec.device)
        tally = None if out is None else Tally.load(out, self.describe())
        label = f"{len(self.battery)} ablations"
        with kept_in(out), bar(total=self.n, desc=label, unit="seq", leave=False) as progress:
            seen = 0
            for block in _without_loners(stream):
                seen += len(block)
                if tally is None or seen > tally.done:
                    for tile, before in tiles_with_donors(block, self.model.spec):
                        scores = score(tile, before)
                        tally = (tally or Tally.empty(self.n, len(self.battery), block.n_scored)).plus(scores)
                    if out is not None and tally is not None:
                        tally.save(out, self.describe())
                progress.update(len(block))
        assert tally is not None, "a stream has at least one block"
        return tally

    def _key_overlap_pick(self) -> str:
        """The head of layer 0 with the least key overlap, for each token set and reading of the keys, joined by "; ".

        Where several heads share their keys it is a key head, L0K0 and not L0H0, and no single head is chosen. Empty
        for a model without keys, and where no keys have an angle.
        """
        if not set(KeyOverlap.needs.sites) <= self.model.sites:
            return ""
        wanted = (*KeyOverlap.needs.sites, *(site for site in KeyOverlap.needs.optional if site in self.model.sites))
        n = min(N_KEYS, self.n)
        blocks = self.task.stream(n, seed=derived_seed(self.seed, Branch.TRIALS), device=self.model.spec.device)
        found = overlap_by_view(self.model.run(blocks, record=wanted, n_recorded=n))
        letter = "H" if self.model.spec.n_kv_heads == self.model.spec.n_heads else "K"
        return "; ".join(
            f"L0{letter}{np.nanargmin(overlap[0])} ({view}, mean |cos| {np.nanmin(overlap[0]):.3f})"
            for view, overlap in found.items()
            if np.isfinite(overlap[0]).any()
        )

    def _means(self, variants: Sequence[Variant], replayer: Replayer) -> Means:
        """The task's mean activation, per position, wherever a variant puts it in place; over trials of their own."""
        places = {
            (edit.site, edit.layer)
            for variant in variants
            for edit in variant
            if not isinstance(edit, Replace) or edit.mode == "mean"
        }
        sums: dict[tuple[Site, int], Tensor] = {}
        if not places:
            return sums
        seed = derived_seed(self.seed, _MEANS)
        for block in self.task.stream(N_REFERENCE, seed=seed, device=self.model.spec.device):
            for tile in tiles(block, self.model.spec):
                held = replayer.baseline(tile).held
                for place in places:
                    sums[place] = sums.get(place, 0) + held[place].sum(dim=0) / N_REFERENCE
        return sums

    def _attributed(
        self, tile: tuple[Trials, Trials], variants: Sequence[Variant], means: Means, replayer: Replayer
    ) -> TileScores:
        """First-order scores in the battery's own form; metrics other than KL are not known to first order."""
        trials, before = tile
        reference = references(replayer, trials, before, variants, means)
        increase = attributed_kl_increase(self.model, trials, variants, reference)
        untouched = scores_of(reference.baseline.logits, trials)
        after = np.full((len(variants), *untouched.shape), np.nan)
        after[:, 0] = untouched[0] + increase[:, :, None]
        return TileScores(baseline=untouched, variants=after, inert=np.zeros(len(variants), dtype=bool))


def _without_loners(stream: Iterator[Trials]) -> Iterator[Trials]:
    """The stream with a last block of one sequence joined to the block before: resampling needs another trial."""
    held = next(stream)
    for block in stream:
        if len(block) == 1:
            held = concatenate([held, block])
        else:
            yield held
            held = block
    yield held
