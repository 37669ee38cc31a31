"""The report of erasing a quantity from one layer on: is it used anywhere from there on?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.interventions.verdicts import CEILING_SHARE, NOT_IDENTIFIED, NOT_USED, OWN_KL_SHARE, UNDECIDED
from bayesgeom.results.cells import interval_cell
from bayesgeom.results.report import Headline, Report, aligned
from bayesgeom.subspaces.readout import SLACK

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

RULE = (
    f"Not used (linearly) from a layer on: in every layer from there on a linear map predicts at most {SLACK:.0%} more "
    f"of the quantity's variance than of shuffled values, and the 95 % interval of the KL increase lies within "
    f"±{OWN_KL_SHARE:g} of the model's own KL and within ±{CEILING_SHARE:.0%} of the ceiling. Removal alone never "
    "shows use."
)


@final
@dataclass(frozen=True, kw_only=True)
class OnwardsReport(Report):
    """Per first layer, with all positions and later layers erased in one pass; NaN where it was not tried.

    - `kl_increase_bits` with a paired interval; `…_ceiling`: the whole activation replaced by its mean; `…_least`,
      `…_most`: range over `n_random` random subspaces of the same ranks; `…_matched_most`: the most of as many with the
      same share of variance in every layer, where `is_matched_by_layer` says that there are such subspaces; else the
      cost of everything outside the erased subspace.
    - `r2_before`, `r2_after`: the most over the erased layers of the held-out R² of the quantity at scored positions.
    - `r2_excess`: the most by which R² exceeds the 97.5 % level of shuffled values, and 0.
    """

    name: ClassVar[str] = "erasure_onwards"
    title: ClassVar[str] = "Erasure: is the quantity used from this layer on?"
    about: ClassVar[str] = (
        "A quantity is erased from the residual stream in every layer from one on, at all positions, in the same pass. "
        "If the model answers as well as before although no linear map finds the quantity any more, it does not use "
        "it linearly from that layer on. " + RULE
    )

    site: str
    subspace: str
    quantity: str
    kl_increase_bits: Float[np.ndarray, " layer"]
    kl_increase_bits_lo: Float[np.ndarray, " layer"]
    kl_increase_bits_hi: Float[np.ndarray, " layer"]
    kl_increase_bits_ceiling: Float[np.ndarray, " layer"]
    kl_increase_bits_least: Float[np.ndarray, " layer"]
    kl_increase_bits_most: Float[np.ndarray, " layer"]
    kl_increase_bits_matched_most: Float[np.ndarray, " layer"]
    r2_before: Float[np.ndarray, " layer"]
    r2_after: Float[np.ndarray, " layer"]
    r2_excess: Float[np.ndarray, " layer"]
    baseline_kl_bits: float
    n_random: int
    verdict: str
    verdict_rule: str
    verdict_by_layer: tuple[str, ...]
    is_matched_by_layer: tuple[bool, ...]
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    @property
    def layers(self) -> list[int]:
        """The first layers that were tried."""
        return [int(layer) for layer in np.flatnonzero(np.isfinite(self.kl_increase_bits))]

    def conclusion(self) -> str:
        return self.verdict

    def headlines(self) -> Sequence[Headline]:
        return [
            self.entry("kl_increase_bits", (at,), f"KL increase, {self.subspace} from layer {at} on", unit="bits")
            for at in self.layers
        ]

    def figure(self) -> "Figure":
        from bayesgeom.charts.lines import add_band, add_line
        from bayesgeom.results.theme import EXACT, NULL, SERIES, label_axes, panels

        figure = panels(f"{self.verdict}", ("KL increase", "R² of the quantity"))
        at = self.layers
        least, most = self.kl_increase_bits_least[at], self.kl_increase_bits_most[at]
        add_band(figure, (1, 1), at, least, most, name="random subspaces, range", color=NULL)
        add_line(figure, (1, 1), at, self.kl_increase_bits_ceiling[at], name="ceiling", color=EXACT, dash="dot")
        lo, hi = self.kl_increase_bits_lo[at], self.kl_increase_bits_hi[at]
        add_band(figure, (1, 1), at, lo, hi, name="95 % interval", color=SERIES[0])
        add_line(figure, (1, 1), at, self.kl_increase_bits[at], name="erased", color=SERIES[0])
        label_axes(figure, (1, 1), "first erased layer", "KL increase (bits)")
        for name, values, color in (("before", self.r2_before, EXACT), ("after", self.r2_after, SERIES[0])):
            add_line(figure, (1, 2), at, values[at], name=f"{name}, most over layers", color=color)
        label_axes(figure, (1, 2), "first erased layer", "held-out R²")
        return figure

    def table(self) -> str:
        """The verdict, then one row per first layer."""
        rows: list[tuple[str, ...]] = [
            (
                "from layer",
                "KL +",
                "95 % interval",
                "random, most",
                "matched, most",
                "ceiling",
                "R² before",
                "after",
                "excess",
                "verdict",
            )
        ]
        for at in self.layers:
            interval = interval_cell(self.kl_increase_bits_lo[at], self.kl_increase_bits_hi[at], ".3g")
            value, most, matched, ceiling = (
                f"{values[at]:.4g}"
                for values in (
                    self.kl_increase_bits, self.kl_increase_bits_most, self.kl_increase_bits_matched_most,
                    self.kl_increase_bits_ceiling,
                )
            )  # fmt: skip
            matched += "" if self.is_matched_by_layer[at] else " (not matched)"
            reads = (f"{values[at]:.3f}" for values in (self.r2_before, self.r2_after, self.r2_excess))
            rows.append((str(at), value, interval, most, matched, ceiling, *reads, self.verdict_by_layer[at]))
        level = f"erase {self.subspace} at {self.site}, all positions; n = {self.n}; own KL {self.baseline_kl_bits:.4g}"
        return "\n".join([self.verdict, "", level, *aligned(rows), "", self.verdict_rule])


def verdict_onwards(
    increase: tuple[float, float], ceiling: float, own_kl: float, *, excess: float, is_identified: bool
) -> str:
    """By `RULE`, from the ends of the interval of the KL increase."""
    if not is_identified:
        return NOT_IDENTIFIED
    reach = max(abs(end) for end in increase)
    is_cheap = reach <= OWN_KL_SHARE * own_kl and reach <= CEILING_SHARE * ceiling
    return NOT_USED if is_cheap and excess <= SLACK else UNDECIDED
