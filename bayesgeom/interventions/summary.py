"""From totals to the report: paired intervals over pairs, ceilings, controls and verdicts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float, Float64

from bayesgeom.interventions.engine import DISTANCE, ENTROPY_ERROR, KL, KL_DONOR, MOVED, Totals
from bayesgeom.interventions.report import InterventionReport
from bayesgeom.interventions.verdicts import RULE, Effect, Evidence, sentence, verdict_of
from bayesgeom.stats.bootstrap import ratio_interval
from bayesgeom.subspaces.matching import Matched
from bayesgeom.subspaces.overlap import Overlap
from bayesgeom.subspaces.readout import Erasure
from bayesgeom.subspaces.subspace import Subspace

OWN, CEILING = range(2)  # arms of the main totals; a swap is followed by the removal, its ceiling and the erasure
_ERASURE = 4
_INDIRECT = ("_indirect", "_indirect_lo", "_indirect_hi")
_INDIRECT_MOST = ("_indirect_most", "_indirect_matched_most")
_REMOVAL = {"swap": (2, 3), "remove": (OWN, CEILING)}
Rows = dict[str, Float[np.ndarray, "layer band"]]


@final
@dataclass(frozen=True, kw_only=True)
class Controls:
    """Which arms of the control totals are what, and the matched subspaces themselves.

    After all of them come the same subspaces in the same order without their direct paths, where a site has one.
    """

    random: slice
    matched: slice
    found: Mapping[int, Matched]

    @property
    def n(self) -> int:
        """How many control subspaces there are."""
        return int(self.matched.stop) - int(self.random.start)


@final
@dataclass(frozen=True, kw_only=True)
class Context:
    """What a report needs beside the totals. R² per layer: the subspace's own coordinates, then random ones'."""

    kind: str
    site: str
    label: str
    quantity: str
    donors: str
    positions: str
    bands: tuple[str, ...]
    subspaces: Mapping[int, Subspace]
    n_layers: int
    r2: Mapping[str, Mapping[int, Float64[np.ndarray, " subspace"]]]
    erasures: Mapping[int, Erasure]
    variance_share: Mapping[int, float]
    outside_share: Mapping[int, float]
    overlaps: Mapping[int, Overlap]
    untrained: Mapping[int, float]
    controls: Controls
    is_identified: bool
    is_readout: bool
    claims_the_quantity: bool
    follows_answer: bool
    n: int
    seed: int


def intervention_report(main: Totals, control: Totals, context: Context) -> InterventionReport:
    """Intervals, ceilings, controls and verdicts; layers where nothing was done are NaN."""
    layers, n = list(context.subspaces), int(main.counts.sum())
    redirect, damage, error = (
        _changes(main, control, of, context) for of in (_redirect, _metric(KL), _metric(ENTROPY_ERROR))
    )
    movement, removal = _movement(main, control, context), _removal(main, context)
    unedited = _redirect(main.baseline).sum(axis=0) / n
    with np.errstate(divide="ignore", invalid="ignore"):
        effect = movement if context.kind == "swap" else damage
        share = np.where(effect["_ceiling"] > 0, effect[""] / effect["_ceiling"], np.nan)
    lo, hi = _interval(_redirect(main.arms)[:, :, OWN], main, context.seed)
    edges = ("", "_ceiling", "_null", "_least", "_most")
    found: dict[str, Any] = {f"redirect_bits{end}": unedited + redirect[end] for end in edges}
    found |= {"redirect_bits_lo": lo, "redirect_bits_hi": hi, "share_of_ceiling": share}
    matched = ("_matched", "_matched_least", "_matched_most")
    found |= {
        f"redirect_change_bits{end}": redirect[end] for end in ("", "_lo", "_hi", *_INDIRECT, *_INDIRECT_MOST, *matched)
    }
    for name, rows in (("damage_bits", damage), ("entropy_mae_increase_bits", error), ("movement", movement)):
        found |= {f"{name}{end}": values for end, values in rows.items()}
    found |= {f"removal_kl_bits{end}": values for end, values in removal.items()}
    found = {name: _spread(values, layers, context.n_layers) for name, values in found.items()}
    found |= {name: str(vars(context)[name]) for name in ("kind", "site", "quantity", "donors", "positions")}
    own_kl = float(main.baseline[:, KL, 0].sum() / n)
    tables = {"redirect": redirect, "damage": damage, "movement": movement, "removal": removal}
    tables |= {"erasing": _removal(main, context, erasure=True)} if context.claims_the_quantity else {}
    verdicts = {at: verdict_of(_evidence(tables, row, at, context, own_kl)) for row, at in enumerate(layers)}
    return InterventionReport(
        **(found | _per_layer(context) | _decoding(context)),
        subspace=context.label,
        bands=context.bands,
        redirect_bits_unedited=unedited,
        baseline_kl_bits=own_kl,
        verdict=sentence(context.label, {at: verdict for at, (verdict, _) in verdicts.items()}),
        verdict_rule=RULE,
        verdict_by_layer=tuple(verdicts.get(at, ("", ""))[0] for at in range(context.n_layers)),
        reason_by_layer=tuple(verdicts.get(at, ("", ""))[1] for at in range(context.n_layers)),
        n_random=_count(context.controls.random),
        n_matched=_count(context.controls.matched),
        n_floor=int(control.counts.sum()),
        intervals={},
        nulls={},
        n=n,
    )


def without_direct_path(kind: str) -> int:
    """Where the arm without the direct path stands: after all others."""
    return 5 if kind == "swap" else 2


def _count(arms: slice) -> int:
    return int(arms.stop) - int(arms.start)


def _redirect(sums: Float[np.ndarray, "*axes metric band"]) -> Float[np.ndarray, "*axes band"]:
    difference: np.ndarray = sums[..., KL, :] - sums[..., KL_DONOR, :]
    return difference


def _metric(index: int) -> Callable[[Float[np.ndarray, "*axes metric band"]], Float[np.ndarray, "*axes band"]]:
    return lambda sums: sums[..., index, :]


def _changes(
    main: Totals, control: Totals, of: Callable[[Float[np.ndarray, "..."]], Float[np.ndarray, "..."]], context: Context
) -> Rows:
    """A metric's change from the unedited model on the same pairs: interval, ceiling, controls, without direct path."""
    paired = of(main.arms) - of(main.baseline)[:, None, None]
    drawn = (of(control.arms) - of(control.baseline)[:, None, None]).sum(axis=0) / control.counts.sum()
    mean = paired.sum(axis=0) / main.counts.sum()
    lo, hi = _interval(paired[:, :, OWN], main, context.seed)
    at = without_direct_path(context.kind)
    found = {"": mean[:, OWN], "_lo": lo, "_hi": hi, "_ceiling": mean[:, CEILING]}
    found |= dict.fromkeys(_INDIRECT, np.full_like(lo, np.nan))
    if mean.shape[1] > at:
        found["_indirect"] = mean[:, at]
        found["_indirect_lo"], found["_indirect_hi"] = _interval(paired[:, :, at], main, context.seed)
    return found | _spread_of(drawn, context.controls) | _most_without_direct_path(drawn, context.controls)


