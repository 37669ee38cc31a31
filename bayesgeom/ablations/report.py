"""The ablation report: KL increase of each ablation, ranked, with paired intervals.

The KL increase is KL(exact ‖ model) with the ablation minus KL without it; its baseline is 0. A component whose
ablation leaves the logits bit-identical has no effect (`inert`, `no_effect`); this is exact, not estimated.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Bool, Float, Int

from bayesgeom.ablations._tally import Tally
from bayesgeom.ablations.batteries import Ablation
from bayesgeom.ablations.engine import METRICS
from bayesgeom.ablations.pick import Pick, picks_of
from bayesgeom.core.edits import Mode
from bayesgeom.core.text import interval_text, number_text
from bayesgeom.core.verdict import Reason
from bayesgeom.results.estimate import Baseline, Coordinate, Estimate, NonNegative, Quantity, Signed, Unit
from bayesgeom.results.estimators import with_interval
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report, headline_of
from bayesgeom.results.tables import aligned, counted
from bayesgeom.stats.bootstrap import mean_difference, ratio_interval
from bayesgeom.stats.extremes import LEAST_PER_ENTRY, remark_of
from bayesgeom.stats.intervals import UNBOUNDED, Bounds

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

N_SHOWN = 20
N_LISTED = 12  # of the ranked list, among the headlines
NO_EFFECT, UNIFORM = "no effect", "uniform prediction"
PREVIEW = "These are first-order estimates by attribution, from one backward pass: a preview, not an ablation"
_ALIKE: Mapping[str, tuple[str, ...]] = {
    "Heads": ("head",),
    "Attention and MLPs": ("attention", "mlp"),
    "Whole blocks": ("block",),
    "Several together": ("set",),
}


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class AblationReport(Report):
    """Increase in KL and entropy error (bits), ratio of KL and change in accuracy for every ablation.

    Intervals are paired: the same sequences with and without the ablation are resampled together. `layer` and `head`
    are −1 for an ablation of several components; `attribution_bits` is NaN if it was not requested.
    `top_to_second_ratio` and `share_above_half_of_top` use only heads that were ablated alone.
    """

    name: ClassVar[str] = "ablation"
    title: ClassVar[str] = "Ablation: what breaks without it?"
    about: ClassVar[str] = (
        "Each component is ablated in turn and the model is scored again against the exact posterior on the same "
        "sequences. Its replacement is 0, its mean over sequences (mean), or its value in another sequence (resample). "
        "L1H0 is head 0 of layer 1. The number is the KL increase in bits; the baseline is 0. A quantity that can be "
        "decoded from an activation need not influence the answer; an ablation tests whether it does. Whiskers are "
        "95 % paired intervals."
    )

    mode: Mode
    ablations: tuple[str, ...]
    kinds: Annotated[tuple[str, ...], "ablation", Coordinate()]
    layer: Annotated[Int[np.ndarray, " ablation"], Unit("1"), Coordinate()]
    head: Annotated[Int[np.ndarray, " ablation"], Unit("1"), Coordinate()]
    n_layers: int
    n_heads: int
    kl_increase_bits: Annotated[Estimate, Quantity("ablation", unit="bits", better="higher", label="KL increase")]
    entropy_mae_increase_bits: Annotated[
        Estimate, Quantity("ablation", unit="bits", better="higher", label="increase in the entropy error")
    ]
    kl_ratio: Annotated[
        Estimate, NonNegative("ablation", better="higher", label="KL with the ablation over KL without it")
    ]
    accuracy_change: Annotated[Estimate, Signed("ablation", better="lower", label="change in accuracy")]
    attribution_bits: Annotated[Float[np.ndarray, " ablation"], Unit("bits")]
    inert: Annotated[Bool[np.ndarray, " ablation"], Unit("1")]
    kl_increase_bits_by_position: Annotated[Float[np.ndarray, "ablation position"], Unit("bits")]
    # No `better`: the uniform prediction is a scale. `calibration` has the strongest baseline of the task.
    unablated_kl_bits: Annotated[Estimate, NonNegative(unit="bits", label="KL without ablation")]
    unablated_entropy_mae_bits: Annotated[
        Estimate, NonNegative(unit="bits", better="lower", label="entropy error without ablation")
    ]
    top_to_second_ratio: Annotated[Estimate, Quantity(label="largest / second-largest KL increase of a single head")]
    attribution_rank_correlation: Annotated[
        Estimate, Quantity(label="rank correlation of attribution with KL increase")
    ]
    key_overlap_pick: str
    n: int

    def ranked(self) -> list[int]:
        """Return the indices of the ablations, largest KL increase first."""
        return [int(index) for index in np.argsort(-self.kl_increase_bits.value, kind="stable")]

    @property
    def kl_increase_bits_by_head(self) -> Float[np.ndarray, "layer head"]:
        """KL increase of each head that was ablated alone; NaN for the others."""
        return _by_head(self.kl_increase_bits, self.layer, self.head, (self.n_layers, self.n_heads))

    @property
    def kl_increase_bits_by_layer(self) -> Float[np.ndarray, " layer"]:
        """Sum over the heads of a layer that were ablated alone; NaN where there are none."""
        by_head = self.kl_increase_bits_by_head
        return np.where(np.isfinite(by_head).any(axis=1), np.nansum(by_head, axis=1), np.nan)

    @property
    def share_above_half_of_top(self) -> float:
        """Share of the heads ablated alone whose KL increase is above half of the largest; NaN without any."""
        by_head = self.kl_increase_bits_by_head
        heads = by_head[np.isfinite(by_head)]
        return float((heads > heads.max() / 2).mean()) if len(heads) else math.nan

    @property
    def uniform_kl_bits(self) -> float:
        """KL of a uniform prediction on the same sequences; NaN in older reports, which lack it."""
        known = [own for own in self.unablated_kl_bits.baselines if own.name == UNIFORM]
        return float(known[0].value) if known else math.nan

    @property
    def is_preview(self) -> bool:
        """Whether the effects are a first-order preview by attribution, which knows no entropy error."""
        return bool(np.isnan(self.entropy_mae_increase_bits.value).all())

    def conclusion(self) -> str:
        return PREVIEW if self.is_preview else ""

    @property
    def no_effect(self) -> tuple[str, ...]:
        """Ablations that leave every logit bit-identical."""
        return tuple(label for label, is_inert in zip(self.ablations, self.inert, strict=True) if is_inert)

    def _exactly(self, effect: Estimate) -> Estimate:
        """Return the effect with value and interval set to exactly 0 where the ablation changes no logit."""
        value, low, high = (np.where(self.inert, 0.0, own) for own in (effect.value, *effect.ends))
        return replace(effect, value=value, low=low, high=high)

    def headlines(self) -> Sequence[Headline]:
        unablated = headline_of(self, "unablated_kl_bits")
        scale = f"For scale: without ablation the model's KL is {unablated.value_text}"
        uniform = f", and that of a uniform prediction {unablated.level_text}" if unablated.has_baseline else ""
        return (
            self._largest(),
            *self._listed(),
            *self._key_overlap(),
            headline_of(self, "top_to_second_ratio"),  # language: quoted
            Headline.computed(
                "share_above_half_of_top", "share of heads above half of the largest", self.share_above_half_of_top
            ),
            replace(unablated, finding=f"{scale}{uniform}."),
            *self._attribution(),
        )

    def _largest(self) -> Headline:
        """Return the largest KL increase; others are judged by their own intervals, so a caveat says where it is not.

        If no interval allows for its choice, nothing is decided: its own interval would be too sure.
        """
        effects = self._exactly(self.kl_increase_bits)
        (top,), own = effects.extreme("largest")
        count = len(self.ablations)
        label = f"largest KL increase: {self.ablations[top]}{remark_of(float(own.ends[0]), count)}"
        line = headline_of(self, "kl_increase_bits", (top,), label, own=own)
        line = replace(
            line, finding=f"The largest KL increase is that of {self.ablations[top]}.", detail=self._design()
        )
        alone = headline_of(self, "kl_increase_bits", (top,), own=effects[top])
        if not alone.interval or alone.verdict == line.verdict:
            return line
        judged = f"its own interval, by which the others are judged, is {alone.interval}"
        if line.no_interval:
            needed = f"; {count} ablations need {LEAST_PER_ENTRY * count:,} sequences" * (line.reason == Reason.MANY)
            return replace(line, caveat=f"no interval allows for the choice ({line.no_interval}{needed}); {judged}")
        return replace(line, caveat=f"{judged}; the one that allows for the choice includes a baseline")

    def _design(self) -> str:
        """Return what was measured, in a sentence."""
        each = "each alone; " * (len(self.ablations) > 1)
        ablations, sequences = counted(len(self.ablations), f"{self.mode} ablation"), counted(self.n, "sequence")
        own = number_text(float(self.unablated_kl_bits))
        return f"{ablations}, {each}{sequences}; KL without ablation {own} bits"

    def _listed(self) -> Sequence[Headline]:
        """Return the KL increases after the largest, largest first."""
        effects, lines = self._exactly(self.kl_increase_bits), list[Headline]()
        for i in self.ranked()[1:N_LISTED]:
            line = headline_of(self, "kl_increase_bits", (i,), f"KL increase of {self.ablations[i]}", own=effects[i])
            lines.append(replace(line, verdict="", ruling="no effect") if self.inert[i] else line)
        return lines

    def _key_overlap(self) -> Sequence[Headline]:
        """Return the KL increase of each head that key overlap would choose, and its rank among the ablated heads."""
        picks = picks_of(self.key_overlap_pick)
        if not picks:
            return ()
        first, *others = map(self._picked, picks)
        named, other = picks[0], [pick.head for pick in picks if pick.head != picks[0].head]
        finding = f"{named.head} has the least key overlap for {named.reading} (mean |cos| {named.mean_cosine:.3f})"
        if rank := self._rank(named.head):
            finding += f" and {rank}"
        else:
            finding += "; this key head was not ablated alone, so its KL increase is unknown"
        if other:
            different = ", ".join(dict.fromkeys(other))
            finding += f"; {len(other)} of {len(picks)} readings of the keys choose other heads ({different})"
        return replace(first, finding=f"{finding}.", short_label=f"KL increase of {named.head}"), *others

    def _picked(self, pick: Pick) -> Headline:
        label, rank = f"least key overlap: {pick}", self._rank(pick.head)
        subject = f"KL increase of the head with the {label.replace(': ', ', ', 1)}, {rank or 'not ablated alone'}"
        if not rank:
            own = Headline(metric="kl_increase_bits", label=f"{label}, not ablated alone", value=math.nan, unit="bits")
        else:
            at = (self._ranked_heads()[pick.head],)
            own = headline_of(self, "kl_increase_bits", at=at, label=f"{label}, {rank}")
        return replace(own, verdict="", short_label=subject)  # the rank counts, not whether it exceeds 0

    def _rank(self, head: str) -> str:
        """Return the rank of a head by KL increase; "" if it was not ablated alone."""
        heads = list(self._ranked_heads())
        return f"rank {heads.index(head) + 1} of {len(heads)} heads by KL increase" if head in heads else ""

    def _ranked_heads(self) -> dict[str, int]:
        """Return the index of each head that was ablated alone, by layer and head: ablations can have other names."""
        return {f"L{self.layer[i]}H{self.head[i]}": i for i in self.ranked() if self.kinds[i] == "head"}

    def _attribution(self) -> Sequence[Headline]:
        is_known = not math.isnan(float(self.attribution_rank_correlation))
        return (headline_of(self, "attribution_rank_correlation"),) if is_known else ()

    def plot(self) -> "Figure":
        from bayesgeom.ablations.drawing import Alike, ablation_figure

        groups = []
        for title, kinds in _ALIKE.items():
            alike = [index for index in self.ranked() if self.kinds[index] in kinds]
            if chosen := alike[:N_SHOWN]:
                group = Alike(
                    title=title,
                    n=len(alike),
                    labels=[self.ablations[index] for index in chosen],
                    kl_increase_bits=self.kl_increase_bits[chosen],
                    by_position=self.kl_increase_bits_by_position[chosen],
                )
                groups.append(group)
        heads_title = f"Heads, {self.mode} ablation (baseline: 0)"
        return ablation_figure(self.title, groups, self.kl_increase_bits_by_head, heads_title=heads_title)

    def table(self, *, most: int = N_SHOWN) -> str:
        """Return the ranked list with ratios of KL and changes of the entropy error."""
        rows: list[tuple[str, ...]] = [
            ("ablation", "KL increase (bits)", "95 % interval", "KL ratio", "Δ entropy error", "")
        ]
        rows += [self._row(index) for index in self.ranked()[:most]]
        n_more = len(self.ablations) - most
        more = [f"… and {n_more} with smaller KL increases: to_pandas() returns all"]
        return "\n".join([*aligned(rows), *(more if n_more > 0 else [])])

    def _row(self, index: int) -> tuple[str, ...]:
        low, high = self.kl_increase_bits.ends
        return (
            self.ablations[index],
            number_text(self.kl_increase_bits.value[index]),
            interval_text(low[index], high[index]),
            number_text(self.kl_ratio.value[index]),
            number_text(self.entropy_mae_increase_bits.value[index]),
            "no_effect" if self.inert[index] else "",
        )


@final
@dataclass(frozen=True, kw_only=True)
class Context:
    """The data that a report needs in addition to the tally."""

    battery: Sequence[Ablation]
    mode: Mode
    n_layers: int
    n_heads: int
    seed: int
    attribution_bits: Float[np.ndarray, " ablation"]
    key_overlap_pick: str
    uniform_kl_bits: float


def ablation_report(tally: Tally, context: Context) -> AblationReport:
    """Return the report of a finished tally."""
    singles = [a.components[0] if len(a.components) == 1 else None for a in context.battery]
    layer = np.array([-1 if c is None else c.layer for c in singles])
    head = np.array([-1 if c is None or c.head is None else c.head for c in singles])
    kl_increase = _increase(tally, "kl_bits", context.seed)
    by_head = _by_head(kl_increase, layer, head, (context.n_layers, context.n_heads))
    heads = np.sort(by_head[np.isfinite(by_head)])[::-1]
    unablated = tally.baseline.sum(axis=1) / tally.done
    by_position = (tally.profile / tally.done)[:, 0]
    known = np.isfinite(context.attribution_bits)
    uniform = Baseline.of("chance", UNIFORM, context.uniform_kl_bits)
    return AblationReport(
        mode=context.mode,
        ablations=tuple(ablation.label for ablation in context.battery),
        kinds=tuple("set" if component is None else component.kind for component in singles),
        layer=layer,
        head=head,
        n_layers=context.n_layers,
        n_heads=context.n_heads,
        kl_increase_bits=kl_increase,
        entropy_mae_increase_bits=_increase(tally, "entropy_error_bits", context.seed),
        kl_ratio=_kl_ratio(tally, context.seed),
        accuracy_change=_increase(tally, "correct", context.seed, bounds=(-1.0, 1.0)),
        attribution_bits=context.attribution_bits,
        inert=tally.inert,
        kl_increase_bits_by_position=by_position[1:] - by_position[0],
        unablated_kl_bits=Estimate.of(unablated[0], n=tally.done, baselines=(uniform,)),
        unablated_entropy_mae_bits=Estimate.of(unablated[1], n=tally.done),
        top_to_second_ratio=Estimate.of(heads[0] / heads[1] if len(heads) > 1 and heads[1] > 0 else math.nan),
        attribution_rank_correlation=Estimate.of(
            _rank_correlation(context.attribution_bits[known], kl_increase.value[known])
        ),
        key_overlap_pick=context.key_overlap_pick,
        n=tally.done,
    )


def with_attribution(report: AblationReport, bits: Float[np.ndarray, " ablation"]) -> AblationReport:
    """Return the report with first-order estimates and their rank correlation with the KL increases."""
    known = np.isfinite(bits)
    correlation = _rank_correlation(bits[known], report.kl_increase_bits.value[known])
    return replace(report, attribution_bits=bits, attribution_rank_correlation=Estimate.of(correlation))


def _by_head(
    effects: Estimate, layer: Int[np.ndarray, " ablation"], head: Int[np.ndarray, " ablation"], shape: tuple[int, int]
) -> Float[np.ndarray, "layer head"]:
    """Return the effect of each head that was ablated alone; NaN for the others."""
    by_head, is_head = np.full(shape, np.nan), head >= 0
    by_head[layer[is_head], head[is_head]] = effects.value[is_head]
    return by_head


def _increase(tally: Tally, metric: str, seed: int, *, bounds: Bounds = UNBOUNDED) -> Estimate:
    """Return the increase of a metric by every ablation, with its paired interval over units; no effect is 0."""
    index = METRICS.index(metric)
    without, ablated = tally.baseline[index][:, None], tally.sums[:, index].T
    counts = tally.counts[:, None].astype(np.float64)
    interval = ratio_interval(ablated - without, counts, seed=seed, bounds=bounds)
    nothing = Baseline.of("baseline", NO_EFFECT, 0.0)
    mean = mean_difference(without, ablated) * (len(tally.counts) / tally.done)
    return with_interval(mean, interval, n=tally.done, baselines=(nothing,))


def _kl_ratio(tally: Tally, seed: int) -> Estimate:
    """Return KL with every ablation over KL without it, resampled together; no effect is 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = tally.sums[:, 0].sum(axis=1) / tally.baseline[0].sum()
    interval = ratio_interval(tally.sums[:, 0].T, tally.baseline[0][:, None], seed=seed, is_positive=True)
    return with_interval(ratio, interval, n=tally.done, baselines=(Baseline.of("baseline", NO_EFFECT, 1.0),))


def _rank_correlation(x: Float[np.ndarray, " a"], y: Float[np.ndarray, " a"]) -> float:
    from bayesgeom.stats.regression import spearman

    return float(spearman(x, y)) if len(x) > 2 else math.nan
