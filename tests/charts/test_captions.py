"""Every figure of every committed kind of report: one meaning per color, a caption per panel, honest axes."""

import re

import numpy as np
import plotly.graph_objects as go
import pytest

from bayesgeom.charts.curves import Curve, add_curves
from bayesgeom.charts.forest import add_forest
from bayesgeom.charts.heads import add_heads
from bayesgeom.charts.lines import SMALLEST_BITS, add_band, add_baseline, add_line, add_reference, log_baseline
from bayesgeom.core.text import with_minus
from bayesgeom.report.diagnosis import Diagnosis, load_report
from bayesgeom.report.report import Report
from bayesgeom.report.theme import EXACT, MEASURED, SERIES, label_axes
from tests.figures import assert_one_meaning_per_color
from tests.pages import READINGS

KINDS = (  # one committed reading of each kind of page
    "bijection-v20/ablation",
    "bijection-v20-llama/entropy_axis-remove-together",
    "checks/comparison",
    "claims/calibration-bijection-v20",
    "claims/gradients-bijection-v20",
    "claims/key-overlap-bijection-v20",
    "claims/qk-alignment-bijection-v20-repeats",
    "claims/value-manifold-bijection-v20-repeats",
    "clusters/hmm-mamba",
    "dynamics-bijection",
    "em-experiment",
    "gradient-movement/hmm-s5",
    "interventions/hmm-s5/leace-belief",
    "interventions/hmm-s5/onwards-leace-entropy",
    "length-recall-mixed",
    "relabeling/hmm-s5",
    "seeds-hmm",
    "smollm2-prompts",
    "smollm2-evidence-none",
    "sweep/hmm",
)


@pytest.fixture(scope="module", params=KINDS)
def figures(request: pytest.FixtureRequest) -> dict[str, go.Figure]:
    """The figures of one committed page, by report."""
    found: Report | Diagnosis = load_report(READINGS / request.param)
    reports = found.reports if isinstance(found, Diagnosis) else {found.name: found}
    return {name: report.plot() for name, report in reports.items()}


@pytest.fixture(scope="module")
def drawings(figures: dict[str, go.Figure]) -> dict[str, Drawing]:
    """The same figures as pages show them, panel by panel."""
    return {name: split(figure, name) for name, figure in figures.items()}


def test_a_color_has_one_meaning_in_all_panels(figures: dict[str, go.Figure]) -> None:
    for figure in figures.values():
        assert_one_meaning_per_color(figure)


def test_each_panel_has_a_caption_with_a_number(drawings: dict[str, Drawing]) -> None:
    for name, drawing in drawings.items():
        for panel in (*drawing.panels, *drawing.folded):
            assert re.search(r"\d", panel.caption) and panel.caption.endswith("."), (name, panel.title, panel.caption)
            assert "▾" not in panel.caption and ">−" not in panel.caption, (name, panel.title, panel.caption)
            assert len(panel.caption) < 330 and "nan" not in panel.caption, (name, panel.title)
            assert with_minus(panel.caption) == panel.caption, panel.caption


def test_pages_show_at_most_twelve_panels_at_once(drawings: dict[str, Drawing]) -> None:
    for name, drawing in drawings.items():
        assert len(drawing.panels) <= 12, name


def test_no_log_axis_begins_far_below_what_matters(figures: dict[str, go.Figure]) -> None:
    for name, figure in figures.items():
        for axis in (*figure.select_yaxes(), *figure.select_xaxes()):
            if axis.type == "log" and axis.range is not None:
                assert axis.range[0] >= np.log10(SMALLEST_BITS) - 1, (name, axis.title.text)


@pytest.fixture
def drawn() -> go.Figure:
    """Four planted panels: lines with a band and baselines, rows, a map, and a cloud."""
    figure = panels("Planted", ("lines", "rows", "map", "cloud"))
    x = np.array([1.0, 2.0, 3.0])
    add_reference(figure, (1, 1), x, np.array([0.5, 0.25, 0.125]), name="exact")
    add_band(figure, (1, 1), x, np.zeros(3), np.array([1.0, 2.0, 0.75]), name="95 % interval")
    add_line(figure, (1, 1), x, np.array([0.5, 0.25, -0.003]), name="model")
    add_baseline(figure, (1, 1), x, 7.0, name="baseline: uniform")
    label_axes(figure, (1, 1), "scored position (1 is the first)", "KL (bits, log scale)")
    ends = (np.array([-1.0, 2.0]), np.array([1.0, 4.0]))
    add_forest(figure, (1, 2), ("L0H1", "L2H3"), np.array([0.5, 3.0]), ends, unit="KL increase (bits)", baseline=0.0)
    add_heads(figure, (2, 1), np.array([[0.25, 0.5], [0.75, -1.0]]), unit="cosine", baseline=0.0)
    figure.add_trace(go.Scatter(x=[1, 2], y=[3, 5], mode="markers", name="points"), row=2, col=2)
    return with_room_for_legend(figure)


