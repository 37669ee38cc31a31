"""The page of results: one self-contained HTML file that opens offline and fetches nothing.

`assets/plotly-cartesian.min.js.gz` is the published bundle `plotly.js-cartesian-dist-min` 4.1.1, unchanged.
"""

import base64
import gzip
import html
import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, final

import plotly.graph_objects as go

from bayesgeom.core import Contained, counted, discover, is_foreign, with_minus
from bayesgeom.report.panels import Chart, Panel, listed
from bayesgeom.report.render import headline_text, interval_cell, tone, verdict_text
from bayesgeom.report.tables import Reported, Viewed, model_name, settings_of
from bayesgeom.report.theme import CONFIG, DARK, EXACT, FONT, rgb

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE, BUNDLE = "page.html.jinja", "plotly-cartesian.min.js.gz"
DIGITS = 5  # significant digits of a plotted number
_CONTAINED = frozenset(  # kinds of traces that the bundle draws; others need the whole library
    {"bar", "box", "contour", "heatmap", "histogram", "histogram2d", "histogram2dcontour", "image", "pie", "scatter"}
    | {"scatterternary", "violin"}
)
_INTRODUCTION = (
    "Each number stands next to its baseline: the value without the claimed structure. A number that does not beat its "
    "baseline is no evidence. Intervals are 95 %, over sequences unless a section says otherwise; ≥ marks conservative "
    "ones, which cover more. Layers and heads are counted from 0, positions from 1. In figures blue is the measured "
    "number, gray a baseline, black (white on dark pages) an exact value or a ceiling. Verdicts and reasons for "
    "missing intervals are codes: docs/codes.md says what each means."
)
_DASHES = {"dash": "7,4", "dot": "2,3", "dashdot": "7,3,2,3", "longdash": "11,4", "longdashdot": "11,3,2,3"}
_SYMBOLS = {
    "diamond": "M13 1L17.5 5.5L13 10L8.5 5.5Z",
    "x": "M9 1.5L17 9.5M17 1.5L9 9.5",
    "square": "M9 1.5H17V9.5H9Z",
    "line-ns": "M13 0V11",
}