def _movement(main: Totals, control: Totals, context: Context) -> Rows:
    """Share of the way to the target, of all pairs together: Σ moved / Σ distance."""
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = control.arms[..., MOVED, :].sum(axis=0) / control.arms[..., DISTANCE, :].sum(axis=0)
        mean = main.arms[..., MOVED, :].sum(axis=0) / main.arms[..., DISTANCE, :].sum(axis=0)
    found = {"": mean[:, OWN], "_ceiling": mean[:, CEILING]}
    for name, arm in (("", OWN), ("_indirect", without_direct_path(context.kind))):
        unknown = np.full_like(mean[:, OWN], np.nan)
        if arm < mean.shape[1]:
            found[name] = mean[:, arm]
            sums = (main.arms[:, :, arm, metric] for metric in (MOVED, DISTANCE))
            found[f"{name}_lo"], found[f"{name}_hi"] = ratio_interval(*sums, seed=context.seed)
        else:
            found |= {name: unknown, f"{name}_lo": unknown, f"{name}_hi": unknown}
    return found | _spread_of(drawn, context.controls) | _most_without_direct_path(drawn, context.controls)


def _most_without_direct_path(drawn: Float[np.ndarray, "layer arm band"], controls: Controls) -> Rows:
    """The most that a random and a variance-matched subspace do without their direct paths; NaN without one."""
    found: Rows = {}
    for name, arms in zip(_INDIRECT_MOST, (controls.random, controls.matched), strict=True):
        own = drawn[:, arms.start + controls.n : arms.stop + controls.n]
        found[name] = own.max(axis=1) if own.shape[1] else np.full_like(drawn[:, 0], np.nan)
    return found


def _spread_of(drawn: Float[np.ndarray, "layer arm band"], controls: Controls) -> Rows:
    """Mean, least and most over the random subspaces, and over those with the same share of variance."""
    found: Rows = {}
    for (mean, least, most), arms in (
        (("_null", "_least", "_most"), controls.random),
        (("_matched", "_matched_least", "_matched_most"), controls.matched),
    ):
        own = drawn[:, arms]
        found |= {mean: own.mean(axis=1), least: own.min(axis=1), most: own.max(axis=1)}
    return found


