"""Heat maps: numbers that can be read on their cells, colors that are the distance from the baseline."""

import html
import re

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.colors import find_intermediate_color

from bayesgeom.charts.heat import _cell_text, add_heat
from bayesgeom.report.panels import Panel
from bayesgeom.report.theme import ABOVE, BELOW, DARK, INKS, SHADES, rgb


def heat_map(values: np.ndarray, **named: object) -> go.Figure:
    figure = Panel.blank().figure
    add_heat(figure, values, unit="|cosine|", **named)  # type: ignore[arg-type]
    return figure


@pytest.mark.parametrize(
    ("share", "text"),
    [(-2e-5, "≈ 0"), (3e-6, "≈ 0"), (0.0, "0"), (0.6136, "0.6136"), (-0.02, "−0.02"), (1.679e-4, "0.0002")],
)
def test_a_share_at_the_level_of_the_context_free_predictor_has_no_sign(share: float, text: str) -> None:
    assert _cell_text(share, 4) == text


def relative_luminance(channels: tuple[float, ...]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (own / 255 for own in channels)]
    return sum(weight * own for weight, own in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    dark, light = sorted(map(relative_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def color_at(scale: list[tuple[float, str]], place: float) -> tuple[float, ...]:
    """Return the color that plotly gives a cell: linear between the two stops around it."""
    place = min(max(place, 0.0), 1.0)
    after = next(index for index, (stop, _) in enumerate(scale) if stop >= place and index)
    (low, first), (high, second) = scale[after - 1 : after + 1]
    mixed: tuple[float, ...] = find_intermediate_color(rgb(first), rgb(second), (place - low) / (high - low))
    return mixed


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize(("least", "baseline"), [(-0.3, 0.0), (-1.0, 0.0), (-0.3, 1.0)])
def test_the_text_of_every_cell_can_be_read_on_its_color(is_dark: bool, least: float, baseline: float) -> None:
    """White on the middle of the scale had a contrast of 3.4."""
    assert contrast((255, 255, 255), (83, 144, 199)) == pytest.approx(3.4, abs=0.05)  # the reference sees the defect
    values = np.linspace(least, 1.0, 104).reshape(13, 8)
    limits = (0.0, 1.0) if least == -0.3 and baseline == 0 else None
    cells, text = heat_map(values, baseline=baseline, limits=limits).data
    shown = DARK if is_dark else {color: color for color in DARK}
    scale = [(place, shown[color]) for place, color in cells.colorscale]
    places = (values.ravel() - cells.zmin) / (cells.zmax - cells.zmin)
    inks = [rgb(shown[ink]) for ink in text.textfont.color]
    contrasts = [contrast(color_at(scale, place), ink) for place, ink in zip(places, inks, strict=True)]
    assert set(text.textfont.color) == set(INKS) and min(contrasts) >= 4.5
    assert cells.text is None and cells.texttemplate is None  # plotly would choose the color


def test_heads_hold_their_numbers_layers_upward(rng: np.random.Generator) -> None:
    values = rng.random((2, 3))
    values[1, 2] = np.nan
    figure = heat_map(values, baseline=0.0)
    heads, text = figure.data
    np.testing.assert_array_equal(heads.z, values)
    assert (list(heads.x), list(heads.y)) == ([0, 1, 2], [0, 1]) and heads.zmin == 0 and heads.showscale is False
    assert heads.zmax == pytest.approx(np.nanmax(values)) and list(text.text)[-1] == "–"
    assert figure.layout.xaxis.title.text == "head (cells: |cosine|)" and figure.layout.yaxis.title.text == "layer"
    assert figure.layout.yaxis.range == (-0.5, 1.5) and "|cosine|: %{z" in heads.hovertemplate


def test_many_heads_have_a_color_bar_with_the_unit(rng: np.random.Generator) -> None:
    figure = heat_map(rng.random((3, 13)), baseline=0.0)
    (heads,) = figure.data
    assert heads.showscale and figure.layout.xaxis.title.text == "head (color: |cosine|)"


@pytest.mark.parametrize(
    ("values", "baseline", "page", "ends"),
    [
        ([0.2, 0.5, 1.0], 0.0, SHADES[0], (0.0, 1.0)),  # all above
        ([0.2, 0.5, 0.9], 1.0, BELOW[0], (0.2, 1.0)),  # all below
        ([-0.2, 0.5, 1.0], 0.0, ABOVE[0], (-1.0, 1.0)),  # on both sides
        ([0.2, 0.5, 1.0], float("nan"), SHADES[0], (0.2, 1.0)),
    ],
)
def test_the_baseline_has_the_color_of_the_page(
    values: list[float], baseline: float, page: tuple[float, str], ends: tuple[float, float]
) -> None:
    heads = heat_map(np.array([values]), baseline=baseline).data[0]
    assert (heads.zmin, heads.zmax) == pytest.approx(ends)
    level = ends[0] if np.isnan(baseline) else baseline
    place = (level - heads.zmin) / (heads.zmax - heads.zmin)
    assert [color for stop, color in heads.colorscale if stop == pytest.approx(place)] == [page[1]]


def test_heads_that_are_not_defined_say_so() -> None:
    (note,) = heat_map(np.full((2, 3), np.nan), baseline=0.25).data
    assert note.mode == "text" and note.text == ("Not defined here",)


def test_rows_with_names_begin_at_the_top(rng: np.random.Generator) -> None:
    figure = heat_map(rng.random((2, 3)), names=(["a", "b"], ["x", "y", "z"]), axes=("model", ""))
    assert list(figure.data[0].y) == ["a", "b"] and figure.layout.yaxis.range == (1.5, -0.5)


@pytest.mark.parametrize(
    "names",
    [
        ["1 2", "2 3", "3 5", "4 =", "5 7"],  # plotly reads "1 2" as 12
        ["1", "5", "10", "20", "2000"],
        ["100", "2000", "2026-11-01", "2026-12", "1e3"],
        ["a", "b", "a", "a", "a<i></i>"],
        ["<s>", "<b>", "<sub>", "&lt;", "$x$"],
    ],
)
def test_every_name_is_a_place_of_its_own_that_shows_it(names: list[str], rng: np.random.Generator) -> None:
    values = rng.random((len(names), 3))
    for turned in (values, values.T):
        own = (names, range(2, 5)) if turned is values else (range(2, 5), names)
        figure = heat_map(turned, names=own)
        cells, text = figure.data
        named, plain = ("y", "x") if turned is values else ("x", "y")
        axis, places = figure.layout[f"{named}axis"], list(cells[named])
        assert axis.type == "category" and sorted(axis.range) == [-0.5, len(names) - 0.5]
        assert len(set(places)) == len(names) and dict.fromkeys(text[named]) == dict.fromkeys(places)
        assert [html.unescape(re.sub("<[^>]*>", "", place)) for place in places] == names
        assert list(cells[plain]) == [2, 3, 4] and sorted(figure.layout[f"{plain}axis"].range) == [1.5, 4.5]


@pytest.mark.parametrize(
    ("names", "ticks", "key"),
    [
        (["a", "b c"], ["a", "b c"], None),
        (["slow-hmm-lstm", "slow-hmm-transformer", "x y"], ["slow-hmm-lstm", "slow-hmm-<br>transformer", "x y"], None),
        (["dice", "bijection (eliminate)", "a", "b", "recall-16 (bind)"], list("12345"), "2 bijection (eliminate)"),
        (["1 the", "2 uncharacteristically", "3 a", "4 b"], list("1234"), "2 uncharacteristically"),
    ],
)
def test_names_of_columns_wrap_or_are_numbered(
    names: list[str], ticks: list[str], key: str | None, rng: np.random.Generator
) -> None:
    """At 400 px they were turned, and the last one was cut."""
    figure = heat_map(rng.random((2, len(names))), names=(["r", "s"], names))
    axis, single = figure.layout.xaxis, heat_map(rng.random((2, 1)), names=(["r", "s"], ["a"]))
    assert list(axis.ticktext) == ticks and list(axis.tickvals) == list(range(len(names))) and axis.tickangle == 0
    listed = axis.title.text.replace("<br>", " ").replace("\u00a0", " ")
    assert (key is None) == (listed == "head (cells: |cosine|)") and (key or "head") in listed
    assert (figure.layout.height > single.layout.height) == ("<br>" in "".join(ticks) + axis.title.text)
