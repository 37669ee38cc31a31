"""The report page: one self-contained HTML file that opens offline and fetches nothing."""

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, final

import plotly.graph_objects as go

from bayesgeom.core.plugins import Contained, is_foreign
from bayesgeom.results.chart import further_figures
from bayesgeom.results.headline import Headline
from bayesgeom.results.theme import CONFIG, FONT, MEASURED, with_room_for_legend

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE = "page.html.jinja"
HEADLINES_SHOWN = 2  # of each report, in the summary and at the top of the page
_UNDER_TOOLS = 56  # pixels over the panels of a figure without a title: plotly's tools, and the panels' titles
_INTRODUCTION = (
    "Each number stands next to its baseline: the value without the claimed structure. A number that does not beat its "
    "baseline is no evidence. Intervals are 95 %, over sequences unless a section says otherwise."
)


@final
@dataclass(frozen=True, kw_only=True)
class Section:
    """One report on the page. `verdict` is its conclusion in a sentence, where it has one."""

    name: str
    title: str
    about: str
    headlines: Sequence[Headline]
    figure: go.Figure
    n: int
    counts: str = "sequence"
    verdict: str = ""
    further: Mapping[str, go.Figure] = field(default_factory=dict)  # of charts, by name

    @property
    def short_title(self) -> str:
        """The title up to its colon."""
        return self.title.split(":", maxsplit=1)[0]


def page_of(title: str, reports: Mapping[str, Any], left_out: Mapping[str, str], provenance: Mapping[str, Any]) -> str:
    """Return the page of some reports, each with its figure and its headlines."""
    sections = [
        Section(
            name=name,
            title=report.title,
            about=report.about,
            headlines=report.headlines(),
            figure=_figure(report),
            n=report.n,
            counts=report.counts,
            verdict=report.conclusion(),
            further=further_figures(report),
        )
        for name, report in reports.items()
    ]
    return page(title, sections, n_leading=HEADLINES_SHOWN, skipped=left_out, provenance=provenance)


def page(
    title: str,
    sections: Sequence[Section],
    *,
    n_leading: int,
    skipped: Mapping[str, str],
    provenance: Mapping[str, Any],
) -> str:
    """Return the whole document: verdicts, summary, a section per report, what was skipped and why, provenance.

    Args:
        title: Heading of the page.
        sections: The reports, in the order in which they appear.
        n_leading: How many headlines of each report the summary shows.
        skipped: Reason by name of each diagnostic without a report.
        provenance: Model, weights, versions and arguments, as JSON values.
    """
    import plotly.io as pio
    from plotly.offline import get_plotlyjs

    drawn = {
        section.name: pio.to_html(
            _without_title(section),
            full_html=False,
            include_plotlyjs=False,
            config=CONFIG,
            auto_play=False,
            div_id=f"figure-{section.name}",
        )
        for section in sections
    }
    for section in sections:
        for name, figure in section.further.items():
            drawn[section.name] += pio.to_html(
                figure,
                full_html=False,
                include_plotlyjs=False,
                config=CONFIG,
                auto_play=False,
                div_id=f"figure-{section.name}-{name}",
            )
    return _template().render(
        title=title,
        sections=sections,
        verdicts=[section for section in sections if section.verdict],
        leading=[(section, line) for section in sections for line in section.headlines[:n_leading]],
        drawn=drawn,
        skipped=skipped,
        provenance=json.dumps(dict(provenance), indent=1, default=str),
        introduction=_INTRODUCTION,
        plotly_js=get_plotlyjs(),
        font=FONT,
        link=MEASURED,
    )


def notebook_html(summary: str, figure: go.Figure | None) -> str:
    """Return what a notebook shows of a result: its short table and its main figure, where it has one.

    A notebook's output fetches plotly once from the network; saved pages contain it.
    """
    if figure is None:
        return f"<pre>{html.escape(summary)}</pre>"
    drawn = figure.to_html(full_html=False, include_plotlyjs="cdn", config=CONFIG, auto_play=False)
    return f"<pre>{html.escape(summary)}</pre>\n{drawn}"


def _figure(report: Any) -> go.Figure:
    """The figure of a report; of a plug-in's that cannot be drawn, an empty one that says why."""
    with Contained(is_foreign=is_foreign(type(report))) as drawing:
        return report.plot()
    return go.Figure(layout={"title": {"text": f"This plug-in's figure cannot be drawn: {drawing.fault}"}})


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader

    return Environment(loader=PackageLoader("bayesgeom.results", "."), autoescape=True).get_template(TEMPLATE)


def _without_title(section: Section) -> go.Figure:
    """The figure with room for its legend, less what the heading over it says already; a plug-in's own as it is."""
    layout = section.figure.layout
    if None in (layout.height, layout.margin.l, layout.margin.r, layout.margin.t, layout.margin.b):
        return section.figure
    figure = with_room_for_legend(section.figure)
    text = (figure.layout.title.text or "").removeprefix(section.title).removeprefix("<br>").lstrip(" —")
    if text:
        return figure.update_layout(title_text=text)
    saved = figure.layout.margin.t - _UNDER_TOOLS
    return figure.update_layout(title_text="", margin_t=_UNDER_TOOLS, height=figure.layout.height - saved)
