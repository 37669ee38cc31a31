"""One format of numbers: four significant digits, one minus sign, nothing that reads as 0 without being 0."""

import math
import re

import numpy as np
import pytest

from bayesgeom.core.text import number_text
from bayesgeom.report.estimate import Estimate


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-0.0, "0"),
        (0.00009999, "9.999e−5"),
        (-1e-12, "−1e−12"),
        (0.0001, "0.0001"),
        (-0.123449, "−0.1234"),
        (1234.56, "1,235"),
        (math.inf, "∞"),
        (math.nan, "–"),
    ],
)
def test_numbers_have_one_format(value: float, text: str) -> None:
    assert number_text(value) == text


def test_texts_are_within_half_a_digit_of_their_numbers(rng: np.random.Generator) -> None:
    for value in rng.normal(size=97) * 10.0 ** rng.integers(-9, 12, size=97):
        text = number_text(float(value))
        assert "-" not in text and len(re.sub(r"e.*|[−.,]", "", text).strip("0")) <= 4
        assert float(text.replace("−", "-").replace(",", "")) == pytest.approx(value, rel=5.1e-4)


def test_an_estimate_and_its_interval_have_one_format() -> None:
    assert Estimate.of(-3e-5, (-0.1, 4e-7), n=7).text() == "−3e−5 [−0.1 … 4e−7]"
