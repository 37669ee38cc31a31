"""The report of erasing a quantity from one layer on: does the model use it in that layer or later?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.core.text import interval_text, number_text, percent_text
from bayesgeom.interventions._evidence import FLOOR, SLACK
from bayesgeom.interventions.design import MATCHED, MATCHED_MOST, RANDOM_MOST
from bayesgeom.interventions.verdicts import (
    CEILING_SHARE,
    NOT_IDENTIFIED,
    NOT_USED,
    OWN_KL_SHARE,
    UNDECIDED,
    VERDICTS,
    listed,
)
from bayesgeom.results.estimate import AtMostOne, Estimate, NonNegative, Quantity, Unit
from bayesgeom.results.findings import numbers
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report, headline_of
from bayesgeom.results.tables import aligned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

STAGES = ("before", "after")
_COMPARED = {
    "yes": "more than with every control subspace",
    "no": "but not more than with every control subspace",
    "undecided": "but not clearly more than with every control subspace",
}
RULE = (
    "Not used (linearly) from a layer on requires three conditions. Before erasure, R² of a linear map in that layer "
    f"is at least {FLOOR:g} above that of shuffled values. After erasure, it is at most {SLACK:g} above in every layer "
    f"from there on. The 95 % interval of the KL increase is within ±{OWN_KL_SHARE:g} of the model's own KL and within "
    f"±{percent_text(CEILING_SHARE)} of the ceiling. Removal alone never shows use."
)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class OnwardsReport(Report):
    """KL increase and R² for every first layer, with all positions and later layers erased; NaN where not tried.

    - `kl_increase_bits` with a paired interval. Baselines: the largest KL increase of 20 random subspaces of the same
      ranks, with their range, and the largest of 20 subspaces with the same share of variance in every layer. Where
      `is_matched_by_layer` is false there are no such subspaces in some layer, and everything outside the erased
      subspace is erased there.
      Its `ceiling`: the whole activation replaced by its mean. `unedited_kl_bits`: the model's own KL.
    - `r2`: held-out R² of the quantity at scored positions, before and after; the largest over the erased layers.
    - `r2_excess`: the largest amount by which R² exceeds both the 97.5 % quantile of shuffled values and 0.
    """

    name: ClassVar[str] = "erasure_onwards"
    title: ClassVar[str] = "Erasure: is the quantity used from this layer on?"
    about: ClassVar[str] = (
        "A quantity is erased from the residual stream in one layer and all later layers, at all positions, in the "
        "same pass. If no linear map can then decode the quantity and the answers stay as good, the model does not use "
        "the quantity linearly from that layer on."
    )
    rule: ClassVar[str] = RULE

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
    def verdict(self) -> str:
        """The verdict from each layer on, and the erased subspace."""
        groups = {own: [at for at in self.layers if self.verdict_by_layer[at] == own] for own in VERDICTS}
        texts = [f"{verdict} from {listed(layers)} on" for verdict, layers in groups.items() if layers]
        return f"{'; '.join(texts)}: {self.subspace}"

    @property
    def layers(self) -> list[int]:
        """The first layers that were tried."""
        return [int(layer) for layer in np.flatnonzero(np.isfinite(self.kl_increase_bits.value))]

    def headlines(self) -> Sequence[Headline]:
        """Return one line per first layer, the strongest verdict first, then the relative size and R².

        Layers with the same verdict and reason have one finding, which the largest of their increases carries.
        """
        lines = {
            at: replace(
                headline_of(self, "kl_increase_bits", (at,), f"KL increase, {self.subspace} from layer {at} on"),
                ruling=self.verdict_by_layer[at],
            )
            for at in self.layers
        }
        groups: dict[str, list[int]] = {}
        for at in sorted(lines, key=lambda at: VERDICTS.index(self.verdict_by_layer[at])):
            groups.setdefault(self._finding(at), []).append(at)
        carriers = [max(group, key=lambda at: lines[at].value) for group in groups.values()]
        for at, (finding, group) in zip(carriers, groups.items(), strict=True):
            design = self._design() * (at == carriers[0])
            lines[at] = replace(lines[at], finding=finding.format(listed(group)), detail=design)
        stated = [lines.pop(at) for at in carriers]
        scaled = [at for at in carriers[:1] if self.kl_increase_bits.ceiling[at] > 0]
        least_erased = sorted(self.layers, key=lambda at: float(self.r2_excess[at]))[-1:]
        return *stated, *lines.values(), *map(self._scale, scaled), *map(self._read, least_erased)

    def _design(self) -> str:
        own = number_text(float(self.unedited_kl_bits))
        return f"erase {self.subspace} at {self.site}, all positions; n = {self.n}; own KL {own}"

    def _finding(self, layer: int) -> str:
        """Return what the verdict from a layer on states, with braces in the place of the layers."""
        told = {
            NOT_USED: f"From {{}} on, the model does not use the {self.quantity} linearly.",
            NOT_IDENTIFIED: f"From {{}} on, the {self.quantity} is a function of position: its use is not identified.",
        }
        is_open = f"Whether the model uses the {self.quantity} is not decided: from {{}} on, {self._open(layer)}."
        return told.get(self.verdict_by_layer[layer], is_open)

    def _scale(self, layer: int) -> Headline:
        """Return the KL increase relative to that of the whole activation in one layer, which it may exceed."""
        increase, ceiling = (float(own[layer]) for own in (self.kl_increase_bits.value, self.kl_increase_bits.ceiling))
        relative, whole = increase / ceiling, f"replacing the whole activation in layer {layer} by its mean"
        is_less, factor = relative <= 1, f"exceeds, by a factor of {number_text(relative)},"
        compared = f"is {percent_text(relative, 1)} of" if is_less else factor
        finding = f"From layer {layer} on, the KL increase {compared} that of {whole}, {number_text(ceiling)} bits."
        line = Headline.computed("kl_increase_bits", f"from layer {layer} on, relative to {whole}", relative)
        return replace(line, finding=finding, short_label=f"KL increase {line.label}")

    def _read(self, at: int) -> Headline:
        """Return the R² that an erasure leaves, next to that before it."""
        before, after = map(number_text, self.r2.value[:, at])
        finding = (
            f"R² of a linear map to the {self.quantity} is {before} before the erasure from layer {at} on, and at most "
            f"{after} after it: {'not ' * int(self.r2_excess[at] <= SLACK)}more than {SLACK:g} above shuffled values."
        )
        return replace(headline_of(self, "r2", (1, at), f"R² after the erasure from layer {at} on"), finding=finding)

    def _open(self, layer: int) -> str:
        """Return why "not used" is not shown from a layer on, by `RULE`."""
        increase = self.kl_increase_bits[layer]
        low, high = (float(end) for end in increase.ends)
        margin = min(OWN_KL_SHARE * float(self.unedited_kl_bits), CEILING_SHARE * float(increase.ceiling))
        if np.isnan(low):
            return "the increase has no interval"
        if low > margin:
            compared = _COMPARED[str(increase.clears("higher"))]
            return f"the answers get worse, {compared}, and removal alone never shows use"
        if high < -margin:
            return "the answers get better"
        if max(-low, high) > margin:
            return "the interval of the increase exceeds the margin"
        if not self.r2_excess[layer] <= SLACK:
            return "the quantity can still be decoded after the erasure"
        return "the quantity could not be decoded before"

    def plot(self) -> "Figure":
        from bayesgeom.charts.lines import add_band, add_line
        from bayesgeom.results.captions import with_captions
        from bayesgeom.results.theme import BASELINE, EXACT, MEASURED, label_axes, panels, with_room_for_legend

        figure = panels(self.verdict, ("KL increase", "R² of the quantity"))
        at, increase = self.layers, self.kl_increase_bits
        random, ceiling = increase.baseline(RANDOM_MOST), increase.ceiling[at]
        least, most = (random.value if end is None else end for end in (random.low, random.high))
        add_band(figure, (1, 1), at, least[at], most[at], name="baseline: random subspaces (range)", color=BASELINE)
        matched = increase.baseline(MATCHED_MOST).value[at]
        add_line(figure, (1, 1), at, matched, name=f"baseline: {MATCHED} (largest)", color=BASELINE, dash="dash")
        add_line(figure, (1, 1), at, ceiling, name="whole activation at its mean", color=EXACT, dash="dot")
        low, high = (end[at] for end in increase.ends)
        add_band(figure, (1, 1), at, low, high, name="95 % interval", color=MEASURED)
        add_line(figure, (1, 1), at, increase.value[at], name="erased", color=MEASURED)
        label_axes(figure, (1, 1), "first erased layer", "KL increase (bits)")
        for name, values, color in zip(self.stages, self.r2.value, (EXACT, MEASURED), strict=True):
            add_line(figure, (1, 2), at, values[at], name=f"{name}, most over layers", color=color)
        label_axes(figure, (1, 2), "first erased layer", "held-out R²")
        ends = [at[0] - 0.5, at[-1] + 0.5] if at else None  # with one layer, its interval is a whisker
        figure.update_xaxes(tickmode="linear", tick0=0, dtick=-(-len(at) // 8), range=ends)
        return with_captions(with_room_for_legend(figure), (numbers(self.headlines()[0]),))

    def table(self) -> str:
        """Return the verdict, then one row per first layer."""
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
        return "\n".join([self.verdict, "", self._design(), *aligned(rows), "", RULE])


def verdict_onwards(
    increase: tuple[float, float],
    ceiling: float,
    own_kl: float,
    *,
    excess: float,
    is_decodable: bool,
    is_identified: bool,
) -> str:
    """Return the verdict by `RULE` from the ends of the interval of the KL increase."""
    if not is_identified:
        return NOT_IDENTIFIED
    reach = max(abs(end) for end in increase)
    is_cheap = reach <= OWN_KL_SHARE * own_kl and reach <= CEILING_SHARE * ceiling
    return NOT_USED if is_cheap and is_decodable and excess <= SLACK else UNDECIDED
