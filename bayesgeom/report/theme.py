"""Common style of all charts: colors, axes with units, logarithmic axes."""

import math
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from bayesgeom.core import number_text

MEASURED, SECOND, THIRD, BASELINE, EXACT = "#2563a8", "#c1571a", "#7d4fa1", "#6b7280", "#1d1f23"
# Of named series. MEASURED is not among them: it is the only measured number of a panel. Green and red are verdicts.
SERIES = (SECOND, THIRD, "#0e8385", "#927200", "#6d4c2f", "#c2408f", "#3d3a8c", "#417ca2", "#8c7155")
LAYERS = ("#e20c79", "#bd0675", "#9a026d", "#780061", "#580151", "#3b0040", "#a06a4c", "#855036", "#63371c")  # by layer
QUANTITIES = ("#4b5d16", "#680090", "#b04eb7")  # of quantities, where colors stand for trainings elsewhere
DASHES = ("dash", "dot", "dashdot", "longdash", "longdashdot", "2px,6px", "9px,3px,2px,3px,2px,3px", "1px,3px")  # gray
# Scales of cells: their first color is almost that of the page, in light as in dark mode, so that nothing looks like
# nothing. At three quarters the luminance is 0.179 in both modes: there the text of a cell changes between INKS.
_PLACES = (0.0, 0.25, 0.5, 0.75, 1.0)
_BLUES = ("#f4f8fd", "#c7dcf0", "#83b2de", "#3278bb", "#193e60")
_DARK_BLUES = ("#1d232b", "#1d374f", "#2d567b", "#3279bc", "#b6d2ec")
_ORANGES = ("#f6f6f7", "#f6d4b2", "#eb9c4e", "#af6113", "#5b320a")
_PURPLES = ("#f6f6f7", "#e0d6ed", "#baa5d8", "#8964bc", "#482e6c")
_DARK_ORANGES = ("#202327", "#4b2e11", "#75481a", "#af6114", "#f4c699")
_DARK_PURPLES = ("#202327", "#3e2c56", "#614587", "#8964bd", "#d6cae8")
SHADES, ABOVE, BELOW = (tuple(zip(_PLACES, own, strict=True)) for own in (_BLUES, _ORANGES, _PURPLES))
PAPER = "#fefefe"  # under a text that a line may cross: the page
INKS = ("#000001", "#fffffd")  # of texts on the pale and on the deep half of these scales
SEQUENTIAL = ("#ad650d", "#ab5998", "#7b2f9e", "#2b1b6b")  # of points: every color is visible on the page
POSITIONS = ("#9a6d22", "#7f5a2b", "#5a3b20", "#35200f")  # of points, by their place in a sequence
GRID, AXIS = "#e7eaee", "#b9bfc7"
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
BACKGROUNDS = ("#ffffff", "#16181c")  # of the page: light, dark
_DARK_SERIES = ("#f0935a", "#bd93e0", "#4cc3c5", "#e0c040", "#a87a4e", "#f27fc4", "#7d7bf5", "#a3d4f0", "#efdcc0")
_DARK_LAYERS = ("#b561bb", "#d56cad", "#f280a0", "#ff9e9b", "#fec0a9", "#fedec4", "#9f7a68", "#bd917c", "#e3b9a4")
DARK: Mapping[str, str] = {
    MEASURED: "#6aa9ee",
    **dict(zip(SERIES, _DARK_SERIES, strict=True)),
    **dict(zip(LAYERS, _DARK_LAYERS, strict=True)),
    **dict(zip(QUANTITIES, ("#b7cf6f", "#a665cc", "#ff66ff"), strict=True)),
    **dict(zip(_BLUES + _ORANGES + _PURPLES, _DARK_BLUES + _DARK_ORANGES + _DARK_PURPLES, strict=True)),
    PAPER: "#17191d",
    **dict(zip(INKS, ("#fffffe", "#000002"), strict=True)),
    **dict(zip(SEQUENTIAL, ("#7570f1", "#b265e6", "#e59bc4", "#ffd98a"), strict=True)),
    **dict(zip(POSITIONS, ("#a17a52", "#bb9568", "#dabb8f", "#f6e6c4"), strict=True)),
    BASELINE: "#9aa3af",
    EXACT: "#e8eaed",
    GRID: "#2d3238",
    AXIS: "#59616c",
}
CONFIG = {"showSendToCloud": False, "displaylogo": False, "responsive": True, "toImageButtonOptions": {"format": "svg"}}


def rgb(color: str) -> tuple[int, int, int]:
    """Return red, green and blue of "#rrggbb".

    Example:
        >>> rgb("#0e8385")
        (14, 131, 133)
    """
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue


def layer_colors(n_layers: int) -> tuple[str, ...]:
    """Return a color per layer, from light to dark; up to six layers are as far apart as the scale allows.

    Example:
        >>> layer_colors(2) == (LAYERS[0], LAYERS[5]), layer_colors(30) == LAYERS
        (True, True)
    """
    ramp = _RAMP if 1 < n_layers < _RAMP else n_layers
    return tuple(LAYERS[round(i * (ramp - 1) / max(1, n_layers - 1))] for i in range(min(n_layers, len(LAYERS))))


