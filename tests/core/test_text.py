"""One format of numbers: four significant digits, one minus sign, nothing that reads as 0 without being 0."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from bayesgeom.core.text import interval_text, number_text
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.tables import Headline, Level, headline_of
from tests.results.planted import planted


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (0.00009999, "9.999e−5"),
        (-1e-12, "−1e−12"),
        (0.0001, "0.0001"),
        (-0.123449, "−0.1234"),
        (1234.56, "1,235"),
        (-98765.4, "−98,770"),
        (2e7, "2e7"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
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


def test_small_numbers_that_are_compared_show_enough_digits() -> None:
    line = Headline(metric="x", label="x", value=2e-5, low=1e-5, high=3e-5, levels=(Level(name="flat", value=4e-5),))
    assert str(line) == "x 2e−5 [1e−5 … 3e−5]; 4e−5 (flat)"
    alone = Headline(metric="x", label="x", value=2e-5, low=1e-5, high=3e-5, levels=(Level(name="flat", value=0.5),))
    assert str(alone) == "x 2e−5 [1e−5 … 3e−5]; 0.5 (flat)", "an interval is never hidden"
    wide = Headline(metric="x", label="x", value=2e-5, low=-0.1, high=0.3)
    assert str(wide) == "x 2e−5 [−0.1 … 0.3]", "one format for a number and its ends"
    far = Headline(metric="x", label="x", value=0.5, low=0.1, high=0.7, levels=(Level(name="flat", value=4e-5),))
    assert str(far) == "x 0.5 [0.1 … 0.7]; 4e−5 (flat)", "one format in a column"


def test_an_estimate_and_its_interval_have_one_format() -> None:
    assert Estimate.of(-3e-5, (-0.1, 4e-7), n=7).text() == "−3e−5 [−0.1 … 4e−7]"


def test_the_other_baselines_have_the_format_of_the_number(rng: np.random.Generator) -> None:
    report = planted(rng)
    tiny = replace(report, overlap=report.overlap.mapped(lambda own: 1e-6 * own))
    text = str(headline_of(tiny, "overlap", (-1, 0)))
    assert "0.0001" not in text and "; 2.5e−7 (flat)" in text


def test_an_interval_without_an_end_is_a_dash() -> None:
    assert interval_text(math.nan, 1.0) == interval_text(1.0, math.nan) == "–"
