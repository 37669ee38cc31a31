"""The report from the totals: paired intervals over pairs, ceilings, controls and verdicts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from jaxtyping import Float, Float64

from bayesgeom.core.verdict import Verdict
from bayesgeom.interventions._evidence import Erasure, Overlap
from bayesgeom.interventions.design import MATCHED, MATCHED_MOST, RANDOM, RANDOM_MOST
from bayesgeom.interventions.engine import DISTANCE, ENTROPY_ERROR, KL, KL_DONOR, MOVED, Totals
from bayesgeom.interventions.matching import Matched
from bayesgeom.interventions.report import EFFECTS, PARTS, SHUFFLED, SOURCES, TARGETS, InterventionReport
from bayesgeom.interventions.verdicts import Effect, Evidence, Judgment, Obstacle, Reach, verdict_of
from bayesgeom.report.estimate import UNTRAINED, Baseline, Estimate, stacked, with_ceiling
from bayesgeom.stats.bootstrap import ratio_interval
from bayesgeom.subspaces.base import Subspace

OWN, CEILING = range(2)  # conditions of the main totals; a swap is followed by the removal, its ceiling and the erasure
_ERASURE = 4
_REMOVAL = {"swap": (2, 3), "remove": (OWN, CEILING)}
Values = Float[np.ndarray, "layer band"]
Sums = Float[np.ndarray, "*axes metric band"]


@final
@dataclass(frozen=True, kw_only=True)
class Controls:
    """The slices of the control totals that hold random and matched subspaces, and the matched subspaces.

    If the site has a direct path, the same subspaces follow in the same order without it.
    """

    random: slice
    matched: slice
    found: Mapping[int, Matched]

    @property
    def n(self) -> int:
        """Number of control subspaces."""
        return int(self.matched.stop) - int(self.random.start)


@final
@dataclass(frozen=True, kw_only=True)
class Context:
    """The data that a report needs in addition to the totals.

    `r2` is of the subspace, then of random subspaces. `whole` is, for an edit that may swap a part of the quantity's
    subspace, the reach of swaps of all of it. `empty` has the reason why a layer has no subspace.
    """

    kind: str
    where: str
    label: str
    quantity: str
    bands: tuple[str, ...]
    subspaces: Mapping[int, Subspace]
    n_layers: int
    r2: Mapping[str, Mapping[int, Float64[np.ndarray, " subspace"]]]
    erasures: Mapping[int, Erasure]
    variance_share: Mapping[int, float]
    outside_share: Mapping[int, float]
    overlaps: Mapping[int, Overlap]
    untrained: Mapping[int, float]
    whole: Mapping[int, Sequence[Reach]]
    empty: Mapping[int, str]
    controls: Controls
    is_identified: bool
    is_readout: bool
    claims_the_quantity: bool
    follows_answer: bool
    n: int
    seed: int

    def placed(self, values: Float[np.ndarray, "chosen *rest"]) -> Float[np.ndarray, "layer *rest"]:
        """Return an array over all layers with the rows of the edited layers; NaN elsewhere."""
        spread = np.full((self.n_layers, *values.shape[1:]), np.nan)
        spread[list(self.subspaces)] = values
        return spread

    def columns(self, rows: Mapping[int, Sequence[float]], width: int) -> Float[np.ndarray, "column layer"]:
        """Return one row of numbers per layer as columns over layers; NaN for missing layers."""
        found = np.full((width, self.n_layers), np.nan)
        for layer, row in rows.items():
            found[:, layer] = row
        return found


@final
@dataclass(frozen=True, kw_only=True)
class Measured:
    """An effect with its interval and controls, the effect without the direct path, and the ceiling."""

    own: Estimate
    indirect: Estimate
    ceiling: Values


def intervention_report(main: Totals, control: Totals, context: Context) -> InterventionReport:
    """Return the report with intervals, ceilings, controls and verdicts; layers that were not edited are NaN."""
    scores = _Scores(main=main, control=control, context=context)
    movement, shift, kl = scores.movement, scores.shift, scores.changes(_kl)
    error, (removal, removal_ceiling) = scores.changes(_entropy_error), scores.removal
    verdicts = {at: verdict_of(scores.evidence(at)) for at in context.subspaces}
    verdicts |= dict.fromkeys(context.empty, Judgment(Verdict.UNDECIDED, Obstacle.NOTHING_LEFT))
    judged, matched = [verdicts.get(at) for at in range(context.n_layers)], context.controls.found
    unknown, layers, n = np.full_like(removal_ceiling, np.nan), range(context.n_layers), context.n
    ceilings = (shift.ceiling, kl.ceiling, error.ceiling, removal_ceiling, unknown, unknown)
    return InterventionReport(
        kind=context.kind,
        subspace=context.label,
        quantity=context.quantity,
        where=context.where,
        bands=context.bands,
        movement=with_ceiling(movement.own, movement.ceiling),
        indirect_movement=movement.indirect,
        effects=EFFECTS,
        change_bits=with_ceiling(
            stacked([shift.own, kl.own, error.own, removal, shift.indirect, kl.indirect]), np.stack(ceilings)
        ),
        unedited_bits=scores.unedited,
        sources=SOURCES,
        r2=_r2(context),
        rank=np.array([context.subspaces[at].rank if at in context.subspaces else 0 for at in layers]),
        parts=PARTS,
        share=_share(context),
        verdict_by_layer=tuple("" if own is None else str(own.verdict) for own in judged),
        against_use=tuple("" if own is None else str(own.against_use) for own in judged),
        against_disuse=tuple("" if own is None else str(own.against_disuse) for own in judged),
        controls_found=np.array([matched[at].n_distinct if at in matched else 0 for at in layers]),
        n=n,
    )


def without_direct_path(kind: str) -> int:
    """Return the index of the condition without the direct path, which follows all others."""
    return 5 if kind == "swap" else 2


def where_text(site: str, positions: str, donors: str) -> str:
    """Return site, positions and, for a swap, the donors."""
    return f"{site}, {positions}" + ("" if donors == "none" else f"; donors: {donors}")


@final
@dataclass(frozen=True, kw_only=True)
class _Scores:
    """The totals of every condition as estimates."""

    main: Totals
    control: Totals
    context: Context

    def changes(self, of: Callable[[Sums], Float[np.ndarray, "..."]]) -> Measured:
        """Return a metric's change from the unedited model on the same pairs."""
        control, paired = self.control, of(self.main.conditions) - of(self.main.baseline)[:, None, None]
        drawn = (of(control.conditions) - of(control.baseline)[:, None, None]).sum(axis=0) / control.counts.sum()
        mean = paired.sum(axis=0) / self.main.counts.sum()
        return self._measured(mean, drawn, lambda condition: self._interval(paired[:, :, condition]))

    @cached_property
    def shift(self) -> Measured:
        """Change of the answer shift."""
        return self.changes(_answer_shift)

    @cached_property
    def movement(self) -> Measured:
        """Share of the distance to the target that is covered, over all pairs: Σ moved / Σ distance."""

        def interval(condition: int) -> tuple[np.ndarray, np.ndarray]:
            moved, distance = (self.main.conditions[:, :, condition, metric] for metric in (MOVED, DISTANCE))
            low, high = ratio_interval(moved, distance, seed=self.context.seed)
            return low, high

        with np.errstate(divide="ignore", invalid="ignore"):
            drawn, mean = (
                totals.conditions[..., MOVED, :].sum(axis=0) / totals.conditions[..., DISTANCE, :].sum(axis=0)
                for totals in (self.control, self.main)
            )
        ceiling = self.context.placed(mean[:, CEILING])
        untrained = np.full_like(ceiling, np.nan)
        (share,) = self.context.columns({at: (share,) for at, share in self.context.untrained.items()}, 1)
        untrained[:, 0] = share * ceiling[:, 0]
        return self._measured(mean, drawn, interval, [Baseline.of("baseline", UNTRAINED, untrained)])

    @cached_property
    def removal(self) -> tuple[Estimate, Values]:
        """KL increase when the subspace is removed, and its ceiling; NaN for kinds without removal."""
        if self.context.kind not in _REMOVAL:
            unknown = np.full((self.context.n_layers, len(self.context.bands)), np.nan)
            return Estimate.of(unknown, n=self.context.n), unknown
        return self._kl_increase(*_REMOVAL[self.context.kind])

    @cached_property
    def erasing(self) -> Estimate | None:
        """KL increase when the quantity is erased linearly, for subspaces that claim to hold it."""
        return self._kl_increase(_ERASURE, CEILING)[0] if self.context.claims_the_quantity else None

    @property
    def unedited(self) -> Float[np.ndarray, "effect band"]:
        """The reference levels of `EFFECTS`: answer shift, KL and entropy error without an edit."""
        base, counts = self.main.baseline, self.main.counts.sum()
        shift, kl, error = (of(base).sum(axis=0) / counts for of in (_answer_shift, _kl, _entropy_error))
        return np.stack([shift, kl, error, kl, shift, kl])

    @property
    def own_kl(self) -> float:
        """The model's own KL."""
        return float(self.main.baseline[:, KL, 0].sum() / self.main.counts.sum())

    def _kl_increase(self, condition: int, ceiling: int) -> tuple[Estimate, Values]:
        paired = self.main.conditions[..., KL, :] - self.main.baseline[:, None, None, KL]
        mean = paired.sum(axis=0) / self.main.counts.sum()
        own = self._estimate(mean[:, condition], self._interval(paired[:, :, condition]))
        return own, self.context.placed(mean[:, ceiling])

    def evidence(self, layer: int) -> Evidence:
        """Return the evidence for the verdict on one layer."""
        context, controls, movement = self.context, self.context.controls, self.movement

        def effect(own: Estimate) -> Effect:
            return Effect(*(float(part[layer, 0]) for part in (own.value, *own.ends)))

        def beyond(own: Estimate, random: str = RANDOM, matched: str = MATCHED) -> tuple[Effect, float, float]:
            most = {each.name: float(each.bar("higher")[layer, 0]) for each in own.baselines}
            return effect(own), most.get(random, float("nan")), most.get(matched, float("nan"))

        effects = {"movement": beyond(movement.own)}
        if context.follows_answer:
            effects["answer shift"] = beyond(self.shift.own)
        has_indirect = bool(np.isfinite(movement.indirect.value[layer, 0]))
        with np.errstate(divide="ignore", invalid="ignore"):
            value, low = (
                np.divide(part[layer, 0], movement.ceiling[layer, 0])
                for part in (movement.own.value, movement.own.ends[0])
            )
        removal, removal_ceiling = self.removal
        return Evidence(
            kind=context.kind,
            effects=effects,
            is_matched=controls.found[layer].is_matched,
            n=context.n,
            n_random=_count(controls.random),
            n_matched=controls.found[layer].n_distinct,
            erasure=context.erasures.get(layer),
            removal=effect(removal),
            erasing=None if self.erasing is None else effect(self.erasing),
            indirect=beyond(movement.indirect, RANDOM_MOST, MATCHED_MOST) if has_indirect else None,
            removal_ceiling=float(removal_ceiling[layer, 0]),
            own_kl=self.own_kl,
            is_identified=context.is_identified,
            is_readout=context.is_readout,
            reach=Reach(
                outside_share=context.outside_share[layer],
                share_of_ceiling=float(value),
                untrained_share=context.untrained.get(layer, float("nan")),
            ),
            whole=context.whole.get(layer, ()),
            least_share_of_ceiling=float(low),
        )

    def _measured(
        self,
        mean: Float[np.ndarray, "chosen condition band"],
        drawn: Float[np.ndarray, "chosen control band"],
        interval: Callable[[int], tuple[np.ndarray, np.ndarray]],
        more: Sequence[Baseline] = (),
    ) -> Measured:
        """Return the effect with its controls, also without the direct path of effect and controls."""
        context, levels, most = self.context, list[Baseline](), list[Baseline]()
        for name, name_most, conditions in (
            (RANDOM, RANDOM_MOST, context.controls.random),
            (MATCHED, MATCHED_MOST, context.controls.matched),
        ):
            own = drawn[:, conditions]
            mean_of, least_of, most_of = (context.placed(part) for part in (own.mean(1), own.min(1), own.max(1)))
            levels.append(Baseline.of("chance", name, mean_of, low=least_of, high=most_of))
            own = drawn[:, conditions.start + context.controls.n : conditions.stop + context.controls.n]
            if own.shape[1]:
                most.append(Baseline.of("chance", name_most, context.placed(own.max(1))))
        at = without_direct_path(context.kind)
        indirect = Estimate.of(context.placed(np.full_like(mean[:, OWN], np.nan)), n=context.n)
        if mean.shape[1] > at:
            indirect = self._estimate(mean[:, at], interval(at), most)
        return Measured(
            own=self._estimate(mean[:, OWN], interval(OWN), [*levels, *more]),
            indirect=indirect,
            ceiling=context.placed(mean[:, CEILING]),
        )

    def _estimate(
        self,
        value: Float[np.ndarray, "chosen band"],
        interval: tuple[np.ndarray, np.ndarray],
        baselines: Sequence[Baseline] = (),
    ) -> Estimate:
        low, high = (self.context.placed(end) for end in interval)
        known = [own for own in baselines if np.isfinite(own.value).any()]
        return Estimate.of(self.context.placed(value), (low, high), n=self.context.n, baselines=known)

    def _interval(self, sums: Float[np.ndarray, "unit chosen band"]) -> tuple[np.ndarray, np.ndarray]:
        low, high = ratio_interval(sums, self.main.counts[:, None, None].astype(float), seed=self.context.seed)
        return low, high


