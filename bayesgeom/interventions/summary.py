"""From totals to the report: paired intervals over pairs, ceilings and floors, verdicts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Float64

from bayesgeom.interventions.engine import ENTROPY_ERROR, KL, KL_DONOR, Totals
from bayesgeom.interventions.report import RULE, InterventionReport, overall_verdict, verdict_of
from bayesgeom.interventions.subspace import Subspace
from bayesgeom.statistics import ratio_interval

_SUBSPACE, _CEILING = range(2)  # arms of the main totals; those of the floor's are random subspaces


@final
@dataclass(frozen=True, kw_only=True)
class Context:
    """What a report needs beside the totals. R² per layer: the subspace's own, then those of random ones."""

    kind: str
    site: str
    label: str
    bands: tuple[str, ...]
    subspaces: Mapping[int, Subspace]
    n_layers: int
    r2: Mapping[str, Mapping[int, Float64[np.ndarray, " subspace"]]]
    seed: int


def intervention_report(main: Totals, floor: Totals, context: Context) -> InterventionReport:
    """Intervals, ceilings, floors and verdicts; layers where nothing was done are NaN."""
    layers, n, is_swap = list(context.subspaces), int(main.counts.sum()), context.kind == "swap"
    redirect, damage, error = (_changes(main, floor, of, context.seed) for of in (_redirect, _kl, _entropy_error))
    unedited = _redirect(main.baseline).sum(axis=0) / n
    effect = redirect if is_swap else damage
    verdicts = {layer: _verdict(effect, row) for row, layer in enumerate(layers)}
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(effect["_ceiling"] > 0, effect[""] / effect["_ceiling"], np.nan)
    lo, hi = _interval(_redirect(main.arms)[:, :, _SUBSPACE], main, context.seed)
    raw = {suffix: unedited + change for suffix, change in redirect.items()} | {"_lo": lo, "_hi": hi}
    found = {f"redirect_bits{suffix}": values for suffix, values in raw.items()}
    found |= {f"redirect_change_bits{suffix}": redirect[suffix] for suffix in ("", "_lo", "_hi")}
    found |= {f"damage_bits{suffix}": values for suffix, values in damage.items()}
    found |= {f"entropy_mae_increase_bits{suffix}": values for suffix, values in error.items()}
    return InterventionReport(
        **{name: _spread(values, layers, context.n_layers) for name, values in found.items()},
        share_of_ceiling=_spread(share, layers, context.n_layers),
        **_decoding(context),
        kind=context.kind,
        site=context.site,
        subspace=context.label,
        bands=context.bands,
        rank=np.array([context.subspaces[at].rank if at in context.subspaces else 0 for at in range(context.n_layers)]),
        redirect_bits_unedited=unedited,
        baseline_kl_bits=float(main.baseline[:, KL, 0].sum() / n),
        verdict=overall_verdict(context.label, verdicts, _own_r2(context)),
        verdict_rule=RULE,
        verdict_by_layer=tuple(verdicts.get(layer, "") for layer in range(context.n_layers)),
        n_random=floor.arms.shape[2],
        n_floor=int(floor.counts.sum()),
        intervals={},
        nulls={},
        n=n,
    )


def _redirect(sums: Float[np.ndarray, "*axes metric band"]) -> Float[np.ndarray, "*axes band"]:
    difference: np.ndarray = sums[..., KL, :] - sums[..., KL_DONOR, :]
    return difference


def _kl(sums: Float[np.ndarray, "*axes metric band"]) -> Float[np.ndarray, "*axes band"]:
    return sums[..., KL, :]


def _entropy_error(sums: Float[np.ndarray, "*axes metric band"]) -> Float[np.ndarray, "*axes band"]:
    return sums[..., ENTROPY_ERROR, :]


def _changes(
    main: Totals, floor: Totals, of: Callable[[Float[np.ndarray, "..."]], Float[np.ndarray, "..."]], seed: int
) -> dict[str, Float[np.ndarray, "layer band"]]:
    """A metric's change from the unedited model on the same pairs, with its interval, ceiling and floor."""
    paired = of(main.arms) - of(main.baseline)[:, None, None]
    drawn = (of(floor.arms) - of(floor.baseline)[:, None, None]).sum(axis=0) / floor.counts.sum()
    mean = paired.sum(axis=0) / main.counts.sum()
    lo, hi = _interval(paired[:, :, _SUBSPACE], main, seed)
    edges = {"_null": drawn.mean(axis=1), "_least": drawn.min(axis=1), "_most": drawn.max(axis=1)}
    return {"": mean[:, _SUBSPACE], "_lo": lo, "_hi": hi, "_ceiling": mean[:, _CEILING], **edges}


def _interval(
    sums: Float[np.ndarray, "unit layer band"], main: Totals, seed: int
) -> tuple[Float[np.ndarray, "layer band"], Float[np.ndarray, "layer band"]]:
    lo, hi = ratio_interval(sums, main.counts[:, None, None].astype(float), seed=seed)
    return lo, hi


def _verdict(effect: Mapping[str, Float[np.ndarray, "layer band"]], row: int) -> str:
    value, lo, hi, ceiling, most = (float(effect[suffix][row, 0]) for suffix in ("", "_lo", "_hi", "_ceiling", "_most"))
    return verdict_of((value, lo, hi), ceiling, most)


def _spread(
    values: Float[np.ndarray, "chosen *rest"], layers: Sequence[int], n_layers: int
) -> Float[np.ndarray, "layer *rest"]:
    """Rows put in their layers' places, NaN elsewhere."""
    spread = np.full((n_layers, *values.shape[1:]), np.nan)
    spread[list(layers)] = values
    return spread


def _decoding(context: Context) -> dict[str, Float[np.ndarray, " layer"]]:
    """Held-out R² of the subspace's own coordinates, and the mean over random subspaces."""
    layers, found = list(context.subspaces), {}
    for what, by_layer in context.r2.items():
        draws = np.stack([by_layer[layer] for layer in layers])
        for suffix, values in (("", draws[:, 0]), ("_null", draws[:, 1:].mean(axis=1))):
            found[f"{what}_r2{suffix}"] = _spread(values, layers, context.n_layers)
    return found


def _own_r2(context: Context) -> dict[str, dict[int, float]]:
    return {what: {at: float(draws[0]) for at, draws in by_layer.items()} for what, by_layer in context.r2.items()}
