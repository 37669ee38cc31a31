"""The report on edits in several layers at once: what they cost beside random directions, and what the axis keeps.

Reference: Agarwal, Dalal & Misra 2025, Paper III of their trilogy, sections 4.5, 4.6 and 6.2 (cuts at one layer and at
five; "a privileged read-out, not a bottleneck").
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.results.cells import interval_cell
from bayesgeom.results.report import Headline, Report, aligned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

METRICS = ("KL", "entropy error")
TARGETS = ("exact entropy", "exact entropy within positions", "model's own entropy")
RULE = (
    "An edit costs more than chance where the paired difference to random directions has a 95 % interval above zero "
    "and the cost exceeds every one of them; no more than chance where it lies within their range; else undecided."
)


@final
@dataclass(frozen=True, kw_only=True)
class JointInterventionReport(Report):
    """Edits of one subspace in sets of layers, each set at once; bits, and rank correlations along each layer's axis.

    - `increase_bits`: of KL to the exact posterior and of entropy error, from the unedited model on the same
      sequences. `…_ceiling`: the whole activation replaced by its mean in those layers. `…_null`, `…_least`, `…_most`:
      mean and range over `n_random` random subspaces of that rank; `…_orthogonal…` over as many orthogonal to the own.
    - `beyond_random_bits`: the paired difference to the mean over random subspaces.
    - `axis_correlation`: |Spearman| of entropy and the coordinate along a layer's axis as it arrives there, before the
      edit of that layer; `…_baseline` unedited, `…_null` and its range under random subspaces. NaN beyond rank 1.
    """

    name: ClassVar[str] = "joint_intervention"
    title: ClassVar[str] = "Joint intervention: what do cuts in several layers at once change?"
    about: ClassVar[str] = (
        "One direction, such as the one along which uncertainty can be read, is acted on in several layers in the same "
        "pass, so that what one layer loses a later one cannot simply read again. Two things are asked. Do answers get "
        "worse, and more so than under random directions? And is the direction still ordered by uncertainty when "
        "it arrives at the layers further on? A direction that loses its order while the answers stay as good was a "
        "read-out and no bottleneck. The coordinate is taken before a layer's own edit: after it, it is constant by "
        "construction. " + RULE
    )

    kind: str
    site: str
    subspace: str
    rank: int
    sets: tuple[str, ...]
    metrics: tuple[str, ...]
    targets: tuple[str, ...]
    baseline_bits: Float[np.ndarray, " metric"]
    baseline_bits_lo: Float[np.ndarray, " metric"]
    baseline_bits_hi: Float[np.ndarray, " metric"]
    increase_bits: Float[np.ndarray, "set metric"]
    increase_bits_lo: Float[np.ndarray, "set metric"]
    increase_bits_hi: Float[np.ndarray, "set metric"]
    increase_bits_null: Float[np.ndarray, "set metric"]
    increase_bits_least: Float[np.ndarray, "set metric"]
    increase_bits_most: Float[np.ndarray, "set metric"]
    increase_bits_orthogonal: Float[np.ndarray, "set metric"]
    increase_bits_orthogonal_least: Float[np.ndarray, "set metric"]
    increase_bits_orthogonal_most: Float[np.ndarray, "set metric"]
    increase_bits_ceiling: Float[np.ndarray, "set metric"]
    beyond_random_bits: Float[np.ndarray, "set metric"]
    beyond_random_bits_lo: Float[np.ndarray, "set metric"]
    beyond_random_bits_hi: Float[np.ndarray, "set metric"]
    axis_correlation: Float[np.ndarray, "set layer target"]
    axis_correlation_lo: Float[np.ndarray, "set layer target"]
    axis_correlation_hi: Float[np.ndarray, "set layer target"]
    axis_correlation_null: Float[np.ndarray, "set layer target"]
    axis_correlation_least: Float[np.ndarray, "set layer target"]
    axis_correlation_most: Float[np.ndarray, "set layer target"]
    axis_correlation_baseline: Float[np.ndarray, "layer target"]
    axis_correlation_baseline_lo: Float[np.ndarray, "layer target"]
    axis_correlation_baseline_hi: Float[np.ndarray, "layer target"]
    verdicts: tuple[str, ...]
    n_random: int
    n_kept: int
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        rows, random = [], "random subspaces, mean"
        for i, name in enumerate(self.sets):
            where = f"{self.kind} {self.subspace}, layers {name}"
            for j, metric in enumerate(self.metrics):
                label = f"increase of {metric}, {where}"
                rows.append(self.entry("increase_bits", (i, j), label, unit="bits", null_label=random))
            label = f"|ρ| of the axis with the exact entropy, last layer, {where}"
            rows.append(self.entry("axis_correlation", (i, -1, 0), label, null_label="random subspaces cut, mean"))
        return rows

    def figure(self) -> "Figure":
        from bayesgeom.charts.heads import add_profile
        from bayesgeom.charts.lines import add_line
        from bayesgeom.charts.marks import Rows, add_marks
        from bayesgeom.results.theme import EXACT, SERIES, label_axes, panels, with_room_for_legend

        titles = [f"Increase of {metric}" for metric in self.metrics]
        figure = panels(f"{self.title} {self.kind} {self.subspace} at {self.site}", (*titles, "Order along the axis"))
        for column, name in enumerate(self.metrics):
            value, lo, hi, random, orthogonal, ceiling = (
                vars(self)[f"increase_bits{end}"][:, column]
                for end in ("", "_lo", "_hi", "_null", "_orthogonal", "_ceiling")
            )
            reach = 1.1 * float(np.nanmax(np.abs([value, lo, hi, random, orthogonal]))) + 1e-6
            nulls = {"random subspaces": random, "orthogonal random subspaces": orthogonal}
            rows = Rows(
                labels=tuple(f"layers {layers}" for layers in self.sets), values=value, lo=lo, hi=hi, marks=ceiling,
                nulls=nulls, what="edited together", mark="ceiling: whole activation",
            )  # fmt: skip
            add_marks(figure, (1, column + 1), rows, unit=f"increase of {name} (bits)", limits=(-reach, reach))
        layers = range(self.axis_correlation.shape[1])
        band = (self.axis_correlation_baseline_lo[:, 0], self.axis_correlation_baseline_hi[:, 0])
        level, null = self.axis_correlation_baseline[:, 0], self.axis_correlation_null.mean(axis=0)[:, 0]
        add_profile(
            figure, (2, 1), level, name="unedited", band=band, nulls={"random subspaces": null}, color=EXACT
        )  # fmt: skip
        for i, name in enumerate(self.sets):
            color = SERIES[i % len(SERIES)]
            add_line(figure, (2, 1), layers, self.axis_correlation[i, :, 0], name=f"layers {name}", color=color)
        label_axes(figure, (2, 1), "layer", "|ρ| with the exact entropy, as it arrives")
        return with_room_for_legend(figure)

    def table(self) -> str:
        """One row a set of layers and metric, then the order along the axis, as the command line prints it."""
        head = ("layers", "metric", "increase", "95 % interval", "random (range)", "orthogonal (range)", "ceiling")
        rows: list[tuple[str, ...]] = [(*head, "beyond random")]
        for i, name in enumerate(self.sets):
            for j, metric in enumerate(self.metrics):
                held = {end: float(vars(self)[f"increase_bits{end}"][i, j]) for end in _ENDS}
                value, ceiling = (f"{held[end]:+.4f}" for end in ("", "_ceiling"))
                random, orthogonal = (
                    f"{held[of]:+.4f} ({held[of.replace('_null', '') + '_least']:+.4f} … "
                    f"{held[of.replace('_null', '') + '_most']:+.4f})"
                    for of in ("_null", "_orthogonal")
                )
                beyond, low, high = (float(vars(self)[f"beyond_random_bits{end}"][i, j]) for end in ("", "_lo", "_hi"))
                rows.append(
                    (name, metric, value, interval_cell(held["_lo"], held["_hi"], "+.4f"), random, orthogonal, ceiling,
                     f"{beyond:+.4f} [{interval_cell(low, high, '+.4f')}]")
                )  # fmt: skip
        baseline = ", ".join(f"{m} {b:.4f}" for m, b in zip(self.metrics, self.baseline_bits, strict=True))
        title = f"{self.kind} {self.subspace} at {self.site}, bits, n = {self.n}; unedited: {baseline}"
        said = [f"layers {name}: {verdict}" for name, verdict in zip(self.sets, self.verdicts, strict=True)]
        return "\n".join([title, *aligned(rows), "", *aligned(self._order()), "", *said, RULE])

    def _order(self) -> list[tuple[str, ...]]:
        """|ρ| of the axis with entropy where it arrives last: unedited, edited, and under random directions."""
        rows: list[tuple[str, ...]] = [("layers", "|ρ|, last layer, with", "unedited", "edited", "random (range)")]
        for i, name in enumerate(self.sets):
            for j, target in enumerate(self.targets):
                own, lo, hi, null, least, most = (
                    float(vars(self)[f"axis_correlation{end}"][i, -1, j])
                    for end in ("", "_lo", "_hi", "_null", "_least", "_most")
                )
                before = f"{self.axis_correlation_baseline[-1, j]:.3f}"
                edited = f"{own:.3f} [{interval_cell(lo, hi, '.3f')}]"
                rows.append((name, target, before, edited, f"{null:.3f} ({least:.3f} … {most:.3f})"))
        return rows


_ENDS = (
    "", "_lo", "_hi", "_null", "_least", "_most", "_ceiling", "_orthogonal", "_orthogonal_least", "_orthogonal_most",
)  # fmt: skip


def verdict_of(value: float, beyond_lo: float, most: float) -> str:
    """By `RULE`, from a cost, the lower end of its paired difference to random directions, and the most of them."""
    if np.isnan(beyond_lo):
        return "undecided"
    if beyond_lo > 0 and value > most:
        return "costs more than chance"
    return "costs no more than chance" if value <= most else "undecided"
