"""The page of curves: every diagnostic over log steps, drawn from the report's numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.charts.curves import Curve, add_curves
from bayesgeom.charts.forest import add_forest
from bayesgeom.charts.heads import add_note
from bayesgeom.dynamics.settling import SETTLED
from bayesgeom.results.theme import label_axes, panels, with_room_for_legend

Numbers = Mapping[str, Any]  # the fields of a dynamics report, by name
_MAX_CURVES = 9  # colours
Panel = tuple[int, int]


def dynamics_figure(title: str, report: Numbers) -> go.Figure:
    """Calibration and distance by training; the rest by layer, as means over trainings."""
    titles = (
        "Error of the answers", "Error of their entropy", "Patterns: distance from the last, share of the first",
        "The same, by layer", "Key overlap, by layer", "Shape of the last values", "Belief read-out, last layer",
        "Swapping the frame, by layer", "Frame ratio, by layer", "How much later precision settles, by scale",
    )  # fmt: skip
    figure = panels(title, titles, row_height=340)
    steps = np.array([int(step) for step in report["steps"]])
    levels = {"uniform": report["kl_bits_uniform"], "chance": report["key_overlap_chance"]}

    def draw(at: Panel, curves: Sequence[Curve], unit: str, *known: tuple[str, float]) -> None:
        if any(np.isfinite(curve.values).any() for curve in curves):
            add_curves(figure, at, steps, curves[:_MAX_CURVES], unit=unit, levels=known, log_steps=True)
        else:
            add_note(figure, at, "not measured: this architecture has none")

    draw((1, 1), _by_run(report, "kl_bits"), "KL (bits, log scale)", ("uniform predictor", levels["uniform"]))
    draw((1, 2), _by_run(report, "entropy_mae_bits"), "entropy error (bits, log scale)")
    for column in (1, 2):
        figure.update_yaxes(type="log", exponentformat="power", row=1, col=column)
    first = report["pattern_distance_bits"][:, :1]
    ends = (report["pattern_distance_bits_lo"] / first, report["pattern_distance_bits_hi"] / first)
    shares = [
        Curve(name=name, values=own, band=(lo, hi))
        for name, own, lo, hi in zip(report["runs"], report["pattern_distance_bits"] / first, *ends, strict=True)
    ]
    draw((2, 1), shares, "share of the first", ("settled", SETTLED), ("start", 1.0))
    draw((2, 2), _by_layer(report["pattern_distance_bits_by_layer"]), "Jensen–Shannon (bits)")
    draw((3, 1), _by_layer(report["key_overlap"]), "mean |cosine|", ("random directions", levels["chance"]))
    shape = (
        ("PC1 share", report["pc1_share"]),
        ("curve share", report["curve_share"]),
        ("curve share, shuffled", report["curve_share_null"]),
    )
    draw((3, 2), [Curve(name=name, values=own.mean(axis=0)) for name, own in shape], "share of variance")
    read_null = report["belief_r2_null"].mean(axis=0)
    draw((4, 1), [*_by_run(report, "belief_r2"), Curve(name="random subspaces", values=read_null)], "held-out R²")
    whole = Curve(name="ceiling, layer 0", values=report["redirect_ceiling_bits"][..., 0].mean(axis=0))
    floor = Curve(name="random subspaces, layer 0", values=report["redirect_bits_null"][..., 0].mean(axis=0))
    draw((4, 2), [*_by_layer(report["redirect_bits"])[: _MAX_CURVES - 2], whole, floor], "redirect (bits)", ("0", 0.0))
    draw((5, 1), _by_layer(report["frame_ratio"]), "over chance", ("chance", 1.0))
    _dissociations(figure, (5, 2), report)
    return with_room_for_legend(figure)


def _by_run(report: Numbers, metric: str) -> list[Curve]:
    rows = zip(report["runs"], report[metric], report[f"{metric}_lo"], report[f"{metric}_hi"], strict=True)
    return [Curve(name=name, values=own, band=(lo, hi)) for name, own, lo, hi in rows]


def _by_layer(values: Float[np.ndarray, "run step layer"]) -> list[Curve]:
    return [Curve(name=f"layer {layer}", values=own) for layer, own in enumerate(values.mean(axis=0).T)]


def _dissociations(figure: go.Figure, panel: Panel, report: Numbers) -> None:
    """Every scale of KL against every frame measure: mean over trainings, with its interval."""
    values = report["dissociation_by_scale"].ravel()
    if not np.isfinite(values).any():
        add_note(figure, panel, report["order"])
        label_axes(figure, panel, "", "")
        return
    labels = [f"{scale} / {measure}" for scale in report["scales"] for measure in report["frame_measures"]]
    ends = (report["dissociation_by_scale_lo"].ravel(), report["dissociation_by_scale_hi"].ravel())
    add_forest(figure, panel, labels, values, ends, unit="log2(precision step / frame step)", null=0.0)
