"""What tables and headlines print in a cell: a number or an interval."""

import math


def number_cell(value: float, unit: str = "") -> str:
    """A number with its unit; a dash where there is none, as of a spread over one training."""
    return "–" if math.isnan(value) else f"{value:.4g} {unit}".rstrip()


def interval_cell(lo: float, hi: float, form: str = ".4g") -> str:
    """Both ends of an interval; a dash where there is none, as over a single sequence."""
    return "–" if math.isnan(lo) or math.isnan(hi) else f"{lo:{form}} … {hi:{form}}"
