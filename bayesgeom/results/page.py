"""The report page: one self-contained HTML file that opens offline and fetches nothing."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, final

import plotly.graph_objects as go

from bayesgeom.results.report import Headline, headline_cells
from bayesgeom.results.theme import CONFIG, FONT, MEASURED, with_room_for_legend

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE = "page.html.jinja"
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

    @property
    def short_title(self) -> str:
        """The title up to its colon."""
        return self.title.split(":", maxsplit=1)[0]


@final
@dataclass(frozen=True, kw_only=True)
class _Row:
    """One headline as the cells of a table."""

    name: str
    short_title: str
    label: str
    value: str
    interval: str
    no_interval: str
    baseline: str


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

    rows = {section.name: [_row(section, line) for line in section.headlines] for section in sections}
    drawn = {
        section.name: pio.to_html(
            _without_title(section), full_html=False, include_plotlyjs=False, config=CONFIG, auto_play=False
        )
        for section in sections
    }
    return _template().render(
        title=title,
        sections=sections,
        verdicts=[section for section in sections if section.verdict],
        leading=[row for section in sections for row in rows[section.name][:n_leading]],
        rows=rows,
        drawn=drawn,
        skipped=skipped,
        provenance=json.dumps(provenance, indent=1, default=str),
        introduction=_INTRODUCTION,
        plotly_js=get_plotlyjs(),
        font=FONT,
        link=MEASURED,
    )


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader

    return Environment(loader=PackageLoader("bayesgeom.results", "."), autoescape=True).get_template(TEMPLATE)


def _row(section: Section, line: Headline) -> _Row:
    value, interval, baseline = headline_cells(line)
    return _Row(
        name=section.name, short_title=section.short_title, label=line.label, value=value, interval=interval,
        no_interval=line.no_interval, baseline=baseline,
    )  # fmt: skip


def _without_title(section: Section) -> go.Figure:
    """The figure with room for its legend, less what the heading over it says already."""
    figure = with_room_for_legend(section.figure)
    text = (figure.layout.title.text or "").removeprefix(section.title).removeprefix("<br>").lstrip(" —")
    if text:
        return figure.update_layout(title_text=text)
    saved = figure.layout.margin.t - _UNDER_TOOLS
    return figure.update_layout(title_text="", margin_t=_UNDER_TOOLS, height=figure.layout.height - saved)
