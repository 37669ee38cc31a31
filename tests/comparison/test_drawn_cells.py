"""Cells of the comparison's heat map."""

import pytest

from bayesgeom.comparison.drawing import _cell_text


@pytest.mark.parametrize(
    ("share", "text"), [(-2e-5, "≈ 0"), (3e-6, "≈ 0"), (0.0, "0"), (0.6136, "0.6136"), (-0.02, "−0.02")]
)
def test_a_share_at_the_level_of_the_context_free_predictor_has_no_sign(share: float, text: str) -> None:
    assert _cell_text(share) == text
