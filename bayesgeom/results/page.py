"""The report page: one self-contained HTML file that opens offline and fetches nothing."""

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from bayesgeom.core.plugins import Contained, is_foreign
from bayesgeom.core.text import with_minus
from bayesgeom.results.captions import plain
from bayesgeom.results.chart import further_figures
from bayesgeom.results.colors import triple, with_one_meaning
from bayesgeom.results.findings import caption, findings, tone, verdict_word
from bayesgeom.results.library import asset, library, packed
from bayesgeom.results.section import Reported, Section
from bayesgeom.results.split import Drawing, as_json, split
from bayesgeom.results.tables import counted
from bayesgeom.results.theme import CONFIG, DARK, FONT

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE = "page.html.jinja"
_MIME = "application/vnd.plotly.v1+json"
HEADLINES_SHOWN = 2  # of each report, in the summary
_INTRODUCTION = (
    "Each number stands next to its baseline: the value without the claimed structure. A number that does not beat its "
    "baseline is no evidence. Intervals are 95 %, over sequences unless a section says otherwise. Layers and heads are "
    "counted from 0, positions from 1. In figures blue is the measured number, gray a baseline, black (white on dark "
    "pages) an exact value (a wide, pale line where another covers it) or a ceiling. Other colors name one "
    "series each on the whole page, or in their section where there are more than seventeen."
)


def page_of(
    title: str, reports: Mapping[str, Reported], left_out: Mapping[str, str], provenance: Mapping[str, Any]
) -> str:
    """Return the page of reports, each with its figure and headlines."""
    sections = [section_of(name, report) for name, report in reports.items()]
    return page(title, sections, skipped=left_out, provenance=provenance)


def section_of(name: str, report: Reported) -> Section:
    """Return the section of a report, with its figures and headlines."""
    return Section(
        name=name,
        title=report.title,
        about=report.about,
        headlines=report.headlines(),
        figure=_figure(report),
        n=report.n,
        counts=report.counts,
        verdict=report.conclusion(),
        rule=report.rule,
        fewer=_fewer(report),
        further=further_figures(report),
    )


def page(title: str, sections: Sequence[Section], *, skipped: Mapping[str, str], provenance: Mapping[str, Any]) -> str:
    """Return the whole document: findings, contents, a section per report, skipped probes with reasons, provenance.

    Args:
        title: Heading of the page.
        sections: The reports, in the order in which they appear.
        skipped: Reason by name of each diagnostic without a report.
        provenance: Model, weights, versions and arguments, as JSON values.
    """
    figures = with_one_meaning([own for section in sections for own in (section.figure, *section.further.values())])
    opening = findings(sections)
    drawn = {section.name: _drawings(section, rest) for rest in [iter(figures)] for section in sections}
    bands = [(f"{triple(light)},", f"{triple(dark)},") for light, dark in DARK.items()]
    return _template().render(
        title=title,
        heading=sections[0].title if len(sections) == 1 else title,
        sections=sections,
        tested=_tested(sections, provenance) if len(sections) == 1 else "",  # the heading of several names it
        findings=opening,
        subtitles={section.name: _subtitle(section) for section in sections},
        captions={section.name: caption(section, opening) for section in sections},
        tone=tone,
        minus=with_minus,
        word=verdict_word,
        drawn=drawn,
        skipped=skipped,
        provenance=json.dumps(dict(provenance), indent=1, default=str),
        introduction=_INTRODUCTION,
        css=asset("page.css").decode(),
        js=asset("page.js").decode(),
        colors=_color_rules(),
        library=library({trace.type for figure in figures for trace in figure.data}),
        figures=packed(as_json(drawing for drawings in drawn.values() for drawing in drawings.values())),
        settings=json.dumps({"colors": [*DARK.items(), *bands], "config": CONFIG}),
        font=FONT,
    )


def notebook_html(summary: str, figure: go.Figure | None) -> str:
    """Return a result's short table and its main figure with plotly itself, for notebooks other than IPython's."""
    drawn = "" if figure is None else figure.to_html(full_html=False, config=CONFIG, auto_play=False)
    return "\n".join(filter(None, (f"<pre>{html.escape(summary)}</pre>", drawn)))


def display_in_notebook(summary: str, figure: go.Figure | None) -> None:
    """Display a result's short table and its main figure in IPython.

    The figure is plotly's MIME bundle: drawn without a network, and saved without the 5 MB of plotly itself.
    """
    from IPython.display import display

    shown: list[dict[str, Any]] = [{"text/html": f"<pre>{html.escape(summary)}</pre>", "text/plain": summary}]
    if figure is not None:
        drawn = {**json.loads(figure.to_json()), "config": CONFIG}
        shown.append({_MIME: drawn, "text/plain": "Figure: .show() draws it with plotly's renderer."})
    display(*shown, raw=True)  # type: ignore[no-untyped-call]


def _fewer(report: Reported) -> str:
    """Return why a report has fewer sequences than were requested; "" where it has not, or this is unknown."""
    requested, stored = report.provenance.get("arguments", {}).get("n"), report.provenance.get("n_recorded")
    if not isinstance(requested, int) or report.n >= requested or report.counts != "sequence":
        return ""
    why = "activations are stored for the first of them only" if report.n == stored else report.limit
    return f"of {requested:,} requested{f': {why}' if why else ''}"


def _figure(report: Reported) -> go.Figure:
    """Return the figure of a report, or an empty figure with the reason if a plug-in's figure cannot be drawn."""
    with Contained(is_foreign=is_foreign(type(report))) as drawing:
        return report.plot()
    return go.Figure(layout={"title": {"text": f"This plug-in's figure cannot be drawn: {drawing.fault}"}})


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader

    return Environment(loader=PackageLoader("bayesgeom.results", "assets"), autoescape=True).get_template(TEMPLATE)


def _tested(sections: Sequence[Section], provenance: Mapping[str, Any]) -> str:
    """Return a sentence on what was tested; "" if it is unknown."""
    model, task = provenance.get("model"), provenance.get("task_label")
    name = model.get("name") if isinstance(model, Mapping) else None
    if str(name).startswith("step-"):  # a snapshot of a training
        name = provenance.get("recipe", {}).get("name", name)
    if not (name and task and sections):
        return ""
    counts = {(section.n, section.counts) for section in sections}
    of = "".join(counted(n, what) for n, what in counts) if len(counts) == 1 else ""
    kind = model.get("architecture") if isinstance(model, Mapping) else None
    about = f" ({kind})" if kind and kind not in ("several", name) else ""
    return f"Tested: {name}{about} on {task}{f', {of}' if of else ''}."


def _drawings(section: Section, figures: Iterator[go.Figure]) -> dict[str, Drawing]:
    """Return the report's own figure and those of charts, by their place on the page; `figures` are next in order."""
    own = f"figure-{section.name}"
    places = (own, *(f"{own}-{name}" for name in section.further))
    return {place: split(next(figures), place) for place in places}


def _subtitle(section: Section) -> str:
    """Return the part of a figure's title that heading and verdict do not contain."""
    text = plain(section.figure.layout.title.text or "")
    for known in (section.title, section.verdict, section.verdict.split(". ")[0]):
        text = text.removeprefix(plain(known)).lstrip(" —")
    return text


def _color_rules() -> str:
    """Return the colors of the figures as CSS variables, for samples in legends."""
    light, dark = (
        " ".join(f"--c{name[1:]}: {color};" for name, color in colors)
        for colors in (((own, own) for own in DARK), DARK.items())
    )
    return f":root {{ {light} }} @media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
