"""`erase_onwards`: is a quantity used from a layer on? Erase it there and in all later layers, at all positions.

A later layer may recompute the quantity from what an earlier edit left. So erasers are fitted one layer after another,
on the residual stream with all earlier edits. At a scored position the erased quantity is that of the position; at
other positions it is that of the next and of the previous scored position, because either may be stored there.

Reference: Belrose et al. 2023, arXiv:2306.03819, section 5 (concept scrubbing).
"""

from collections.abc import Iterator, Sequence

import numpy as np

from bayesgeom.ablations.engine import batches
from bayesgeom.core.arguments import checked
from bayesgeom.core.edits import Edit
from bayesgeom.core.sites import RESID_POST, RESID_PRE
from bayesgeom.core.torch_state import with_gradients
from bayesgeom.core.trials import Trials, concatenate
from bayesgeom.interventions.design import MATCHED_MOST, RANDOM_MOST
from bayesgeom.interventions.engine import KL, PairReference, scored
from bayesgeom.interventions.onwards_report import STAGES, OnwardsReport, verdict_onwards
from bayesgeom.models.base import Model
from bayesgeom.models.provenance import provenance
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, scored_task_of
from bayesgeom.report.estimate import Baseline, Estimate, with_ceiling
from bayesgeom.report.report import with_provenance
from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.subspaces.quantity import Quantity, is_function_of_position
from bayesgeom.subspaces.scrubbing import (
    Scrubbed,
    Scrubber,
    like_erasers,
    matched_erasers,
    replaced_by_mean,
)
from bayesgeom.subspaces.site import InterventionSite
from bayesgeom.tasks.base import Branch, WindTunnel, check_count, derived_seed

N_FIT, N_READ, N_HELD_OUT = 768, 256, 128  # sequences to fit erasers, to fit read-outs and to score read-outs
N_RANDOM, N_CONTROL = 20, 16  # random (and matched) subspaces, and the sequences on which they are scored
_TRIALS, _FIT, _DRAWS, _SHUFFLE, _MATCHED = 12, 13, 14, 15, 16  # branches of the seed


