"""The manifold chart: clouds along principal axes, colored by entropy, with a smooth curve; profiles with baselines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.lines import add_baseline, add_line
from bayesgeom.core import percent_text
from bayesgeom.report import EXACT, SEQUENTIAL, SERIES, Panel, label_axes

LEAST_SHARE = 0.5  # a smooth curve that explains less of the variance would mislead
_SHAPE_COLORS, _ORDER_COLORS = SERIES[:4], SERIES[4:8]


@final
@dataclass(frozen=True, kw_only=True)
class Cloud:
    """Points of one site along their leading principal axes, and the fitted curve in the same coordinates.

    `curve_share` is the share of variance that the curve explains. Below `LEAST_SHARE` the curve is not drawn.
    """

    site: str
    points: Float[np.ndarray, "point component"]
    curve: Float[np.ndarray, "step component"]
    curve_share: float = 1.0


@final
@dataclass(frozen=True, kw_only=True)
class Profile:
    """One number per layer with its baseline."""

    name: str
    values: Float[np.ndarray, " layer"]
    baseline: Float[np.ndarray, " layer"]


def manifold_panels(
    *,
    clouds: Sequence[Cloud],
    entropy: Float[np.ndarray, " point"],
    position: Float[np.ndarray, " point"],
    shape: Sequence[Profile],
    order: Sequence[Profile],
    baseline_labels: tuple[str, str],
) -> list[Panel]:
    """Draw each cloud along its first two axes, its first axis against entropy, then `shape` and `order` by layer.

    `position` is the place of each point among the scored positions of its sequence, from 1.
    """
    drawn = list[Panel]()
    for cloud in clouds:
        has_curve = cloud.curve_share >= LEAST_SHARE
        note = "" if has_curve else f"No curve: it explains {percent_text(cloud.curve_share)} of the variance."
        plane = Panel.blank(f"{cloud.site}, last layer", height=390, note=note)
        _scatter(plane.figure, cloud.points[:, 0], cloud.points[:, 1], entropy, ("entropy (bits)", SEQUENTIAL))
        if has_curve:
            _curve(plane.figure, cloud.curve[:, 0], cloud.curve[:, 1])
        label_axes(plane.figure, "PC1 (activation units)", "PC2 (activation units)")
        along = Panel.blank(f"{cloud.site}, last layer: PC1 against entropy", height=390)
        _scatter(along.figure, entropy, cloud.points[:, 0], position, ("scored<br>position", "Plasma"))
        label_axes(along.figure, "exact entropy (bits)", "PC1 (activation units)")
        drawn += [plane, along]
    shapes, orders = (Panel.blank(t, height=390) for t in ("Variance along PC1", "Order by entropy, resid_post"))
    _profiles(shapes.figure, shape, _SHAPE_COLORS, baseline_labels[0])
    label_axes(shapes.figure, "layer", "share of variance (0 to 1)")
    _profiles(orders.figure, order, _ORDER_COLORS, baseline_labels[1])
    lowest = min(float(np.nanmin(own.values, initial=0.0)) for own in order)
    cut = "; cut at −1" if lowest < -1 else ""  # a share far below 0 would hide all other lines
    orders.figure.update_yaxes(range=[-1.02, 1.02] if cut else None)
    label_axes(orders.figure, "layer", f"|correlation| or share (0 to 1{cut})")
    return [*drawn, shapes, orders]


def _scatter(
    figure: go.Figure,
    x: Float[np.ndarray, " point"],
    y: Float[np.ndarray, " point"],
    color: Float[np.ndarray, " point"],
    scale: tuple[str, str],
) -> None:
    figure.add_trace(
        go.Scatter(
            x=x,
            y=y,
            mode="markers",
            name="position",
            showlegend=False,
            marker={
                "size": 5,
                "opacity": 0.75,
                "color": color,
                "colorscale": scale[1],
                "colorbar": {"title": scale[0], "thickness": 11},
            },
        )
    )


def _curve(figure: go.Figure, x: Float[np.ndarray, " step"], y: Float[np.ndarray, " step"]) -> None:
    figure.add_trace(
        go.Scatter(
            x=x,
            y=y,
            mode="lines",
            name="smooth curve in entropy",
            line={"color": EXACT, "width": 2.5},
        )
    )


def _profiles(figure: go.Figure, profiles: Sequence[Profile], colors: Sequence[str], baseline_label: str) -> None:
    """Add measured lines and their baselines; if there are several, each is dashed and in the color of its line."""
    layers, name = range(len(profiles[0].values)), f"baseline: {baseline_label}"
    for color, profile in zip(colors, profiles, strict=False):
        if np.isfinite(profile.values).any():
            add_line(figure, layers, profile.values, name=profile.name, color=color)
    # On top, so that a baseline equal to the measured line stays visible.
    known = [(color, own) for color, own in zip(colors, profiles, strict=False) if not np.isnan(own.baseline).all()]
    if len(known) > 1:
        name += " (in the line's color)"
        add_baseline(figure, [0], np.full(1, np.nan), name=name)  # for the legend alone
    for color, profile in known:
        add_baseline(figure, layers, profile.baseline, name=name, color=color if len(known) > 1 else "")
        figure.data[-1].update(showlegend=len(known) == 1, hovertext=f"{profile.name}, {baseline_label}")
    figure.update_xaxes(tickmode="linear", tick0=0, dtick=-(-len(layers) // 8))