def log_axes(figure: go.Figure, axes: str = "y", *, floor: float = 0.0) -> None:
    """Make axes of a plot logarithmic over the range of its lines and points, with each decade labeled.

    Lower ends of intervals, zeros and values below `floor` do not extend the range: the lower end of an interval can be
    a millionth of its estimate.
    """
    drawn = [trace for trace in figure.data if trace.type == "scatter"]
    for axis in axes:
        values = np.concatenate([np.ones(0), *(_reach(trace, axis) for trace in drawn)])
        values = values[np.isfinite(values) & (values > 0) & (values >= floor)]
        low, high = (np.log10(values.min()), np.log10(values.max())) if len(values) else (0.0, 1.0)
        low, high = (low - 0.1, high + 0.1) if high - low > _LEAST_DECADES else (low - 0.2, high + 0.2)
        ticks, labels = _log_ticks(low, high)
        update = figure.update_xaxes if axis == "x" else figure.update_yaxes
        update(type="log", range=[low, high], tickvals=ticks, ticktext=labels)
        for band in (trace for trace in drawn if trace.fill and axis == "y"):  # 0 has no place on the axis
            band.y = np.maximum(np.asarray(band.y, dtype=float), 10.0 ** (low - 1))


def at_least(figure: go.Figure, span: float) -> None:
    """Make the linear y axis of a plot cover at least `span`, so that rounding does not look like a trend."""
    own = [np.asarray(trace.y, dtype=float) for trace in figure.data if trace.type == "scatter"]
    values = np.concatenate(own or [np.zeros(1)])
    values = values[np.isfinite(values)]
    if len(values) and values.max() - values.min() < span:
        middle = (values.max() + values.min()) / 2
        ends = [middle - span / 2, middle + span / 2]
        shift = -ends[0] if ends[0] < 0 <= values.min() else 0.0  # no negative axis without negative numbers
        figure.update_yaxes(range=[end + shift for end in ends])


def label_axes(figure: go.Figure, x: str, y: str) -> None:
    """Set axis titles, including units."""
    figure.layout.xaxis.title.text, figure.layout.yaxis.title.text = escaped(x), escaped(y)


def escaped(text: str) -> str:
    """Return a text as plotly has to get it: tags, formulas and templates in it are shown, and not obeyed.

    Example:
        >>> escaped("<s> & {x}")
        '&lt;s&gt; &amp; &#123;x}'
    """
    return text.translate(_ESCAPES)


def wrapped(text: str, letters: int) -> str:
    r"""Return an escaped text in lines of so many letters; its own line breaks stay.

    Example:
        >>> wrapped("of <s> and\n<b>", 6)
        'of &lt;s&gt;<br>and<br>&lt;b&gt;'
    """
    lines = [line for part in text.split("\n") for line in textwrap.wrap(part, letters)]
    return "<br>".join(map(escaped, lines))


def categories(texts: Sequence[str]) -> list[str]:
    """Return escaped texts as places on an axis of type "category", where equal ones would be one place.

    Empty tags, which no escaped text ends with, tell them apart.

    Example:
        >>> categories(["a", "b", "a"])
        ['a', 'b', 'a<i></i>']
    """
    return [text + "<i></i>" * texts[:at].count(text) for at, text in enumerate(texts)]


_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "{": "&#123;"})
_RAMP = 6  # colors of `LAYERS` from light to dark; those after them are another ramp
_LEAST_DECADES = 0.5


def _reach(trace: "go.Scatter", axis: str) -> Float[np.ndarray, " value"]:
    """Return the values of a line with the upper ends of its whiskers, or the upper end of a band."""
    values, error = np.asarray(trace[axis], dtype=float).ravel(), trace[f"error_{axis}"].array
    upper = np.ones(0) if error is None else values + np.asarray(error, dtype=float)
    return np.append(upper, np.nanmax(values, initial=0.0) if trace.fill else values)


def _log_ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Return ticks at powers of ten between two logarithms; with fewer than two, at 1, 2 and 5, or at all digits."""
    decades = list(range(math.floor(low), math.ceil(high) + 1))
    powers = [10.0**k for k in decades if low <= k <= high]
    if len(powers) >= 2:
        powers = powers[:: -(-len(powers) // 6)]
        return powers, [_power(value) for value in powers]
    every = [(k, digit) for k in decades for digit in range(1, 10) if low <= math.log10(digit * 10.0**k) <= high]
    few = [at for at in every if at[1] in (1, 2, 5)]
    finer = [digit * 10.0**k for k, digit in (few if len(few) >= 2 else every)]
    return finer, [number_text(value) for value in finer]


def _power(value: float) -> str:
    exponent = round(math.log10(value))
    return f"{value:g}" if -3 <= exponent <= 4 else f"10<sup>{exponent}</sup>"