@checked("model", "task")
@with_gradients
def erase_onwards(
    model: ModelLike,
    task: TaskLike | None = None,
    quantity: str | Quantity = "entropy",
    *,
    sites: InterventionSite | None = None,
    oblique: bool = True,
    n: int = 256,
    seed: int = 0,
) -> OnwardsReport:
    """Erase a quantity from one layer on, at all positions, in a single pass, and report the KL increase.

    Args:
        model: a model, its name or its directory.
        task: a task or its name; by default the task that the model was trained on.
        quantity: "entropy", "belief" or "log_odds:H".
        sites: `resid_pre` or `resid_post`, and the first layers to try; by default `resid_pre` and every layer except
            0, where the vectors at all scored positions may be equal.
        oblique: erase by LEACE, else by the orthogonal projector onto Cov(x, y).
        n: number of scored sequences.
        seed: seed of the sequences, fits and intervals.

    Returns:
        KL increase and entropy error for every first layer.

    Raises:
        InvalidArgument: another site, a layer that does not exist, n < 2, or a first layer with nothing to erase.

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
    subject = as_model(model)
    chosen, place = scored_task_of(subject, task), sites or InterventionSite()
    return _erased(subject, chosen, Quantity.of(quantity), place=place, oblique=oblique, n=n, seed=seed)


def _erased(
    model: Model, task: WindTunnel, quantity: Quantity, *, place: InterventionSite, oblique: bool, n: int, seed: int
) -> OnwardsReport:
    """Return the report: check, fit layer by layer on the edited residual stream, then score."""
    check_count(n)
    place.check_in(model, editable=(RESID_PRE, RESID_POST))
    device, n_layers = model.spec.device, model.spec.n_layers
    one = task.sample(1, seed=seed, device=device)
    model.check_fits(one)
    quantity.check(one)
    firsts = tuple(range(min(1, n_layers - 1), n_layers)) if place.layers is None else tuple(place.layers)
    scrubber = Scrubber(model=model, site=place.site, quantity=quantity, oblique=oblique, n_fit=N_FIT, n_read=N_READ)
    trials = concatenate(list(task.stream(N_FIT + N_READ + N_HELD_OUT, seed=derived_seed(seed, _FIT), device=device)))
    found = {first: scrubber.from_layer(trials, first, seed=derived_seed(seed, _SHUFFLE)) for first in firsts}
    is_identified = not is_function_of_position(quantity.exact(trials))
    report = _report(scrubber, task, found, n=n, seed=seed, is_identified=is_identified)
    arguments = {"n": n, "seed": seed, "quantity": quantity.label, "oblique": oblique, "site": place.site.name}
    layers = "all" if place.layers is None else ",".join(map(str, firsts))
    return with_provenance(report, provenance(model, task, {**arguments, "layers": layers}))


def _report(
    scrubber: Scrubber, task: WindTunnel, found: dict[int, Scrubbed], *, n: int, seed: int, is_identified: bool
) -> OnwardsReport:
    model, n_layers = scrubber.model, scrubber.model.spec.n_layers
    value, low, high, ceiling, least, most, matched, excess = np.full((8, n_layers), np.nan)
    r2 = np.full((2, n_layers), np.nan)
    verdicts, own_kl, is_matched = [""] * n_layers, float("nan"), [False] * n_layers
    for first, scrubbed in found.items():
        conditions = [list(scrubbed.edits.values()), [replaced_by_mean(scrubbed.edits[first])]]
        draws = [like_erasers(scrubbed, seed=derived_seed(seed, _DRAWS, number)) for number in range(N_RANDOM)]
        alike, is_matched[first] = matched_erasers(scrubbed, draws=N_RANDOM, seed=derived_seed(seed, _MATCHED))
        main, control = (
            _kl(model, _stream(model, task, count, seed), chosen)
            for count, chosen in ((n, conditions), (min(n, N_CONTROL), draws + alike))
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
            (low[first], high[first]),
            ceiling[first],
            own_kl,
            excess=excess[first],
            is_decodable=erasures[0].is_clearly_decodable,
            is_identified=is_identified,
        )
    controls = [
        Baseline.of("chance", RANDOM_MOST, most, low=least, high=most),
        Baseline.of("chance", MATCHED_MOST, matched),
    ]
    return OnwardsReport(
        site=scrubber.site.name,
        subspace=scrubber.name,
        quantity=scrubber.quantity.label,
        kl_increase_bits=with_ceiling(Estimate.of(value, (low, high), n=n, baselines=controls), ceiling),
        stages=STAGES,
        r2=Estimate.of(r2),
        r2_excess=excess,
        unedited_kl_bits=Estimate.of(own_kl, n=n),
        verdict_by_layer=tuple(map(str, verdicts)),
        is_matched_by_layer=tuple(is_matched),
        n=n,
    )


def _stream(model: Model, task: WindTunnel, n: int, seed: int) -> Iterator[Trials]:
    for block in task.stream(n, seed=derived_seed(seed, _TRIALS), device=model.spec.device):
        yield from batches(block, model.spec)


def _kl(model: Model, blocks: Iterator[Trials], conditions: Sequence[Sequence[Edit]]) -> np.ndarray:
    """Return KL per sequence, averaged over scored positions: unedited, then with each set of edits."""
    replayer, rows = model.replayer(), list[np.ndarray]()
    for block in blocks:
        baseline = replayer.baseline(block)
        reference = PairReference({}, None)
        logits = [baseline.logits, *(replayer.logits(baseline, [tuple(edits)], reference)[0] for edits in conditions)]
        rows.append(np.stack([scored(own, (block, None), "erasure")[:, KL].mean(axis=1) for own in logits], axis=1))
    return np.concatenate(rows)
