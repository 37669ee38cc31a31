"""The report of erasing a quantity from one layer on: does the model use it in that layer or later?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.core.text import fitted, interval_text, number_text
from bayesgeom.core.verdict import Verdict
from bayesgeom.interventions._evidence import SLACK
from bayesgeom.interventions.design import MATCHED, MATCHED_MOST, RANDOM_MOST
from bayesgeom.interventions.verdicts import (
    CEILING_SHARE,
    OWN_KL_SHARE,
)
from bayesgeom.report.estimate import AtMostOne, Estimate, NonNegative, Quantity, Unit
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of

STAGES = ("before", "after")


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class OnwardsReport(Report):
    """A quantity is erased from the residual stream in one layer and all later layers, at all positions.

    If no linear map can then decode the quantity and the answers stay as good, the model does not use the quantity
    linearly from that layer on.

    Not used (linearly) from a layer on requires three conditions. Before erasure, R² of a linear map in that layer is
    at least 0.1 above that of shuffled values. After erasure, it is at most 0.01 above in every layer from there on.
    The 95 % interval of the KL increase is within half of the model's own KL and within 1 % of the ceiling. Removal
    alone never shows use.

    Fields, for every first layer, with all positions and later layers erased; NaN where not tried:

    - `kl_increase_bits` with a paired interval. Baselines: the largest KL increase of 20 random subspaces of the same
      ranks, with their range, and the largest of 20 subspaces with the same share of variance in every layer. Where
      `is_matched_by_layer` is false there are no such subspaces in some layer, and everything outside the erased
      subspace is erased there.
      Its `ceiling`: the whole activation replaced by its mean. `unedited_kl_bits`: the model's own KL.
    - `r2`: held-out R² of the quantity at scored positions, before and after; the largest over the erased layers.
    - `r2_excess`: the largest amount by which R² exceeds both the 97.5 % quantile of shuffled values and 0.
    """

    name: ClassVar[str] = "erasure_onwards"
    title: ClassVar[str] = "Erasure from a layer on"

    site: str
    subspace: str
    quantity: str
    kl_increase_bits: Annotated[Estimate, Quantity("layer", unit="bits", better="higher", label="KL increase")]
    stages: tuple[str, ...]
    r2: Annotated[Estimate, AtMostOne("stage layer", label="R² of the quantity, before and after erasure")]
    r2_excess: Annotated[Float[np.ndarray, " layer"], Unit("1")]
    unedited_kl_bits: Annotated[Estimate, NonNegative(unit="bits", label="KL of the unedited model")]
    verdict_by_layer: Annotated[tuple[str, ...], "layer"]
    is_matched_by_layer: Annotated[tuple[bool, ...], "layer"]
    n: int

    @property
    def layers(self) -> list[int]:
        """The first layers that were tried."""
        return [int(layer) for layer in np.flatnonzero(np.isfinite(self.kl_increase_bits.value))]

    def headlines(self) -> Sequence[Headline]:
        """Return one line per first layer, the strongest verdict first, then the relative size and R²."""
        order = (Verdict.NOT_USED, Verdict.UNDECIDED, Verdict.NOT_IDENTIFIED)
        ranked = sorted(self.layers, key=lambda at: order.index(Verdict(self.verdict_by_layer[at])))
        lines = [
            headline_of(
                self,
                "kl_increase_bits",
                (at,),
                f"KL increase, {self.subspace} from layer {at} on",
                verdict=self.verdict_by_layer[at],
            )
            for at in ranked
        ]
        scaled = [at for at in ranked[:1] if self.kl_increase_bits.ceiling[at] > 0]
        least_erased = sorted(self.layers, key=lambda at: float(self.r2_excess[at]))[-1:]
        read = [headline_of(self, "r2", (1, at), f"R² after erasure from layer {at}") for at in least_erased]
        return *lines, *map(self._scale, scaled), *read

    def _scale(self, layer: int) -> Headline:
        """Return the KL increase relative to that of the whole activation in one layer, which it may exceed."""
        increase, ceiling = (float(own[layer]) for own in (self.kl_increase_bits.value, self.kl_increase_bits.ceiling))
        label = f"KL increase over the ceiling, layer {layer}"
        return Headline.computed("kl_increase_bits", label, increase / ceiling)

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.lines import add_band, add_line
        from bayesgeom.report.theme import BASELINE, EXACT, MEASURED, label_axes

        cost, read = Panel.blank("KL increase"), Panel.blank("R² of the quantity")
        at, increase, figure = self.layers, self.kl_increase_bits, cost.figure
        random, ceiling = increase.baseline(RANDOM_MOST), increase.ceiling[at]
        least, most = (random.value if end is None else end for end in (random.low, random.high))
        add_band(figure, at, least[at], most[at], name="baseline: random subspaces (range)", color=BASELINE)
        matched = increase.baseline(MATCHED_MOST).value[at]
        add_line(figure, at, matched, name=f"baseline: {MATCHED} (largest)", color=BASELINE, dash="dash")
        add_line(figure, at, ceiling, name="whole activation at its mean", color=EXACT, dash="dot")
        low, high = (end[at] for end in increase.ends)
        add_band(figure, at, low, high, name="95 % interval", color=MEASURED)
        add_line(figure, at, increase.value[at], name="erased", color=MEASURED)
        label_axes(figure, "first erased layer", "KL increase (bits)")
        for name, values, color in zip(self.stages, self.r2.value, (EXACT, MEASURED), strict=True):
            add_line(read.figure, at, values[at], name=f"{name}, most over layers", color=color)
        label_axes(read.figure, "first erased layer", "held-out R²")
        ends = [at[0] - 0.5, at[-1] + 0.5] if at else None  # with one layer, its interval is a whisker
        for own in (figure, read.figure):
            own.update_xaxes(tickmode="linear", tick0=0, dtick=-(-len(at) // 8), range=ends)
        return cost, read

    def table(self) -> str:
        """Return one row per first layer."""
        effect = ("from layer", "ΔKL", "95 % interval", "random, max", "matched, max", "ceiling")
        rows: list[tuple[str, ...]] = [(*effect, "R² before", "after", "excess", "verdict")]
        for at in self.layers:
            increase = self.kl_increase_bits[at]
            random, matched = (
                number_text(float(increase.baseline(name).value)) for name in (RANDOM_MOST, MATCHED_MOST)
            )
            matched += "" if self.is_matched_by_layer[at] else " (not matched)"
            ceiling = number_text(float(increase.ceiling))
            reads = (number_text(r2) for r2 in (*self.r2.value[:, at], self.r2_excess[at]))
            value = number_text(float(increase))
            own = (str(at), value, interval_text(*map(float, increase.ends)), random, matched, ceiling)
            rows.append((*own, *reads, self.verdict_by_layer[at]))
        own_kl = number_text(float(self.unedited_kl_bits))
        title = f"erase {self.subspace} at {self.site}, all positions; n = {self.n}; own KL {own_kl}"
        return "\n".join([title, *fitted(rows)])


def verdict_onwards(
    increase: tuple[float, float],
    ceiling: float,
    own_kl: float,
    *,
    excess: float,
    is_decodable: bool,
    is_identified: bool,
) -> Verdict:
    """Return the verdict from the ends of the interval of the KL increase."""
    if not is_identified:
        return Verdict.NOT_IDENTIFIED
    reach = max(abs(end) for end in increase)
    is_cheap = reach <= OWN_KL_SHARE * own_kl and reach <= CEILING_SHARE * ceiling
    return Verdict.NOT_USED if is_cheap and is_decodable and excess <= SLACK else Verdict.UNDECIDED
