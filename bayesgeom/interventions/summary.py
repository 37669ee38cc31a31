"""The report from the totals: paired intervals over pairs, ceilings, controls and verdicts."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Float64

from bayesgeom.core import Verdict, phase
from bayesgeom.interventions._evidence import Erasure, Overlap
from bayesgeom.interventions.design import ARBITRARY, ERASED, MATCHED, MATCHED_MOST, RANDOM, RANDOM_MOST, Design
from bayesgeom.interventions.engine import Score, Totals
from bayesgeom.interventions.matching import Matched
from bayesgeom.interventions.report import SHUFFLED, InterventionReport
from bayesgeom.interventions.verdicts import Evidence, Judgment, Obstacle, survival_of, verdict_of
from bayesgeom.report.estimate import WHOLE, Baseline, Estimate, of_untrained
from bayesgeom.stats.bootstrap import ratio_interval
from bayesgeom.subspaces.base import Subspace

# Conditions of the main totals. Only a swap has more than two; of a covariance swap, LEACE's is the last. Where the
# site has a direct path, the edit without it follows, and then LEACE's. The control totals begin with the ceiling; then
# random and matched subspaces, the removal of the random ones for a swap, and the first two without that path.
OWN, CEILING, REMOVAL, REMOVAL_CEILING, GIVEN, BY_CODE = range(6)
_SHIFT, _KL, _ERROR = (Score.KL, Score.DONOR_KL), (Score.KL,), (Score.ENTROPY_ERROR,)  # a score, or a difference
_CONTROLS = ((RANDOM, RANDOM_MOST), (MATCHED, MATCHED_MOST))
Sums = Float[np.ndarray, "unit chosen condition band"]
Ratio = Callable[[Totals], tuple[Sums, Sums]]


@final
@dataclass(frozen=True, kw_only=True)
class LayerEvidence:
    """What is known of one edited layer besides its totals.

    `r2` is of the subspace, then of random subspaces. `outside_share` is the share of donor − recipient outside the
    subspace. `whole_outside` is, for an edit that may swap a part of the quantity's subspace, the same of all of it.
    `has_given` and `has_code` say whether anything is left with position and answer held fixed, and of the code
    without the subspace.
    """

    subspace: Subspace
    matched: Matched
    erasure: Erasure
    r2: Mapping[str, Float64[np.ndarray, " subspace"]]
    overlap: Overlap | None
    variance_share: float
    outside_share: float
    whole_outside: Sequence[float]
    has_given: bool
    has_code: bool


@final
@dataclass(frozen=True, kw_only=True)
class Context:
    """The data that a report needs in addition to the totals.

    `empty` are the layers without a subspace. `untrained` is, of each untrained network, the movement that judges that
    of the model: with a direct path, that without it, then that by LEACE. `random_labels` is the level `ARBITRARY`.
    """

    design: Design
    label: str
    quantity: str
    where: str
    bands: tuple[str, ...]
    n_layers: int
    layers: Mapping[int, LayerEvidence]
    empty: Sequence[int]
    untrained: Sequence[Float64[np.ndarray, "effect layer"]]
    random_labels: Float64[np.ndarray, " layer"] | None
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
        return placed(values, self.layers, self.n_layers)

    def columns(self, row: Callable[[LayerEvidence], Sequence[float]]) -> Float[np.ndarray, "column layer"]:
        """Return numbers of every layer as columns over layers; NaN for layers without an edit."""
        return self.placed(np.array([row(evidence) for evidence in self.layers.values()])).T


def placed(
    values: Float[np.ndarray, "chosen *rest"] | Bool[np.ndarray, "chosen *rest"], layers: Collection[int], n_layers: int
) -> Float[np.ndarray, "layer *rest"]:
    """Return an array over all layers with rows for these layers; NaN elsewhere."""
    spread = np.full((n_layers, *values.shape[1:]), np.nan)
    spread[list(layers)] = values
    return spread


@phase("intervals")
def intervention_report(main: Totals, control: Totals, context: Context) -> InterventionReport:
    """Return the report with intervals, ceilings, controls and verdicts; layers that were not edited are NaN."""
    scores, layers = _Scores(main=main, control=control, context=context), context.layers
    movement, indirect_movement, leace_movement = scores.movement
    answer_shift, indirect_answer_shift = scores.effect(_change(_SHIFT))
    kl_increase, indirect_kl_increase = scores.effect(_change(_KL))
    given, by_code = scores.held_fixed
    r2_before, r2_after, entropy_r2, belief_r2 = _readouts(context)
    variance_share, outside_share, embedding_share = _shares(context)
    verdicts = {at: verdict_of(scores.evidence(at)) for at in layers}
    survival = [""] * context.n_layers
    for at in (at for at, judgment in verdicts.items() if judgment.verdict in (Verdict.CAUSAL, Verdict.MOVES)):
        left = given[at] if context.holds else None
        rest = by_code[at] if layers[at].has_code else None
        survival[at] = str(survival_of(movement[at, 0], left, context.code, rest))
    verdicts |= dict.fromkeys(context.empty, Judgment(Verdict.UNDECIDED, Obstacle.NOTHING_LEFT))
    judged = [verdicts.get(at, Judgment("")) for at in range(context.n_layers)]
    return InterventionReport(
        kind=context.design.kind,
        subspace=context.label,
        quantity=context.quantity,
        where=context.where,
        bands=context.bands,
        movement=movement,
        indirect_movement=indirect_movement,
        leace_movement=leace_movement[:, 0],
        answer_shift_bits=answer_shift,
        kl_increase_bits=kl_increase,
        entropy_error_increase_bits=scores.effect(_change(_ERROR))[0],
        removal_kl_increase_bits=scores.removal,
        indirect_answer_shift_bits=indirect_answer_shift,
        indirect_kl_increase_bits=indirect_kl_increase,
        unedited_answer_shift_bits=scores.unedited(_SHIFT),
        unedited_kl_bits=scores.unedited(_KL),
        unedited_entropy_error_bits=scores.unedited(_ERROR),
        r2_before=r2_before,
        r2_after=r2_after,
        entropy_r2=entropy_r2,
        belief_r2=belief_r2,
        rank=np.array([layers[at].subspace.rank if at in layers else 0 for at in range(context.n_layers)]),
        variance_share=variance_share,
        outside_share=outside_share,
        embedding_share=embedding_share,
        verdict_by_layer=tuple(str(judgment.verdict) for judgment in judged),
        against_causal=tuple(str(judgment.against_causal) for judgment in judged),
        against_inert=tuple(str(judgment.against_inert) for judgment in judged),
        given=context.holds,
        given_movement=given,
        code=context.code,
        code_movement=by_code,
        survival_by_layer=tuple(survival),
        controls_found=np.array(
            [layers[at].matched.n_distinct if at in layers else 0 for at in range(context.n_layers)]
        ),
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
    def movement(self) -> tuple[Estimate, Estimate, Estimate]:
        """Share of the distance to the target that is covered; then without the direct path; then by LEACE without it.

        The first is compared with untrained networks where there is no direct path, else both others are.
        """
        movement, indirect = self.effect(_moved)
        if self.context.random_labels is not None:
            level = np.full_like(movement.value, np.nan)
            level[:, 0] = self.context.random_labels
            movement = replace(movement, baselines=(*movement.baselines, Baseline.of("chance", ARBITRARY, level)))
        unknown = Estimate.of(np.full_like(movement.value, np.nan), n=self.context.n)
        if np.isnan(indirect.value).all():
            return self._compared(movement, 0), indirect, unknown
        by_leace = self._compared(self._estimate(_moved, -1), 1) if self._has_leace else unknown
        return movement, self._compared(indirect, 0), by_leace

    def _compared(self, effect: Estimate, number: int) -> Estimate:
        """Return a movement with the level of untrained networks, over all positions."""
        levels = [np.full_like(effect.value, np.nan) for _ in self.context.untrained]
        for level, copy in zip(levels, self.context.untrained, strict=True):
            level[:, 0] = copy[number]
        return replace(effect, baselines=(*effect.baselines, *_known(*of_untrained(levels))))

    def effect(self, ratio: Ratio) -> tuple[Estimate, Estimate]:
        """Return an effect with ceiling and controls; then both without the direct path, NaN if the site has none."""
        place, design = self.context.placed, self.context.design
        has_path = self.main.conditions.shape[2] > (at := self._indirect)
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn = np.divide(*(part.sum(axis=0) for part in ratio(self.control)))[:, 1:]
        n_erased = design.n_random if design.kind == "swap" else 0
        ends = np.cumsum([design.n_random, design.n_matched, n_erased, design.n_random])
        random, matched, _, *later_families = np.split(drawn, ends, axis=1)
        levels, most = list[Baseline](), list[Baseline]()
        for (name, name_most), family, later in zip(_CONTROLS, (random, matched), later_families, strict=True):
            mean, least, largest = (place(part) for part in (family.mean(1), family.min(1), family.max(1)))
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
        increase, n = (part.sum(axis=0) for part in _change(_KL)(self.control))
        drawn = (increase / n)[:, first : first + design.n_random]
        median, least, most = (place(of(drawn, axis=1)) for of in (np.median, np.min, np.max))
        level = Baseline.of("chance", ERASED, median, low=least, high=most)
        pair = (OWN, CEILING) if design.kind == "remove" else (REMOVAL, REMOVAL_CEILING)
        return self._estimate(_change(_KL), *pair, [level])

    @cached_property
    def held_fixed(self) -> tuple[Estimate, Estimate]:
        """Movement with position and answer held fixed, then by the code without the subspace; NaN where undefined."""
        if self.context.design.kind != "swap":
            unknown = Estimate.of(np.full(self.context.n_layers, np.nan), n=self.context.n)
            return unknown, unknown
        has_given, has_code = self.context.columns(lambda layer: (layer.has_given, layer.has_code)) == 1
        given, by_code = (self._estimate(_moved, condition)[:, 0] for condition in (GIVEN, BY_CODE))
        return _where(given, has_given), _where(by_code, has_code)

    def unedited(self, scores: tuple[Score, ...]) -> Float[np.ndarray, " band"]:
        """Return the mean of a score, or of a difference of two, without an edit."""
        mean: np.ndarray = _metric(self.main.baseline, scores).sum(axis=0) / self.main.counts.sum()
        return mean

    def evidence(self, layer: int) -> Evidence:
        """Return the evidence for the verdict on one layer."""
        context, (movement, indirect, by_leace) = self.context, (each[layer, 0] for each in self.movement)
        known = context.layers[layer]
        return Evidence(
            kind=context.design.kind,
            movement=movement,
            indirect=indirect,
            by_leace=by_leace,
            removal=self.removal[layer, 0],
            is_matched=known.matched.is_matched,
            n=context.n,
            n_random=context.design.n_random,
            n_matched=known.matched.n_distinct,
            erasure=known.erasure,
            is_identified=context.is_identified,
            is_told=context.is_told,
            is_readout=context.is_readout,
            outside_share=known.outside_share,
            whole_outside=known.whole_outside,
        )

    @property
    def _has_leace(self) -> bool:
        """Whether LEACE's swap is a condition: the last one, without its direct path."""
        return len(self.main.conditions[0, 0]) > BY_CODE + 2

    @property
    def _indirect(self) -> int:
        """The first condition without the direct path, which follows all with it."""
        return 1 + (BY_CODE if self.context.design.kind == "swap" else CEILING) + self._has_leace

    def _estimate(
        self, ratio: Ratio, condition: int, ceiling: int | None = None, baselines: Sequence[Baseline] = ()
    ) -> Estimate:
        """Return Σ above / Σ below over all pairs, with its interval or the reason why it has none."""
        place, levels = self.context.placed, _known(*baselines)
        value, low, high, reason = self._ratio(ratio, condition)
        if ceiling is not None:
            whole, least, most, _ = self._ratio(ratio, ceiling)
            levels.append(Baseline.of("ceiling", WHOLE, place(whole), low=place(least), high=place(most)))
        codes = np.nan_to_num(place(reason)).astype(np.int64)
        return Estimate.of(place(value), (place(low), place(high)), n=self.context.n, baselines=levels, reason=codes)

    def _ratio(self, ratio: Ratio, condition: int) -> tuple[Float64[np.ndarray, "chosen band"], ...]:
        """Return Σ above / Σ below, the ends of its interval, and the number of the reason why it has none."""
        above, below = (part[:, :, condition] for part in ratio(self.main))
        with np.errstate(divide="ignore", invalid="ignore"):
            value = above.sum(axis=0) / below.sum(axis=0)
        interval = ratio_interval(above, below, seed=self.context.seed)
        return value, interval.lo, interval.hi, np.where(np.isnan(value), 0.0, interval.code)


