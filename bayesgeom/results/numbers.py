"""The one form in which numbers are shown: terminal, tables, pages, cards, claims and generated documents."""

import math

MINUS = "−"
DIGITS = 4
_LEAST = 1e-4  # less is shown as that it is less
_PLAIN, _LARGE = 1e4, 1e7  # from the first on no decimals, from the second on a power of ten


def number_text(value: float) -> str:
    """Return a number with four significant digits and a minus sign.

    A size below 0.0001 is shown as "<0.0001", or ">−0.0001" of a negative number; NaN as a dash.

    Example:
        >>> number_text(0.123456), number_text(-2.0), number_text(3e-7), number_text(-3e-7), number_text(0.0)
        ('0.1235', '−2', '<0.0001', '>−0.0001', '0')
        >>> number_text(12345.6), number_text(1.5e9), number_text(float("inf")), number_text(float("nan"))
        ('12350', '1.5e9', '∞', '–')
    """
    size = abs(value)
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    if 0 < size < _LEAST:
        return f"<{_LEAST:.4f}" if value > 0 else f">{MINUS}{_LEAST:.4f}"
    text = f"{size:.{DIGITS}g}"
    if _PLAIN <= float(text) < _LARGE:
        text = f"{float(text):.0f}"
    mantissa, _, exponent = text.partition("e")
    power = f"e{int(exponent)}" if exponent else ""
    return f"{MINUS if value < 0 else ''}{mantissa}{power}"


def measured_text(value: float, unit: str = "") -> str:
    """Return a number with its unit; a dash where it is not known.

    Example:
        >>> measured_text(-0.25, "bits"), measured_text(float("nan"), "bits")
        ('−0.25 bits', '–')
    """
    return number_text(value) if math.isnan(value) else f"{number_text(value)} {unit}".rstrip()


def interval_text(low: float, high: float) -> str:
    """Return both ends of an interval; a dash where there is none, as over a single sequence.

    Example:
        >>> interval_text(-0.0123456, 0.5), interval_text(float("nan"), 0.5)
        ('−0.01235 … 0.5', '–')
    """
    return "–" if math.isnan(low) or math.isnan(high) else f"{number_text(low)} … {number_text(high)}"
