"""An animation of a cloud over training: one frame per step, with a slider and a play button that work offline."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.report import SEQUENTIAL, Panel, label_axes

_FRAME_MS = 350
_DIGITS = 4  # decimals of a coordinate: more would only make the page larger


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
    drawn = [np.round(own.astype(float), _DIGITS) for own in points]
    figure.add_trace(
        go.Scatter(
            x=drawn[-1][:, 0],
            y=drawn[-1][:, 1],
            mode="markers",
            showlegend=False,
            name="scored position",
            marker={
                "size": 6,
                "opacity": 0.8,
                "color": np.round(color, _DIGITS),
                "colorscale": SEQUENTIAL,
                "colorbar": {"title": colored_by, "thickness": 14},
            },
            hovertemplate=f"%{{marker.color:.3f}}<extra>{colored_by}</extra>",
        ),
    )
    figure.frames = [
        go.Frame(name=step, data=[go.Scatter(x=own[:, 0], y=own[:, 1])], traces=[0])
        for step, own in zip(steps, drawn, strict=True)
    ]
    label_axes(figure, *axes)
    reach = 1.05 * np.nanmax(np.abs(points), axis=(0, 1))
    figure.update_xaxes(range=[-reach[0], reach[0]])
    figure.update_yaxes(range=[-reach[1], reach[1]])
    margin = {"l": 70, "r": 30, "t": 10, "b": 150}
    figure.update_layout(sliders=[_slider(steps)], updatemenus=[_buttons()], margin=margin, height=720)
    return panel


def _slider(steps: Sequence[str]) -> dict[str, object]:
    now = {"mode": "immediate", "frame": {"duration": 0, "redraw": False}, "transition": {"duration": 0}}
    return {
        "active": len(steps) - 1,
        "pad": {"t": 60, "l": 90},
        "currentvalue": {"prefix": "training step "},
        "steps": [
            {"label": f"{int(step):,}" if step.isdigit() else step, "method": "animate", "args": [[step], now]}
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
