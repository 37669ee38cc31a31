"""Samples of lines in the legends of pages, as SVG without a script."""

import re
from typing import Any

from bayesgeom.report.theme import DARK, EXACT

_DASHES = {"dash": "7,4", "dot": "2,3", "dashdot": "7,3,2,3", "longdash": "11,4", "longdashdot": "11,3,2,3"}
_SYMBOLS = {
    "diamond": "M13 1L17.5 5.5L13 10L8.5 5.5Z",
    "x": "M9 1.5L17 9.5M17 1.5L9 9.5",
    "square": "M9 1.5H17V9.5H9Z",
    "line-ns": "M13 0V11",
}


def swatch(trace: Any) -> str:
    """Return a sample of a trace; theme colors follow the page's light or dark mode."""
    line, marker = trace.line, trace.marker
    color = line.color or (marker.color if isinstance(marker.color, str) else None) or EXACT
    is_band = bool(trace.fill and not line.width)
    if is_band and (ends := re.match(r"rgba\((\d+),(\d+),(\d+),", trace.fillcolor or "")):
        color = f"#{''.join(f'{int(part):02x}' for part in ends.groups())}"
    paint = f"var(--c{color[1:]}, {color})" if color in DARK else re.sub(r"[^\w(),.%# -]", "", color)
    if is_band:
        inside = f'<rect x="2" y="1" width="22" height="9" style="fill:{paint};fill-opacity:.3;stroke:{paint}"/>'
    else:
        dash = _DASHES.get(line.dash, (line.dash or "solid").replace("px", "").replace("solid", ""))
        mode = trace.mode or "lines"
        width = f"{min(line.width or 2, 7):g};stroke-opacity:{trace.opacity or 1:g}"
        stroke = f'<path d="M1 5.5H25" style="stroke:{paint};stroke-width:{width};stroke-dasharray:{dash or "none"}"/>'
        inside = stroke * ("lines" in mode) + _symbol(str(marker.symbol or "circle"), paint) * ("markers" in mode)
    return f'<svg width="26" height="11" aria-hidden="true">{inside}</svg>'


def _symbol(symbol: str, paint: str) -> str:
    """Return a marker in the middle of a sample, as SVG."""
    shape = next((path for start, path in _SYMBOLS.items() if symbol.startswith(start)), "")
    if not shape:
        return f'<circle cx="13" cy="5.5" r="3.5" style="fill:{paint}"/>'
    fill = paint if "-open" not in symbol and "-thin" not in symbol else "none"
    return f'<path d="{shape}" style="stroke:{paint};stroke-width:1.8;fill:{fill}"/>'
