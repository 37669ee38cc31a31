"""`intervene` at one site: the subspace, its controls and every condition are scored, and the totals become a report.

The report has paired intervals over pairs, ceilings, controls and verdicts.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from bayesgeom.core import Edit, InvalidArgument, Verdict, phase
from bayesgeom.interventions._evidence import Erasure, coordinate_r2, erasures, overlaps
from bayesgeom.interventions.design import ARBITRARY, ERASED, MATCHED, MATCHED_MOST, RANDOM, RANDOM_MOST, LayerEdits
from bayesgeom.interventions.engine import Movement, Score, Totals
from bayesgeom.interventions.intervention import (
    DRAWS,
    HELD_OUT,
    N_READ,
    SHUFFLE,
    Intervention,
    fitted_where_possible,
    outside_shares,
    untrained,
)
from bayesgeom.interventions.matching import Matched
from bayesgeom.interventions.report import SHUFFLED, InterventionReport
from bayesgeom.interventions.verdicts import Evidence, Judgment, Obstacle, survival_of, verdict_of
from bayesgeom.report.estimate import WHOLE, Baseline, Estimate, of_untrained
from bayesgeom.report.report import with_provenance
from bayesgeom.stats.bootstrap import ratio_interval
from bayesgeom.stats.subspace import covariance
from bayesgeom.subspaces.base import Fit, Sample, Setting, Subspace, span
from bayesgeom.subspaces.erasers import Eraser, JointMoments, covariance_subspace
from bayesgeom.subspaces.quantity import is_function_of_position, strongest_code
from bayesgeom.subspaces.trained import TrainedSwap
from bayesgeom.tasks.base import Branch, derived_seed

N_HELD_OUT = 128  # sequences on which read-outs are scored
_OUTSIDE = 0.1  # length that a direction of a code keeps outside the subspace
# Conditions of the main totals. Only a swap has more than two; of a covariance swap, LEACE's is the last. Where the
# site has a direct path, the edit without it follows, and then LEACE's. The control totals begin with the ceiling; then
# random and matched subspaces, the removal of the random ones for a swap, and the first two without that path.
OWN, CEILING, REMOVAL, REMOVAL_CEILING, GIVEN, BY_CODE = range(6)
_SHIFT, _KL, _ERROR = (Score.KL, Score.DONOR_KL), (Score.KL,), (Score.ENTROPY_ERROR,)  # a score, or a difference
Sums = Float[np.ndarray, "unit chosen condition band"]
Metric = Callable[[Totals], tuple[Sums, Sums]]


@final
@dataclass(frozen=True, kw_only=True)
class LayerEvidence:
    """What is known of one edited layer besides its totals.

    `r2` is of the subspace, then of random subspaces; `overlap` is as in `overlaps`. `outside_share` is the share of
    donor − recipient outside the subspace. `whole_outside` is, for an edit that may swap a part of the quantity's
    subspace, the same of all of it. `has_given` and `has_code` say whether anything is left with position and answer
    held fixed, and of the code without the subspace.
    """

    subspace: Subspace
    matched: Matched
    erasure: Erasure
    r2: Mapping[str, Float64[np.ndarray, " subspace"]]
    overlap: tuple[float, float, float] | None
    variance_share: float
    outside_share: float
    whole_outside: Sequence[float]
    has_given: bool
    has_code: bool


def placed(
    values: Float[np.ndarray, "chosen *rest"] | Bool[np.ndarray, "chosen *rest"], layers: Collection[int], n_layers: int
) -> Float[np.ndarray, "layer *rest"]:
    """Return an array over all layers with rows for these layers; NaN elsewhere."""
    spread = np.full((n_layers, *values.shape[1:]), np.nan)
    spread[list(layers)] = values
    return spread


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return Σ above / Σ below over pairs."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(above.sum(axis=0) / below.sum(axis=0))


def estimated(
    job: Intervention,
    layers: Collection[int],
    parts: tuple[np.ndarray, np.ndarray],
    drawn: Mapping[str, Float64[np.ndarray, "layer draw *rest"]] = {},
    others: Sequence[Baseline] = (),
) -> Estimate:
    """Return the ratio of both parts with its interval, next to mean and range of what was drawn, and other levels."""
    n_layers, interval = job.model.spec.n_layers, ratio_interval(*parts, seed=derived_seed(job.seed, Branch.RESAMPLING))
    value = ratio(*parts)
    codes = placed(np.where(np.isnan(value), 0.0, interval.code), layers, n_layers)
    ends = placed(interval.lo, layers, n_layers), placed(interval.hi, layers, n_layers)
    levels = list[Baseline]()
    for name, values in drawn.items():
        mean, low, high = (placed(of(values, axis=1), layers, n_layers) for of in (np.mean, np.min, np.max))
        levels.append(Baseline.of("chance", name, mean, low=low, high=high))
    codes = np.nan_to_num(codes).astype(np.int64)
    return Estimate.of(placed(value, layers, n_layers), ends, n=job.n, baselines=_known(*levels, *others), reason=codes)


def intervention_report(job: Intervention) -> InterventionReport:
    """Fit the subspaces, edit, score and return the report."""
    sample, about, design = job.sample(), job.fit.about, job.design
    (subspaces, empty), means = job.fitted(sample), job.means(sample)
    paths, exact = range(1, 1 + design.n_random + design.n_matched), about.quantity.exact(sample.run.trials)
    moments = {at: covariance(sample.points(at)) for at in subspaces}
    with phase("controls with the same variance"):
        matched = {at: job.controls(subspace, moments[at], at) for at, subspace in subspaces.items()}
    random = {at: job.random_of(at, subspace.rank) for at, subspace in subspaces.items()}
    code = strongest_code(sample.run.trials, exact, most=job.place.width_in(job.model.spec) // 2)
    given, by_code = _given(job, sample), _by_code(job, sample, code, subspaces)
    added = [given, by_code, *(fitted_where_possible(fit, sample, job.layers)[0] for fit in job.by_leace)]
    conditions, controls = dict[int, list[Edit]](), dict[int, list[Edit]]()
    for at, subspace in subspaces.items():
        edits, others = job.conditions(sample, at), [other.get(at, subspace) for other in added]
        conditions[at], controls[at] = _edits(edits, subspace, others, random[at], matched[at], design.n_matched)
    main = job.scored(job.n, conditions, sample, means=means, ceiling_at=1)
    control = job.scored(min(job.n, design.n_control), controls, sample, means=means, paths=paths)
    read = job.sample(N_READ + N_HELD_OUT, HELD_OUT)
    n_held_out, seed = min(N_HELD_OUT, len(read.run.trials) // 3), derived_seed(job.seed, SHUFFLE)
    r2 = coordinate_r2(sample, read, subspaces, random, n_held_out=n_held_out)
    erasure = erasures(read, about.quantity, subspaces, n_held_out=n_held_out, seed=seed)
    setting = Setting(model=job.model, place=job.place, trials=sample.run.trials.rows(slice(0, 1)))
    overlap = overlaps(setting, sample, subspaces, seed=derived_seed(job.seed, DRAWS, 2))
    outside, is_identified = outside_shares(job, subspaces), not is_function_of_position(exact)
    whole = _whole(job, sample) if is_identified and design.kind == "swap" and about.at_scored else {}
    layers = {
        at: LayerEvidence(
            subspace=subspace,
            matched=matched[at],
            erasure=erasure[at],
            r2=r2[at],
            overlap=overlap.get(at),
            variance_share=subspace.variance_share(moments[at]),
            outside_share=outside[at],
            whole_outside=whole.get(at, ()),
            has_given=at in given,
            has_code=at in by_code,
        )
        for at, subspace in subspaces.items()
    }
    scores = _Scores(
        job=job,
        sample=sample,
        main=main,
        control=control,
        layers=layers,
        empty=tuple(empty),
        untrained=_untrained(job) if is_identified else [],
        random_labels=_toward_random_labels(job, sample, subspaces),
        is_identified=is_identified,
        code=code,
    )
    return with_provenance(scores.report(), job.provenance())


@final
@dataclass(frozen=True, kw_only=True)
class _Scores:
    """The totals of every condition as estimates, and what else the report needs.

    `empty` are the layers without a subspace. `untrained` is, of each untrained network, the movement that judges that
    of the model: with a direct path, that without it, then that by LEACE. `random_labels` is the level `ARBITRARY`.
    """

    job: Intervention
    sample: Sample
    main: Totals
    control: Totals
    layers: Mapping[int, LayerEvidence]
    empty: Sequence[int]
    untrained: Sequence[Float64[np.ndarray, "effect layer"]]
    random_labels: Float64[np.ndarray, " layer"] | None
    is_identified: bool
    code: str

    @property
    def n_layers(self) -> int:
        """Layers of the model."""
        return self.job.model.spec.n_layers

    def placed(
        self, values: Float[np.ndarray, "chosen *rest"] | Bool[np.ndarray, "chosen *rest"]
    ) -> Float[np.ndarray, "layer *rest"]:
        """Return an array over all layers with the rows of the edited layers; NaN elsewhere."""
        return placed(values, self.layers, self.n_layers)

    def columns(self, row: Callable[[LayerEvidence], Sequence[float]]) -> Float[np.ndarray, "column layer"]:
        """Return numbers of every layer as columns over layers; NaN for layers without an edit."""
        return self.placed(np.array([row(evidence) for evidence in self.layers.values()])).T

    @phase("intervals")
    def report(self) -> InterventionReport:
        """Return the report with intervals, ceilings, controls and verdicts; layers that were not edited are NaN."""
        job, n_layers, layers = self.job, self.n_layers, self.layers
        movement, indirect_movement, leace_movement = self.movement
        answer_shift, indirect_answer_shift = self.effect(_change(_SHIFT))
        kl_increase, indirect_kl_increase = self.effect(_change(_KL))
        given, by_code = self.held_fixed
        r2_before, r2_after, entropy_r2, belief_r2 = self._readouts()
        variance_share, outside_share, embedding_share = self._shares()
        verdicts = {at: verdict_of(self.evidence(at)) for at in layers}
        survival = [""] * n_layers
        for at in (at for at, judgment in verdicts.items() if judgment.verdict in (Verdict.CAUSAL, Verdict.MOVES)):
            left = given[at] if _holds(job) else None
            rest = by_code[at] if layers[at].has_code else None
            survival[at] = str(survival_of(movement[at, 0], left, self.code, rest))
        verdicts |= dict.fromkeys(self.empty, Judgment(Verdict.UNDECIDED, Obstacle.NOTHING_LEFT))
        judged = [verdicts.get(at, Judgment("")) for at in range(n_layers)]
        return InterventionReport(
            kind=job.design.kind,
            subspace=job.fit.label,
            quantity=job.fit.about.quantity.label,
            where=job.where,
            bands=job.positions.bands(self.sample.run.trials.n_scored),
            movement=movement,
            indirect_movement=indirect_movement,
            leace_movement=leace_movement[:, 0],
            answer_shift_bits=answer_shift,
            kl_increase_bits=kl_increase,
            entropy_error_increase_bits=self.effect(_change(_ERROR))[0],
            removal_kl_increase_bits=self.removal,
            indirect_answer_shift_bits=indirect_answer_shift,
            indirect_kl_increase_bits=indirect_kl_increase,
            unedited_answer_shift_bits=self.unedited(_SHIFT),
            unedited_kl_bits=self.unedited(_KL),
            unedited_entropy_error_bits=self.unedited(_ERROR),
            r2_before=r2_before,
            r2_after=r2_after,
            entropy_r2=entropy_r2,
            belief_r2=belief_r2,
            rank=np.array([layers[at].subspace.rank if at in layers else 0 for at in range(n_layers)]),
            variance_share=variance_share,
            outside_share=outside_share,
            embedding_share=embedding_share,
            verdict_by_layer=tuple(str(judgment.verdict) for judgment in judged),
            against_causal=tuple(str(judgment.against_causal) for judgment in judged),
            against_inert=tuple(str(judgment.against_inert) for judgment in judged),
            given=_holds(job),
            given_movement=given,
            code=self.code,
            code_movement=by_code,
            survival_by_layer=tuple(survival),
            controls_found=np.array([layers[at].matched.n_distinct if at in layers else 0 for at in range(n_layers)]),
            n=job.n,
        )

    @cached_property
    def movement(self) -> tuple[Estimate, Estimate, Estimate]:
        """Share of the distance to the target that is covered; then without the direct path; then by LEACE without it.

        The first is compared with untrained networks where there is no direct path, else both others are.
        """
        movement, indirect = self.effect(_moved)
        if self.random_labels is not None:
            level = np.full_like(movement.value, np.nan)
            level[:, 0] = self.random_labels
            movement = replace(movement, baselines=(*movement.baselines, Baseline.of("chance", ARBITRARY, level)))
        unknown = Estimate.of(np.full_like(movement.value, np.nan), n=self.job.n)
        if np.isnan(indirect.value).all():
            return self._compared(movement, 0), indirect, unknown
        by_leace = self._compared(self._estimate(_moved, -1), 1) if self._has_leace else unknown
        return movement, self._compared(indirect, 0), by_leace

    def _compared(self, effect: Estimate, number: int) -> Estimate:
        """Return a movement with the level of untrained networks, over all positions."""
        levels = [np.full_like(effect.value, np.nan) for _ in self.untrained]
        for level, copy in zip(levels, self.untrained, strict=True):
            level[:, 0] = copy[number]
        return replace(effect, baselines=(*effect.baselines, *_known(*of_untrained(levels))))

    def effect(self, metric: Metric) -> tuple[Estimate, Estimate]:
        """Return an effect with ceiling and controls; then both without the direct path, NaN if the site has none."""
        design, drawn = self.job.design, ratio(*metric(self.control))[:, 1:]
        n_erased = design.n_random if design.kind == "swap" else 0
        ends = np.cumsum([design.n_random, design.n_matched, n_erased, design.n_random])
        random, matched, _, *later = np.split(drawn, ends, axis=1)
        effect = self._estimate(metric, OWN, CEILING, {RANDOM: random, MATCHED: matched})
        if self.main.conditions.shape[2] <= self._indirect:
            return effect, Estimate.of(np.full_like(effect.value, np.nan), n=self.job.n)
        most = dict(zip((RANDOM_MOST, MATCHED_MOST), later, strict=True))
        levels = [Baseline.of("chance", name, self.placed(family.max(1))) for name, family in most.items()]
        return effect, self._estimate(metric, self._indirect, others=levels)

    @cached_property
    def removal(self) -> Estimate:
        """KL increase when the subspace is removed, with its ceiling; NaN for kinds without removal."""
        place, design = self.placed, self.job.design
        if design.kind not in ("swap", "remove"):
            return Estimate.of(np.full((self.n_layers, len(self.main.baseline[0, 0])), np.nan), n=self.job.n)
        first = 1 if design.kind == "remove" else 1 + design.n_random + design.n_matched
        drawn = ratio(*_change(_KL)(self.control))[:, first : first + design.n_random]
        median, least, most = (place(of(drawn, axis=1)) for of in (np.median, np.min, np.max))
        level = Baseline.of("chance", ERASED, median, low=least, high=most)
        pair = (OWN, CEILING) if design.kind == "remove" else (REMOVAL, REMOVAL_CEILING)
        return self._estimate(_change(_KL), *pair, others=[level])

    @cached_property
    def held_fixed(self) -> tuple[Estimate, Estimate]:
        """Movement with position and answer held fixed, then by the code without the subspace; NaN where undefined."""
        if self.job.design.kind != "swap":
            unknown = Estimate.of(np.full(self.n_layers, np.nan), n=self.job.n)
            return unknown, unknown
        has_given, has_code = self.columns(lambda layer: (layer.has_given, layer.has_code)) == 1
        given, by_code = (self._estimate(_moved, condition)[:, 0] for condition in (GIVEN, BY_CODE))
        return _where(given, has_given), _where(by_code, has_code)

    def unedited(self, scores: tuple[Score, ...]) -> Float[np.ndarray, " band"]:
        """Return the mean of a score, or of a difference of two, without an edit."""
        mean: np.ndarray = _metric(self.main.baseline, scores).sum(axis=0) / self.main.counts.sum()
        return mean

    def evidence(self, layer: int) -> Evidence:
        """Return the evidence for the verdict on one layer."""
        job, known, about = self.job, self.layers[layer], self.job.fit.about
        movement, indirect, by_leace = (each[layer, 0] for each in self.movement)
        return Evidence(
            kind=job.design.kind,
            movement=movement,
            indirect=indirect,
            by_leace=by_leace,
            removal=self.removal[layer, 0],
            is_matched=known.matched.is_matched,
            n=job.n,
            n_random=job.design.n_random,
            n_matched=known.matched.n_distinct,
            erasure=known.erasure,
            is_identified=self.is_identified,
            is_told=about.quantity.is_told_by_answers(self.sample.run.trials),
            is_readout=about.is_readout,
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
        return 1 + (BY_CODE if self.job.design.kind == "swap" else CEILING) + self._has_leace

    def _estimate(
        self,
        metric: Metric,
        condition: int,
        ceiling: int | None = None,
        drawn: Mapping[str, Float64[np.ndarray, "layer draw band"]] = {},
        others: Sequence[Baseline] = (),
    ) -> Estimate:
        """Return Σ above / Σ below over all pairs, with its interval or the reason why it has none."""

        def of(condition: int, **levels: Any) -> Estimate:
            above, below = (part[:, :, condition] for part in metric(self.main))
            return estimated(self.job, self.layers, (above, below), **levels)

        estimate = of(condition, drawn=drawn, others=others)
        if ceiling is None:
            return estimate
        whole = of(ceiling)
        level = Baseline.of("ceiling", WHOLE, whole.value, low=whole.low, high=whole.high)
        return replace(estimate, baselines=(*estimate.baselines, level))

    def _readouts(self) -> tuple[Estimate, ...]:
        """Return held-out R² of the quantity before and after removal; of entropy and belief from the coordinates."""
        before, after, shuffled = self.columns(
            lambda layer: (layer.erasure.before, layer.erasure.after, layer.erasure.permuted)
        )

        def of_coordinates(target: str) -> Estimate:
            value, random = self.columns(lambda layer: (layer.r2[target][0], layer.r2[target][1:].mean()))
            return Estimate.of(value, baselines=_known(Baseline.of("chance", RANDOM, random)))

        of_site = Estimate.of(after, baselines=_known(Baseline.of("permutation", SHUFFLED, shuffled)))
        return Estimate.of(before), of_site, of_coordinates("entropy"), of_coordinates("belief")

    def _shares(self) -> tuple[Estimate, ...]:
        """Return the shares of variance, of the difference outside, and in the span of embeddings."""
        variance, outside, matched = self.columns(
            lambda layer: (layer.variance_share, layer.outside_share, layer.matched.share)
        )
        inside, levels = np.full_like(variance, np.nan), list[Baseline]()
        if known := [layer.overlap for layer in self.layers.values() if layer.overlap is not None]:
            inside, random, most = self.placed(np.array(known)).T
            levels.append(Baseline.of("chance", RANDOM, random, high=most))
        of_variance = Estimate.of(variance, baselines=[Baseline.of("chance", MATCHED, matched)])
        return of_variance, Estimate.of(outside), Estimate.of(inside, baselines=levels)


def _where(estimate: Estimate, is_known: Bool[np.ndarray, " layer"]) -> Estimate:
    """Return an estimate that is NaN elsewhere."""
    low, high = (np.where(is_known, end, np.nan) for end in estimate.ends)
    return replace(estimate, value=np.where(is_known, estimate.value, np.nan), low=low, high=high)


def _known(*levels: Baseline) -> list[Baseline]:
    """Return the baselines with a value in any layer."""
    return [level for level in levels if np.isfinite(level.value).any()]


def _moved(totals: Totals) -> tuple[Sums, Sums]:
    return totals.conditions[..., Score.MOVED, :], totals.conditions[..., Score.DISTANCE, :]


def _change(scores: tuple[Score, ...]) -> Metric:
    """Return the change of a score, or of a difference of two, on the same pairs, and the number of pairs."""

    def both(totals: Totals) -> tuple[Sums, Sums]:
        change = _metric(totals.conditions, scores) - _metric(totals.baseline, scores)[:, None, None]
        return change, np.broadcast_to(totals.counts[:, None, None, None].astype(np.float64), change.shape)

    return both


def _metric(sums: Float[np.ndarray, "*axes score band"], scores: tuple[Score, ...]) -> Float[np.ndarray, "*axes band"]:
    """Return the sums of a score, or of the first one less the second."""
    first: np.ndarray = sums[..., scores[0], :]
    return first if len(scores) == 1 else first - sums[..., scores[1], :]


def _edits(
    edits: LayerEdits,
    subspace: Subspace,
    others: Sequence[Subspace],
    random: Float64[Tensor, "draw d rank"],
    matched: Matched,
    n_matched: int,
) -> tuple[list[Edit], list[Edit]]:
    """Return the conditions and the controls of one layer, in the order that is stated at the top."""
    conditions = [edits.own(subspace), edits.ceiling()]
    controls = [edits.ceiling(), *edits.controls(random, subspace), *edits.filling(matched.bases, n_matched)]
    if edits.kind != "swap":
        return conditions, controls
    removal = replace(edits, kind="remove")
    conditions += [removal.own(subspace), removal.ceiling(), *map(edits.own, others)]
    return conditions, [*controls, *removal.controls(random)]


def _untrained(job: Intervention) -> list[Float64[np.ndarray, "effect layer"]]:
    """Return the movement in untrained networks that judges that of the model: see `Evidence`; NaN if a fit fails."""
    by_copy, n = list[np.ndarray](), min(job.n, job.design.n_control)
    for copy in untrained(job):
        sample = copy.sample()
        by_copy.append(np.stack([_judged(replace(copy, fit=fit), sample, n) for fit in (job.fit, *job.by_leace)]))
    return by_copy


def _toward_random_labels(
    job: Intervention, sample: Sample, layers: Iterable[int]
) -> Float64[np.ndarray, " layer"] | None:
    """Return how far the same training toward random labels moves the model's value to these; None without training."""
    if job.design.kind != "swap" or not isinstance(job.fit, TrainedSwap):
        return None
    control, value = replace(job.fit, random_labels=True), job.fit.quantity.own(sample.run.trials)
    edits = [job.conditions(sample, at).own(own) for at, own in control.fitted(sample, list(layers)).items()]
    scored, logs = job.answers(edits, min(job.n, job.design.n_control))
    labels = torch.cat([control.labels(sample, donors).cpu() for _, (_, donors) in scored if donors is not None])
    unedited, *edited = map(value, logs)
    center = value(sample.run.log_answers.double()).mean(dim=0).cpu()
    way = Movement(value=value, center=center).way(value(labels), unedited)
    moved = [float(((each - unedited) * way).sum() / way.square().sum()) for each in edited]
    return placed(np.array(moved), list(layers), job.model.spec.n_layers)


