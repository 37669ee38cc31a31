"""Numbers per layer and head: a heat map with its baseline marked on the color scale, and the profile over layers."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.lines import add_band, add_baseline, add_line, add_note
from bayesgeom.core import number_text
from bayesgeom.report import DASHES, DIVERGING, MEASURED, SHADES, label_axes

_N_TICKS = 5


def with_baseline(title: str, baseline: float, label: str) -> str:
    """Return a panel's title with the baseline level appended, if it is known."""
    return title if np.isnan(baseline) else f"{title} ({label}: {number_text(baseline)})"


def add_heads(
    figure: go.Figure,
    values: Float[np.ndarray, "layer head"],
    *,
    unit: str,
    baseline: float,
    limits: tuple[float, float] | None = None,
    head: Literal["head", "key head"] = "head",
) -> None:
    """Add a heat map: layers upward, heads to the right, missing values blank, "◂ baseline" at the baseline level.

    Without `limits` the scale is symmetric about `baseline`. A baseline in the middle of the scale is pale,
    with purple below and orange above.
    """
    if not np.isfinite(values).any():
        add_note(figure, "not defined here")
        return
    middle = 0.0 if np.isnan(baseline) else baseline
    reach = max(float(np.nanmax(np.abs(values - middle))), 1e-9)
    low, high = limits or (middle - reach, middle + reach)
    is_middle = np.isclose(middle, (low + high) / 2)
    ticks, labels = _ticks(low, high, baseline)
    figure.add_trace(
        go.Heatmap(
            z=values,
            x=np.arange(values.shape[1]),
            y=np.arange(values.shape[0]),
            zmin=low,
            zmax=high,
            xgap=1,
            ygap=1,
            colorscale=DIVERGING if is_middle else SHADES,
            name=unit,
            showscale=True,
            hoverongaps=False,
            hovertemplate=f"layer %{{y}}, {head} %{{x}}: %{{z:.4g}}<extra>{unit}</extra>",
            colorbar={
                "thickness": 11,
                "tickvals": ticks,
                "ticktext": labels,
                "ticks": "outside",
                "tickfont": {"size": 11},
                "outlinewidth": 0,
            },
        )
    )
    _whole_numbers(figure, x=values.shape[1], y=values.shape[0])
    label_axes(figure, f"{head} (color: {unit})", "layer")


def add_profile(
    figure: go.Figure,
    values: Float[np.ndarray, " layer"],
    *,
    name: str,
    band: tuple[Float[np.ndarray, " layer"], Float[np.ndarray, " layer"]] | None = None,
    baselines: Mapping[str, Float[np.ndarray, " layer"]] | None = None,
    color: str = MEASURED,
) -> None:
    """Add one number per layer with its 95 % band, and each known baseline as a gray line with its own dash."""
    layers = range(len(values))
    if band is not None:
        add_band(figure, layers, *band, name=f"{name}, 95 % interval", color=color)
        figure.data[-1].showlegend = False
    add_line(figure, layers, values, name=name, color=color)
    known = {label: level for label, level in (baselines or {}).items() if np.isfinite(level).any()}
    for (label, level), dash in zip(known.items(), DASHES, strict=False):
        add_baseline(figure, layers, level, name=f"baseline: {label}")
        figure.data[-1].line.dash = dash
    _whole_numbers(figure, x=len(values))


def _ticks(low: float, high: float, baseline: float) -> tuple[list[float], list[str]]:
    """Return even ticks, with the baseline in place of ticks too close to it."""
    even = np.linspace(low, high, _N_TICKS)
    apart = even if np.isnan(baseline) else even[np.abs(even - baseline) > 0.09 * (high - low)]
    ticks = sorted([*map(float, apart), *([baseline] if low <= baseline <= high else [])])
    tiny = 1e-6 * (high - low)
    shown = [0.0 if abs(tick) < tiny else tick for tick in ticks]
    labels = next(own for digits in range(2, 9) if _are_distinct(own := _texts(shown, digits)) or digits == 8)
    marked = f"{number_text(baseline)} ◂ baseline"
    return ticks, [marked if tick == baseline else label for label, tick in zip(labels, ticks, strict=True)]


def _texts(values: Sequence[float], digits: int) -> list[str]:
    """Return numbers with this many significant digits and a typographic minus sign."""
    return [f"{value:.{digits}g}".replace("-", "−") for value in values]


def _are_distinct(labels: Sequence[str]) -> bool:
    return len(set(labels)) == len(labels)


def _whole_numbers(figure: go.Figure, *, x: int, y: int = 0) -> None:
    """Set at most about eight ticks, at integer layers and heads, on the axes whose size is given."""
    for update, size in ((figure.update_xaxes, x), (figure.update_yaxes, y)):
        if size:
            update(tickmode="linear", tick0=0, dtick=-(-size // 8))