def _where(estimate: Estimate, is_known: Bool[np.ndarray, " layer"]) -> Estimate:
    """Return an estimate that is NaN elsewhere."""
    low, high = (np.where(is_known, end, np.nan) for end in estimate.ends)
    return replace(estimate, value=np.where(is_known, estimate.value, np.nan), low=low, high=high)


def _known(*levels: Baseline) -> list[Baseline]:
    """Return the baselines with a value in any layer."""
    return [level for level in levels if np.isfinite(level.value).any()]


def _moved(totals: Totals) -> tuple[Sums, Sums]:
    return totals.conditions[..., Score.MOVED, :], totals.conditions[..., Score.DISTANCE, :]


def _change(scores: tuple[Score, ...]) -> Ratio:
    """Return the change of a score, or of a difference of two, on the same pairs, and the number of pairs."""

    def ratio(totals: Totals) -> tuple[Sums, Sums]:
        change = _metric(totals.conditions, scores) - _metric(totals.baseline, scores)[:, None, None]
        return change, np.broadcast_to(totals.counts[:, None, None, None].astype(np.float64), change.shape)

    return ratio


def _metric(sums: Float[np.ndarray, "*axes score band"], scores: tuple[Score, ...]) -> Float[np.ndarray, "*axes band"]:
    """Return the sums of a score, or of the first one less the second."""
    first: np.ndarray = sums[..., scores[0], :]
    return first if len(scores) == 1 else first - sums[..., scores[1], :]


