"""Cells of a heat map."""

import numpy as np
import pytest
from plotly.colors import find_intermediate_color

from bayesgeom.charts.cells import _cell_text, add_cells
from bayesgeom.report.panels import Panel
from bayesgeom.report.theme import SHADES, rgb


@pytest.mark.parametrize(
    ("share", "text"),
    [(-2e-5, "≈ 0"), (3e-6, "≈ 0"), (0.0, "0"), (0.6136, "0.6136"), (-0.02, "−0.02"), (1.679e-4, "0.0002")],
)
def test_a_share_at_the_level_of_the_context_free_predictor_has_no_sign(share: float, text: str) -> None:
    assert _cell_text(share) == text


def relative_luminance(channels: tuple[float, ...]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (own / 255 for own in channels)]
    return sum(weight * own for weight, own in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    dark, light = sorted(map(relative_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def cell_color(share: float) -> tuple[float, ...]:
    """Return the color that plotly gives a cell: linear between the two stops around it."""
    share = min(max(share, 0.0), 1.0)
    after = next(index for index, (place, _) in enumerate(SHADES) if place >= share and index)
    (low, first), (high, second) = SHADES[after - 1 : after + 1]
    mixed: tuple[float, ...] = find_intermediate_color(rgb(first), rgb(second), (share - low) / (high - low))
    return mixed


def test_the_text_of_every_cell_can_be_read_on_its_color() -> None:
    """White on the middle of the scale had a contrast of 3.4."""
    assert contrast((255, 255, 255), (83, 144, 199)) == pytest.approx(3.4, abs=0.05)  # the reference sees the defect
    shares = np.linspace(-0.3, 1.0, 1301).reshape(1, -1)
    names = [f"model {i}" for i in range(shares.size)]
    figure = Panel.blank().figure
    add_cells(figure, shares, ["task"], names)
    cells, text = figure.data
    assert list(cells.colorscale) == list(SHADES) and (cells.zmin, cells.zmax) == (0, 1)
    found = [contrast(cell_color(share), rgb(ink)) for share, ink in zip(cells.z[0], text.textfont.color, strict=True)]
    assert len(found) == shares.size and min(found) >= 4.5
    assert cells.text is None and cells.texttemplate is None  # plotly would choose the color
