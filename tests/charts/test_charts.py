"""Charts hold the numbers that they were given, draw the baseline in gray, and name their axes with units."""

from functools import partial

import numpy as np
import plotly.graph_objects as go
import pytest

from bayesgeom.charts.calibration import calibration_panels
from bayesgeom.charts.forest import add_forest
from bayesgeom.charts.heads import add_heads, add_profile, with_baseline
from bayesgeom.charts.lines import add_band, add_baseline, add_line
from bayesgeom.charts.manifold import Cloud, Profile, manifold_panels
from bayesgeom.charts.readout import readout_panel
from bayesgeom.report.estimate import Baseline, Estimate
from bayesgeom.report.panels import Panel, figure_of
from bayesgeom.report.theme import BASELINE, MEASURED


def test_panels_hold_their_titles_in_order() -> None:
    figure = figure_of("Whole", [drawn_panel(title) for title in ("one", "two", "three")])
    assert figure.layout.title.text == "Whole"
    assert [note.text for note in figure.layout.annotations] == ["one", "two", "three"]
    places = [(note.x, note.y) for note in figure.layout.annotations]
    assert places[0][1] == places[1][1] > places[2][1] and places[0][0] == places[2][0] < places[1][0]


def drawn_panel(title: str, **known: object) -> Panel:
    panel = Panel.blank(title, **known)  # type: ignore[arg-type]
    add_line(panel.figure, [1, 2], np.array([2.0, 3.0]), name="model")
    return panel


def test_wide_panels_have_a_row_of_their_own_and_heights_are_kept() -> None:
    figure = figure_of("Whole", [drawn_panel("a"), drawn_panel("b", is_wide=True, height=500), drawn_panel("c")])
    axes = [figure.layout[f"xaxis{i}"].domain for i in ("", 2, 3)]
    assert axes[1] == (0, 1) and axes[0] == axes[2] and axes[0][1] < 0.5
    tops = [figure.layout[f"yaxis{i}"].domain[1] for i in ("", 2, 3)]
    assert tops == sorted(tops, reverse=True)
    height = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    low, high = figure.layout.yaxis2.domain
    assert (high - low) * height == pytest.approx(500 - 92)
    assert figure_of("Whole", []).layout.title.text == "Whole", "without panels"


def test_lines_keep_numbers_and_gaps() -> None:
    figure = Panel.blank().figure
    y = np.array([0.5, np.nan, 0.25])
    add_line(figure, [2, 3, 5], y, name="measured", dash="dot")
    (line,) = figure.data
    assert list(line.x) == [2, 3, 5] and (line.name, line.line.dash, line.line.color) == ("measured", "dot", MEASURED)
    np.testing.assert_array_equal(line.y, y)
    assert not line.connectgaps, "a missing value leaves a gap"


def test_bands_go_up_one_side_and_down_the_other() -> None:
    figure = Panel.blank().figure
    add_band(figure, [2, 3, 5], np.array([0.1, 0.2, 0.3]), np.array([0.4, 0.5, 0.6]), name="95 % interval")
    (band,) = figure.data
    corners = set(zip(band.x.tolist(), band.y.tolist(), strict=True))
    assert corners == {(2, 0.1), (3, 0.2), (5, 0.3), (2, 0.4), (3, 0.5), (5, 0.6)}
    assert band.x.tolist() == [2, 3, 5, 5, 3, 2] and band.fill == "toself" and band.mode == "lines"
    red, green, blue = (int(MEASURED[i : i + 2], 16) for i in (1, 3, 5))
    assert band.fillcolor == f"rgba({red},{green},{blue},0.18)"


@pytest.mark.parametrize(("level", "drawn"), [(0.25, [0.25] * 3), (np.array([0.1, 0.2, 0.3]), [0.1, 0.2, 0.3])])
def test_baselines_are_gray_and_dashed(level: float | np.ndarray, drawn: list[float]) -> None:
    figure = Panel.blank().figure
    add_baseline(figure, [2, 3, 5], level, name="baseline: chance")
    (line,) = figure.data
    assert (list(line.x), list(line.y)) == ([2, 3, 5], drawn)
    assert (line.mode, line.line.color, line.line.dash) == ("lines", BASELINE, "dash")


