"""The report of `diff`: differences between two models, or between two diagnoses."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Bool, Float

from bayesgeom.core.columns import narrow
from bayesgeom.core.numbers import interval_text, number_text
from bayesgeom.core.verdict import Verdict
from bayesgeom.results.estimate import Estimate, Quantity, Unit
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

PAIRED = "paired over the same sequences"
CONSERVATIVE = "conservative"
_DRAWN = 24  # rows in the figure
_HEAD = re.compile(r"\bL\d+H\d+$")
NOT_SCORED = "Neither is called better: they share no calibration scores."
_HEADS_DIFFER = "Heads with the same index need not correspond in separately trained networks."
_LINE_PX, _ROW_PX, _AXIS_PX = 17, 34, 60  # a line of a label, the lowest row, and the axis of a panel with its title


def is_of_head(label: str) -> bool:
    """Return whether a row is that of a single head.

    Example:
        >>> is_of_head("key_overlap: mean |cos| between keys, L0H1"), is_of_head("calibration: accuracy")
        (True, False)
    """
    return _HEAD.search(label) is not None


def _quantity(label: str) -> str:
    """Return the quantity of a row, with its report unless that is calibration: "PC1 share, v (value_manifold)"."""
    report, _, quantity = label.rpartition(": ")
    return quantity if report in ("", "calibration") else f"{quantity} ({report})"


def _called(name: str, side: str) -> str:
    """Return a model's name with its side."""
    return name if name.endswith(f"({side})") else f"{name} ({side})"


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class DifferenceReport(Report):
    """B minus A for every quantity; `names` are those of A and B, `pairing` states how intervals were computed.

    `better` states for each row which direction is better: "higher", "lower", or "" if neither is closer to the exact
    posterior. `is_paired` states which intervals are paired over sequences; the others are conservative. The first
    `n_leading` rows are the headlines.
    """

    name: ClassVar[str] = "difference"
    title: ClassVar[str] = "Difference: which of two models is better on the same sequences?"
    about: ClassVar[str] = (
        "Both models were scored on the same sequences. Each row is the value of B minus that of A. The baseline is "
        "no difference, 0: if the interval contains it, the data do not decide between the two. Paired intervals come "
        "from the differences of single sequences, which removes the variation between sequences. Conservative "
        "intervals come from the ends of both intervals: they are wider, and hold for any correlation between the two. "
        "Only rows that measure closeness to the exact posterior, those of calibration, are called better: green if B "
        "is better than A, red if A is better than B."
    )

    rows: tuple[str, ...]
    units: Annotated[tuple[str, ...], "row"]
    better: Annotated[tuple[str, ...], "row"]
    first: Annotated[Float[np.ndarray, " row"], Unit("as the attribute units states by row")]
    second: Annotated[Float[np.ndarray, " row"], Unit("as the attribute units states by row")]
    difference: Annotated[Estimate, Quantity("row", label="B − A")]
    is_paired: Annotated[Bool[np.ndarray, " row"], Unit("1")]
    names: tuple[str, ...]
    pairing: str
    n_leading: int
    n: int

    def verdicts(self) -> list[str]:
        """Return which model is better in each row (or higher, if no direction is better), or "undecided"."""
        low, high = self.difference.ends
        found = []
        for way, least, most in zip(self.better, low, high, strict=True):
            sign = 1 if least > 0 else -1 if most < 0 else 0
            word = "better" if way else "higher"
            is_b = sign * (-1 if way == "lower" else 1) > 0
            found.append(Verdict.UNDECIDED if sign == 0 else f"{'B' if is_b else 'A'} {word}")
        return found

    def conclusion(self) -> str:
        verdicts, (a, b) = self.verdicts(), (_called(name, side) for name, side in zip(self.names, "AB", strict=True))
        scores = [row for row, way in enumerate(self.better) if way]
        lead = self._lead()
        first = f"A is {self.names[0]}, B is {self.names[1]}. {NOT_SCORED}"
        if scores and verdicts[lead] == Verdict.UNDECIDED:
            first = f"{Verdict.UNDECIDED}: no calibration score decides between {a} and {b}."
        elif scores:
            better, other = (a, b) if verdicts[lead][0] == "A" else (b, a)
            closer = f"{better} is closer to the exact posterior than {other}, by {_quantity(self.rows[lead])}"
            first = f"{verdicts[lead]}: {closer}.{self._counted(scores)}"
        heads = sum(map(is_of_head, self.rows))
        each = f" Not drawn: {heads} rows of single heads. {_HEADS_DIFFER}" if heads else ""
        return f"{first} Intervals: {self.pairing}.{self._omitted()}{each}"

    def _lead(self) -> int:
        """Return the listed row that the conclusion is about: the first decided calibration score, if there is one."""
        scores = [row for row in range(self.n_leading) if self.better[row]]
        decided = [row for row in scores if self.verdicts()[row] != Verdict.UNDECIDED]
        return next(iter([*decided, *scores, 0]))

    def _counted(self, scores: Sequence[int]) -> str:
        """Return how many calibration scores favor each model, and which are not decided, with a space before it."""
        verdicts = self.verdicts()
        n_a, n_b = (sum(verdicts[row] == f"{side} better" for row in scores) for side in "AB")
        open_rows = [_quantity(self.rows[row]) for row in scores if verdicts[row] == Verdict.UNDECIDED]
        verb = "is" if len(open_rows) == 1 else "are"
        rest = f"; {len(open_rows)} {verb} not decided ({', '.join(open_rows)})" if open_rows else ""
        return f" Of {len(scores)} calibration scores, A is better in {n_a} and B in {n_b}{rest}."

    def _omitted(self) -> str:
        """Return how many rows are headlines and drawn, with a space before it; "" if all are headlines."""
        if self.n_leading >= len(self.rows):
            return ""
        return f" {self.n_leading} of {len(self.rows)} rows are listed, {len(self._drawn())} drawn."

    def _drawn(self) -> list[int]:
        """Return the rows in the figure: the first ones with a number, except those of single heads."""
        known = np.flatnonzero(np.isfinite(self.difference.value)).tolist()
        return [row for row in known if not is_of_head(self.rows[row])][:_DRAWN]

    def _marks(self) -> list[str]:
        """Return what follows the name of each row: paired rows are marked if there are others."""
        marked = self.is_paired & ~self.is_paired.all()
        return [", paired" if own else "" for own in marked]

    def headlines(self) -> Sequence[Headline]:
        (low, high), marks, lead = self.difference.ends, self._marks(), self._lead()
        return [
            Headline(
                metric="difference",
                label=f"{self.rows[row]}, B − A{marks[row]}",
                value=float(self.difference.value[row]),
                unit=self.units[row],
                low=float(low[row]),
                high=float(high[row]),
                baseline=0.0,
                baseline_name="no difference",
                ruling=verdict,
                finding="" if verdict == Verdict.UNDECIDED and row != lead else self._finding(row),
                place=int(row != lead),  # the conclusion stands at this row
            )
            for row, verdict in enumerate(self.verdicts()[: self.n_leading])
        ]

    def _finding(self, row: int) -> str:
        """Return which model has the higher or, where that is better, the lower value in a row."""
        a, b = float(self.first[row]), float(self.second[row])
        side, (own, other) = ("A", (a, b)) if self.verdicts()[row].startswith("A") else ("B", (b, a))
        values = f"{number_text(own)} against {number_text(other)}"
        unit = f" {self.units[row]}" if self.units[row] else ""
        return f"{side} has the {'higher' if own > other else 'lower'} {_quantity(self.rows[row])}: {values}{unit}."

    def table(self) -> str:
        """Return every row as text: both values, the difference, its interval and which is better."""
        low, high = self.difference.ends
        cells: list[tuple[str, ...]] = [("measured", "A", "B", "B − A", "95 % interval", "verdict")]
        for row, verdict in enumerate(self.verdicts()):
            numbers = (self.first[row], self.second[row], self.difference.value[row])
            ends = "–" if np.isnan(low[row]) else interval_text(low[row], high[row])
            label = f"{self.rows[row]} ({self.units[row]})" if self.units[row] else self.rows[row]
            cells.append((label, *(number_text(float(own)) for own in numbers), ends, verdict))
        lines, *rows = narrow(cells, room=4 * len(cells))
        for kind, chosen in (("paired over sequences", self.is_paired), ("conservative", ~self.is_paired)):
            lines += [f"{kind}:"] if 0 < chosen.sum() < len(rows) else []
            lines += [line for row, is_chosen in zip(rows, chosen, strict=True) if is_chosen for line in row]
        lines += [_HEADS_DIFFER] if any(map(is_of_head, self.rows)) else []
        return "\n".join(lines)

    def plot(self) -> "Figure":
        from bayesgeom.charts.forest import add_forest
        from bayesgeom.comparison.drawing import stacked
        from bayesgeom.results.theme import panels

        chosen = self._drawn()
        units = list(dict.fromkeys(self.units[row] for row in chosen)) or [""]
        titles = tuple(f"B − A ({unit})" if unit else "B − A" for unit in units)
        figure = panels(self.title, titles, n_columns=1)
        (low, high), marks = self.difference.ends, self._marks()
        heights: list[int] = []
        for panel, unit in enumerate(units, start=1):
            own = [row for row in chosen if self.units[row] == unit]
            if own:
                values = (self.difference.value[own], (low[own], high[own]))
                labels, where = [self.rows[row] + marks[row] for row in own], f"B − A ({unit})" if unit else "B − A"
                add_forest(figure, (panel, 1), labels, *values, unit=where, baseline=0.0)
                most = max(text.count("<br>") + 1 for text in figure.get_subplot(panel, 1).yaxis.ticktext or labels)
                heights.append(_AXIS_PX + len(own) * max(_ROW_PX, 8 + _LINE_PX * most))
        return stacked(figure, heights) if heights else figure
