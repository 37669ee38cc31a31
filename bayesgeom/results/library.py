"""plotly.js for pages: the compressed bundle for plain axes, or the whole library if a figure needs more.

`assets/plotly-cartesian.min.js.gz` is the published bundle `plotly.js-cartesian-dist-min` 4.1.1, unchanged.
"""

import base64
import gzip
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

_BUNDLE = "plotly-cartesian.min.js.gz"
CONTAINED = frozenset(
    {"bar", "box", "contour", "heatmap", "histogram", "histogram2d", "histogram2dcontour"}
    | {"image", "pie", "scatter", "scatterternary", "violin"}
)


def library(kinds: Iterable[str]) -> str:
    """Return plotly.js, compressed by gzip, as base64.

    Args:
        kinds: The kinds of traces that the page draws.
    """
    return _part() if CONTAINED.issuperset(kinds) else _whole()


def packed(text: str) -> str:
    """Return a text compressed by gzip, as base64; the result is reproducible."""
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode("ascii")


@cache
def _part() -> str:
    return base64.b64encode(asset(_BUNDLE)).decode("ascii")


@cache
def _whole() -> str:
    from plotly.offline import get_plotlyjs

    return packed(get_plotlyjs())


def asset(name: str) -> bytes:
    """Return a file of the page's template."""
    return files("bayesgeom.results").joinpath("assets", name).read_bytes()
