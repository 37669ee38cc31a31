"""The theme: contrast of text and lines on either background, legends under panels, honest axes."""

import itertools

import numpy as np
import pytest

from bayesgeom.charts.lines import add_band, add_baseline, add_line
from bayesgeom.report.page import _asset
from bayesgeom.report.panels import MOST_LABELS, Panel, _apart, figure_of, listed
from bayesgeom.report.theme import (
    ABOVE,
    AXIS,
    BACKGROUNDS,
    BASELINE,
    BELOW,
    DARK,
    EXACT,
    GRID,
    INKS,
    LAYERS,
    MEASURED,
    PAPER,
    POSITIONS,
    QUANTITIES,
    SEQUENTIAL,
    SERIES,
    SHADES,
    at_least,
    label_axes,
    layer_colors,
    log_axes,
    rgb,
)

TEXT_CONTRAST = 4.5  # of the Web Content Accessibility Guidelines 2.1; lines have their names in their colors


def luminance(color: str) -> float:
    shares = [part / 255 for part in rgb(color)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21) and contrast("#777777", "#ffffff") == pytest.approx(
        4.48, abs=0.01
    )


def style_colors(is_dark: bool) -> dict[str, str]:
    """The variables of the style sheet, of the light or the dark page."""
    css = _asset("page.css").decode()
    block = css.split(":root {")[2 if is_dark else 1].split("}")[0]
    pairs = (part.split(":") for part in block.split(";") if "--" in part)
    return {name.strip().removeprefix("--"): color.strip() for name, color in pairs}


@pytest.mark.parametrize("is_dark", [False, True])
def test_text_is_readable_on_its_background(is_dark: bool) -> None:
    colors = style_colors(is_dark)
    assert colors["back"] == BACKGROUNDS[is_dark]
    for name in ("text", "soft", "link", "good", "amber", "bad", "open"):
        for back in ("back", "block"):
            assert contrast(colors[name], colors[back]) >= TEXT_CONTRAST, (name, back)


@pytest.mark.parametrize("is_dark", [False, True])
def test_lines_and_texts_of_figures_stand_out(is_dark: bool) -> None:
    back = BACKGROUNDS[is_dark]
    for color in (MEASURED, *SERIES, *LAYERS, *QUANTITIES, BASELINE, EXACT, *SEQUENTIAL, *POSITIONS):
        assert contrast(DARK[color] if is_dark else color, back) >= TEXT_CONTRAST, color


def test_no_color_means_two_things() -> None:
    colors = [MEASURED, *SERIES, *LAYERS, *QUANTITIES, BASELINE, EXACT, GRID, AXIS, PAPER, *INKS]
    colors += [*SEQUENTIAL, *POSITIONS, *dict.fromkeys(color for _, color in (*SHADES, *ABOVE, *BELOW))]
    assert len(set(colors)) == len(colors) == len(DARK) and len(set(DARK.values())) == len(DARK)
    assert not set(DARK) & set(DARK.values()), "a color that was replaced is not replaced again"


def perceived(color: str) -> np.ndarray:
    """Lightness and the two axes of hue of a color, in which distances are those that eyes see (Oklab)."""
    channels = np.array(rgb(color)) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    cones = [[0.412221, 0.536333, 0.051446], [0.211903, 0.680700, 0.107397], [0.088302, 0.281719, 0.629979]]
    axes = [[0.210454, 0.793618, -0.004072], [1.977998, -2.428592, 0.450594], [0.025904, 0.782772, -0.808676]]
    return np.array(axes) @ np.cbrt(np.array(cones) @ linear)


@pytest.mark.parametrize("is_dark", [False, True])
def test_lines_of_one_panel_can_be_told_apart(is_dark: bool) -> None:
    """In dark mode five lines of an ablation were pinks 0.044 apart."""
    was = (perceived(color) for color in ("#8a5a80", "#9d6090"))
    assert np.linalg.norm(np.subtract(*was)) == pytest.approx(0.044, abs=0.001)  # the measure sees the defect
    for colors, least in ((layer_colors(6), 0.07), (SERIES[:5], 0.1)):
        shown = [perceived(DARK[color] if is_dark else color) for color in colors]
        assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(shown, 2)) > least


def with_lines(n: int, *, end: float = 3.0, height: int = 300) -> Panel:
    panel = Panel.blank("lines", height=height)
    for i in range(n):
        add_line(panel.figure, [1, 2], np.array([2.0 + i, end]), name=f"line {i}", color=SERIES[i % len(SERIES)])
    add_band(panel.figure, [1, 2], np.zeros(2), np.ones(2), name="band")
    return panel


