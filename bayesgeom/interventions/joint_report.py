"""The report on edits in several layers at once: their cost compared with random directions, and the axis after them.

Reference: Agarwal, Dalal & Misra 2025, Paper III of their trilogy, sections 4.5, 4.6 and 6.2 (cuts at one layer and at
five; "a privileged read-out, not a bottleneck").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np

from bayesgeom.core.text import fitted, interval_text, number_text
from bayesgeom.core.verdict import Verdict
from bayesgeom.interventions.design import RANDOM
from bayesgeom.report.estimate import Baseline, Estimate, NonNegative, Quantity, Share
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of

ORTHOGONAL, UNEDITED = "orthogonal random subspaces", "unedited model"
METRICS = ("KL", "entropy error")
TARGETS = ("exact entropy", "exact entropy within positions", "model's own entropy")


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class JointInterventionReport(Report):
    """One direction, such as a decoder of uncertainty, is edited in several layers in the same pass.

    A later layer then cannot recover what an earlier edit removed. There are two questions. Do answers get worse, and
    by more than with random directions? Does the coordinate along the direction still follow uncertainty in later
    layers? If it does not, but the answers stay as good, then the direction was a read-out, not a bottleneck.

    An edit costs more than chance if the 95 % interval of the paired difference to random directions lies above zero
    and the cost exceeds that of every random direction. It costs no more than chance if it lies within their range.

    Fields, for every set of layers:

    - `unedited_bits`: KL to the exact posterior and entropy error of the unedited model.
    - `increase_bits`: the increase of both over the unedited model on the same sequences. Baselines: mean and range
      over `n_random` random subspaces of that rank, and over as many that are orthogonal to the edited subspace.
      Its `ceiling`: the same with the whole activation replaced by its mean in those layers.
    - `beyond_random_bits`: the paired difference to the mean over random subspaces.
    - `axis_correlation`: |Spearman| of entropy and the coordinate along a layer's axis, read before the edit of that
      layer; baselines: edits of random subspaces, and the unedited model. NaN for ranks above 1.
    """

    name: ClassVar[str] = "joint_intervention"
    title: ClassVar[str] = "Joint intervention"

    kind: str
    site: str
    subspace: str
    rank: int
    sets: tuple[str, ...]
    metrics: tuple[str, ...]
    targets: tuple[str, ...]
    unedited_bits: Annotated[Estimate, NonNegative("metric", unit="bits", label="unedited model")]
    increase_bits: Annotated[Estimate, Quantity("set metric", unit="bits", better="higher", label="increase")]
    beyond_random_bits: Annotated[
        Estimate, Quantity("set metric", unit="bits", label="increase beyond random subspaces")
    ]
    axis_correlation: Annotated[Estimate, Share("set layer target", label="|ρ| of the axis with entropy")]
    verdicts: Annotated[tuple[str, ...], "set"]
    n_random: int
    n_kept: int
    n: int

    def headlines(self) -> Sequence[Headline]:
        rows = list[Headline]()
        for i, name in enumerate(self.sets):
            where = f"{self.kind} {self.subspace}, {_layers(name)}"
            for j, metric in enumerate(self.metrics):
                # An increase above that of random subspaces may still be none, so only the report's verdict counts.
                verdict, label = self.verdicts[i] * (j == 0), f"increase of {metric}, {where}"
                rows.append(headline_of(self, "increase_bits", (i, j), label, verdict=verdict))
            label = f"|ρ| with exact entropy, last layer, {where}"
            rows.append(headline_of(self, "axis_correlation", (i, -1, 0), label))
        return rows

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.heads import add_profile
        from bayesgeom.charts.lines import add_line
        from bayesgeom.interventions.drawing import Rows, add_thresholds
        from bayesgeom.report.theme import EXACT, label_axes, series

        drawn = [Panel.blank(f"Increase of {metric}") for metric in self.metrics]
        for column, panel in enumerate(drawn):
            own = self.increase_bits[:, column]
            levels = {each.name: each.value for each in own.compared}
            reach = 1.1 * float(np.nanmax(np.abs([own.value, *own.ends, *levels.values()]))) + 1e-6
            rows = Rows(
                labels=tuple(map(_layers, self.sets)),
                values=own.value,
                lo=own.ends[0],
                hi=own.ends[1],
                # A ceiling far beyond would press all else into one point; the table names it.
                thresholds=np.where(own.ceiling <= reach, own.ceiling, np.nan),
                baselines=levels,
                threshold_name="ceiling: whole activation",
            )
            unit = f"increase of {self.metrics[column]} (bits)"
            add_thresholds(panel.figure, rows, unit=unit, limits=(-reach, reach))
        order, along = self.axis_correlation, Panel.blank("Order along the axis")
        layers, unedited = range(order.value.shape[1]), order.baseline(UNEDITED)[0, :, 0]
        random = {RANDOM: order.baseline(RANDOM).value.mean(axis=0)[:, 0]}
        ends = _ends(unedited)
        add_profile(along.figure, unedited.value, name="unedited", band=ends, baselines=random, color=EXACT)
        for i, name in enumerate(self.sets):
            add_line(along.figure, layers, order.value[i, :, 0], name=_layers(name), **series(i))
        along.figure.update_yaxes(range=[0, 1.03])
        label_axes(along.figure, "layer", "|ρ| with the exact entropy")
        return *drawn, along

    def table(self) -> str:
        """Return one row per set of layers and metric, then the correlations along the axis."""
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
                        number_text(own.ceiling),
                        f"{number_text(float(beyond))} [{_interval(beyond)}]",
                    )
                )
        unedited = ", ".join(
            f"{m} {number_text(b)}" for m, b in zip(self.metrics, self.unedited_bits.value, strict=True)
        )
        title = f"{self.kind} {self.subspace} at {self.site}, bits, n = {self.n}; unedited: {unedited}"
        verdicts = [("layers", "verdict"), *zip(self.sets, self.verdicts, strict=True)]
        return "\n".join([title, *fitted(rows), "", *fitted(self._order()), "", *fitted(verdicts)])

    def _order(self) -> list[tuple[str, ...]]:
        """Return |ρ| of the axis with entropy in the last layer: unedited, edited, and with random directions."""
        rows: list[tuple[str, ...]] = [("layers", "|ρ|, last layer, with", "unedited", "edited", "random (range)")]
        for i, name in enumerate(self.sets):
            for j, target in enumerate(self.targets):
                own = self.axis_correlation[i, -1, j]
                edited = f"{number_text(float(own))} [{_interval(own)}]"
                before = number_text(float(own.baseline(UNEDITED).value))
                rows.append((name, target, before, edited, _with_range(own.baseline(RANDOM), ".3f")))
        return rows


def _layers(name: str) -> str:
    """Return the name of a set of layers, such as "3" or "1+2", with its noun."""
    return f"layers {name}" if "+" in name else f"layer {name}"


def _ends(level: Baseline | Estimate) -> tuple[np.ndarray, np.ndarray]:
    low, high = (np.full_like(level.value, np.nan) if end is None else end for end in (level.low, level.high))
    return low, high


def _interval(own: Estimate) -> str:
    low, high = own.ends
    return interval_text(float(low), float(high))


def _with_range(level: Baseline, form: str) -> str:
    least, most = _ends(level)
    return f"{float(level.value):{form}} ({float(least):{form}} … {float(most):{form}})"


def verdict_of(value: float, beyond_lo: float, most: float) -> Verdict:
    """Return the verdict from an increase, the lower end beyond random directions, and their maximum."""
    if np.isnan(beyond_lo):
        return Verdict.UNDECIDED
    if beyond_lo > 0 and value > most:
        return Verdict.COSTS_MORE
    return Verdict.COSTS_NO_MORE if value <= most else Verdict.UNDECIDED