@pytest.fixture
def calibration(rng: np.random.Generator) -> list[Panel]:
    """Seven positions, two baselines, three examples."""
    exact, model, error = rng.random((3, 7))
    return calibration_panels(
        exact=exact,
        model=model,
        error=error,
        error_band=(error - 0.01, error + 0.01),
        baselines={"uniform": rng.random(7), "likelihood only": rng.random(7)},
        examples=(rng.random((3, 7)), rng.random((3, 7))),
    )


def test_calibration_has_four_panels_with_units(calibration: list[Panel]) -> None:
    assert len(calibration) == 4
    for panel in calibration:
        assert panel.figure.layout.xaxis.title.text == "scored position (1 is the first)"
        assert panel.figure.layout.yaxis.title.text.endswith("(bits)")
    assert [panel.figure.layout.yaxis.type for panel in calibration] == [None, "log", None, None]


def test_calibration_draws_two_baselines_next_to_the_error(calibration: list[Panel]) -> None:
    names = {trace.name for trace in calibration[1].figure.data}
    assert names == {"95 % interval", "model", "baseline: uniform", "baseline: likelihood only"}


def drawn_baselines(error: np.ndarray, levels: dict[str, np.ndarray]) -> list[go.Scatter]:
    """The baselines in the calibration figure of a model with this error."""
    panels = calibration_panels(
        exact=error,
        model=error,
        error=error,
        error_band=(error, error),
        baselines=levels,
        examples=(error[None], error[None]),
    )
    return [trace for trace in panels[1].figure.data if (trace.name or "").startswith("baseline: ")]


def test_the_strongest_baselines_are_drawn_and_one_below_the_axis_is_named() -> None:
    error = np.array([0.5, 0.03, 0.02])
    levels = {f"baseline {k}": np.full(3, 0.1 * k) for k in (7, 2, 5, 3)} | {"near zero": np.full(3, 1e-9)}
    assert [trace.name for trace in drawn_baselines(error, levels)] == [
        "baseline: near zero (▾ below 1e−6)",
        "baseline: baseline 2",
        "baseline: baseline 3",
    ]


def test_baselines_of_zero_are_marked_at_the_end_of_the_axis_and_none_looks_like_another() -> None:
    error, level = np.array([0.5, 0.03, 0.02]), np.array([1.0, 0.0, 1e-9])
    drawn = drawn_baselines(error, {"one": level, "two": level, "three": level})
    assert len({trace.line.dash for trace in drawn}) == 3
    for trace in drawn:
        np.testing.assert_array_equal(trace.y, [1.0, 1e-6, 1e-6])


def test_one_example_is_enough(rng: np.random.Generator) -> None:
    profile = rng.random(5)
    panels = calibration_panels(
        exact=profile,
        model=profile,
        error=profile,
        error_band=(profile, profile),
        baselines={},
        examples=(rng.random((1, 5)), rng.random((1, 5))),
    )
    assert len(panels) == 3 and [trace.name for trace in panels[2].figure.data] == ["exact", "model"]


@pytest.mark.parametrize(("shift", "n_panels"), [(0.0, 2), (0.02, 2), (0.04, 4)])
def test_sequences_with_the_curve_of_the_mean_are_not_drawn_again(shift: float, n_panels: int) -> None:
    """On a bijection without repeats entropy depends on the position: three panels showed one curve."""
    exact = np.linspace(3.0, 0.0, 7)
    model = np.array([exact, exact + shift])  # the second of two sequences is apart by less or more than 1 %
    panels = calibration_panels(
        exact=exact,
        model=exact,
        error=np.full(7, 0.1),
        error_band=(np.full(7, 0.1), np.full(7, 0.2)),
        baselines={},
        examples=(np.stack([exact, exact]), model),
    )
    assert len(panels) == n_panels and bool(panels[0].note) == (n_panels == 2)


def heat_map(values: np.ndarray, **named: object) -> go.Figure:
    figure = Panel.blank().figure
    add_heads(figure, values, unit="|cosine|", **named)  # type: ignore[arg-type]
    return figure


