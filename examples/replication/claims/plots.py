"""The plot of a claim as SVG: each row's number with its interval against its threshold, colored by verdict.

Plotly writes no static image without a browser, and GitHub shows no interactive one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import final

from bayesgeom.core.text import number_text
from examples.replication.claims.claim import Case, Claim, Verdict, deciding, threshold

COLORS = {
    Verdict.HOLDS: "#1b7f5c",
    Verdict.FAILS: "#c1432e",
    Verdict.AT_THRESHOLD: "#b8860b",
    Verdict.NOT_IDENTIFIED: "#6b6b6b",
    Verdict.NO_DATA: "#9a9a9a",
}
_LEFT, _RIGHT, _VERDICT, _ROW, _TOP, _BOTTOM = 320.0, 660.0, 675.0, 34.0, 12.0, 46.0  # pixels
_WIDTH, _MOST = 800, 4.0  # pixels; decades from the threshold that are drawn
_STEPS = (1.0, 2.0, 5.0, 10.0)


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """A label, a number with its interval, the ends of its threshold, and the verdict; NaN for what is not known."""

    label: str
    quantity: str
    value: float
    ends: tuple[float, float]
    limits: tuple[float, float]
    verdict: Verdict

    @property
    def known(self) -> list[float]:
        """The numbers that are drawn."""
        return [x for x in (self.value, *self.ends, *self.limits) if not math.isnan(x)]

    def in_thresholds(self) -> "Row":
        """The row in multiples of the middle of its threshold, as decades from it."""
        middle = math.sqrt(self.limits[0] * self.limits[1])
        scaled = [max(-_MOST, min(_MOST, math.log10(x / middle))) for x in (self.value, *self.ends, *self.limits)]
        value, low, high, least, most = scaled
        return Row(
            label=self.label,
            quantity=self.quantity,
            value=value,
            ends=(low, high),
            limits=(least, most),
            verdict=self.verdict,
        )


def plot(claim: Claim) -> str:
    """Return the plot of a claim's rows.

    If all numbers are positive, they are multiples of their thresholds on a logarithmic axis; else as measured.
    """
    found = rows_of(claim)
    drawn = [row for row in found if not math.isnan(row.value)]
    is_relative = all(x > 0 for row in drawn for x in row.known) and all(not math.isnan(r.limits[0]) for r in drawn)
    places = [row.in_thresholds() if is_relative and row in drawn else row for row in found]
    known = [x for row, place in zip(found, places, strict=True) if row in drawn for x in place.known] or [0.0, 1.0]
    low, high = min(known), max(known)
    margin = 0.06 * (high - low) or 0.5
    low, high = low - margin, high + margin

    def at(x: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (x - low) / (high - low)

    bottom = _TOP + _ROW * len(found)
    title = "multiple of the threshold" if is_relative else "value (thresholds: gray)"
    parts = axis(_ticks(low, high, is_relative), at, bottom, title) if drawn else []
    for index, (row, place) in enumerate(zip(found, places, strict=True)):
        parts += _drawn(row, place if row in drawn else None, at, _TOP + _ROW * (index + 0.5))
    return svg(f"{claim.id}: {claim.claim}", _WIDTH, bottom + _BOTTOM, parts)


def svg(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    """Return a drawing on white."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'role="img" font-family="sans-serif" font-size="12"><title>{escape(title)}</title>'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *parts, "</svg>"]) + "\n"


def rows_of(claim: Claim) -> list[Row]:
    """Return the rows of a claim, in the order of its table."""
    numbers = {} if claim.measured is None else claim.measured.numbers
    found = list[Row]()
    for case, test, own in deciding(claim):
        number, value = claim.numbers[test.number], numbers.get(test.number)
        ends = (math.nan, math.nan) if value is None else (value.lo, value.hi)
        if value is not None and (number.is_point or math.isnan(value.lo)):
            ends = (value.value, value.value)
        at = math.nan if value is None else value.value
        limits = threshold(test, numbers)
        found.append(
            Row(
                label=_label(case),
                quantity=number.title.replace("`", ""),
                value=at,
                ends=ends,
                limits=limits,
                verdict=own,
            )
        )
    return found


def _label(case: Case) -> str:
    place = " ".join(filter(None, (case.reading, case.part)))
    return ", ".join(filter(None, (case.network.replace("`", ""), place)))


def axis(ticks: Sequence[tuple[float, str]], at: Callable[[float], float], bottom: float, title: str) -> list[str]:
    """Return the horizontal axis with its grid, tick labels and title."""
    parts = [line(_LEFT, bottom, _RIGHT, bottom, "#444444")]
    for x, label in ticks:
        parts += [
            line(at(x), _TOP, at(x), bottom, "#e3e3e3"),
            text(at(x), bottom + 15, label, anchor="middle", color="#444444"),
        ]
    return [*parts, text((_LEFT + _RIGHT) / 2, bottom + 33, title, anchor="middle", color="#444444")]


def _drawn(row: Row, place: Row | None, at: Callable[[float], float], y: float) -> list[str]:
    color = COLORS[row.verdict]
    parts = [
        text(8, y - 2, row.label),
        text(8, y + 12, row.quantity, color="#777777", size=10),
        text(_VERDICT, y + 4, str(row.verdict), color=color),
    ]
    if place is None:
        return parts
    least, most = place.limits
    if not math.isnan(least):
        width = max(at(most) - at(least), 2.0)
        left = (at(least) + at(most) - width) / 2
        parts.append(f'<rect x="{left:.1f}" y="{y - 12:.1f}" width="{width:.1f}" height="24" fill="#9a9a9a"/>')
    low, high = place.ends
    return [
        *parts,
        line(at(low), y, at(high), y, color, width=3),
        f'<circle cx="{at(place.value):.1f}" cy="{y:.1f}" r="4.5" fill="{color}"/>',
    ]


def _ticks(low: float, high: float, is_relative: bool) -> list[tuple[float, str]]:
    """Positions and labels of ticks: round numbers, or decades of the threshold."""
    if is_relative and high - low > 1:
        return [(float(x), f"{10.0**x:g}") for x in range(math.ceil(low), math.floor(high) + 1)]
    start, end = (10**low, 10**high) if is_relative else (low, high)
    power = 10.0 ** math.floor(math.log10((end - start) / 4))
    step = next(own * power for own in _STEPS if own * power * 8 >= end - start)
    values = [round(step * i / power) * power for i in range(math.ceil(start / step), math.floor(end / step) + 1)]
    return [(math.log10(x) if is_relative else x, number_text(x)) for x in values if x > 0 or not is_relative]


def line(x1: float, y1: float, x2: float, y2: float, color: str, *, width: int = 1) -> str:
    """Return a straight line between two points in pixels."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width}"/>'


def text(x: float, y: float, text: str, *, anchor: str = "start", color: str = "#222222", size: int = 12) -> str:
    """Return a text that starts, ends or is centered at a point in pixels."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" font-size="{size}">{escape(text)}</text>'
    )