def _removal(main: Totals, context: Context, *, erasure: bool = False) -> Rows:
    """KL increase where the subspace, or all linear trace of the quantity, is removed; NaN for kinds without it."""
    paired = main.arms[..., KL, :] - main.baseline[:, None, None, KL]
    if context.kind not in _REMOVAL:
        return dict.fromkeys(("", "_lo", "_hi", "_ceiling"), np.full_like(paired[0, :, OWN], np.nan))
    removed, ceiling = _REMOVAL[context.kind]
    removed = _ERASURE if erasure else removed
    lo, hi = _interval(paired[:, :, removed], main, context.seed)
    mean = paired.sum(axis=0) / main.counts.sum()
    return {"": mean[:, removed], "_lo": lo, "_hi": hi, "_ceiling": mean[:, ceiling]}


def _interval(
    sums: Float[np.ndarray, "unit layer band"], main: Totals, seed: int
) -> tuple[Float[np.ndarray, "layer band"], Float[np.ndarray, "layer band"]]:
    lo, hi = ratio_interval(sums, main.counts[:, None, None].astype(float), seed=seed)
    return lo, hi


def _evidence(tables: Mapping[str, Rows], row: int, layer: int, context: Context, own_kl: float) -> Evidence:
    def effect(rows: Rows, part: str = "") -> Effect:
        return Effect(*(float(rows[part + end][row, 0]) for end in ("", "_lo", "_hi")))

    def beyond(rows: Rows) -> tuple[Effect, float, float]:
        return effect(rows), float(rows["_most"][row, 0]), float(rows["_matched_most"][row, 0])

    movement, controls = tables["movement"], context.controls
    effects = {"movement": beyond(movement)}
    if context.follows_answer:
        effects["answer shift"] = beyond(tables["redirect"])
    indirect = tuple(float(movement[f"_indirect{end}"][row, 0]) for end in ("_most", "_matched_most"))
    has_indirect = context.claims_the_quantity and bool(np.isfinite(movement["_indirect"][row, 0]))
    with np.errstate(divide="ignore", invalid="ignore"):
        share, share_lo = (float(movement[end][row, 0] / movement["_ceiling"][row, 0]) for end in ("", "_lo"))
    return Evidence(
        kind=context.kind, effects=effects, is_matched=controls.found[layer].is_matched, n=context.n,
        n_controls=min(_count(controls.random), _count(controls.matched)), erasure=context.erasures.get(layer),
        removal=effect(tables["removal"]), erasing=effect(tables["erasing"]) if "erasing" in tables else None,
        indirect=(effect(movement, "_indirect"), *indirect) if has_indirect else None,
        removal_ceiling=float(tables["removal"]["_ceiling"][row, 0]),
        own_kl=own_kl, is_identified=context.is_identified, is_readout=context.is_readout,
        outside_share=context.outside_share[layer], share_of_ceiling=share, share_of_ceiling_lo=share_lo,
        untrained_share=context.untrained.get(layer, float("nan")),
    )  # fmt: skip


def _spread(
    values: Float[np.ndarray, "chosen *rest"], layers: Sequence[int], n_layers: int
) -> Float[np.ndarray, "layer *rest"]:
    """Rows put in their layers' places, NaN elsewhere."""
    spread = np.full((n_layers, *values.shape[1:]), np.nan)
    spread[list(layers)] = values
    return spread


def _per_layer(context: Context) -> dict[str, Any]:
    """Numbers that have no bands: ranks, shares, R² of the quantity, and how controls were matched."""
    layers, found = list(context.subspaces), context.controls.found
    columns = {
        "variance_share": [context.variance_share[at] for at in layers],
        "outside_share": [context.outside_share[at] for at in layers],
        "movement_untrained": [context.untrained.get(at, np.nan) for at in layers],
        "matched_share": [found[at].share for at in layers],
    }
    for end in ("", "_lo", "_hi", "_null", "_most"):
        part = end.lstrip("_") or "value"
        own = context.overlaps
        columns[f"frame_overlap{end}"] = [vars(own[at])[part] if at in own else np.nan for at in layers]
    for name, part in (("r2_before", "before"), ("r2_after", "after"), ("r2_permuted", "permuted")):
        columns[name] = [vars(context.erasures[at])[part] if at in context.erasures else np.nan for at in layers]
    spread = {name: _spread(np.array(values), layers, context.n_layers) for name, values in columns.items()}
    everywhere = range(context.n_layers)
    ranks = {
        "rank": np.array([context.subspaces[at].rank if at in layers else 0 for at in everywhere]),
        "matched_rank": np.array([found[at].rank if at in layers else 0 for at in everywhere]),
    }
    return {**spread, **ranks, "matched_by": tuple(found[at].by if at in layers else "" for at in everywhere)}


def _decoding(context: Context) -> dict[str, Float[np.ndarray, " layer"]]:
    """Held-out R² of the subspace's own coordinates, and the mean over random subspaces."""
    layers, found = list(context.subspaces), {}
    for what, by_layer in context.r2.items():
        draws = np.stack([by_layer[layer] for layer in layers])
        for suffix, values in (("", draws[:, 0]), ("_null", draws[:, 1:].mean(axis=1))):
            found[f"{what}_r2{suffix}"] = _spread(values, layers, context.n_layers)
    return found