@final
@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One panel of a page: what plotly.js draws, and the entries of its legend with their samples as SVG."""

    id: str
    title: str
    note: str
    height: int
    is_wide: bool
    is_folded: bool
    keys: Sequence[tuple[str, Sequence[int], str]]
    plot: Mapping[str, Any]


def page_of(
    title: str, reports: Mapping[str, Reported], left_out: Mapping[str, str], provenance: Mapping[str, Any]
) -> str:
    """Return the whole document: answers, contents, a section per report, skipped probes, provenance.

    Args:
        title: Heading of the page.
        reports: The reports, in the order in which they appear.
        left_out: Reason by name of each diagnostic without a report.
        provenance: Model, weights, versions and arguments, as JSON values.
    """
    sections = [_section(name, report) for name, report in reports.items() if not isinstance(report, Viewed)]
    viewed = [report.payload() for report in reports.values() if isinstance(report, Viewed)]
    drawn = [own for section in sections for own in section["panels"]]
    bands = [(f"{_triple(light)},", f"{_triple(dark)},") for light, dark in DARK.items()]
    kinds = {trace["type"] for own in drawn for trace in own.plot["data"]}
    return _template().render(
        title=title,
        heading=sections[0]["title"] if len(sections) == 1 else title,
        tested=_tested(sections, provenance) if len(sections) == 1 else "",  # the heading of several names it
        sections=sections,
        minus=with_minus,
        tone=tone,
        verdict=verdict_text,
        answer=headline_text,
        interval=interval_cell,
        skipped=left_out,
        provenance=json.dumps(dict(provenance), indent=1, default=str),
        introduction=_INTRODUCTION,
        css=_asset("page.css").decode(),
        js=_asset("page.js").decode(),
        colors=_color_rules(),
        library=_library(is_whole=not kinds <= _CONTAINED),
        figures=_packed(json.dumps({own.id: compact(own.plot) for own in drawn}, separators=(",", ":"))),
        viewer=base64.b64encode(viewed[0]).decode("ascii") if viewed else "",
        viewer_js=_asset("viewer.js").decode(),
        settings=json.dumps({"colors": [*DARK.items(), *bands], "config": CONFIG}),
        font=FONT,
    )


def _section(name: str, report: Reported) -> dict[str, Any]:
    """Return what the template shows of a report."""
    return {
        "name": name,
        "title": report.title,
        "short_title": report.title.partition(":")[0],
        "about": report.about.split("\n\n"),
        "answer": report.answer(),
        "lines": report.headlines(),
        "panels": [_drawn(own, f"{name}-{at}") for at, own in enumerate(_panels(report), start=1)],
        "n": counted(report.n, report.counts),
        "fewer": _fewer(report),
    }


def _panels(report: Reported) -> Iterator[Panel]:
    """Yield the panels of a report, then those of charts; a plug-in that fails gives an empty one with the reason."""
    with Contained(is_foreign=is_foreign(type(report))) as drawing:
        yield from report.panels()
    if drawing.fault:
        yield Panel(title="", figure=go.Figure(), note=f"This plug-in's figure cannot be drawn: {drawing.fault}")
    # mypy forbids an abstract class as a value, but discovery needs one.
    for name, kind in discover("bayesgeom.charts", Chart).items():  # type: ignore[type-abstract]
        with Contained(is_foreign=is_foreign(kind)) as drawing:
            if report.name in kind.reports:
                figure = kind().draw(report)
                title = _plain((figure.layout.title.text or name).split("<br>")[0])
                yield Panel(title=title, figure=figure, is_wide=True)
        if drawing.fault:
            yield Panel(title=name, figure=go.Figure(), note=f"Chart {name!r} cannot be drawn: {drawing.fault}")


def _fewer(report: Reported) -> str:
    """Return why a report has fewer sequences than were requested; "" where it has not, or this is unknown."""
    requested, stored = report.provenance.get("arguments", {}).get("n"), report.provenance.get("n_recorded")
    if not isinstance(requested, int) or report.n >= requested or report.counts != "sequence":
        return ""
    why = "activations are stored for the first of them only" if report.n == stored else report.limit
    return f"of {requested:,} requested{f': {why}' if why else ''}"


def _tested(sections: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any]) -> str:
    """Return what was tested: the model, its architecture and the task; "" if it is unknown."""
    model, name, task = provenance.get("model"), model_name(provenance), provenance.get("task_label")
    if not (name and task):
        return ""
    kind = model.get("architecture") if isinstance(model, Mapping) else None
    about = f" ({kind})" if kind and kind not in ("several", name) else ""
    return ", ".join(filter(None, (f"{name}{about} on {task}", sections[0]["n"], settings_of(provenance))))


def _drawn(own: Panel, identifier: str) -> Drawn:
    """Return a panel as plotly.js draws it on a page: without title and legend, which the page has itself."""
    layout = own.figure.layout.to_plotly_json()
    layout = {key: value for key, value in layout.items() if key not in ("title", "height", "template")}
    for axis in ("xaxis", "yaxis"):
        given = layout.get(axis, {})
        text = (given.get("title") or {}).get("text")
        wrapped = {"title": {**given["title"], "text": "<br>".join(textwrap.wrap(text, 40))}} if text else {}
        layout[axis] = {**given, "automargin": True, "ticklabeloverflow": "allow", **wrapped}
    clear = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}
    margin = {"l": 54, "r": 18, "t": 10, "b": 44} if not own.figure.frames else {**layout["margin"], "t": 10}
    font = {"color": EXACT, **layout.get("font", {}), "size": 12}
    layout |= {**clear, "font": font, "margin": margin, "showlegend": False, "autosize": True}
    plot = {"data": [_trace(trace.to_plotly_json()) for trace in own.figure.data], "layout": layout}
    if own.figure.frames:
        plot["frames"] = [frame.to_plotly_json() for frame in own.figure.frames]
    entries = [(_plain(name), at, _swatch(own.figure.data[at[0]])) for name, at in listed(own.figure).items()]
    height = int(own.figure.layout.height or 340) - (0 if own.figure.frames else 38)
    return Drawn(
        id=identifier,
        title=_plain(own.title),
        note=own.note,
        height=height if own.figure.data else 0,
        is_wide=own.is_wide,
        is_folded=own.is_folded,
        keys=entries,
        plot=plot,
    )


def _trace(trace: Mapping[str, Any]) -> dict[str, Any]:
    bar = {"thickness": 11, "outlinewidth": 0, "x": 1.01, "xanchor": "left"}
    own = {key: value for key, value in trace.items() if key not in ("showlegend", "legendgroup")}
    if "colorbar" in own:
        own["colorbar"] = {**own["colorbar"], **bar}
    if "colorbar" in (marker := own.get("marker", {})):
        own["marker"] = {**marker, "colorbar": {**marker["colorbar"], **bar}}
    return own


def compact(value: Any) -> Any:
    """Return nested values as JSON values, floats with `DIGITS` significant digits.

    Example:
        >>> compact({"x": [0.123456789, 2.0, float("nan")]})
        {'x': [0.12346, 2, None]}
    """
    match value:
        case float() if not math.isfinite(value):
            return None
        case float():
            return int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.{DIGITS}g}")
        case dict():
            return {key: compact(item) for key, item in value.items() if item is not None}
        case list() | tuple():
            return [compact(item) for item in value]
        case str() | bool() | int() | None:
            return value
        case _:  # an array, or a number of numpy
            return compact(value.tolist())


def _swatch(trace: Any) -> str:
    """Return a sample of a trace as a small SVG; theme colors follow the page's light or dark mode."""
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


def _plain(text: Any) -> str:
    """Return a text without tags and line breaks."""
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", str(text)))).strip()


def _triple(color: str) -> str:
    """Return a color as bands state it, up to the opacity."""
    return f"rgba({','.join(map(str, rgb(color)))}"


def _color_rules() -> str:
    """Return the colors of the figures as CSS variables, for samples in legends."""
    light, dark = (
        " ".join(f"--c{name[1:]}: {color};" for name, color in colors)
        for colors in (((own, own) for own in DARK), DARK.items())
    )
    return f":root {{ {light} }} @media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader

    return Environment(loader=PackageLoader("bayesgeom.report", "assets"), autoescape=True).get_template(TEMPLATE)


@cache
def _library(*, is_whole: bool) -> str:
    """Return plotly.js, compressed by gzip, as base64: the bundle for plain axes, or the whole library."""
    if not is_whole:
        return base64.b64encode(_asset(BUNDLE)).decode("ascii")
    from plotly.offline import get_plotlyjs

    return _packed(get_plotlyjs())


def _packed(text: str) -> str:
    """Return a text compressed by gzip, as base64; the result is reproducible."""
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode("ascii")


def _asset(name: str) -> bytes:
    return files("bayesgeom.report").joinpath("assets", name).read_bytes()
