"""The page of results: one self-contained HTML file that opens offline and fetches nothing.

A question as title, the answer with its gauge, at most six tiles, a folded section per report, and how it was measured.
Nothing is drawn before its section opens. `assets/plotly-cartesian.min.js.gz` is the published bundle
`plotly.js-cartesian-dist-min` 4.1.1, unchanged.
"""

import base64
import gzip
import html
import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, final

import plotly.graph_objects as go

from bayesgeom.core import Verdict, number_text
from bayesgeom.core.plugins import Contained, discover, is_foreign
from bayesgeom.core.text import count_text, shortened, with_minus
from bayesgeom.report.answer import Answer, answer_details, answer_of, answer_text, gate_text
from bayesgeom.report.panels import Chart, Panel, listed
from bayesgeom.report.render import interval_cell, tone, verdict_text
from bayesgeom.report.sentences import opening_of, opening_of_all
from bayesgeom.report.storage import fits
from bayesgeom.report.svg import swatch
from bayesgeom.report.tables import Headline, Reported, Viewed, model_name, settings_of
from bayesgeom.report.theme import CONFIG, DARK, EXACT, FONT, rgb

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE, BUNDLE = "page.html.jinja", "plotly-cartesian.min.js.gz"
DIGITS = 5  # significant digits of a plotted number
TILES, ROWS = 6, 12  # at most: tiles, and rows of a table before the others are folded
_ORDER = ("calibration", "evidence_response", "ablation")  # sections that come first
NARROWEST, LETTER, _NAME = 330, 7.0, 36  # pixels: a gauge on a telephone, a letter of its labels; letters of a name
_LABEL = 90  # letters of the names of models; settings have twice as many
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
_WORDS: Mapping[str, Any] = {  # what the provenance says of the task; what has another type is not shown
    **dict.fromkeys(("question", "sentence", "limits"), str),
    "example": tuple[str, ...],
    "is_cut": bool,
    "answers": Mapping[str, tuple[float, ...]],
}


@final
@dataclass(frozen=True, kw_only=True)
class Mark:
    """One number on a gauge: its place and that of its interval in percent of the width, and the lane of its label."""

    label: str
    place: float
    low: float = math.nan
    high: float = math.nan
    kind: str = "level"  # or "model"
    lane: int = 1  # above the line from 1 up, below it from −1 down


