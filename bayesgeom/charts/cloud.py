"""Clouds of points in a plane, colored by a number, and their animation over training.

An animation has one frame per step, with a slider and a play button that work offline.
"""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.report.panels import Panel
from bayesgeom.report.theme import SEQUENTIAL, escaped, label_axes

_FRAME_MS = 350
_DIGITS = 4  # decimals of a coordinate: more would only make the page larger


def add_cloud(
    figure: go.Figure,
    x: Float[np.ndarray, " point"],
    y: Float[np.ndarray, " point"],
    color: Float[np.ndarray, " point"],
    *,
    colored_by: str,
    scale: Sequence[str] = SEQUENTIAL,
) -> None:
    """Add points, colored by a number that is told on hover."""
    bar = {"title": {"text": escaped(colored_by), "side": "right"}, "thickness": 11, "outlinewidth": 0, "nticks": 5}
    marker = {"size": 5.5, "opacity": 0.8, "color": np.round(color, _DIGITS), "colorscale": scale, "colorbar": bar}
    figure.add_scatter(
        x=np.round(x.astype(float), _DIGITS),
        y=np.round(y.astype(float), _DIGITS),
        mode="markers",
        showlegend=False,
        name="scored position",
        marker=marker,
        hovertemplate=f"{escaped(colored_by)}: %{{marker.color:.3~g}}<extra></extra>",
    )


def film_panel(
    steps: Sequence[str],
    points: Float[np.ndarray, "step point component"],
    color: Float[np.ndarray, " point"],
    *,
    colored_by: str,
    axes: tuple[str, str],
) -> Panel:
    """Draw the last step and an animation of all steps, with the same axes for every step."""
    panel = Panel.blank("Last snapshot; ▶ plays the training", is_wide=True)
    figure = panel.figure
    drawn = [np.round(cloud.astype(float), _DIGITS) for cloud in points]
    add_cloud(figure, drawn[-1][:, 0], drawn[-1][:, 1], color, colored_by=colored_by)
    figure.frames = [
        go.Frame(name=step, data=[go.Scatter(x=cloud[:, 0], y=cloud[:, 1])], traces=[0])
        for step, cloud in zip(steps, drawn, strict=True)
    ]
    label_axes(figure, *axes)
    reach = 1.05 * np.nanmax(np.abs(points), axis=(0, 1))
    figure.update_xaxes(range=[-reach[0], reach[0]])
    figure.update_yaxes(range=[-reach[1], reach[1]])
    margin = {"l": 70, "r": 30, "t": 10, "b": 150}
    figure.update_layout(sliders=[_slider(steps)], updatemenus=[_buttons()], margin=margin, height=600)
    return panel


def _slider(steps: Sequence[str]) -> dict[str, object]:
    now = {"mode": "immediate", "frame": {"duration": 0, "redraw": False}, "transition": {"duration": 0}}
    return {
        "active": len(steps) - 1,
        "pad": {"t": 60, "l": 90},
        "currentvalue": {"prefix": "training step "},
        "steps": [
            {"label": f"{int(step):,}" if step.isdigit() else escaped(step), "method": "animate", "args": [[step], now]}
            for step in steps
        ],
    }


def _buttons() -> dict[str, object]:
    pace = {
        "frame": {"duration": _FRAME_MS, "redraw": False},
        "transition": {"duration": _FRAME_MS // 2},
        "fromcurrent": False,
        "mode": "immediate",
    }
    stop = {"frame": {"duration": 0, "redraw": False}, "mode": "immediate", "transition": {"duration": 0}}
    return {
        "type": "buttons",
        "direction": "left",
        "showactive": False,
        "x": 0,
        "xanchor": "left",
        "y": 0,
        "yanchor": "top",
        "pad": {"t": 70},
        "buttons": [
            {"label": "▶", "method": "animate", "args": [None, pace]},
            {"label": "❚❚", "method": "animate", "args": [[None], stop]},
        ],
    }