def _judged(job: Intervention, sample: Sample, n: int) -> Float64[np.ndarray, " layer"]:
    """Return the movement on `n` pairs in each layer, without the direct path if there is one; NaN if a fit fails.

    A swap is trained in no untrained network where LEACE judges it, which costs a hundredth.
    """
    is_left_out = isinstance(job.fit, TrainedSwap) and job.by_leace
    subspaces = {} if is_left_out else fitted_where_possible(job.fit, sample, job.layers)[0]
    by_layer = np.full(job.model.spec.n_layers, np.nan)
    edits = {at: job.conditions(sample, at) for at in subspaces}
    conditions = {at: [edits[at].ceiling(), edits[at].own(subspace)] for at, subspace in subspaces.items()}
    if conditions:
        sums = job.scored(n, conditions, sample).conditions[:, :, -1, :, 0].sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            by_layer[list(subspaces)] = sums[:, Score.MOVED] / sums[:, Score.DISTANCE]
    return by_layer


def _whole(job: Intervention, sample: Sample) -> dict[int, list[float]]:
    """Return the shares outside the quantity's whole subspace, by layer, if the edit may swap a part of it.

    The whole is the same fit with nothing held fixed, and what LEACE removes.
    """
    shares: dict[int, list[float]] = {at: [] for at in job.layers}
    wholes: list[Fit] = [Eraser(job.fit.about.quantity, oblique=True)]
    wholes += [replace(job.fit, given=())] if isinstance(job.fit, Eraser) else []
    for fit in dict.fromkeys(whole for whole in wholes if whole != job.fit):
        for at, share in outside_shares(job, fitted_where_possible(fit, sample, job.layers)[0]).items():
            shares[at].append(share)
    return shares


