"""Texts for people: one format of numbers, tables that fit their width, and no escape sequences."""

import math
import re

import numpy as np
import pytest

from bayesgeom.core.errors import BayesGeomError, on_lines
from bayesgeom.core.text import aligned_table, number_text
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


def test_a_wide_table_wraps_without_losing_text() -> None:
    rows = [("head", "a header of several words", "interval", "note")]
    rows += [(f"L0H{at}", "0.1234", "0.1 [0.05 … 0.15]", "a note that is longer than its column") for at in range(3)]
    lines = aligned_table(rows, width=60)
    assert max(map(len, lines)) <= 60
    words = " ".join(lines).split()
    assert sorted(words) == sorted(" ".join(" ".join(row) for row in rows).split())
    assert sum("0.1 [0.05 … 0.15]" in line for line in lines) == 3, "an interval stays on one line"


def test_no_line_end_and_no_escape_sequence_of_a_name_is_printed() -> None:
    name, cleared = "a\nb\x1b[2Jc\u2028d\u202ee", r"b\x1b[2Jc\u2028d\u202ee"
    assert str(BayesGeomError(f"there is no {name}.")) == rf"there is no a\n{cleared}."
    assert on_lines(name) == f"a\n{cleared}" and on_lines("a\tb") == "a\tb"