def test_heads_hold_their_numbers_layers_upward(rng: np.random.Generator) -> None:
    values = rng.random((2, 3))
    values[1, 2] = np.nan
    figure = heat_map(values, baseline=0.25, limits=(0.0, 1.0))
    (heads,) = figure.data
    np.testing.assert_array_equal(heads.z, values)
    assert (list(heads.x), list(heads.y)) == ([0, 1, 2], [0, 1]) and (heads.zmin, heads.zmax) == (0.0, 1.0)
    assert figure.layout.xaxis.title.text == "head (color: |cosine|)" and figure.layout.yaxis.title.text == "layer"


@pytest.mark.parametrize(("baseline", "n_marked"), [(0.25, 1), (0.0, 1), (1.0, 1), (-0.5, 0), (float("nan"), 0)])
def test_the_baseline_of_heads_is_marked_on_the_color_scale(
    baseline: float, n_marked: int, rng: np.random.Generator
) -> None:
    bar = heat_map(rng.random((2, 3)), baseline=baseline, limits=(0.0, 1.0)).data[0].colorbar
    marked = [value for value, text in zip(bar.tickvals, bar.ticktext, strict=True) if text.endswith("◂ baseline")]
    assert marked == [baseline] * n_marked and list(bar.tickvals) == sorted(bar.tickvals)


def test_without_limits_the_baseline_is_the_pale_middle() -> None:
    (heads,) = heat_map(np.array([[0.1, 0.2, 0.9]]), baseline=0.3).data
    assert (heads.zmin + heads.zmax) / 2 == pytest.approx(0.3) and heads.zmax == pytest.approx(0.9)


def test_ticks_of_a_narrow_color_scale_differ_and_have_one_minus_sign() -> None:
    for values in (np.array([[1.31, 1.42, 1.53]]), np.array([[-2e-5, 0.0, 2e-5]])):
        (heads,) = heat_map(values, baseline=float(values[0, 1])).data
        ticks = [text.removesuffix(" ◂ baseline") for text in heads.colorbar.ticktext]
        assert len(set(ticks)) == len(ticks) == 5 and not any("-" in text for text in ticks)
        np.testing.assert_allclose(
            [float(text.replace("−", "-")) for text in ticks], heads.colorbar.tickvals, rtol=0.02
        )


def test_heads_that_are_not_defined_say_so() -> None:
    figure = heat_map(np.full((2, 3), np.nan), baseline=0.25)
    (note,) = figure.data
    assert note.mode == "text" and note.text == ("not defined here",)


def test_profiles_draw_the_baselines_that_are_known(rng: np.random.Generator) -> None:
    figure = Panel.blank().figure
    values, level, unknown = rng.random(5), rng.random(5), np.full(5, np.nan)
    add_profile(figure, values, name="measured", band=(values - 1, values + 1), baselines={"a": level, "b": unknown})
    drawn = {trace.name: trace for trace in figure.data}
    assert (
        set(drawn) == {"measured, 95 % interval", "measured", "baseline: a"}
        and drawn["baseline: a"].line.color == BASELINE
    )
    np.testing.assert_array_equal(drawn["measured"].y, values)
    np.testing.assert_array_equal(drawn["baseline: a"].y, level)
    assert list(drawn["measured"].x) == [0, 1, 2, 3, 4]


def test_a_known_baseline_stands_in_the_title() -> None:
    assert with_baseline("hypotheses", 0.2503, "chance") == "hypotheses (chance: 0.2503)", "as in tables"
    assert with_baseline("hypotheses", float("nan"), "chance") == "hypotheses"


def test_forests_reach_to_their_intervals() -> None:
    figure = Panel.blank().figure
    values = np.array([0.5, 0.25, -0.125])
    add_forest(figure, ["one", "two", "three"], values, (values - 0.1, values + 0.3), unit="bits", baseline=0.0)
    rows, baseline = figure.data
    assert list(rows.y) == ["one", "two", "three"] and list(figure.layout.yaxis.range) == [2.5, -0.5]
    np.testing.assert_array_equal(rows.x, values)
    np.testing.assert_allclose((rows.error_x.arrayminus, rows.error_x.array), [[0.1] * 3, [0.3] * 3])
    assert list(baseline.x) == [0, 0] and baseline.name == "baseline: 0" and baseline.line.color == BASELINE
    assert figure.layout.xaxis.title.text == "bits"