def _readouts(context: Context) -> tuple[Estimate, ...]:
    """Return held-out R² of the quantity before and after removal; of entropy and belief from the coordinates."""
    before, after, shuffled = context.columns(
        lambda layer: (layer.erasure.before, layer.erasure.after, layer.erasure.permuted)
    )

    def of_coordinates(target: str) -> Estimate:
        value, random = context.columns(lambda layer: (layer.r2[target][0], layer.r2[target][1:].mean()))
        return Estimate.of(value, baselines=_known(Baseline.of("chance", RANDOM, random)))

    of_site = Estimate.of(after, baselines=_known(Baseline.of("permutation", SHUFFLED, shuffled)))
    return Estimate.of(before), of_site, of_coordinates("entropy"), of_coordinates("belief")


def _shares(context: Context) -> tuple[Estimate, ...]:
    """Return the shares of variance, of the difference outside, and in the span of embeddings."""
    variance, outside, matched = context.columns(
        lambda layer: (layer.variance_share, layer.outside_share, layer.matched.share)
    )
    inside, levels = np.full_like(variance, np.nan), list[Baseline]()
    overlaps = [layer.overlap for layer in context.layers.values() if layer.overlap is not None]
    if overlaps:
        inside, random, most = context.placed(
            np.array([(overlap.value, overlap.random, overlap.most) for overlap in overlaps])
        ).T
        levels.append(Baseline.of("chance", RANDOM, random, high=most))
    of_variance = Estimate.of(variance, baselines=[Baseline.of("chance", MATCHED, matched)])
    return of_variance, Estimate.of(outside), Estimate.of(inside, baselines=levels)
