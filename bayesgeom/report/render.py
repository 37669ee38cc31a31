"""The renderer: the words of results, for terminals and notebooks. `page.py` makes pages of them."""

import html
import io
import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from bayesgeom.core import Reason, Verdict, number_text
from bayesgeom.core.text import WIDTH, shortened, text_width
from bayesgeom.report.tables import Headline
from bayesgeom.report.theme import CONFIG

if TYPE_CHECKING:
    from rich.table import Table

ROWS, NOTES, LABEL = 16, 16, 70  # of what `print(result)` shows, and letters of a label in 100 columns
BRIEF = 5  # rows where a page has the rest
_HEADINGS = ("measured", "value", "95 % interval", "baseline", "verdict")
_LEVEL, _REASON = 14, 24  # letters of a baseline that are always kept, and columns of a verdict before it wraps
_MIME = "application/vnd.plotly.v1+json"
_BEATS = {"yes": "beats every baseline", "barely": "barely beats every baseline", "no": "does not beat every baseline"}


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


def summary(
    title: str,
    opening: Sequence[str],
    blocks: Mapping[str, Sequence[tuple[str, Headline]]],
    notes: Sequence[str],
    page: str,
) -> str:
    """Return the printed form of a result: title, answer, tables of headlines, and notes.

    Args:
        title: First line.
        opening: The answer, in sentences that follow the title.
        blocks: Headlines with the name of their report, or "", by the line above their table, or ""; the most important
            ones first.
        notes: Remarks below the tables, such as what was not measured.
        page: The page that has the rest: a few numbers follow the answer, of several reports the first of each. "": as
            much as fits on a screen.
    """
    from rich.console import Console

    width = text_width()
    console = Console(width=width, file=io.StringIO(), color_system=None, highlight=False, markup=False, emoji=False)
    console.print(textwrap.shorten(title, 2 * width, placeholder=" …"))
    for sentence in opening:
        console.print(sentence)
    every = [own for lines in blocks.values() for own in lines]
    has_names, shown = len({name for name, _ in every}) > 1, list[Headline]()
    for above, lines in blocks.items():
        left = (BRIEF if page else ROWS) - len(shown)
        lines = (_first_of_each(lines) if page and has_names else lines)[:left]
        if not lines:
            continue
        console.print(f"\n{above}\n" if above else "")
        console.print(_brief(lines, width) if page else _table(lines, has_names=has_names, most=LABEL * width // WIDTH))
        shown += [line for _, line in lines]
    if len(every) > len(shown):
        console.print(f"… and {len(every) - len(shown)} more: see {page or 'to_pandas()'}")
    if any(line.chosen_of > 1 for line in shown):
        notes = [*notes, "the interval of a largest or smallest entry allows for its choice"]
    if notes and not page:
        console.print()
    for note in notes[:NOTES]:
        console.print(textwrap.shorten(note, 2 * width, placeholder=" …"))
    if len(notes) > NOTES:
        console.print(f"… and {len(notes) - NOTES} more notes: see {page or 'skipped'}")
    return "\n".join(text.rstrip() for text in console.file.getvalue().rstrip().split("\n"))  # type: ignore[attr-defined]


def _first_of_each(lines: Sequence[tuple[str, Headline]]) -> Sequence[tuple[str, Headline]]:
    """Return the first line of each report, those without a value last."""
    first = [own for at, own in enumerate(lines) if own[0] not in [name for name, _ in lines[:at]]]
    return sorted(first, key=lambda own: math.isnan(own[1].value))


def _cells(line: Headline) -> tuple[str, str, str, str, str]:
    """Return label, value, interval, strongest baseline and verdict."""
    level = f"{line.levels[0].bound}{number_text(line.baseline)} {line.baseline_name}" if line.levels else "–"
    verdict = f"{line.verdict or '–'}{f' ({line.why})' if line.why else ''}"
    return line.label, line.value_text, interval_cell(line), level, verdict


def _table(lines: Sequence[tuple[str, Headline]], *, has_names: bool, most: int) -> "Table":
    """Return headlines as a table, below the name of their report if there are several; cells of `most` letters."""
    from rich.padding import Padding

    table = _headed()
    for at, (name, line) in enumerate(lines):
        if has_names and name not in [other for other, _ in lines[:at]]:
            table.add_row(shortened(name, most))
        label, value, interval, level, verdict = _cells(line)
        table.add_row(
            Padding(shortened(label, most), (0, 0, 0, 2 * has_names)), value, interval, shortened(level, most), verdict
        )
    return table


def _brief(lines: Sequence[tuple[str, Headline]], width: int) -> "Table":
    """Return headlines as a table of few lines: names of baselines are cut before labels wrap."""
    table, labels, rows = _headed(), [line.label for _, line in lines], list[tuple[str, ...]]()
    for name, line in lines:
        label, *rest = _cells(line)
        rows.append((f"{name}: {label}" if name and labels.count(label) > 1 else label, *rest))
    widest = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
    room = width - sum(widest[:3]) - min(widest[4], _REASON) - 2 * len(widest)
    for label, value, interval, level, verdict in rows:
        table.add_row(shortened(label, 2 * LABEL), value, interval, shortened(level, max(_LEVEL, room)), verdict)
    return table


def _headed() -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="none")
    for heading in _HEADINGS:
        table.add_column(heading, no_wrap=heading in ("value", "95 % interval"))
    return table


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


def markdown(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table; vertical bars within cells are escaped."""
    cells = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells)
