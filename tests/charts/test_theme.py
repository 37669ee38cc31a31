"""The theme: contrast of text and lines on either background, legends under panels, honest axes."""

import itertools

import numpy as np
import pytest

from bayesgeom.charts.lines import add_band, add_line, add_reference
from bayesgeom.report.page import _asset
from bayesgeom.report.panels import Panel, figure_of, listed
from bayesgeom.report.theme import (
    AXIS,
    BACKGROUNDS,
    BASELINE,
    DARK,
    EXACT,
    GRID,
    LAYERS,
    MEASURED,
    QUANTITIES,
    SERIES,
    at_least,
    layer_colors,
    log_axes,
    rgb,
)

TEXT_CONTRAST, LINE_CONTRAST = 4.5, 3.0  # of the Web Content Accessibility Guidelines 2.1


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
    for name in ("text", "soft", "link", "good", "bad", "open"):
        for back in ("back", "block"):
            assert contrast(colors[name], colors[back]) >= TEXT_CONTRAST, (name, back)


@pytest.mark.parametrize("is_dark", [False, True])
def test_lines_and_texts_of_figures_stand_out(is_dark: bool) -> None:
    back = BACKGROUNDS[is_dark]
    for color in (MEASURED, *SERIES, *LAYERS, *QUANTITIES, BASELINE, EXACT):
        shown = DARK[color] if is_dark else color
        assert contrast(shown, back) >= LINE_CONTRAST, color
    for color in (BASELINE, EXACT):
        assert contrast(DARK[color] if is_dark else color, back) >= TEXT_CONTRAST, color


def test_no_color_means_two_things() -> None:
    colors = [MEASURED, *SERIES, *LAYERS, *QUANTITIES, BASELINE, EXACT, GRID, AXIS]
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
    for colors, least in ((layer_colors(6), 0.079), (SERIES[:5], 0.1)):
        shown = [perceived(DARK[color] if is_dark else color) for color in colors]
        assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(shown, 2)) > least


def two_panels() -> list[Panel]:
    panels = [Panel.blank(title) for title in "abc"]
    for panel, name in zip(panels, ("model", "model", "other"), strict=True):
        add_line(panel.figure, [1, 2], np.array([2.0, 3.0]), name=name)
    add_band(panels[2].figure, [1, 2], np.zeros(2), np.ones(2), name="hidden")
    panels[2].figure.data[-1].showlegend = False
    return panels


def test_each_panel_lists_what_it_draws() -> None:
    assert [listed(panel.figure) for panel in two_panels()] == [{"model": [0]}, {"model": [0]}, {"other": [0]}]
    figure = figure_of("Whole", two_panels())
    assert [trace.showlegend for trace in figure.data] == [True, True, True, False]
    assert len({trace.legend for trace in figure.data[:3]}) == 3, "a legend of its own for each panel"


def test_legends_lie_under_their_panel() -> None:
    figure = figure_of("Whole", two_panels())
    tops = {trace.xaxis: figure.layout[trace.legend].y for trace in figure.data[:3]}
    assert tops["x"] == tops["x2"] < figure.layout.yaxis.domain[0] and tops["x"] > figure.layout.yaxis3.domain[1]
    assert [note.y for note in figure.layout.annotations] == [
        pytest.approx(figure.layout[axis].domain[1]) for axis in ("yaxis", "yaxis2", "yaxis3")
    ]


def test_a_log_axis_ends_where_the_lines_do() -> None:
    figure = Panel.blank().figure
    add_band(figure, [1, 2, 3], np.array([1e-12, 1e-9, 0.1]), np.ones(3), name="band")
    add_line(figure, [1, 2, 3], np.array([0.0, 0.01, 5.0]), name="model")
    log_axes(figure)
    low, high = figure.layout.yaxis.range
    assert figure.layout.yaxis.type == "log" and -2.2 < low < -2 and 0.69 < high < 0.9
    assert list(figure.layout.yaxis.ticktext) == ["0.01", "0.1", "1"]


def test_a_narrow_log_axis_has_ticks_between_decades() -> None:
    figure = Panel.blank().figure
    add_line(figure, [1, 2], np.array([2.0, 4.0]), name="model")
    log_axes(figure)
    assert list(figure.layout.yaxis.ticktext) == ["2", "5"]


def test_rounding_is_no_trend() -> None:
    figure = Panel.blank().figure
    add_line(figure, [1, 2], np.array([1e-4, 2e-4]), name="model")
    at_least(figure, 0.01)
    low, high = figure.layout.yaxis.range
    assert low == 0 and high == pytest.approx(0.01), "and nothing below zero where no number is"


def test_the_exact_line_is_seen_around_the_models() -> None:
    figure = Panel.blank().figure
    add_reference(figure, [1, 2], np.ones(2), name="exact")
    add_line(figure, [1, 2], np.ones(2), name="model")
    exact, model = figure.data
    assert exact.line.width >= 6 and exact.opacity < 0.5 and model.line.color != exact.line.color