def test_captions_state_what_the_traces_hold(drawn: go.Figure) -> None:
    alone = "each interval is of one row alone"
    assert [caption_of(drawn, axis) for axis in ("x", "x2", "x3", "x4")] == [
        "KL (bits) at scored position 3: model −0.003 (95 % interval 0 … 0.75); exact 0.125, uniform 7.",
        f"KL increase (bits). Largest: L2H3, 3; {alone}. Of 2 intervals, 1 above the baseline 0.",
        "Cosine: largest 0.75 (layer 1, head 0), smallest −1 (layer 1, head 1); baseline 0.",
        "",
    ]


def test_a_level_below_the_axis_is_stated_without_the_remark_of_the_legend() -> None:
    """The caption "window 10 stationary (▾ below 0.005) 0.05466" contradicted itself: other levels were below."""
    figure = panels("Planted", ("lines",))
    x, level = np.array([1.0, 2.0]), np.array([1e-4, 0.05466])
    add_line(figure, (1, 1), x, np.array([0.5, 0.25]), name="model")
    log_baseline(figure, (1, 1), x, level, name="baseline: window", floor=0.005)
    log_baseline(figure, (1, 1), x, np.full(2, 3e-7), name="baseline: wide", floor=0.005)
    add_baseline(figure, (1, 1), x, -3e-5, name="baseline: untrained")
    label_axes(figure, (1, 1), "layer", "KL (bits)")
    assert figure.data[1].name == "baseline: window (▾ below 0.005)"
    assert caption_of(figure, "x") == "KL (bits) at layer 2: model 0.25; window 0.05466, wide 3e−7, untrained −3e−5."


def test_the_row_farthest_from_the_baseline_is_named(drawn: go.Figure) -> None:
    values = np.array([0.5, -3.0])
    figure = panels("Planted", ("rows",))
    add_forest(figure, (1, 1), ("KL", "error"), values, (values - 0.25, values + 0.25), unit="B − A", baseline=0.0)
    assert caption_of(figure, "x") == (
        "B − A. Largest in size: error, −3; each interval is of one row alone. "
        "Of 2 intervals, 1 above and 1 below the baseline 0."
    ), "the interval of a row that was chosen by its size does not allow for the choice"
    single = panels("Planted", ("rows",))
    add_forest(single, (1, 1), ("KL",), values[:1], (values[:1] - 0.25, values[:1] + 0.25), unit="B − A", baseline=0.0)
    assert caption_of(single, "x").startswith("B − A. Measured: KL, 0.5 (95 % interval 0.25 … 0.75).")


def test_a_band_of_quantiles_is_not_called_an_interval(drawn: go.Figure) -> None:
    drawn.update_traces(name="middle half", selector={"name": "95 % interval"})
    assert "interval" not in caption_of(drawn, "x")


def test_a_report_states_captions_itself_and_folds_panels(drawn: go.Figure) -> None:
    figure = with_captions(drawn, ("", "Own <b>words</b> ."), n_shown=3)
    assert caption_of(figure, "x2") == stated_caption(figure, 1) == "Own words ." and caption_of(figure, "x")
    drawing = split(figure, "planted")
    assert [panel.title for panel in drawing.panels] == ["lines", "rows", "map"]
    assert [panel.title for panel in drawing.folded] == ["cloud"]
    again = with_room_for_legend(figure)
    assert again.layout.height == figure.layout.height, "captions leave the place of the legends alone"


def test_many_series_are_summed_up_by_their_ends() -> None:
    figure = panels("Many", ("a",), n_columns=1)
    curves = [Curve(name=f"seed{i}", values=np.array([5.0, float(i)])) for i in (3, 1, 4, 2, 5)]
    add_curves(figure, (1, 1), np.array([10, 20]), curves, unit="loss (nats)")
    assert caption_of(figure, "x") == "Loss (nats) at training step 20: from seed1 = 1 to seed5 = 5."
    assert [trace.line.color for trace in figure.data] == list(SERIES[:5])


def test_a_single_curve_is_the_measured_number_and_a_ceiling_lies_under_it() -> None:
    figure = panels("One", ("a", "b"))
    values = np.array([1.0, 2.0])
    add_curves(figure, (1, 1), np.array([10, 20]), [Curve(name="run", values=values)], unit="KL (bits)")
    assert figure.data[0].line.color == MEASURED
    both = [Curve(name="ceiling", values=values, color=EXACT), Curve(name="layer 0", values=values)]
    add_curves(figure, (1, 2), np.array([10, 20]), both, unit="shift (bits)")
    ceiling, layer = figure.data[1:]
    assert ceiling.line.width > 5 and ceiling.opacity < 0.5 and layer.opacity is None, "both are seen"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("R² -0.003", "R² −0.003"),
        ("(-1 to -.5)", "(−1 to −.5)"),
        ("2e-05", "2e−05"),
        ("bijection-v20-seed1, layers 1-4, step-0009", "bijection-v20-seed1, layers 1-4, step-0009"),
    ],
)
def test_negative_numbers_have_one_minus_sign(written: str, shown: str) -> None:
    assert with_minus(written) == shown
