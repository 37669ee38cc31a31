"""The simplex chart: each belief at its place and in its color, and a note where there is nothing to draw."""

import numpy as np
import plotly.graph_objects as go
import pytest

from bayesgeom.charts.simplex import MAX_CORNERS, add_simplexes, belief_colors, corners, placed
from bayesgeom.report.panels import Panel
from bayesgeom.report.theme import SERIES


def drawn(points: np.ndarray, belief: np.ndarray) -> go.Figure:
    figure = Panel.blank().figure
    add_simplexes(figure, {"read": points}, belief)
    return figure


@pytest.mark.parametrize("n", [2, 3, 5])
def test_points_stand_where_their_shares_put_them(n: int, rng: np.random.Generator) -> None:
    belief = rng.dirichlet(np.ones(n), size=17)
    read = belief + 0.1 * rng.normal(size=belief.shape)
    figure = drawn(read, belief)
    outline, points, names, caption = figure.data
    (left, right), (low, high) = figure.layout.xaxis.range, figure.layout.yaxis.range
    seen = np.clip(placed(read), [left, low], [right, high])  # what lies far outside is drawn at the edge
    np.testing.assert_allclose(np.stack([points.x, points.y], axis=1), seen)
    np.testing.assert_allclose(np.stack([outline.x, outline.y], axis=1)[:-1], corners(n))
    assert list(names.text) == [str(i) for i in range(n)] and list(caption.text) == ["read"]
    assert len(points.marker.color) == 17 and list(points.marker.color) == list(belief_colors(belief))
    assert figure.layout.xaxis.visible is False and figure.layout.yaxis.scaleanchor == "x"
    assert not any(trace.showlegend for trace in figure.data)


def test_certainty_has_its_corner_s_color_and_doubt_a_mixture() -> None:
    red, green, blue = (int(SERIES[1][i : i + 2], 16) for i in (1, 3, 5))
    colors = belief_colors(np.array([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0], [1.2, -0.2, 0.0]]))
    assert colors[0] == f"rgb({red},{green},{blue})" and colors[1] not in (colors[0], colors[2])
    assert len(belief_colors(np.eye(13))) == 13, "colors come again where corners are more than colors"


def test_a_panel_that_cannot_be_drawn_states_the_reason() -> None:
    missing = np.full((5, 3), np.nan)
    assert drawn(missing, np.eye(3)[[0] * 5]).data[0].text == ("Not measured",)


def test_sets_of_beliefs_stand_side_by_side(rng: np.random.Generator) -> None:
    figure, belief, unknown = Panel.blank().figure, rng.dirichlet(np.ones(3), size=17), np.full((17, 3), np.nan)
    add_simplexes(figure, {"exact": belief, "unknown": unknown, "read": belief}, belief)
    exact, read = (trace for trace in figure.data if trace.mode == "markers")
    np.testing.assert_allclose(np.asarray(read.x) - exact.x, read.x[0] - exact.x[0])
    left, right = figure.layout.xaxis.range
    assert max(exact.x) < (left + right) / 2 < min(read.x), "each in its half"
    assert [trace.text[0] for trace in figure.data if trace.mode == "text" and len(trace.text) == 1] == [
        "exact",
        "read",
    ]


def test_many_hypotheses_are_sorted_in_a_heat_map(rng: np.random.Generator) -> None:
    belief = rng.dirichlet(np.full(MAX_CORNERS + 1, 0.3), size=17)
    read = belief[:, ::-1]
    figures = [drawn(points, belief) for points in (belief, read)]
    (exact,), (other,) = (figure.data for figure in figures)
    columns = sorted(range(17), key=lambda point: -max(belief[point]))
    for at, point in enumerate(columns):
        ranks = sorted(range(MAX_CORNERS + 1), key=lambda own: -belief[point, own])
        np.testing.assert_allclose(exact.z[:, at], [belief[point, own] for own in ranks], atol=1e-3)
        np.testing.assert_allclose(other.z[:, at], [read[point, own] for own in ranks], atol=1e-3)
    assert exact.type == "heatmap" and (exact.zmin, exact.zmax) == (other.zmin, other.zmax) == (0, belief.max())
    assert exact.name == "probability" and figures[0].layout.xaxis.ticktext == ("read",)


def test_a_triangle_holds_each_belief_at_one_place(rng: np.random.Generator) -> None:
    beliefs = rng.dirichlet(np.ones(3), size=31)
    with_one = np.concatenate([corners(3), np.ones((3, 1))], axis=1)
    back = np.concatenate([placed(beliefs), np.ones((31, 1))], axis=1) @ np.linalg.inv(with_one)
    np.testing.assert_allclose(back, beliefs, atol=1e-12)
