"""Text of all output: numbers, percentages and intervals, and values and names in messages.

Imports nothing heavy, because the command line needs it at its start.
"""

import math
import re
from typing import SupportsFloat

MINUS = "−"
DIGITS = 4
_COUNTED = ("bits", "tokens", "symbols", "steps")  # units with a singular
_THOUSAND, _LARGE = 1e3, 1e7  # commas and no decimals from the first on, a power of ten from the second on


def number_text(value: SupportsFloat) -> str:
    """Return a number with four significant digits and a minus sign; NaN is a dash.

    Example:
        >>> number_text(0.123456), number_text(-2.0), number_text(3e-7), number_text(-0.00001234), number_text(0.0)
        ('0.1235', '−2', '3e−7', '−1.234e−5', '0')
        >>> number_text(12345.6), number_text(1.5e9), number_text(float("inf")), number_text(float("nan"))
        ('12,350', '1.5e9', '∞', '–')
    """
    number = float(value)
    if math.isnan(number):
        return "–"
    if math.isinf(number):
        return "∞" if number > 0 else f"{MINUS}∞"
    text = f"{abs(number):.{DIGITS}g}"
    if _THOUSAND <= float(text) < _LARGE:
        text = f"{float(text):,.0f}"
    mantissa, _, exponent = text.partition("e")
    power = f"e{int(exponent)}".replace("-", MINUS) if exponent else ""
    return f"{MINUS if number < 0 else ''}{mantissa}{power}"


def percent_text(share: SupportsFloat, digits: int = 0) -> str:
    """Return a share in percent, with a space as in "95 % interval".

    Example:
        >>> percent_text(0.266), percent_text(-0.03), percent_text(float("nan"))
        ('27 %', '−3 %', '–')
    """
    number = 100 * float(share)
    return "–" if math.isnan(number) else f"{number:.{digits}f} %".replace("-", MINUS)


def with_minus(text: str) -> str:
    """Return a text whose negative numbers have a minus sign in place of a hyphen; names and ranges are not changed.

    Example:
        >>> with_minus("R² -0.003 (-1 to 2e-05) of bijection-v20, layers 1-4")
        'R² −0.003 (−1 to 2e−05) of bijection-v20, layers 1-4'
    """
    return re.sub(r"(?<![\w.)\]-])-(?=\.?\d)|(?<=\d[eE])-(?=\d)", MINUS, text)


def with_unit(number: str, unit: str) -> str:
    """Return a number as text with its unit, which has a singular.

    Example:
        >>> with_unit("1", "symbols"), with_unit("0.5", "bits"), with_unit("3", "")
        ('1 symbol', '0.5 bits', '3')
    """
    return f"{number} {unit[:-1] if number == '1' and unit in _COUNTED else unit}".rstrip()


def measured_text(value: SupportsFloat, unit: str = "") -> str:
    """Return a number with its unit, or a dash if it is NaN.

    Example:
        >>> measured_text(-0.25, "bits"), measured_text(float("nan"), "bits")
        ('−0.25 bits', '–')
    """
    return "–" if math.isnan(value) else with_unit(number_text(value), unit)


def interval_text(low: SupportsFloat, high: SupportsFloat) -> str:
    """Return both ends of an interval, or a dash if there is none, as for a single sequence.

    Example:
        >>> interval_text(-0.0123456, 0.5), interval_text(float("nan"), 0.5), interval_text(-3e-5, 4e-7)
        ('−0.01235 … 0.5', '–', '−3e−5 … 4e−7')
    """
    if math.isnan(low) or math.isnan(high):
        return "–"
    return " … ".join(number_text(end) for end in (low, high))


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    Example:
        >>> counted(1, "training"), counted(1000, "seed")
        ('1 training', '1,000 seeds')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shortened(text: str, most: int) -> str:
    """Return text of at most `most` characters; text that was cut ends in an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"