def test_a_forest_without_intervals_promises_none() -> None:
    figure, values = Panel.blank().figure, np.array([0.5, 0.25])
    unknown = np.full(2, np.nan)
    add_forest(figure, ["one", "two"], values, (unknown, unknown), unit="bits", baseline=None)
    add_forest(figure, ["one", "two"], values, (values, unknown), unit="bits", baseline=None)
    assert [trace.name for trace in figure.data] == ["estimate", "estimate, 95 % interval"]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_baseline_of_a_forest_goes_from_edge_to_edge(n: int) -> None:
    figure = Panel.blank().figure
    values = np.linspace(0.5, 0.25, n)
    add_forest(figure, list("abcde"[:n]), values, (values, values), unit="bits", baseline=0.125)
    (line,) = figure.layout.shapes
    assert (line.x0, line.x1, line.y0, line.y1, line.yref) == (0.125, 0.125, 0, 1, "y domain")


def test_clouds_lie_along_their_axes_in_the_color_of_entropy(rng: np.random.Generator) -> None:
    points, entropy, layers = rng.random((7, 3)), rng.random(7), rng.random((4, 5))
    profile = [Profile(name=str(i), values=layers[i], baseline=layers[i + 1]) for i in (0, 2)]
    cloud = Cloud(site="resid_post", points=points, curve=rng.random((11, 3)))
    panels = manifold_panels(
        clouds=[cloud],
        entropy=entropy,
        position=np.arange(7.0),
        shape=profile[:1],
        order=profile[1:],
        baseline_labels=("shuffled", "untrained"),
    )
    plane, against, *profiles = (panel.figure.data for panel in panels)
    np.testing.assert_array_equal(np.stack([plane[0].x, plane[0].y], axis=1), points[:, :2])
    np.testing.assert_array_equal(plane[0].marker.color, entropy)
    np.testing.assert_array_equal(plane[1].y, cloud.curve[:, 1])
    np.testing.assert_array_equal(np.stack([against[0].x, against[0].y]), [entropy, points[:, 0]])
    for (measured, baseline), row, label in zip(profiles, (0, 2), ("shuffled", "untrained"), strict=True):
        np.testing.assert_array_equal((measured.y, baseline.y), layers[row : row + 2])
        assert baseline.name.startswith(f"baseline: {label}")
    titles = [panel.figure.layout[f"{axis}axis"].title.text for axis in "xy" for panel in panels]
    assert all(titles) and "exact entropy (bits)" in titles


def test_readouts_stand_next_to_their_baselines(rng: np.random.Generator) -> None:
    values, level = rng.random(5), rng.random(5)
    before = Baseline.of("baseline", "embedding", np.full(5, 0.125))
    own = Estimate.of(
        values, (values - 1, values + 1), baselines=[before, Baseline.of("permutation", "shuffled", level)]
    )
    ticks = [f"L{i}" for i in range(5)]
    drawn_as = partial(readout_panel, axes=("layer", "R²"), ticks=ticks, dashes={"shuffled": "dot"}, before="embedding")
    figure = drawn_as("one", own=own).figure
    drawn = {trace.name: trace for trace in figure.data}
    np.testing.assert_array_equal(drawn["measured"].y, values)
    np.testing.assert_array_equal(drawn["baseline: shuffled"].y, level)
    assert (list(drawn["embedding"].x), list(drawn["embedding"].y)) == ([-1], [0.125])
    assert figure.layout.xaxis.ticktext == ("embedding", "L0", "L1", "L2", "L3", "L4")
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("layer", "R²")
    (note,) = drawn_as("two", own=Estimate.of(np.full(5, np.nan))).figure.data
    assert note.text == ("not defined here",)
