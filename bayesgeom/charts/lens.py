"""What is read from every layer: its distance from the exact posterior, its entropy, and one example."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from bayesgeom.charts.lines import add_baseline, add_line, add_reference, log_floor
from bayesgeom.report import BASELINE, SEQUENTIAL, Estimate, Panel, label_axes, layer_colors, log_axes

N_DRAWN = 3  # of the baselines


def lens_panels(
    *,
    kl: Estimate,
    arrival: float,
    threshold: float,
    entropies: Float[np.ndarray, "source position"],
    example: Float[np.ndarray, "source answer"],
    example_position: int,
    stages: Sequence[str],
) -> list[Panel]:
    """Draw the KL by stage, the entropies by position, and the answer probabilities of one example as a heat map.

    Args:
        kl: KL(exact ‖ lens) by stage, with its baselines.
        arrival: Number of layers after which the posterior is there; NaN if it never is.
        threshold: The KL below which it is there.
        entropies: Mean entropies in bits: of the exact predictive, then of each stage.
        example: Answer probabilities at one position of one sequence: exact, then of each stage.
        example_position: The scored position of the example, from 1.
        stages: Names of the stages.
    """
    return [
        _distance(kl, arrival, threshold, stages),
        _entropies(entropies, stages),
        _example(example, example_position, stages),
    ]


def _distance(kl: Estimate, arrival: float, threshold: float, stages: Sequence[str]) -> Panel:
    n_layers = len(stages) - 1
    there = f"the posterior is there after {arrival:.0f} of {n_layers} layers"
    panel = Panel.blank(f"KL by layer: {there if np.isfinite(arrival) else 'the posterior is never there'}", height=360)
    figure, x = panel.figure, np.arange(len(stages))
    strongest = sorted((own for own in kl.baselines if np.isfinite(own.value).all()), key=lambda own: own.value.min())
    floor = log_floor(kl.value, strongest[0].value if strongest else kl.value)
    for own in strongest[:N_DRAWN]:
        add_baseline(figure, x, own.value, name=f"baseline: {own.name}", floor=floor)
    add_baseline(figure, x, threshold, name="there: a tenth of context-free", floor=floor)
    add_line(figure, x, kl.value, name="logit lens", band=kl.ends)
    _name_stages(figure, stages)
    log_axes(figure)
    label_axes(figure, "read after", "KL(exact ‖ lens) (bits)")
    return panel


def _name_stages(figure: object, stages: Sequence[str], axis: str = "x") -> None:
    every = -(-(len(stages) - 1) // 9) or 1
    places = [0, *range(len(stages) - 1, 0, -every)]
    texts = [stages[place].removeprefix("layer ") for place in places]
    figure.update_layout({f"{axis}axis": {"tickvals": places, "ticktext": texts}})  # type: ignore[attr-defined]


def _entropies(entropies: Float[np.ndarray, "source position"], stages: Sequence[str]) -> Panel:
    panel, x = Panel.blank("Entropy of what is read, by position", height=360), np.arange(1, entropies.shape[1] + 1)
    add_reference(panel.figure, x, entropies[0], name="exact")
    colors = layer_colors(len(stages) - 1)
    for stage, own, color in zip(stages, entropies[1:], (BASELINE, *colors), strict=True):
        add_line(panel.figure, x, own, name=stage, color=color)
    label_axes(panel.figure, "scored position (1 is the first)", "entropy (bits)")
    return panel


def _example(example: Float[np.ndarray, "source answer"], position: int, stages: Sequence[str]) -> Panel:
    panel = Panel.blank(f"One sequence, at scored position {position}: what each layer would answer", height=360)
    rows = ["exact", *stages][::-1]
    panel.figure.add_heatmap(
        z=example[::-1],
        y=rows,
        colorscale=SEQUENTIAL,
        zmin=0,
        zmax=float(example.max()),
        colorbar={"title": {"text": "probability"}},
        hovertemplate="%{y}, answer %{x}: %{z:.3f}<extra></extra>",
    )
    panel.figure.update_yaxes(tickvals=rows, ticktext=rows)
    label_axes(panel.figure, "answer", "read after")
    return panel