def _by_code(job: Intervention, sample: Sample, code: str, subspaces: Mapping[int, Subspace]) -> dict[int, Subspace]:
    """Return what covaries with a code outside each subspace, in layers where anything does."""
    by_code = dict[int, Subspace]()
    for layer, subspace in subspaces.items() if code and job.design.kind == "swap" else ():
        points = sample.points(layer)
        with contextlib.suppress(InvalidArgument):  # the code and the site do not covary
            whole = covariance_subspace(f"{code} code", JointMoments.of(points, sample.confounds((code,))))
            taken = span(subspace.name, torch.cat([subspace.basis, subspace.reads], dim=1).to(points)).basis
            left, size, _ = torch.linalg.svd(whole.basis - taken @ (taken.T @ whole.basis), full_matrices=False)
            if bool((is_left := size > _OUTSIDE).any()):
                by_code[layer] = Subspace(whole.name, left[:, is_left])
    return by_code


def _given(job: Intervention, sample: Sample) -> dict[int, Subspace]:
    """Return the subspaces with position and answer held fixed, in layers where something is left."""
    if not _holds(job) or not isinstance(job.fit, Eraser):
        return {}
    return fitted_where_possible(replace(job.fit, given=_holds(job)), sample, job.layers)[0]


def _holds(job: Intervention) -> tuple[str, ...]:
    """Return what a swap of this subspace also holds fixed: a belief goes with the answer by definition."""
    if job.design.kind != "swap" or not isinstance(job.fit, Eraser) or job.fit.given:
        return ()
    return ("position", "answer") if job.fit.quantity.name == "entropy" else ("position",)
