"""Tables for the terminal: at most 100 columns wide, with long text cut off at an ellipsis."""

import textwrap
from collections.abc import Sequence

from bayesgeom.results.estimate import UNDECIDED
from bayesgeom.results.headline import Headline, number_text

WIDTH, LINES = 100, 24  # of what `print(result)` shows
_HEAD = ("measured", "value", "95 % interval", "baseline", "beats")
_LEAST = {"baseline": 16, "report": 12, "measured": 20}  # columns of text, in the order in which they give way
_NOTED = 4  # lines of notes below the table
_SAID = 9  # lines of verdicts over the table
_SHORT = {UNDECIDED: "?"}


def narrow(rows: Sequence[Sequence[str]], *, width: int = WIDTH) -> list[str]:
    """Return rows of text as aligned lines of at most `width` columns; text gives way, numbers do not.

    Args:
        rows: The first row is the head, whose names say which columns hold text.
        width: Columns in all.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    for name, least in _LEAST.items():
        if name in rows[0] and excess > 0:
            column = list(rows[0]).index(name)
            given = min(excess, max(0, widths[column] - least))
            widths[column] -= given
            excess -= given
    cells = [[_cut(cell, size).ljust(size) for cell, size in zip(row, widths, strict=True)] for row in rows]
    return ["  ".join(row).rstrip()[:width] for row in cells]


def summary(title: str, said: Sequence[str], lines: Sequence[tuple[str, Headline]], notes: Sequence[str] = ()) -> str:
    """Return what a result prints: title, verdicts, a table of headlines, notes; at most 24 lines of 100 columns.

    Args:
        title: First line.
        said: Sentences, such as verdicts.
        lines: Headlines with the name of their report, "" where there is only one report.
        notes: What was not measured, and why.
    """
    has_names = any(name for name, _ in lines)
    rows = [((("report",) if has_names else ()) + _HEAD)]
    former = ["", *(name for name, _ in lines)]
    for before, (name, line) in zip(former, lines, strict=False):
        rows.append((("" if name == before else name,) if has_names else ()) + _cells(line))
    verdicts = [part for own in said for part in _wrapped(own, 3 if 3 * len(said) <= _SAID else 1)]
    if len(verdicts) > _SAID:
        verdicts = [*verdicts[: _SAID - 1], f"… and {len(verdicts) - _SAID + 1} more verdicts: conclusion() of each"]
    if any(line.verdict == UNDECIDED for _, line in lines):
        notes = [*notes, "?: undecided, since the interval reaches a baseline or is missing"]
    above = [_cut(title, WIDTH), *verdicts]
    below = _noted(notes)
    room = LINES - len(above) - len(below) - 4
    table = narrow(rows)
    if len(table) > room:
        table = [*table[: room - 1], f"… and {len(table) - room + 1} more: to_pandas() holds all"]
    rule = "─" * max(map(len, table))
    return "\n".join([*above, "", table[0], rule, *table[1:], *([""] if below else []), *below])


def _cells(line: Headline) -> tuple[str, ...]:
    ends = (line.low, line.high)
    interval = "–" if line.no_interval else " … ".join(number_text(end, 3) for end in ends) if line.interval else ""
    baseline = f"{number_text(line.baseline, 3)} {line.baseline_name.split(';')[0]}" if line.has_baseline else ""
    label = f"{line.label} ({line.unit})" if line.unit else line.label
    return label, number_text(line.value), interval, baseline, _SHORT.get(line.verdict, line.verdict)


def _noted(notes: Sequence[str]) -> list[str]:
    """Notes of at most two lines each, most important first, as many as fit; then how many are left out."""
    found: list[str] = []
    for number, note in enumerate(notes):
        lines = _wrapped(note, 2)
        if len(found) + len(lines) > _NOTED:
            return [*found, f"… and {len(notes) - number} more notes: skipped, inapplicable"]
        found += lines
    return found


def _wrapped(text: str, most: int) -> list[str]:
    lines = textwrap.wrap(text, WIDTH)
    return lines if len(lines) <= most else [*lines[: most - 1], _cut(" ".join(lines[most - 1 :]), WIDTH)]


def _cut(text: str, width: int) -> str:
    text = " ".join(text.splitlines())
    return text if len(text) <= width else f"{text[: width - 1].rstrip()}…"
