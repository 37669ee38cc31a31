"""Numbers per layer and head: a heat map with its baseline marked on the color scale, and the profile over layers."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.lines import add_band, add_baseline, add_line
from bayesgeom.core.text import number_text
from bayesgeom.results.theme import BASELINE, DASHES, DIVERGING, MEASURED, SHADES, label_axes

Panel = tuple[int, int]
_BAR_WIDTH = 0.055  # width of a color bar, as a share of the figure
_N_TICKS = 5


def with_baseline(title: str, baseline: float, label: str) -> str:
    """Return a panel's title with the baseline level appended, if it is known."""
    return title if np.isnan(baseline) else f"{title} ({label}: {number_text(baseline)})"


def add_heads(
    figure: go.Figure,
    panel: Panel,
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
        add_note(figure, panel, "not defined here")
        return
    middle = 0.0 if np.isnan(baseline) else baseline
    reach = max(float(np.nanmax(np.abs(values - middle))), 1e-9)
    low, high = limits or (middle - reach, middle + reach)
    is_middle = np.isclose(middle, (low + high) / 2)
    subplot = figure.get_subplot(*panel)
    left, right = subplot.xaxis.domain
    bottom, top = subplot.yaxis.domain
    right -= _BAR_WIDTH
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
                "x": right + 0.004,
                "xanchor": "left",
                "y": (bottom + top) / 2,
                "len": top - bottom,
                "thickness": 11,
                "tickvals": ticks,
                "ticktext": labels,
                "ticks": "outside",
                "tickfont": {"size": 11},
                "outlinewidth": 0,
            },
        ),
        row=panel[0],
        col=panel[1],
    )
    figure.update_xaxes(domain=(left, right), row=panel[0], col=panel[1])
    _whole_numbers(figure, panel, x=values.shape[1], y=values.shape[0])
    label_axes(figure, panel, f"{head} (color: {unit})", "layer")


def add_profile(
    figure: go.Figure,
    panel: Panel,
    values: Float[np.ndarray, " layer"],
    *,
    name: str,
    band: tuple[Float[np.ndarray, " layer"], Float[np.ndarray, " layer"]] | None = None,
    baselines: Mapping[str, Float[np.ndarray, " layer"]] | None = None,
    color: str = MEASURED,
) -> None:
    """Add one number per layer with its 95 % band, and each known baseline as a gray line with its own dash.

    A name is listed only once in the legend.
    """
    layers, named = range(len(values)), {trace.name for trace in figure.data}
    if band is not None:
        add_band(figure, panel, layers, *band, name=f"{name}, 95 % interval", color=color)
        figure.data[-1].showlegend = False
    add_line(figure, panel, layers, values, name=name, color=color)
    figure.data[-1].showlegend = name not in named
    known = {label: level for label, level in (baselines or {}).items() if np.isfinite(level).any()}
    for (label, level), dash in zip(known.items(), DASHES, strict=False):
        add_baseline(figure, panel, layers, level, name=f"baseline: {label}")
        figure.data[-1].update(line_dash=dash, showlegend=f"baseline: {label}" not in named)
    _whole_numbers(figure, panel, x=len(values))


def add_note(figure: go.Figure, panel: Panel, text: str) -> None:
    """Add a sentence in the middle of an empty panel and hide its axes."""
    wrapped = "<br>".join(textwrap.wrap(text, 46))
    figure.add_trace(
        go.Scatter(
            x=[0], y=[0], mode="text", text=[wrapped], textfont={"color": BASELINE}, hoverinfo="skip", showlegend=False
        ),
        row=panel[0],
        col=panel[1],
    )
    figure.update_xaxes(visible=False, row=panel[0], col=panel[1])
    figure.update_yaxes(visible=False, row=panel[0], col=panel[1])


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


def _whole_numbers(figure: go.Figure, panel: Panel, *, x: int, y: int = 0) -> None:
    """Set at most about eight ticks, at integer layers and heads, on the axes whose size is given."""
    for update, size in ((figure.update_xaxes, x), (figure.update_yaxes, y)):
        if size:
            update(tickmode="linear", tick0=0, dtick=-(-size // 8), row=panel[0], col=panel[1])