def page_of(
    title: str, reports: Mapping[str, Reported], left_out: Mapping[str, str], provenance: Mapping[str, Any]
) -> str:
    """Return the whole document: question, answer, tiles, a section per report, skipped probes, provenance.

    Args:
        title: Title of the document.
        reports: The reports. That of predictions comes first, and the others follow in this order.
        left_out: Reason by name of each diagnostic without a report.
        provenance: Model, weights, versions and arguments, as JSON values.
    """
    viewed = [report for report in reports.values() if isinstance(report, Viewed)]
    shown = [name for name, report in reports.items() if not isinstance(report, Viewed)]
    order = sorted(shown, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    answer, is_alone = answer_of(reports), len(shown) == 1
    sections = [_section(name, reports[name], answer) for name in order]
    if not is_alone:
        empty = [section for section in sections if section["is_empty"]]
        left_out = {own["short_title"]: verdict_text(own["answer"].verdict) for own in empty} | dict(left_out)
        sections = [section for section in sections if not section["is_empty"]]
    drawn = [own for section in sections for own in section["panels"]]
    bands = [(f"{_triple(light)},", f"{_triple(dark)},") for light, dark in DARK.items()]
    kinds = {trace["type"] for own in drawn for trace in own["plot"]["data"]}
    return _template().render(
        title=title,
        **_opening(title, sections, answer, provenance, is_alone=is_alone),
        line_says=[] if answer else opening_of_all({own: reports[own] for own in order}),
        tiles=[] if is_alone else _tiles(sections),
        sections=sections,
        is_alone=is_alone,
        rows=ROWS,
        has_contents=len(sections) > 1,
        minus=with_minus,
        number=number_text,
        tone=tone,
        is_code=[*map(str, Verdict)].__contains__,
        verdict=verdict_text,
        interval=interval_cell,
        skipped=left_out,
        provenance=json.dumps(
            {own: provenance[own] for own in provenance if own != "task_in_words"}, indent=1, default=str
        ),
        introduction=_INTRODUCTION,
        css=_asset("page.css").decode(),
        js=_asset("page.js").decode(),
        colors=_color_rules(),
        library=_library(is_whole=not kinds <= _CONTAINED) if drawn else "",
        figures=_packed(json.dumps({own["id"]: compact(own["plot"]) for own in drawn}, separators=(",", ":"))),
        viewer=base64.b64encode(viewed[0].payload()).decode("ascii") if viewed else "",
        first=viewed[0].first_view() if viewed else None,
        viewer_js=_asset("viewer.js").decode(),
        settings=json.dumps({"colors": [*DARK.items(), *bands], "config": CONFIG}),
        font=FONT,
    )


def _opening(
    title: str,
    sections: Sequence[Mapping[str, Any]],
    answer: Answer | None,
    provenance: Mapping[str, Any],
    *,
    is_alone: bool,
) -> dict[str, Any]:
    """Return the question of the page, what was tested, the answer, and its gauge."""
    first, stored = sections[0] if sections else {}, provenance.get("task_in_words", {})
    task = {name: stored[name] for name, kind in _WORDS.items() if name in stored and fits(stored[name], kind)}
    (subject, details), label = _tested(sections, provenance), str(provenance.get("task_label", ""))
    is_one_number = answer is None and is_alone and first["answer"] is not None
    question = task.get("question", "Does {model} infer?") if answer and model_name(provenance) else ""
    if not sections and label:  # the viewer alone; the arguments of the task are in the provenance
        title = f"{model_name(provenance)} on {provenance.get('task', {}).get('name', label)}"
    heading = question.replace("{model}", model_name(provenance)) if question else first.get("title", title)
    marks = _line_marks(first["answer"]) if is_one_number else []
    marks = _answer_marks(answer) if answer and answer.verdict != Verdict.NOT_MEASURED else marks
    return {
        "task": task,
        "heading": first["question"] if is_alone else heading,
        "eyebrow": first["short_title"] if is_alone and first["question"] != first["title"] else "",
        "tested": ", ".join(filter(None, (subject if task or not subject else f"{subject} on {label}", details))),
        "label": label if task else "",
        "answer": answer,
        "answer_sentence": answer_text(answer) if answer else "",
        "answer_details": answer_details(answer) if answer else "",
        "line": first["answer"] if is_one_number else None,
        "marks": marks,
    }


def _section(name: str, report: Reported, answer: Answer | None) -> dict[str, Any]:
    """Return what the template shows of a report: one panel, the others on request."""
    (short_title, _, question), lines = report.title.partition(": "), report.headlines()
    panels = [_drawn(own, f"{name}-{at}") for at, own in enumerate(_panels(report), start=1)]
    if len({line.metric for line in lines}) == 1:  # along one axis, such as ages; the answer stands above
        lines = sorted(lines, key=lambda line: line.at)
    has_figure = any(trace.get("mode") != "text" for own in panels for trace in own["plot"]["data"])
    first = next((own for own in panels if not own["is_folded"]), panels[0] if panels else None)
    return {
        "name": name,
        "title": report.title,
        "short_title": short_title,
        "question": question[:1].upper() + question[1:] or report.title,
        "about": report.about.split("\n\n"),
        "answer": report.headline(),
        "lines": lines,
        "is_empty": bool(lines) and all(math.isnan(line.value) for line in lines) and not has_figure,
        "panels": panels,
        "panel": first,
        "more": [own for own in panels if own is not first],
        "gate": gate_text(answer, report),
        "says": opening_of(report, is_gated=True),
        "is_behavioral": report.is_behavioral,
        "n": count_text(report.n, report.counts),
        "fewer": _fewer(report),
    }


def _tiles(sections: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the sections whose answer is a known number that means something here; at most `TILES`.

    A number on activations that does not beat its baselines is no failure of the model: it shows nothing.
    """
    shown = [
        section
        for section in sections
        if section["answer"] is not None and not math.isnan(section["answer"].value)
        if not section["gate"]
    ]
    found = list[dict[str, Any]]()
    for section in shown[:TILES]:
        is_nothing = section["answer"].verdict == Verdict.NO and not section["is_behavioral"]
        says = "no claim" if is_nothing else verdict_text(section["answer"].verdict)
        found.append({**section, "verdict": says})
    return found


def _answer_marks(answer: Answer) -> list[Mark]:
    """Return the gauge of an answer: exact, model and baselines, in bits."""
    (low, high), model = map(float, answer.kl_bits.ends), float(answer.kl_bits)
    levels = {f"{name} {number_text(level)}": level for name, level in answer.levels.items()}
    return _placed(f"this model {answer.kl_bits.text()} bits", (model, low, high), {"exact 0": 0.0, **levels})


def _line_marks(line: Headline) -> list[Mark]:
    """Return the gauge of one number: its interval and its baselines; none without a baseline."""
    if not line.levels or math.isnan(line.value):
        return []
    levels = {
        f"{shortened(level.name, _NAME)} {level.bound}{number_text(level.value)}": level.value
        for level in line.levels[:3]
    }
    zero = {} if 0.0 in levels.values() else {"0": 0.0}
    return _placed(
        f"{line.value_text}{f' [{line.interval}]' * bool(line.interval)}",
        (line.value, line.low, line.high),
        zero | levels,
    )


def _placed(model: str, ends: tuple[float, float, float], levels: Mapping[str, float]) -> list[Mark]:
    """Return marks with their labels in lanes, so that no two labels of a lane touch on the narrowest screen."""
    known = [value for value in (*ends, *levels.values()) if math.isfinite(value)]
    least, span = min(known), (max(known) - min(known)) or 1.0
    value, low, high = (100 * (end - least) / span for end in ends)
    marks = [Mark(label=model, place=value, low=low, high=high, kind="model")]
    for label, level in levels.items():
        lanes = [Mark(label=label, place=100 * (level - least) / span, lane=lane) for lane in (-1, 1, -2, 2, -3)]
        free = (own for own in lanes if not any(_touch(own, other) for other in marks if other.lane == own.lane))
        marks.append(next(free, lanes[-1]))
    return marks


def _touch(one: Mark, other: Mark) -> bool:
    """Return whether two labels overlap; each lies at its place as it does at that share of its own width."""
    spans = []
    for own in (one, other):
        width = LETTER * len(own.label)
        left = own.place / 100 * (NARROWEST - width)
        spans.append((left, left + width))
    (left, right), (start, end) = spans
    return left < end + LETTER and start < right + LETTER


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


def _tested(sections: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any]) -> tuple[str, str]:
    """Return the model with its architecture, and how many sequences with which settings; "" if it is unknown."""
    model, name = provenance.get("model"), shortened(model_name(provenance), _LABEL)
    if not (name and provenance.get("task_label")):
        return "", ""
    kind = model.get("architecture") if isinstance(model, Mapping) else None
    about = f" ({kind})" if kind and kind not in ("several", name) else ""
    settings = [shortened(settings_of(provenance), 2 * _LABEL)]
    return f"{name}{about}", ", ".join(filter(None, [section["n"] for section in sections[:1]] + settings))


def _drawn(own: Panel, identifier: str) -> dict[str, Any]:
    """Return a panel as plotly.js draws it on a page: without title and legend, which the page has itself."""
    own = replace(own, figure=own.finished())
    layout = own.figure.layout.to_plotly_json()
    layout = {key: value for key, value in layout.items() if key not in ("title", "height", "template")}
    for axis in ("xaxis", "yaxis"):
        given = layout.get(axis, {})
        text = (given.get("title") or {}).get("text") or ""
        width = 40 if axis == "xaxis" else 30
        lines = [line for part in text.split("<br>") for line in textwrap.wrap(part, width, break_long_words=False)]
        wrapped = {"title": {**given["title"], "text": "<br>".join(lines)}} if text else {}
        layout[axis] = {**given, "automargin": True, "ticklabeloverflow": "allow", **wrapped}
    clear = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}
    margin = {"l": 54, "r": 18, "t": 10, "b": 44, **layout.get("margin", {})}
    font = {"color": EXACT, **layout.get("font", {}), "size": 12}
    layout |= {**clear, "font": font, "margin": margin, "showlegend": False, "autosize": True}
    plot = {"data": [_trace(trace.to_plotly_json()) for trace in own.figure.data], "layout": layout}
    if own.figure.frames:
        plot["frames"] = [frame.to_plotly_json() for frame in own.figure.frames]
    entries = [(_plain(name), at, swatch(own.figure.data[at[0]])) for name, at in listed(own.figure).items()]
    height = int(own.figure.layout.height or 340) - (0 if own.figure.frames else 38)
    about = {"id": identifier, "title": own.title, "note": own.note, "is_folded": own.is_folded}
    return {**about, "height": height if own.figure.data else 0, "keys": entries, "plot": plot}


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
