"""The report on edits in several layers at once: what they cost beside random directions, and what the axis keeps.

Reference: Agarwal, Dalal & Misra 2025, Paper III of their trilogy, sections 4.5, 4.6 and 6.2 (cuts at one layer and at
five; "a privileged read-out, not a bottleneck").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np

from bayesgeom.core.numbers import interval_text, number_text
from bayesgeom.interventions.design import RANDOM
from bayesgeom.results.estimate import Baseline, Estimate, Quantity
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report, headline_of
from bayesgeom.results.tables import aligned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

ORTHOGONAL, UNEDITED = "orthogonal random subspaces", "unedited model"
METRICS = ("KL", "entropy error")
TARGETS = ("exact entropy", "exact entropy within positions", "model's own entropy")
RULE = (
    "An edit costs more than chance where the paired difference to random directions has a 95 % interval above zero "
    "and the cost exceeds every one of them; no more than chance where it lies within their range; else undecided."
)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class JointInterventionReport(Report):
    """Edits of one subspace in sets of layers, each set at once; bits, and rank correlations along each layer's axis.

    - `unedited_bits`: KL to the exact posterior and entropy error of the model as it is.
    - `increase_bits`: of both, from the unedited model on the same sequences. Baselines: mean and range over `n_random`
      random subspaces of that rank, and over as many that are orthogonal to the own.
    - `ceiling_increase_bits`: the whole activation replaced by its mean in those layers.
    - `beyond_random_bits`: the paired difference to the mean over random subspaces.
    - `axis_correlation`: |Spearman| of entropy and the coordinate along a layer's axis as it arrives there, before the
      edit of that layer; baselines: random subspaces cut, and the unedited model. NaN beyond rank 1.
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
    unedited_bits: Annotated[Estimate, Quantity("metric", unit="bits", label="unedited model")]
    increase_bits: Annotated[Estimate, Quantity("set metric", unit="bits", better="higher", label="increase")]
    ceiling_increase_bits: Annotated[Estimate, Quantity("set metric", unit="bits", label="increase, ceiling")]
    beyond_random_bits: Annotated[
        Estimate, Quantity("set metric", unit="bits", label="increase beyond random subspaces")
    ]
    axis_correlation: Annotated[Estimate, Quantity("set layer target", label="|ρ| of the axis with entropy")]
    verdicts: tuple[str, ...]
    n_random: int
    n_kept: int
    n: int

    def headlines(self) -> Sequence[Headline]:
        rows = []
        for i, name in enumerate(self.sets):
            where = f"{self.kind} {self.subspace}, layers {name}"
            for j, metric in enumerate(self.metrics):
                rows.append(headline_of(self, "increase_bits", (i, j), f"increase of {metric}, {where}"))
            label = f"|ρ| of the axis with the exact entropy, last layer, {where}"
            rows.append(headline_of(self, "axis_correlation", (i, -1, 0), label))
        return rows

    def plot(self) -> "Figure":
        from bayesgeom.charts.heads import add_profile
        from bayesgeom.charts.lines import add_line
        from bayesgeom.charts.marks import Rows, add_marks
        from bayesgeom.results.theme import EXACT, SERIES, label_axes, panels, with_room_for_legend

        titles = [f"Increase of {metric}" for metric in self.metrics]
        figure = panels(f"{self.title} {self.kind} {self.subspace} at {self.site}", (*titles, "Order along the axis"))
        for column, name in enumerate(self.metrics):
            own = self.increase_bits[:, column]
            levels = {each.name: each.value for each in own.baselines}
            reach = 1.1 * float(np.nanmax(np.abs([own.value, *own.ends, *levels.values()]))) + 1e-6
            rows = Rows(
                labels=tuple(f"layers {layers}" for layers in self.sets),
                values=own.value,
                lo=own.ends[0],
                hi=own.ends[1],
                marks=self.ceiling_increase_bits.value[:, column],
                baselines=levels,
                what="edited together",
                mark="ceiling: whole activation",
            )
            add_marks(figure, (1, column + 1), rows, unit=f"increase of {name} (bits)", limits=(-reach, reach))
        order = self.axis_correlation
        layers, unedited = range(order.value.shape[1]), order.baseline(UNEDITED)[0, :, 0]
        random = order.baseline(RANDOM).value.mean(axis=0)[:, 0]
        add_profile(
            figure,
            (2, 1),
            unedited.value,
            name="unedited",
            band=_ends(unedited),
            baselines={RANDOM: random},
            color=EXACT,
        )
        for i, name in enumerate(self.sets):
            color = SERIES[i % len(SERIES)]
            add_line(figure, (2, 1), layers, order.value[i, :, 0], name=f"layers {name}", color=color)
        figure.update_yaxes(range=[0, 1.03], row=2, col=1)
        label_axes(figure, (2, 1), "layer", "|ρ| with the exact entropy")
        return with_room_for_legend(figure)

    def table(self) -> str:
        """One row a set of layers and metric, then the order along the axis, as the command line prints it."""
        head = ("layers", "metric", "increase", "95 % interval", "random (range)", "orthogonal (range)", "ceiling")
        rows: list[tuple[str, ...]] = [(*head, "beyond random")]
        for i, name in enumerate(self.sets):
            for j, metric in enumerate(self.metrics):
                own, beyond = self.increase_bits[i, j], self.beyond_random_bits[i, j]
                random, orthogonal = (_with_range(own.baseline(each), "+.4f") for each in (RANDOM, ORTHOGONAL))
                rows.append(
                    (
                        name,
                        metric,
                        number_text(float(own)),
                        _interval(own),
                        random,
                        orthogonal,
                        number_text(self.ceiling_increase_bits.value[i, j]),
                        f"{number_text(float(beyond))} [{_interval(beyond)}]",
                    )
                )
        unedited = ", ".join(
            f"{m} {number_text(b)}" for m, b in zip(self.metrics, self.unedited_bits.value, strict=True)
        )
        title = f"{self.kind} {self.subspace} at {self.site}, bits, n = {self.n}; unedited: {unedited}"
        said = [f"layers {name}: {verdict}" for name, verdict in zip(self.sets, self.verdicts, strict=True)]
        return "\n".join([title, *aligned(rows), "", *aligned(self._order()), "", *said, RULE])

    def _order(self) -> list[tuple[str, ...]]:
        """|ρ| of the axis with entropy where it arrives last: unedited, edited, and under random directions."""
        rows: list[tuple[str, ...]] = [("layers", "|ρ|, last layer, with", "unedited", "edited", "random (range)")]
        for i, name in enumerate(self.sets):
            for j, target in enumerate(self.targets):
                own = self.axis_correlation[i, -1, j]
                edited = f"{number_text(float(own))} [{_interval(own)}]"
                before = number_text(float(own.baseline(UNEDITED).value))
                rows.append((name, target, before, edited, _with_range(own.baseline(RANDOM), ".3f")))
        return rows


def _ends(level: Baseline | Estimate) -> tuple[np.ndarray, np.ndarray]:
    low, high = (np.full_like(level.value, np.nan) if end is None else end for end in (level.low, level.high))
    return low, high


def _interval(own: Estimate) -> str:
    low, high = own.ends
    return interval_text(float(low), float(high))


def _with_range(level: Baseline, form: str) -> str:
    least, most = _ends(level)
    return f"{float(level.value):{form}} ({float(least):{form}} … {float(most):{form}})"


def verdict_of(value: float, beyond_lo: float, most: float) -> str:
    """By `RULE`, from a cost, the lower end of its paired difference to random directions, and the most of them."""
    if np.isnan(beyond_lo):
        return "undecided"
    if beyond_lo > 0 and value > most:
        return "costs more than chance"
    return "costs no more than chance" if value <= most else "undecided"
