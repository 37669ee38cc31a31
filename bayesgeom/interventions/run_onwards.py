"""`erase_onwards`: is a quantity used from a layer on? Erased in every later layer and at all positions in one pass."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from bayesgeom.ablations.engine import tiles
from bayesgeom.core.edits import Edit
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.sites import RESID_POST, RESID_PRE
from bayesgeom.core.trials import Trials, concatenate
from bayesgeom.interventions.design import MATCHED_MOST, RANDOM_MOST
from bayesgeom.interventions.engine import KL, PairReference, scored
from bayesgeom.interventions.onwards import Scrubbed, Scrubber, like_erasers, matched_erasers, replaced_by_mean
from bayesgeom.interventions.onwards_report import STAGES, OnwardsReport, verdict_onwards
from bayesgeom.models.base import Model
from bayesgeom.models.provenance import provenance
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, scored_task_of
from bayesgeom.results.estimate import Baseline, Estimate
from bayesgeom.results.report import with_provenance
from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.subspaces.base import Fit
from bayesgeom.subspaces.fits import covariance, leace
from bayesgeom.subspaces.quantity import Quantity, is_function_of_position
from bayesgeom.subspaces.quantity_fits import Eraser
from bayesgeom.subspaces.site import InterventionSite
from bayesgeom.tasks.base import Branch, WindTunnel, check_count, derived_seed

N_FIT, N_READ, N_HELD = 768, 256, 128  # sequences that erasers and read-outs are fitted on, and read-outs scored on
N_RANDOM, N_CONTROL = 20, 16  # random subspaces, and as many matched ones; the sequences that they are scored on
_TRIALS, _FIT, _DRAWS, _SHUFFLE, _MATCHED = 12, 13, 14, 15, 16  # branches of the seed


def erase_onwards(
    model: ModelLike,
    task: TaskLike | None = None,
    quantity: str | Quantity = "entropy",
    *,
    at: InterventionSite | None = None,
    oblique: bool = True,
    n: int = 256,
    seed: int = 0,
) -> OnwardsReport:
    """Erase a quantity in every layer from one on, at all positions, in a single pass, and report what it costs.

    Args:
        model: a model, its name or its directory.
        task: a task or its name; by default the one that the model was trained on.
        quantity: "entropy", "belief" or "log_odds:H".
        at: `resid_pre` or `resid_post`, and the first layers to try; by default `resid_pre` and every layer but 0,
            whose scored positions may all hold the same vector.
        oblique: erase by LEACE, else by the orthogonal projector onto Cov(x, y).
        n: sequences that are scored.
        seed: of sequences, fits and intervals.

    Returns:
        KL increase and entropy error for every first layer.

    Raises:
        InvalidArgument: for another site, a layer that is not there, n < 2, or a first layer with nothing to erase.

    References:
        Belrose et al. 2023, arXiv:2306.03819, section 5.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=2, n_heads=1, d_model=8, d_mlp=8)
        >>> module = config.build(seed=0)
        >>> bayesgeom.erase_onwards(module, task, "entropy", n=8).n
        8
    """
    fit = (leace if oblique else covariance)(quantity)
    job = OnwardsJob.of(model, task, fit, at=at, n=n, seed=seed)
    return with_provenance(
        job.run(), provenance(job.scrubber.model, job.task, {"n": n, "seed": seed, "quantity": job.scrubber.name})
    )


@final
@dataclass(frozen=True, kw_only=True)
class OnwardsJob:
    """A checked erasure, ready to run."""

    task: WindTunnel
    scrubber: Scrubber
    firsts: tuple[int, ...]
    n: int
    seed: int

    @classmethod
    def of(
        cls, model: ModelLike, task: TaskLike | None, fit: Fit, *, at: InterventionSite | None, n: int, seed: int
    ) -> "OnwardsJob":
        """Check everything that can be checked before anything runs; `fit` is LEACE or covariance of a quantity."""
        subject, place = as_model(model), at or InterventionSite()
        chosen = scored_task_of(subject, task)
        if not isinstance(fit, Eraser) or fit.given:
            raise InvalidArgument(
                f"only covariance:QUANTITY and leace:QUANTITY erase a quantity, and without given; got {fit.label}."
            )
        check_count(n)
        place.check_in(subject, editable=(RESID_PRE, RESID_POST))
        one = chosen.sample(1, seed=seed, device=subject.spec.device)
        subject.check_fits(one)
        fit.quantity.check(one)
        n_layers = subject.spec.n_layers
        firsts = tuple(range(min(1, n_layers - 1), n_layers)) if place.layers is None else tuple(place.layers)
        scrubber = Scrubber(
            model=subject, site=place.site, quantity=fit.quantity, oblique=fit.oblique, n_fit=N_FIT, n_read=N_READ
        )
        return cls(task=chosen, scrubber=scrubber, firsts=firsts, n=n, seed=seed)

    def run(self) -> OnwardsReport:
        """Fit layer by layer on the edited stream, then score."""
        device, n_fitted = self.scrubber.model.spec.device, N_FIT + N_READ + N_HELD
        trials = concatenate(list(self.task.stream(n_fitted, seed=derived_seed(self.seed, _FIT), device=device)))
        shuffle = derived_seed(self.seed, _SHUFFLE)
        found = {first: self.scrubber.from_layer(trials, first, seed=shuffle) for first in self.firsts}
        is_identified = not is_function_of_position(self.scrubber.quantity.exact(trials))
        return _report(self.scrubber, self.task, found, n=self.n, seed=self.seed, is_identified=is_identified)


def _report(
    scrubber: Scrubber, task: WindTunnel, found: dict[int, Scrubbed], *, n: int, seed: int, is_identified: bool
) -> OnwardsReport:
    model, n_layers = scrubber.model, scrubber.model.spec.n_layers
    value, low, high, ceiling, least, most, matched, excess = np.full((8, n_layers), np.nan)
    r2 = np.full((2, n_layers), np.nan)
    verdicts, own_kl, is_matched = [""] * n_layers, float("nan"), [False] * n_layers
    for first, scrubbed in found.items():
        arms = [list(scrubbed.edits.values()), [replaced_by_mean(scrubbed.edits[first])]]
        draws = [like_erasers(scrubbed, seed=derived_seed(seed, _DRAWS, number)) for number in range(N_RANDOM)]
        alike, is_matched[first] = matched_erasers(scrubbed, draws=N_RANDOM, seed=derived_seed(seed, _MATCHED))
        main, control = (
            _kl(model, _stream(model, task, count, seed), chosen)
            for count, chosen in ((n, arms), (min(n, N_CONTROL), draws + alike))
        )
        paired, own_kl = main[:, 1:] - main[:, :1], float(main[:, 0].mean())
        value[first], ceiling[first] = paired[:, 0].mean(), paired[:, 1].mean()
        low[first], high[first] = mean_interval(paired[:, 0], seed=derived_seed(seed, Branch.RESAMPLING))
        drawn = (control[:, 1:] - control[:, :1]).mean(axis=0)
        least[first], most[first] = drawn[:N_RANDOM].min(), drawn[:N_RANDOM].max()
        matched[first] = drawn[N_RANDOM:].max()
        erasures = list(scrubbed.erasures.values())
        r2[:, first] = erasures[0].before, max(each.after for each in erasures)
        excess[first] = max(each.after - max(each.permuted, 0.0) for each in erasures)
        verdicts[first] = verdict_onwards(
            (low[first], high[first]), ceiling[first], own_kl, excess=excess[first], is_identified=is_identified
        )
    controls = [
        Baseline.of("chance", RANDOM_MOST, most, low=least, high=most),
        Baseline.of("chance", MATCHED_MOST, matched),
    ]
    return OnwardsReport(
        site=scrubber.site.name,
        subspace=scrubber.name,
        quantity=scrubber.quantity.label,
        kl_increase_bits=Estimate.of(value, (low, high), n=n, baselines=controls),
        ceiling_kl_increase_bits=Estimate.of(ceiling, n=n),
        stages=STAGES,
        r2=Estimate.of(r2),
        r2_excess=excess,
        baseline_kl_bits=own_kl,
        verdict_by_layer=tuple(verdicts),
        is_matched_by_layer=tuple(is_matched),
        n=n,
    )


def _stream(model: Model, task: WindTunnel, n: int, seed: int) -> Iterator[Trials]:
    for block in task.stream(n, seed=derived_seed(seed, _TRIALS), device=model.spec.device):
        yield from tiles(block, model.spec)


def _kl(model: Model, blocks: Iterator[Trials], arms: Sequence[Sequence[Edit]]) -> np.ndarray:
    """KL of each sequence, averaged over scored positions: as it is, then under each set of edits."""
    replayer, rows = model.replayer(), list[np.ndarray]()
    for block in blocks:
        baseline = replayer.baseline(block)
        reference = PairReference({}, None)
        logits = [baseline.logits, *(replayer.logits(baseline, [tuple(edits)], reference)[0] for edits in arms)]
        rows.append(np.stack([scored(own, (block, None), "erasure")[:, KL].mean(axis=1) for own in logits], axis=1))
    return np.concatenate(rows)
