"""Charts hold the numbers that they were given, draw the baseline in gray, and name their axes with units."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bayesgeom.charts.cloud import film_panel
from bayesgeom.charts.curves import Curve, add_curves
from bayesgeom.charts.forest import add_forest
from bayesgeom.charts.heat import add_heat
from bayesgeom.charts.lines import (
    add_band,
    add_baseline,
    add_estimate,
    add_line,
    add_note,
    add_reference,
    estimate_panel,
    with_baseline,
)
from bayesgeom.charts.simplex import add_simplexes
from bayesgeom.measurements.calibration import CalibrationReport
from bayesgeom.report.diagnosis import Diagnosis, load_report
from bayesgeom.report.estimate import Baseline, Estimate
from bayesgeom.report.page import _drawn, _plain
from bayesgeom.report.panels import Panel, figure_of
from bayesgeom.report.theme import MEASURED, escaped, label_axes
from tests.pages import READINGS


def test_panels_hold_their_titles_in_order() -> None:
    figure = figure_of("Whole", [drawn_panel(title) for title in ("one", "two", "three")])
    assert figure.layout.title.text == "Whole"
    titles = [note for note in figure.layout.annotations if note.text != "model"]
    assert [note.text for note in titles] == ["one", "two", "three"]
    places = [(note.x, note.y) for note in titles]
    assert places[0][1] == places[1][1] > places[2][1] and places[0][0] == places[2][0] < places[1][0]


def drawn_panel(title: str, **known: object) -> Panel:
    panel = Panel.blank(title, **known)  # type: ignore[arg-type]
    add_line(panel.figure, [1, 2], np.array([2.0, 3.0]), name="model")
    return panel


def test_wide_panels_have_a_row_of_their_own_and_heights_are_kept() -> None:
    figure = figure_of("Whole", [drawn_panel("a"), drawn_panel("b", is_wide=True, height=500), drawn_panel("c")])
    axes = [figure.layout[f"xaxis{i}"].domain for i in ("", 2, 3)]
    assert axes[1][0] == 0 and 0.9 < axes[1][1] < 1 and axes[0] == axes[2] and axes[0][1] < 0.5
    tops = [figure.layout[f"yaxis{i}"].domain[1] for i in ("", 2, 3)]
    assert tops == sorted(tops, reverse=True)
    height = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    low, high = figure.layout.yaxis2.domain
    assert (high - low) * height == pytest.approx(500 - 92)
    assert figure_of("Whole", []).layout.title.text == "Whole", "without panels"


def test_lines_keep_numbers_and_gaps() -> None:
    figure = Panel.blank().figure
    y = np.array([0.5, np.nan, 0.25])
    add_line(figure, [2, 3, 5], y, name="measured")
    (line,) = figure.data
    assert list(line.x) == [2, 3, 5] and (line.name, line.line.color) == ("measured", MEASURED)
    np.testing.assert_array_equal(line.y, y)
    assert not line.connectgaps, "a missing value leaves a gap"


def test_a_known_baseline_stands_in_the_title() -> None:
    assert with_baseline("hypotheses", 0.2503, "chance") == "hypotheses (chance: 0.2503)", "as in tables"
    assert with_baseline("hypotheses", float("nan"), "chance") == "hypotheses"


@pytest.fixture
def report(rng: np.random.Generator) -> CalibrationReport:
    found = load_report(READINGS / "claims/calibration-hmm-s5")
    assert isinstance(found, Diagnosis)
    own = found.reports["calibration"]
    assert isinstance(own, CalibrationReport)
    return own


def with_error(report: CalibrationReport, error: np.ndarray, levels: dict[str, np.ndarray]) -> CalibrationReport:
    baselines = [Baseline.of("baseline", name, level) for name, level in levels.items()]
    own = Estimate.of(error, (error, error), baselines=baselines)
    curves = np.stack([error, error])
    examples = np.stack([curves, curves], axis=1)
    changed = {"entropy_mae_bits_by_position": own, "entropy_bits_by_position": curves}
    return replace(report, example_entropy_bits=examples, **changed)  # type: ignore[arg-type]


def test_the_strongest_baselines_are_drawn_and_one_below_the_axis_is_marked(report: CalibrationReport) -> None:
    error = np.linspace(0.5, 0.02, 20)
    levels = {f"baseline {k}": np.full(20, 0.1 * k) for k in (7, 2, 5, 3)} | {"near zero": np.full(20, 1e-9)}
    drawn = [t for t in with_error(report, error, levels).panels()[1].figure.data if t.name.startswith("baseline: ")]
    assert [t.name.split(": ")[1] for t in drawn] == ["near zero", "baseline 2", "baseline 3"]
    np.testing.assert_array_equal(drawn[0].y, [1e-6] * 20)
    assert "1e−9" in drawn[0].customdata[0]


@pytest.mark.parametrize(("shift", "n_panels"), [(0.0, 3), (0.004, 3), (0.04, 5)])
def test_sequences_with_the_curve_of_the_mean_are_not_drawn_again(
    report: CalibrationReport, shift: float, n_panels: int
) -> None:
    """On a bijection without repeats entropy depends on the position: three panels showed one curve."""
    own = with_error(report, np.linspace(0.5, 0.02, 20), {})
    apart = own.example_entropy_bits + np.array([0.0, shift])[None, :, None]
    panels = replace(own, example_entropy_bits=apart).panels()
    assert len(panels) == n_panels and bool(panels[0].note) == (n_panels == 3)
    assert all("bits" in panel.figure.layout.yaxis.title.text for panel in panels)
    assert [panel.figure.layout.yaxis.type for panel in panels[:2]] == [None, "log"]


def test_estimates_stand_on_their_nearest_baselines(rng: np.random.Generator) -> None:
    figure, values = Panel.blank().figure, rng.random(5)
    levels = [Baseline.of("baseline", f"{k} away", values + k) for k in (4, 1, 3, 2)]
    unknown, ceiling = Baseline.of("baseline", "unknown", np.full(5, np.nan)), Baseline.of("ceiling", "top", values)
    add_estimate(figure, range(5), Estimate.of(values, (values - 1, values + 1), baselines=[*levels, unknown, ceiling]))
    names = [trace.name for trace in figure.data]
    assert names == [*(f"baseline: {k} away" for k in (1, 2, 3)), "model, 95 % interval", "model"]
    np.testing.assert_array_equal(figure.data[-1].y, values)
    (note,) = estimate_panel("x", ("layer", "y"), range(5), Estimate.of(np.full(5, np.nan))).figure.data
    assert note.text == ("Not defined here",)


def test_forests_reach_to_their_intervals() -> None:
    figure = Panel.blank().figure
    values = np.array([0.5, 0.25, -0.125])
    add_forest(figure, ["one", "two", "three"], values, (values - 0.1, values + 0.3), unit="bits")
    (rows,), (line,) = figure.data, figure.layout.shapes
    assert list(rows.y) == ["one", "two", "three"] and list(figure.layout.yaxis.range) == [2.5, -0.5]
    np.testing.assert_array_equal(rows.x, values)
    np.testing.assert_allclose((rows.error_x.arrayminus, rows.error_x.array), [[0.1] * 3, [0.3] * 3])
    assert (line.x0, line.x1, line.y0, line.y1, line.yref) == (0, 0, 0, 1, "y domain"), "from edge to edge"
    assert "%{y}" in rows.hovertemplate and "0.4 … 0.8" in rows.text[0] and figure.layout.xaxis.title.text == "bits"


MARKUP = "<s>%{foo}&lt;$x$"  # a name that plotly would read as tags, a template, an entity and a formula
ONE = np.array([0.25, 0.75])
BELIEF = np.eye(3)
DRAWING: dict[str, Callable[[Any], object]] = {
    "line": lambda own: add_line(own, [1, 2], ONE, name=MARKUP, band=(ONE, ONE)),
    "reference": lambda own: add_reference(own, [1, 2], ONE, name=MARKUP),
    "baseline": lambda own: add_baseline(own, [1, 2], ONE, name=MARKUP),
    "band": lambda own: add_band(own, [1, 2], ONE, ONE, name=MARKUP),
    "note": lambda own: add_note(own, MARKUP),
    "curves": lambda own: add_curves(own, ONE, [Curve(name=MARKUP, values=ONE)], unit=MARKUP, levels=[(MARKUP, 1.0)]),
    "forest": lambda own: add_forest(own, [MARKUP, MARKUP], ONE, (ONE, ONE), unit=MARKUP, levels={MARKUP: ONE}),
    "beside": lambda own: add_forest(own, [MARKUP[:14], "a"], ONE, (ONE, ONE), unit=MARKUP, levels={MARKUP: ONE}),
    "heat": lambda own: add_heat(own, BELIEF, unit=MARKUP, names=([MARKUP] * 3, [MARKUP] * 3), axes=(MARKUP, MARKUP)),
    "simplex": lambda own: add_simplexes(own, {MARKUP: BELIEF}, BELIEF),
    "sorted": lambda own: add_simplexes(own, {MARKUP: np.eye(7)}, np.eye(7)),
    "axes": lambda own: label_axes(own, MARKUP, MARKUP),
}


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for own in value.values() for text in texts_in(own))
    elif isinstance(value, list | tuple | np.ndarray):
        yield from (text for own in value for text in texts_in(own))


@pytest.mark.parametrize("chart", [*DRAWING, "film"])
def test_names_with_tags_are_shown_as_they_are(chart: str) -> None:
    panel = Panel.blank(MARKUP)
    if chart == "film":
        points = np.zeros((2, 3, 2))
        panel = film_panel(["0", MARKUP], points, np.zeros(3), colored_by=MARKUP, axes=(MARKUP, MARKUP))
    else:
        DRAWING[chart](panel.figure)
    joined, page = figure_of(MARKUP, [panel]), _drawn(panel, "one")
    plot = {**page["plot"], "frames": (), "layout": {**page["plot"]["layout"], "sliders": ()}}
    found = [*texts_in(joined.layout.title.to_plotly_json()), *texts_in(plot)]
    found += [step.label for slider in joined.layout.sliders for step in slider.steps]
    found = [text.replace("<br>", " ") for text in found if "foo" in text or "x$" in text]
    assert found and not any(part in text for text in found for part in ("<s>", "%{foo}", "$x"))
    assert escaped(MARKUP) in found and _plain(escaped(MARKUP)) == MARKUP
    assert page["title"] in (MARKUP, "Last snapshot; ▶ plays the training")
    assert all(MARKUP in name or name == "estimate, 95 % interval" for name, _, _ in page["keys"])


def test_rows_of_the_same_name_stay_apart() -> None:
    figure = Panel.blank().figure
    add_forest(figure, ["a", "10", "a"], np.arange(3.0), (np.arange(3.0), np.arange(3.0)), unit="bits")
    assert len(set(figure.data[0].y)) == 3 and [_plain(own) for own in figure.data[0].y] == ["a", "10", "a"]
