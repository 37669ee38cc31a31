"""What tables and headlines print in a cell: a number, an interval, and a null with its name."""

import math
from collections.abc import Mapping


def number_cell(value: float, unit: str = "") -> str:
    """A number with its unit; a dash where there is none, as of a spread over one training."""
    return "–" if math.isnan(value) else f"{value:.4g} {unit}".rstrip()


def interval_cell(lo: float, hi: float, form: str = ".4g") -> str:
    """Both ends of an interval; a dash where there is none, as over a single sequence."""
    return "–" if math.isnan(lo) or math.isnan(hi) else f"{lo:{form}} … {hi:{form}}"


def hardest_null(levels: Mapping[str, float], *, is_error: bool) -> tuple[float, str]:
    """The level that is hardest to beat, and its name followed by the others with theirs; NaN and "" for none.

    The least of errors, the greatest of scores. Levels that are not known are left out.
    """
    known = {name: level for name, level in levels.items() if not math.isnan(level)}
    if not known:
        return math.nan, ""
    first = (min if is_error else max)(known, key=lambda name: known[name])
    others = [f"{name} {level:.3g}" for name, level in known.items() if name != first]
    return known[first], "; ".join([first, *others])
