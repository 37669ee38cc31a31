"""Panels by name, and as figures for papers: found by what they draw, in printed sizes, readable in gray."""

import shutil
import sys
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest

from bayesgeom.core import InvalidArgument, UnknownName
from bayesgeom.report.figures import image_of, panel_named, paper_figure
from bayesgeom.report.panels import Panel
from bayesgeom.report.theme import BASELINE
from tests.browser import Browsing
from tests.report.planted import planted

CURVE, SCORES, MAP = np.array([0.5, 0.25, 0.125]), np.array([0.3, 0.7]), np.array([[0.1, 0.2], [0.4, 0.9]])
FIELDS = {"kl_bits": np.array(0.29), "kl_bits_by_position": CURVE, "share": MAP, "counts": np.array([1, 2, 3])}


def line(values: np.ndarray, name: str, color: str, **style: object) -> go.Scatter:
    return go.Scatter(x=list(range(len(values))), y=values, name=name, mode="lines", line={"color": color, **style})


def panels() -> list[Panel]:
    curve, cells, plain = Panel.blank("KL: low"), Panel.blank("Map"), Panel.blank("Steps: two", height=500)
    curve.figure.add_trace(line(CURVE, "a", "#112233"))
    curve.figure.add_trace(line(CURVE / 2, "", "#112233", dash="dash"))
    curve.figure.add_trace(line(CURVE[::-1], "b", "#445566"))
    curve.figure.add_trace(line(CURVE * 2, "baseline: one", BASELINE))
    curve.figure.add_trace(line(CURVE * 3, "baseline: two", BASELINE))
    cells.figure.add_trace(go.Heatmap(z=MAP))
    plain.figure.add_trace(line(np.array([1.0, 2.0]), "steps", "#112233"))
    plain.figure.layout.xaxis.title.text = (
        "a title of an axis that is far too long for the width of one column in print"
    )
    return [curve, cells, plain]


@pytest.mark.parametrize(
    ("name", "at"),
    [("kl_bits_by_position", 0), ("kl_bits", 0), ("KL", 0), ("KL: low", 0), ("share", 1), ("Map", 1), ("Steps", 2)],
)
def test_a_panel_is_found_by_the_field_that_it_draws_or_by_its_title(name: str, at: int) -> None:
    drawn = panels()
    assert panel_named(name, drawn, FIELDS) is drawn[at]


def test_an_unknown_name_lists_the_panels() -> None:
    with pytest.raises(UnknownName, match=r"no panel named 'kl'.*Steps: two, kl_bits_by_position, share"):
        panel_named("kl", panels(), FIELDS)  # whole numbers, as of "counts", name no panel


@pytest.mark.parametrize("inches", [3.25, 6.75])
def test_lines_differ_without_colors_in_printed_sizes(inches: float) -> None:
    curve, _, plain = panels()
    figure = paper_figure(curve, inches)
    first, baseline, second, *gray = figure.data
    assert figure.layout.width == inches * 96 and not figure.layout.title.text
    assert first.marker.symbol != second.marker.symbol and baseline.marker.symbol == f"{first.marker.symbol}-open"
    assert gray[0].line.dash != gray[1].line.dash and {own.line.width for own in figure.data} == {1.2}
    assert [own.showlegend for own in figure.data] == [True, False, True, True, True]
    assert figure.layout.xaxis.tickfont.size == pytest.approx(7 / 72 * 96)  # 7 points
    assert curve.figure.data[0].marker.symbol is None  # the panel is as it was
    title = paper_figure(plain, inches).layout.xaxis.title.text
    assert title.replace("<br>", " ") == plain.figure.layout.xaxis.title.text
    assert max(map(len, title.split("<br>"))) * 5.2 < inches * 96 - 60


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"width": "page"}, "width must be"),
        ({"width": 0.0}, "width must be"),
        ({"format": "eps"}, "format must be pdf, svg, png.*; got 'eps'"),
        ({"path": "x.jpg"}, "got 'jpg' for x.jpg"),
        ({"path": "x.svg", "format": "pdf"}, "got 'pdf' for x.svg"),
    ],
)
def test_a_bad_width_format_or_path_is_named(bad: dict[str, str | float], says: str, rng: np.random.Generator) -> None:
    with pytest.raises(InvalidArgument, match=says):
        planted(rng).figure("any", **bad)  # type: ignore[arg-type]


def test_without_kaleido_or_a_browser_the_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(InvalidArgument, match=r"figure\(\) needs kaleido.*pip install '\.\[figures\]'"):
        image_of(go.Figure(), "pdf")


@pytest.mark.exhaustive
def test_images_are_written_by_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kaleido")
    figure = paper_figure(panels()[0], 3.25)
    if shutil.which("chromium"):
        assert image_of(figure, "pdf").startswith(b"%PDF") and image_of(figure, "svg").startswith(b"<svg")
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
    with pytest.raises(InvalidArgument, match=r"could not start.*BROWSER_PATH.*saves it as SVG"):
        image_of(figure, "pdf")


@pytest.mark.exhaustive
def test_the_camera_of_a_page_saves_svg(browser_page: Browsing, rng: np.random.Generator) -> None:
    page = browser_page(planted(rng).to_html())
    page.locator(".js-plotly-plot").first.hover()
    with page.expect_download() as saved:
        page.locator(".modebar-btn[data-title^='Download plot']").first.click()
    assert saved.value.suggested_filename.endswith(".svg")
