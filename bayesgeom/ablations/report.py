"""The ablation report: KL increase of each ablation, ranked, with paired intervals.

The KL increase is KL(exact ‖ model) with the ablation minus KL without it; its baseline is 0. A component whose
ablation leaves the logits bit-identical has no effect (`inert`, `no_effect`); this is exact, not estimated.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self, final

import numpy as np
from jaxtyping import Bool, Float, Int

from bayesgeom.ablations._tally import Tally
from bayesgeom.ablations.batteries import Ablation
from bayesgeom.ablations.engine import METRICS
from bayesgeom.core import Mode, Verdict, number_text
from bayesgeom.core.text import aligned_table, interval_text
from bayesgeom.report.estimate import Baseline, Coordinate, Estimate, NonNegative, Quantity, Signed, Unit, with_interval
from bayesgeom.report.findings import Finding, Opening, mattering
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of, headline_of_largest
from bayesgeom.stats.bootstrap import mean_difference, ratio_interval
from bayesgeom.stats.intervals import UNBOUNDED, Bounds

N_SHOWN = 20
N_LISTED = 12  # of the ranked list, among the headlines
_N_LINES, _N_ROWS = 5, 12  # of panels
NO_EFFECT, UNIFORM = "no effect", "uniform prediction"
_ALIKE: Mapping[str, tuple[str, ...]] = {
    "Heads": ("head",),
    "Attention and MLPs": ("attention", "mlp"),
    "Whole blocks": ("block",),
    "Neurons": ("neuron",),
    "Experts": ("expert",),
    "Several together": ("set",),
}


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class AblationReport(Report):
    """Each component is ablated in turn, and the model is scored again against the exact posterior.

    The replacement is 0, its mean over sequences (mean), or its value in another sequence (resample). L1H0 is head 0 of
    layer 1. The number is the KL increase in bits; the baseline is 0. A quantity that can be decoded from an activation
    need not influence the answer; an ablation tests whether it does. Intervals are paired: the same sequences with and
    without the ablation are resampled together. In a diagnosis whose predictions are no better than those without
    evidence, or than those of untrained networks, nothing is said to matter.

    Fields: the increase in KL and entropy error (bits), the ratio of KL and the change in accuracy for every ablation.
    `layer`, `head` and `unit_index` (of a neuron or an expert) are −1 where there is none or there are several;
    `attribution_bits` is NaN if it was not requested.
    `top_to_second_ratio` and `share_above_half_of_top` use only heads that were ablated alone.
    """

    name: ClassVar[str] = "ablation"
    title: ClassVar[str] = "Ablation: what breaks without each component?"

    mode: Mode
    ablations: tuple[str, ...]
    kinds: Annotated[tuple[str, ...], "ablation", Coordinate()]
    layer: Annotated[Int[np.ndarray, " ablation"], Unit("1"), Coordinate()]
    head: Annotated[Int[np.ndarray, " ablation"], Unit("1"), Coordinate()]
    unit_index: Annotated[Int[np.ndarray, " ablation"], Unit("1"), Coordinate()]
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
    def matters(self) -> Bool[np.ndarray, " ablation"]:
        """Which components matter, by `bayesgeom.report.findings.mattering`: with 95 % confidence for all at once."""
        is_above = mattering(self._exactly(self.kl_increase_bits), self.unablated_kl_bits)
        return is_above & bool(self.kl_increase_bits.baselines)

    def no_better(self) -> Self:
        """Return the report of a model whose predictions are no better than those that use no evidence."""
        return replace(self, kl_increase_bits=replace(self.kl_increase_bits, baselines=()))

    @property
    def n_mattering(self) -> int:
        """Number of components that matter."""
        return int(self.matters.sum())

    @property
    def uniform_kl_bits(self) -> float:
        """KL of a uniform prediction on the same sequences; NaN in older reports, which lack it."""
        known = [baseline for baseline in self.unablated_kl_bits.baselines if baseline.name == UNIFORM]
        return float(known[0].value) if known else math.nan

    @property
    def unchanged_kl_bits(self) -> Estimate:
        """KL without ablation, next to that of a uniform prediction where it is known."""
        return self.unablated_kl_bits

    @property
    def is_preview(self) -> bool:
        """Whether the effects are a first-order preview by attribution, which knows no entropy error."""
        return bool(np.isnan(self.entropy_mae_increase_bits.value).all())

    @property
    def no_effect(self) -> tuple[str, ...]:
        """Ablations that leave every logit bit-identical."""
        return tuple(label for label, is_inert in zip(self.ablations, self.inert, strict=True) if is_inert)

    def _exactly(self, effect: Estimate) -> Estimate:
        """Return the effect with value and interval set to exactly 0 where the ablation changes no logit."""
        value, low, high = (np.where(self.inert, 0.0, array) for array in (effect.value, *effect.ends))
        return replace(effect, value=value, low=low, high=high)

    def headlines(self) -> Sequence[Headline]:
        """Return the largest KL increases, and what describes all."""
        is_known = not math.isnan(float(self.attribution_rank_correlation))
        share = "heads above half of largest, share"
        of_heads = (
            headline_of(self, "top_to_second_ratio"),
            Headline.computed("share_above_half_of_top", share, self.share_above_half_of_top),
        )
        return (
            self._largest(),
            headline_of(self, "unablated_kl_bits"),
            Headline.computed("n_mattering", f"components that matter, of {len(self.ablations)}", self.n_mattering),
            *map(self._effect, self.ranked()[1:N_LISTED]),
            *(of_heads if (self.head >= 0).any() else ()),
            *([headline_of(self, "attribution_rank_correlation")] if is_known else []),
        )

    def _largest(self) -> Headline:
        """Return the largest KL increase; with too few sequences to allow for its choice, with its own interval."""
        effects = self._exactly(self.kl_increase_bits)
        at, largest = effects.extreme("largest")
        label = f"largest KL increase: {self.ablations[at[0]]}"
        line = headline_of_largest(self, "kl_increase_bits", at, label, largest, whole=effects)
        return replace(line, verdict=str(Verdict.PREVIEW)) if self.is_preview else line

    def _effect(self, at: int) -> Headline:
        """Return the KL increase of one ablation."""
        effect, label = self._exactly(self.kl_increase_bits)[at], f"KL increase of {self.ablations[at]}"
        verdict = str(Verdict.NO_EFFECT) if self.inert[at] else None
        return headline_of(self, "kl_increase_bits", (at,), label, own=effect, verdict=verdict)

    def answer(self) -> Opening:
        finding = Finding.SOME_MATTER if self.n_mattering else Finding.NONE_MATTER
        if self.is_preview:
            finding = Finding.ABLATION_PREVIEW
        top = self.ranked()[0]
        return finding.of(
            mattering=self.n_mattering,
            count=len(self.ablations),
            parts=self.kinds[0] if len(set(self.kinds)) == 1 else "component",
            name=self.ablations[top],
            bits=self._exactly(self.kl_increase_bits)[top],
            before=self.unablated_kl_bits,
            uniform=self.uniform_kl_bits,
        )

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.forest import add_forest
        from bayesgeom.charts.heat import add_heat
        from bayesgeom.charts.lines import LEAST_BITS, add_baseline, add_line, brief
        from bayesgeom.report.theme import SERIES, at_least, label_axes

        unit, by_head, heat = "KL increase (bits)", self.kl_increase_bits_by_head, list[Panel]()
        if not np.isnan(by_head).all():
            layer, head = np.unravel_index(np.nanargmax(by_head), by_head.shape)
            n_heads = int(self.matters[self.head >= 0].sum())
            among = f"{n_heads} of {np.isfinite(by_head).sum()} heads matter"
            head_text, bits = f"{self.mode} ablation of L{layer}H{head}", brief(by_head[layer, head])
            most = f"{among}; {head_text} raises it most, by {bits} bits"
            none = f"No head matters: {self.mode} ablation of none raises KL"
            heat.append(Panel.blank(most if by_head[layer, head] > 0 else none))
            add_heat(heat[0].figure, by_head, unit=unit, baseline=0.0)
        ranked, panels = self.ranked(), list[Panel]()
        alike = {title: [i for i in ranked if self.kinds[i] in kinds] for title, kinds in _ALIKE.items()}
        # The page opens with the kind of the largest effect, for heads with their map.
        order = sorted(alike, key=lambda title: ranked[0] not in alike[title])
        groups = {title: alike[title] for title in order if alike[title]}
        is_below = self.kinds[ranked[0]] == "head" and len(heat) > 0
        for title, indices in groups.items():  # each kind has its own axis, as blocks cost more than heads
            effects, labels = self.kl_increase_bits[indices[:_N_ROWS]], [self.ablations[i] for i in indices[:_N_ROWS]]
            named = f"{_few(title, _N_ROWS, len(indices))}, largest first"
            panels.append(Panel.blank(named, is_folded=is_below or len(panels) > 0))
            add_forest(panels[-1].figure, labels, effects.value, effects.ends, unit=unit)
        panels = [*heat, *panels] if is_below else [*panels[:1], *heat, *panels[1:]]
        title, indices = next(iter(groups.items()))
        along = Panel.blank(f"{_few(title, _N_LINES, len(indices))}, along the sequence", is_folded=True)
        scored = range(1, self.kl_increase_bits_by_position.shape[1] + 1)
        add_baseline(along.figure, scored, 0.0, name="baseline: no effect")
        for i, color in zip(indices[:_N_LINES], SERIES, strict=False):
            increase = self.kl_increase_bits_by_position[i]
            add_line(along.figure, scored, increase, name=self.ablations[i], color=color)
        at_least(along.figure, LEAST_BITS)
        label_axes(along.figure, "scored position (1 is the first)", unit)
        return *panels, along

    def table(self, *, most: int = N_SHOWN) -> str:
        """Return the ranked list with ratios of KL and changes of the entropy error."""
        rows: list[tuple[str, ...]] = [
            ("ablation", "KL increase (bits)", "95 % interval", "KL ratio", "Δ entropy error", "")
        ]
        rows += [self._row(index) for index in self.ranked()[:most]]
        n_more = len(self.ablations) - most
        more = [f"… and {n_more} more: to_pandas() returns all"]
        return "\n".join([*aligned_table(rows), *(more if n_more > 0 else [])])

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


def ablation_report(
    tally: Tally,
    battery: Sequence[Ablation],
    *,
    mode: Mode,
    shape: tuple[int, int],
    seed: int,
    uniform_kl_bits: float,
) -> AblationReport:
    """Return the report of a finished tally.

    Args:
        tally: Sums over all sequences.
        battery: The ablations, in the order of the tally.
        mode: Mode of the battery.
        shape: Number of layers, and of heads in a layer.
        seed: Seed of the intervals.
        uniform_kl_bits: KL of a uniform prediction on the same sequences.
    """
    singles = [a.components[0] if len(a.components) == 1 else None for a in battery]
    layer = np.array([-1 if c is None else c.layer for c in singles])
    head = np.array([-1 if c is None or c.head is None else c.head for c in singles])
    kl_increase = _increase(tally, "kl_bits", seed)
    by_head = _by_head(kl_increase, layer, head, shape)
    heads = np.sort(by_head[np.isfinite(by_head)])[::-1]
    unablated = tally.baseline.sum(axis=1) / tally.done
    by_position = (tally.profile / tally.done)[:, 0]
    uniform = Baseline.of("chance", UNIFORM, uniform_kl_bits)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = tally.sums[:, 0].sum(axis=1) / tally.baseline[0].sum()
    interval = ratio_interval(tally.sums[:, 0].T, tally.baseline[0][:, None], seed=seed, is_positive=True)
    return AblationReport(
        mode=mode,
        ablations=tuple(ablation.label for ablation in battery),
        kinds=tuple("set" if component is None else component.kind for component in singles),
        layer=layer,
        head=head,
        unit_index=np.array([-1 if c is None or c.unit is None else c.unit for c in singles]),
        n_layers=shape[0],
        n_heads=shape[1],
        kl_increase_bits=kl_increase,
        entropy_mae_increase_bits=_increase(tally, "entropy_error_bits", seed),
        kl_ratio=with_interval(ratio, interval, n=tally.done, baselines=(Baseline.of("baseline", NO_EFFECT, 1.0),)),
        accuracy_change=_increase(tally, "correct", seed, bounds=(-1.0, 1.0)),
        attribution_bits=np.full(len(battery), np.nan),
        inert=tally.inert,
        kl_increase_bits_by_position=by_position[1:] - by_position[0],
        unablated_kl_bits=Estimate.of(unablated[0], n=tally.done, baselines=(uniform,)),
        unablated_entropy_mae_bits=Estimate.of(unablated[1], n=tally.done),
        top_to_second_ratio=Estimate.of(heads[0] / heads[1] if len(heads) > 1 and heads[1] > 0 else math.nan),
        attribution_rank_correlation=Estimate.of(math.nan),
        n=tally.done,
    )


def with_attribution(report: AblationReport, bits: Float[np.ndarray, " ablation"]) -> AblationReport:
    """Return the report with first-order estimates and their rank correlation with the KL increases."""
    from bayesgeom.stats.regression import spearman

    known = np.isfinite(bits)
    increases = report.kl_increase_bits.value[known]
    correlation = float(spearman(bits[known], increases)) if len(increases) > 2 else math.nan
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


def _few(title: str, shown: int, n: int) -> str:
    """Return the title of a panel that shows some of a group."""
    return title if n <= shown else f"{title}, {shown} of {n}"
