"""The report from the totals: paired intervals over pairs, ceilings, controls and verdicts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Float64

from bayesgeom.core import Verdict, phase
from bayesgeom.interventions._evidence import Erasure, Overlap
from bayesgeom.interventions.design import ERASED, MATCHED, MATCHED_MOST, RANDOM, RANDOM_MOST, Design
from bayesgeom.interventions.engine import DISTANCE, ENTROPY_ERROR, KL, KL_DONOR, MOVED, Totals
from bayesgeom.interventions.matching import Matched
from bayesgeom.interventions.report import EFFECTS, PARTS, SHUFFLED, SOURCES, TARGETS, InterventionReport
from bayesgeom.interventions.verdicts import Evidence, Judgment, Obstacle, Reach, survival_of, verdict_of
from bayesgeom.report import UNTRAINED, WHOLE, Baseline, Estimate, stacked
from bayesgeom.stats import ratio_interval
from bayesgeom.subspaces.base import Subspace

# Conditions of the main totals. Only a swap has more than two; where the site has a direct path, the edit without it
# follows. The control totals begin with the ceiling; then random and matched subspaces, the removal of the random ones
# for a swap, and the first two without that path.
OWN, CEILING, REMOVAL, REMOVAL_CEILING, GIVEN, BY_CODE = range(6)
_KL_INCREASE = 1  # entry of `EFFECTS`
_CONTROLS = ((RANDOM, RANDOM_MOST), (MATCHED, MATCHED_MOST))
Sums = Float[np.ndarray, "unit chosen condition band"]
Ratio = Callable[[Totals], tuple[Sums, Sums]]


@final
@dataclass(frozen=True, kw_only=True)
class LayerEvidence:
    """What is known of one edited layer besides its totals.

    `r2` is of the subspace, then of random subspaces. `outside_share` is the share of donor − recipient outside the
    subspace. `untrained_share` is the movement in untrained networks as a share of their ceiling. `whole` is, for an
    edit that may swap a part of the quantity's subspace, the reach of swaps of all of it. `has_given` and `has_code`
    say whether anything is left with position and answer held fixed, and of the code without the subspace.
    """

    subspace: Subspace
    matched: Matched
    erasure: Erasure
    r2: Mapping[str, Float64[np.ndarray, " subspace"]]
    overlap: Overlap | None
    variance_share: float
    outside_share: float
    untrained_share: float
    whole: Sequence[Reach]
    has_given: bool
    has_code: bool


@final
@dataclass(frozen=True, kw_only=True)
class Context:
    """The data that a report needs in addition to the totals; `empty` are the layers without a subspace."""

    design: Design
    label: str
    quantity: str
    where: str
    bands: tuple[str, ...]
    n_layers: int
    layers: Mapping[int, LayerEvidence]
    empty: Sequence[int]
    is_identified: bool
    is_told: bool
    is_readout: bool
    holds: tuple[str, ...]
    code: str
    n: int
    seed: int

    def placed(
        self, values: Float[np.ndarray, "chosen *rest"] | Bool[np.ndarray, "chosen *rest"]
    ) -> Float[np.ndarray, "layer *rest"]:
        """Return an array over all layers with the rows of the edited layers; NaN elsewhere."""
        spread = np.full((self.n_layers, *values.shape[1:]), np.nan)
        spread[list(self.layers)] = values
        return spread

    def columns(self, row: Callable[[LayerEvidence], Sequence[float]]) -> Float[np.ndarray, "column layer"]:
        """Return numbers of every layer as columns over layers; NaN for layers without an edit."""
        return self.placed(np.array([row(own) for own in self.layers.values()])).T


@phase("intervals")
def intervention_report(main: Totals, control: Totals, context: Context) -> InterventionReport:
    """Return the report with intervals, ceilings, controls and verdicts; layers that were not edited are NaN."""
    scores, found = _Scores(main=main, control=control, context=context), context.layers
    movement, indirect_movement = scores.movement
    changes = [scores.effect(_change(of)) for of in range(3)]
    (_, indirect_shift), (_, indirect_kl), _ = changes
    change = stacked([*(own for own, _ in changes), scores.removal, indirect_shift, indirect_kl])
    held, (given, by_code) = scores.held, scores.held
    verdicts = {at: verdict_of(scores.evidence(at)) for at in found}
    survival = [""] * context.n_layers
    for at in (at for at, own in verdicts.items() if own.verdict == Verdict.CAUSAL):
        left = given[at] if context.holds else None
        rest = by_code[at] if found[at].has_code else None
        survival[at] = str(survival_of(movement[at, 0], left, context.code, rest))
    verdicts |= dict.fromkeys(context.empty, Judgment(Verdict.UNDECIDED, Obstacle.NOTHING_LEFT))
    judged = [verdicts.get(at) for at in range(context.n_layers)]
    return InterventionReport(
        kind=context.design.kind,
        subspace=context.label,
        quantity=context.quantity,
        where=context.where,
        bands=context.bands,
        movement=movement,
        indirect_movement=indirect_movement,
        effects=EFFECTS,
        change_bits=replace(change, baselines=tuple(sorted(change.baselines, key=_place))),
        unedited_bits=scores.unedited,
        sources=SOURCES,
        r2=_r2(context),
        rank=np.array([found[at].subspace.rank if at in found else 0 for at in range(context.n_layers)]),
        parts=PARTS,
        share=_share(context),
        verdict_by_layer=tuple("" if own is None else str(own.verdict) for own in judged),
        against_causal=tuple("" if own is None else str(own.against_causal) for own in judged),
        against_inert=tuple("" if own is None else str(own.against_inert) for own in judged),
        others=(
            f"{' and '.join(context.holds) or 'nothing'} held fixed",
            f"{context.code or 'no'} code, outside",
        ),
        held_movement=stacked(held),
        survival_by_layer=tuple(survival),
        controls_found=np.array([found[at].matched.n_distinct if at in found else 0 for at in range(context.n_layers)]),
        n=context.n,
    )


@final
@dataclass(frozen=True, kw_only=True)
class _Scores:
    """The totals of every condition as estimates."""

    main: Totals
    control: Totals
    context: Context

    @cached_property
    def movement(self) -> tuple[Estimate, Estimate]:
        """Share of the distance to the target that is covered, over all pairs; then that without the direct path."""
        own, indirect = self.effect(_moved)
        untrained = np.full_like(own.value, np.nan)
        (share,) = self.context.columns(lambda layer: (layer.untrained_share,))
        untrained[:, 0] = share * own.ceiling[:, 0]
        level = [Baseline.of("baseline", UNTRAINED, untrained)] if np.isfinite(untrained).any() else []
        return replace(own, baselines=(*own.baselines[:-1], *level, own.baselines[-1])), indirect

    def effect(self, ratio: Ratio) -> tuple[Estimate, Estimate]:
        """Return an effect with ceiling and controls; then both without the direct path, NaN if the site has none."""
        place, design = self.context.placed, self.context.design
        has_path = self.main.conditions.shape[2] > (at := self._indirect)
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn = np.divide(*(own.sum(axis=0) for own in ratio(self.control)))[:, 1:]
        n_erased = design.n_random if design.kind == "swap" else 0
        ends = np.cumsum([design.n_random, design.n_matched, n_erased, design.n_random])
        random, matched, _, *later_families = np.split(drawn, ends, axis=1)
        levels, most = list[Baseline](), list[Baseline]()
        for (name, name_most), own, later in zip(_CONTROLS, (random, matched), later_families, strict=True):
            mean, least, largest = (place(part) for part in (own.mean(1), own.min(1), own.max(1)))
            levels.append(Baseline.of("chance", name, mean, low=least, high=largest))
            most += [Baseline.of("chance", name_most, place(later.max(1)))] if has_path else []
        effect = self._estimate(ratio, OWN, CEILING, levels)
        if has_path:
            return effect, self._estimate(ratio, at, None, most)
        return effect, Estimate.of(np.full_like(effect.value, np.nan), n=self.context.n)

    @cached_property
    def removal(self) -> Estimate:
        """KL increase when the subspace is removed, with its ceiling; NaN for kinds without removal."""
        place, design = self.context.placed, self.context.design
        if design.kind not in ("swap", "remove"):
            return Estimate.of(np.full((self.context.n_layers, len(self.context.bands)), np.nan), n=self.context.n)
        first = 1 if design.kind == "remove" else 1 + design.n_random + design.n_matched
        increase, n = (own.sum(axis=0) for own in _change(_KL_INCREASE)(self.control))
        drawn = (increase / n)[:, first : first + design.n_random]
        median, least, most = (place(of(drawn, axis=1)) for of in (np.median, np.min, np.max))
        level = Baseline.of("chance", ERASED, median, low=least, high=most)
        pair = (OWN, CEILING) if design.kind == "remove" else (REMOVAL, REMOVAL_CEILING)
        return self._estimate(_change(_KL_INCREASE), *pair, [level])

    @cached_property
    def held(self) -> tuple[Estimate, Estimate]:
        """Movement with position and answer held fixed, then by the code without the subspace; NaN where undefined."""
        if self.context.design.kind != "swap":
            unknown = Estimate.of(np.full(self.context.n_layers, np.nan), n=self.context.n)
            return unknown, unknown
        has_given, has_code = self.context.columns(lambda own: (own.has_given, own.has_code)) == 1
        given, by_code = (self._estimate(_moved, condition)[:, 0] for condition in (GIVEN, BY_CODE))
        return _where(given, has_given), _where(by_code, has_code)

    @property
    def unedited(self) -> Float[np.ndarray, "effect band"]:
        """The reference levels of `EFFECTS`: answer shift, KL and entropy error without an edit."""
        shift, kl, error = (_metric(of, self.main.baseline).sum(axis=0) / self.main.counts.sum() for of in range(3))
        return np.stack([shift, kl, error, kl, shift, kl])

    def evidence(self, layer: int) -> Evidence:
        """Return the evidence for the verdict on one layer."""
        context, (movement, indirect), own = self.context, self.movement, self.context.layers[layer]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = movement.value[layer, 0] / movement.ceiling[layer, 0]
        reach = Reach(
            outside_share=own.outside_share, share_of_ceiling=float(share), untrained_share=own.untrained_share
        )
        return Evidence(
            kind=context.design.kind,
            movement=movement[layer, 0],
            indirect=indirect[layer, 0],
            removal=self.removal[layer, 0],
            is_matched=own.matched.is_matched,
            n=context.n,
            n_random=context.design.n_random,
            n_matched=own.matched.n_distinct,
            erasure=own.erasure,
            is_identified=context.is_identified,
            is_told=context.is_told,
            is_readout=context.is_readout,
            reach=reach,
            whole=own.whole,
        )

    @property
    def _indirect(self) -> int:
        """The condition without the direct path, which follows all others."""
        return 1 + (BY_CODE if self.context.design.kind == "swap" else CEILING)

    def _estimate(
        self, ratio: Ratio, condition: int, ceiling: int | None = None, baselines: Sequence[Baseline] = ()
    ) -> Estimate:
        """Return Σ above / Σ below over all pairs, with its interval or the reason why it has none."""
        place, levels = self.context.placed, [own for own in baselines if np.isfinite(own.value).any()]
        value, low, high, reason = self._ratio(ratio, condition)
        if ceiling is not None:
            whole, least, most, _ = self._ratio(ratio, ceiling)
            levels.append(Baseline.of("ceiling", WHOLE, place(whole), low=place(least), high=place(most)))
        codes = np.nan_to_num(place(reason)).astype(np.int64)
        return Estimate.of(place(value), (place(low), place(high)), n=self.context.n, baselines=levels, reason=codes)

    def _ratio(self, ratio: Ratio, condition: int) -> tuple[Float64[np.ndarray, "chosen band"], ...]:
        """Return Σ above / Σ below, the ends of its interval, and the number of the reason why it has none."""
        above, below = (own[:, :, condition] for own in ratio(self.main))
        with np.errstate(divide="ignore", invalid="ignore"):
            value = above.sum(axis=0) / below.sum(axis=0)
        found = ratio_interval(above, below, seed=self.context.seed)
        return value, found.lo, found.hi, np.where(np.isnan(value), 0.0, found.code)


def _where(own: Estimate, is_known: Bool[np.ndarray, " layer"]) -> Estimate:
    """Return an estimate that is NaN elsewhere."""
    low, high = (np.where(is_known, end, np.nan) for end in own.ends)
    return replace(own, value=np.where(is_known, own.value, np.nan), low=low, high=high)


def _place(own: Baseline) -> int:
    """Return where a baseline of the changes stands: random erasures of one of them, and ceilings, come last."""
    return 2 if own.kind == "ceiling" else own.name == ERASED


def _moved(totals: Totals) -> tuple[Sums, Sums]:
    return totals.conditions[..., MOVED, :], totals.conditions[..., DISTANCE, :]


def _change(effect: int) -> Ratio:
    """Return the change of the metric behind an entry of `EFFECTS` on the same pairs, and the number of pairs."""

    def ratio(totals: Totals) -> tuple[Sums, Sums]:
        change = _metric(effect, totals.conditions) - _metric(effect, totals.baseline)[:, None, None]
        return change, np.broadcast_to(totals.counts[:, None, None, None].astype(np.float64), change.shape)

    return ratio


def _metric(effect: int, sums: Float[np.ndarray, "*axes metric band"]) -> Float[np.ndarray, "*axes band"]:
    """Return the sums of answer shift, KL or entropy error, for the first three entries of `EFFECTS`."""
    kl: np.ndarray = sums[..., KL, :]
    return (kl - sums[..., KL_DONOR, :], kl, sums[..., ENTROPY_ERROR, :])[effect]


def _r2(context: Context) -> Estimate:
    """Return held-out R² in the order of `SOURCES`.

    The baseline after removal is the R² of shuffled values; that of the subspace's coordinates is the mean over random
    subspaces.
    """
    before, after, shuffled = context.columns(lambda own: (own.erasure.before, own.erasure.after, own.erasure.permuted))
    own = context.columns(lambda own: [own.r2[target][0] for target in TARGETS])
    random = context.columns(lambda own: [own.r2[target][1:].mean() for target in TARGETS])
    unknown = np.full_like(shuffled, np.nan)
    levels = (
        Baseline.of("permutation", SHUFFLED, np.stack([unknown, shuffled, unknown, unknown])),
        Baseline.of("chance", RANDOM, np.stack([unknown, unknown, *random])),
    )
    known = [level for level in levels if np.isfinite(level.value).any()]
    return Estimate.of(np.stack([before, after, *own]), baselines=known)


def _share(context: Context) -> Estimate:
    """Return the shares in the order of `PARTS`; baselines are matched subspaces for variance, random ones inside."""
    variance, outside, matched = context.columns(lambda own: (own.variance_share, own.outside_share, own.matched.share))
    unknown = np.full_like(variance, np.nan)
    inside, levels = unknown, [Baseline.of("chance", MATCHED, np.stack([matched, unknown, unknown]))]
    overlaps = [own.overlap for own in context.layers.values() if own.overlap is not None]
    if overlaps:
        inside, random, most = context.placed(np.array([(own.value, own.random, own.most) for own in overlaps])).T
        highest = np.stack([unknown, unknown, most])
        levels.append(Baseline.of("chance", RANDOM, np.stack([unknown, unknown, random]), high=highest))
    return Estimate.of(np.stack([variance, outside, inside]), baselines=levels)
