"""Colors of a whole page: one meaning each, roles everywhere the same, and bands in the color of their line."""

import numpy as np
import plotly.graph_objects as go
import pytest

from bayesgeom import TransformerConfig, diagnose
from bayesgeom.charts.lines import add_band, add_baseline, add_line
from bayesgeom.report.colors import ROLES, series_of, with_one_meaning
from bayesgeom.report.theme import BASELINE, EXACT, LAYERS, MEASURED, QUANTITIES, SECOND, SERIES, THIRD
from bayesgeom.tasks.bijection import Bijection

TASK = Bijection(n_values=5, n_pairs=4, repeats=True)
SIZES = TransformerConfig(d_vocab=10, n_ctx=7, n_layers=3, n_heads=2, d_model=12, d_mlp=16)


@pytest.fixture(scope="module")
def drawn() -> list[go.Figure]:
    """Every figure of the page of a diagnosis with all probes and ablations."""
    found = diagnose(SIZES.build(seed=0), TASK, n=64, n_untrained=1, ablations=True)
    sections = [section_of(name, report) for name, report in found.items()]
    return [figure for section in sections for figure in (section.figure, *section.further.values())]


def meanings(figures: list[go.Figure]) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """The names of each color of a series, and the colors of each name, over all figures."""
    names: dict[str, set[str]] = {}
    colors: dict[str, set[str]] = {}
    for figure in figures:
        for color, name in series_of(figure).items():
            names.setdefault(color, set()).add(name)
            colors.setdefault(name, set()).add(color)
    return names, colors


def test_a_color_has_one_meaning_on_the_whole_page_of_a_diagnosis(drawn: list[go.Figure]) -> None:
    assert len(drawn) >= 8
    names, _ = meanings(drawn)
    assert any(len(own) > 1 for own in names.values()), "sections alone reuse colors, so that this test can fail"
    names, colors = meanings(with_one_meaning(drawn))
    assert all(len(own) == 1 for own in names.values()), names
    assert all(len(own) == 1 for own in colors.values()), colors
    assert not set(names) & set(ROLES)


def test_roles_have_the_same_color_in_every_section(drawn: list[go.Figure]) -> None:
    for before, after in zip(drawn, with_one_meaning(drawn), strict=True):
        for old, trace in zip(before.data, after.data, strict=True):
            if trace.type != "scatter" or not isinstance(old.line.color or old.marker.color, str):
                continue
            color, is_pale = old.line.color or old.marker.color, (old.opacity or 1) < 1
            if color in ROLES:
                assert (trace.line.color or trace.marker.color) == color
            if (trace.name or "").startswith("baseline: ") and not is_pale:
                assert color == BASELINE, "every kind of baseline is gray, untrained networks among them"
            if trace.name in ("exact", "threshold"):
                assert color == EXACT
            if trace.name in ("model", "measured"):
                assert color == MEASURED


def test_scales_of_layers_and_series_hold_no_color_of_a_role() -> None:
    assert not {*LAYERS, *SERIES, *QUANTITIES} & {*ROLES} and not set(LAYERS) & {*SERIES, *QUANTITIES}


def one(name: str, color: str) -> go.Figure:
    figure = panels("t", ("a",))
    add_line(figure, (1, 1), [0, 1], np.zeros(2), name=name, color=color)
    add_band(figure, (1, 1), [0, 1], np.zeros(2), np.ones(2), name=f"{name}, 95 % interval", color=color)
    add_baseline(figure, (1, 1), [0, 1], 0.5, name="baseline (in the line's color)", color=color)
    figure.data[0].customdata = np.ones((2, 3))
    return figure


def test_a_second_series_takes_a_free_color_with_its_band_and_baseline() -> None:
    first, second, again, other = (one("keys", SECOND), one("values", SECOND), one("keys", THIRD), one("x", THIRD))
    found = with_one_meaning([first, second, again, other])
    assert [series_of(figure) for figure in found] == [
        {SECOND: "keys"},
        {THIRD: "values"},
        {SECOND: "keys"},
        {SERIES[2]: "x"},
    ]
    assert found[0] is first, "a figure without a conflict is not copied"
    line, band, baseline = found[1].data
    assert np.array_equal(line.customdata, np.ones((2, 3))) and found[1].layout == second.layout
    assert line.line.color == baseline.line.color == THIRD and band.fillcolor == "rgba(125,79,161,0.18)"
    assert list(second.data[0].line.color) == list(SECOND), "the figure itself is not changed"


def test_without_a_free_color_a_series_keeps_its_own() -> None:
    free = (*SERIES, *QUANTITIES, *LAYERS)
    figures = [one(f"series {i}", color) for i, color in enumerate(free)]
    assert series_of(with_one_meaning([*figures, one("one more", SECOND)])[-1]) == {SECOND: "one more"}
