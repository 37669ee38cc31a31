"""The report page: one self-contained HTML file that opens offline and fetches nothing."""

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import plotly.graph_objects as go

from bayesgeom.results.report import Headline, headline_cells
from bayesgeom.results.theme import CONFIG, FONT, MEASURED, with_room_for_legend

_STYLE = f"""
body {{ font-family: {FONT}; color: #1d1f23; max-width: 1120px; margin: 2rem auto; padding: 0 1.2rem;
  line-height: 1.5; }}
h1 {{ font-size: 1.6rem; margin-bottom: .2rem; }} h2 {{ font-size: 1.2rem; margin-top: 3rem; }}
table {{ border-collapse: collapse; width: 100%; font-size: .92rem; }}
th, td {{ text-align: left; padding: .35rem .7rem; border-bottom: 1px solid #e6e8eb; vertical-align: top; }}
th {{ color: #5c6570; font-weight: 600; }} td.value {{ font-weight: 600; }}
td.value, td.interval {{ font-variant-numeric: tabular-nums; white-space: nowrap; }}
a {{ color: {MEASURED}; }} .about {{ max-width: 52rem; color: #3a4048; }} .note {{ color: #5c6570; font-size: .9rem; }}
details {{ margin-top: 2rem; }} pre {{ font-size: .8rem; background: #f6f7f8; padding: 1rem; overflow: auto; }}
"""
_UNDER_TOOLS = 56  # pixels over the panels of a figure without a title: plotly's tools, and the panels' titles
_INTRODUCTION = (
    "Each number stands beside its null: what the same number would be if the claimed structure were absent. A number "
    "that does not clear its null is no evidence. Intervals are 95 %, over sequences unless a section says otherwise."
)


@final
@dataclass(frozen=True, kw_only=True)
class Section:
    """One report on the page."""

    name: str
    title: str
    about: str
    headlines: Sequence[Headline]
    figure: go.Figure
    n: int
    counts: str = "sequence"


def page(
    title: str,
    sections: Sequence[Section],
    *,
    n_leading: int,
    skipped: Mapping[str, str],
    provenance: Mapping[str, Any],
) -> str:
    """The whole document: summary, a section per report, what was skipped and why, provenance."""
    import plotly.io as pio
    from plotly.offline import get_plotlyjs

    leading = [(section, line) for section in sections for line in section.headlines[:n_leading]]
    summary = _table(
        [f'<a href="#{s.name}">{_text(s.title.split(":")[0])}</a>' for s, _ in leading], [h for _, h in leading]
    )
    bodies = "".join(
        f'<h2 id="{section.name}">{_text(section.title)}</h2><p class="about">{_text(section.about)}</p>'
        + pio.to_html(_without_title(section), full_html=False, include_plotlyjs=False, config=CONFIG, auto_play=False)
        + _table(None, section.headlines)
        + f'<p class="note">{section.n:,} {section.counts}{"s" * (section.n != 1)}.</p>'
        for section in sections
    )
    items = "".join(f"<li><b>{_text(name)}</b>: {_text(reason)}</li>" for name, reason in skipped.items())
    left_out = f"<h2>Not measured</h2><ul>{items}</ul>" if items else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<script>{get_plotlyjs()}</script></head><body><h1>{_text(title)}</h1>"
        f'<p class="about">{_INTRODUCTION}</p>{summary}{bodies}{left_out}'
        f"<details><summary>Provenance: versions, seed, weights</summary>"
        f"<pre>{_text(json.dumps(provenance, indent=1, default=str))}</pre></details></body></html>\n"
    )


def _without_title(section: Section) -> go.Figure:
    """The figure with room for its legend, less what the heading over it says already."""
    figure = with_room_for_legend(section.figure)
    text = (figure.layout.title.text or "").removeprefix(section.title).removeprefix("<br>").lstrip(" —")
    if text:
        return figure.update_layout(title_text=text)
    saved = figure.layout.margin.t - _UNDER_TOOLS
    return figure.update_layout(title_text="", margin_t=_UNDER_TOOLS, height=figure.layout.height - saved)


def _table(names: Sequence[str] | None, headlines: Sequence[Headline]) -> str:
    first = "" if names is None else "<th>diagnostic</th>"
    rows = "".join(
        "<tr>"
        + ("" if names is None else f"<td>{names[index]}</td>")
        + f'<td>{_text(line.label)}</td><td class="value">{value}</td>'
        + f'<td class="interval" title="{_text(line.no_interval)}">{interval}</td>'
        + f"<td>{_text(null)}</td></tr>"
        for index, line in enumerate(headlines)
        for value, interval, null in [headline_cells(line)]
    )
    return f"<table><tr>{first}<th>measured</th><th>value</th><th>95 % interval</th><th>null</th></tr>{rows}</table>"


def _text(text: str) -> str:
    return html.escape(text)
