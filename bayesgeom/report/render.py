"""The renderer: the only code that writes results for people, as text for terminals and as pages.

A page is one self-contained HTML file that opens offline and fetches nothing. `assets/plotly-cartesian.min.js.gz` is
the published bundle `plotly.js-cartesian-dist-min` 4.1.1, unchanged.
"""

import base64
import gzip
import html
import io
import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, final

import plotly.graph_objects as go

from bayesgeom.core import (
    WIDTH,
    Contained,
    Reason,
    Verdict,
    counted,
    discover,
    is_foreign,
    number_text,
    shortened,
    with_minus,
)
from bayesgeom.report.panels import Chart, Panel, listed
from bayesgeom.report.tables import Headline, Reported, model_name, settings_of
from bayesgeom.report.theme import CONFIG, DARK, EXACT, FONT, rgb

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE, BUNDLE = "page.html.jinja", "plotly-cartesian.min.js.gz"
ROWS, NOTES, LABEL = 16, 16, 70  # of what `print(result)` shows, and letters of a label
DIGITS = 5  # significant digits of a plotted number
_CONTAINED = frozenset(  # kinds of traces that the bundle draws; others need the whole library
    {"bar", "box", "contour", "heatmap", "histogram", "histogram2d", "histogram2dcontour", "image", "pie", "scatter"}
    | {"scatterternary", "violin"}
)
_MIME = "application/vnd.plotly.v1+json"
_BEATS = {"yes": "beats every baseline", "no": "does not beat every baseline"}
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


def verdict_text(verdict: str) -> str:
    """Return a verdict in words.

    Example:
        >>> verdict_text("yes"), verdict_text("causal")
        ('beats every baseline', 'causal')
    """
    return _BEATS.get(verdict, verdict)


def tone(verdict: str) -> str:
    """Return "good", "bad" or "open": the color of a verdict."""
    return next((own.tone for own in Verdict if own == verdict), "open")


def interval_cell(line: Headline) -> str:
    """Return the interval of a number as tables print it, or the reason why there is none."""
    if line.no_interval:
        return f"– ({line.no_interval})"
    return f"{'≥ ' * (line.reason == Reason.CONSERVATIVE)}{line.interval}" if line.interval else "–"


def answer_text(line: Headline) -> str:
    """Return a number with its interval and its strongest baseline.

    Example:
        >>> answer_text(Headline(metric="x", label="KL", value=0.25, low=0.125, high=0.5))
        'KL 0.25 (95 % interval 0.125 … 0.5)'
    """
    interval = f" (95 % interval {line.interval})" if line.interval else ""
    return "; ".join((f"{line.label} {line.value_text}{interval}", *line.baselines[:1]))


def summary(
    title: str,
    answer: Headline | None,
    lines: Sequence[tuple[str, Headline]],
    notes: Sequence[str],
    where: str,
) -> str:
    """Return the printed form of a result: title, answers, a table of headlines, and notes.

    Args:
        title: First line.
        answer: The answer of a single report.
        lines: Headlines with the name of their report, or ""; most important first.
        notes: Remarks below the table, such as what was not measured.
        where: Where to find what is left out; "" for the methods that return it.
    """
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table

    console = Console(width=WIDTH, file=io.StringIO(), color_system=None, highlight=False, markup=False, emoji=False)
    console.print(textwrap.shorten(title, 2 * WIDTH, placeholder=" …"))
    if answer is not None and answer.verdict:
        why = f" ({answer.why})" if answer.why else ""
        console.print(f"{verdict_text(answer.verdict)}{why}: {answer_text(answer)}")
    has_names = len({name for name, _ in lines}) > 1
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="none")
    for heading in ("measured", "value", "95 % interval", "baseline", "verdict"):
        table.add_column(heading, no_wrap=heading in ("value", "95 % interval"))
    for at, (name, line) in enumerate(lines[:ROWS]):
        if has_names and name not in [other for other, _ in lines[:at]]:
            table.add_row(shortened(name, LABEL))
        level = f"{line.levels[0].bound}{number_text(line.baseline)} {line.baseline_name}" if line.levels else "–"
        label = Padding(shortened(line.label, LABEL), (0, 0, 0, 2 * has_names))
        table.add_row(label, line.value_text, interval_cell(line), shortened(level, LABEL), line.verdict or "–")
    console.print()
    console.print(table)
    if len(lines) > ROWS:
        console.print(f"… and {len(lines) - ROWS} more: {where or 'see to_pandas()'}")
    if any(line.chosen_of > 1 for _, line in lines[:ROWS]):
        notes = [*notes, "the interval of a largest or smallest entry allows for its choice"]
    if notes:
        console.print()
    for note in notes[:NOTES]:
        console.print(textwrap.shorten(note, 2 * WIDTH, placeholder=" …"))
    if len(notes) > NOTES:
        console.print(f"… and {len(notes) - NOTES} more notes: {where or 'see skipped'}")
    return "\n".join(text.rstrip() for text in console.file.getvalue().rstrip().split("\n"))  # type: ignore[attr-defined]


def notebook_html(text: str, figure: go.Figure | None) -> str:
    """Return a result's short table and its main figure with plotly itself, for notebooks other than IPython's."""
    drawn = "" if figure is None else figure.to_html(full_html=False, config=CONFIG, auto_play=False)
    return "\n".join(filter(None, (f"<pre>{html.escape(text)}</pre>", drawn)))


def display_in_notebook(text: str, figure: go.Figure | None) -> None:
    """Display a result's short table and its main figure in IPython.

    The figure is plotly's MIME bundle: drawn without a network, and saved without the 5 MB of plotly itself.
    """
    from IPython.display import display

    shown: list[dict[str, Any]] = [{"text/html": f"<pre>{html.escape(text)}</pre>", "text/plain": text}]
    if figure is not None:
        drawn = {**json.loads(figure.to_json()), "config": CONFIG}
        shown.append({_MIME: drawn, "text/plain": "Figure: .show() draws it with plotly's renderer."})
    display(*shown, raw=True)  # type: ignore[no-untyped-call]


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
    sections = [_section(name, report) for name, report in reports.items()]
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
        answer=answer_text,
        interval=interval_cell,
        skipped=left_out,
        provenance=json.dumps(dict(provenance), indent=1, default=str),
        introduction=_INTRODUCTION,
        css=_asset("page.css").decode(),
        js=_asset("page.js").decode(),
        colors=_color_rules(),
        library=_library(is_whole=not kinds <= _CONTAINED),
        figures=_packed(json.dumps({own.id: compact(own.plot) for own in drawn}, separators=(",", ":"))),
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
    own = replace(own, figure=own.finished())
    layout = own.figure.layout.to_plotly_json()
    layout = {key: value for key, value in layout.items() if key not in ("title", "height", "template")}
    for axis in ("xaxis", "yaxis"):
        given = layout.get(axis, {})
        text = (given.get("title") or {}).get("text")
        wrapped = (
            {"title": {**given["title"], "text": "<br>".join(textwrap.wrap(text, 40 if axis == "xaxis" else 30))}}
            if text
            else {}
        )
        layout[axis] = {**given, "automargin": True, "ticklabeloverflow": "allow", **wrapped}
    clear = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}
    margin = {"l": 54, "r": 18, "t": 10, "b": 44, **layout.get("margin", {})}
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


def markdown(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table; vertical bars within cells are escaped."""
    cells = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells)