def _count(conditions: slice) -> int:
    return int(conditions.stop) - int(conditions.start)


def _answer_shift(sums: Sums) -> Float[np.ndarray, "*axes band"]:
    difference: np.ndarray = sums[..., KL, :] - sums[..., KL_DONOR, :]
    return difference


def _kl(sums: Sums) -> Float[np.ndarray, "*axes band"]:
    return sums[..., KL, :]


def _entropy_error(sums: Sums) -> Float[np.ndarray, "*axes band"]:
    return sums[..., ENTROPY_ERROR, :]


def _r2(context: Context) -> Estimate:
    """Return held-out R² in the order of `SOURCES`.

    The baseline after removal is the R² of shuffled values; that of the subspace's coordinates is the mean over random
    subspaces.
    """
    rows = {at: (own.before, own.after, own.permuted) for at, own in context.erasures.items()}
    before, after, shuffled = context.columns(rows, 3)
    drawn = [np.stack([context.r2[target][at] for at in context.subspaces]) for target in TARGETS]
    own = [context.placed(found[:, 0]) for found in drawn]
    random = [context.placed(found[:, 1:].mean(axis=1)) for found in drawn]
    unknown = np.full_like(shuffled, np.nan)
    levels = (
        Baseline.of("permutation", SHUFFLED, np.stack([unknown, shuffled, unknown, unknown])),
        Baseline.of("chance", RANDOM, np.stack([unknown, unknown, *random])),
    )
    known = [level for level in levels if np.isfinite(level.value).any()]
    return Estimate.of(np.stack([before, after, *own]), baselines=known)


def _share(context: Context) -> Estimate:
    """Return the shares in the order of `PARTS`; baselines are matched subspaces for variance, random ones inside."""
    found = {
        at: (context.variance_share[at], context.outside_share[at], context.controls.found[at].share)
        for at in context.subspaces
    }
    overlaps = {at: (own.value, own.random, own.most) for at, own in context.overlaps.items()}
    variance, outside, matched = context.columns(found, 3)
    inside, random, most = context.columns(overlaps, 3)
    unknown = np.full_like(inside, np.nan)
    levels = [Baseline.of("chance", MATCHED, np.stack([matched, unknown, unknown]))]
    if overlaps:
        highest = np.stack([unknown, unknown, most])
        levels.append(Baseline.of("chance", RANDOM, np.stack([unknown, unknown, random]), high=highest))
    return Estimate.of(np.stack([variance, outside, inside]), baselines=levels)