def test_lines_have_their_names_at_their_ends_and_no_legend() -> None:
    panel = with_lines(3)
    add_baseline(panel.figure, [1, 2], 0.5, name="baseline: uniform")
    figure = panel.finished()
    assert listed(figure) == {} and list(listed(panel.figure)) == ["line 0", "line 1", "line 2", "baseline: uniform"]
    labels = {note.text: note for note in figure.layout.annotations}
    assert set(labels) == {"line 0", "line 1", "line 2", "uniform"} and labels["uniform"].font.color == BASELINE
    low, high = figure.layout.yaxis.range
    assert labels["uniform"].y == pytest.approx((0.5 - low) / (high - low)), "as high as its line ends"
    assert labels["line 1"].y == pytest.approx((3.0 - low) / (high - low)), "the middle one of three"
    shifts = [note.yshift if note.yshift is not None else -note.ay for note in labels.values()]
    assert len({(note.y, shift) for note, shift in zip(labels.values(), shifts, strict=True)}) == 4
    assert all(note.showarrow == (abs(shift) > 5) for note, shift in zip(labels.values(), shifts, strict=True))
    assert len(panel.figure.layout.annotations) == 0, "the panel itself is not changed"


def test_many_lines_and_lines_without_room_keep_a_legend_with_dashes() -> None:
    for panel in (with_lines(MOST_LABELS + 1), with_lines(7, height=140)):
        for name in ("a", "b"):
            add_baseline(panel.figure, [1, 2], 0.5, name=name)
        figure = panel.finished()
        assert len(listed(figure)) == len(listed(panel.figure)) and not figure.layout.annotations
        dashes = [trace.line.dash for trace in figure.data if trace.line.color == BASELINE]
        assert len(set(dashes)) == len(dashes) == 2


def test_labels_are_apart_and_move_as_little_as_they_can(rng: np.random.Generator) -> None:
    wanted, sizes = np.array([100.0, 102.0, 20.0, 104.0]), np.array([16.0, 30.0, 16.0, 16.0])
    found = _apart(wanted, sizes, 208.0)
    assert found[2] == 20.0 and found[[0, 1, 3]].mean() == pytest.approx(102.0)
    assert found[1] - found[0] == pytest.approx(23.0) and found[3] - found[1] == pytest.approx(23.0)
    for _ in range(20):
        wanted, sizes = rng.uniform(0, 200, 7), rng.choice([16.0, 30.0], 7)
        heights, order = _apart(wanted, sizes, 208.0), np.argsort(wanted)
        gaps = np.diff(heights[order]) - (sizes[order][1:] + sizes[order][:-1]) / 2
        assert gaps.min() > -1e-9, "no label covers another"


def test_hover_names_series_value_with_unit_interval_and_place() -> None:
    panel = Panel.blank("x")
    add_line(panel.figure, [0, 1], np.array([0.123456, 2.0]), name="model", band=(np.zeros(2), np.array([1.0, np.nan])))
    label_axes(panel.figure, "layer", "KL (bits)")
    line = panel.finished().data[-1]
    assert line.hovertemplate == "<b>model</b><br>KL (bits): %{y:.4~g}%{customdata}<br>layer: %{x:,}<extra></extra>"
    assert list(line.customdata) == [" (0 … 1)", ""]


def test_joined_panels_keep_labels_beside_their_own_plot() -> None:
    figure = figure_of("Whole", [with_lines(2), with_lines(2), with_lines(2)])
    labels = [note for note in figure.layout.annotations if note.text.startswith("line ")]
    assert [(note.xref, note.yref) for note in labels[::2]] == [
        ("x domain", "y domain"),
        ("x2 domain", "y2 domain"),
        ("x3 domain", "y3 domain"),
    ]
    assert not any(trace.showlegend for trace in figure.data)
    assert figure.layout.xaxis.domain[1] < figure.layout.xaxis2.domain[0] - 0.1, "room for the labels"


def test_a_log_axis_ends_where_the_lines_do() -> None:
    figure = Panel.blank().figure
    add_band(figure, [1, 2, 3], np.array([1e-12, 1e-9, 0.1]), np.ones(3), name="band")
    add_line(figure, [1, 2, 3], np.array([0.0, 0.01, 5.0]), name="model")
    log_axes(figure)
    low, high = figure.layout.yaxis.range
    assert figure.layout.yaxis.type == "log" and -2.2 < low < -2 and 0.69 < high < 0.9
    assert list(figure.layout.yaxis.ticktext) == ["0.01", "0.1", "1"]


def test_rounding_is_no_trend() -> None:
    figure = Panel.blank().figure
    add_line(figure, [1, 2], np.array([1e-4, 2e-4]), name="model")
    at_least(figure, 0.01)
    low, high = figure.layout.yaxis.range
    assert low == 0 and high == pytest.approx(0.01), "and nothing below zero where no number is"
