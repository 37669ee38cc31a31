"""Tables for the terminal: at most 100 columns wide; text that is too long goes on below, and ends at a whole word."""

import re
import textwrap
from collections.abc import Sequence

from bayesgeom.results.estimate import UNDECIDED
from bayesgeom.results.headline import Headline

WIDTH, LINES = 100, 24  # of what `print(result)` shows
_HEAD = ("measured", "value", "95 % interval", "baseline", "beats")
_LEAST = {"baseline": 16, "report": 12, "measured": 22}  # columns of text, in the order in which they give way
_NOTED = 4  # lines of notes below the table
_SAID = 9  # lines of verdicts over the table
_DEEPEST = 3  # lines of one row
_SHORT = {UNDECIDED: "?"}
_LAYER = re.compile(r"\blayers? \d|\bL\d+\b")
_COUNTED = "layers are counted from 0, as in TransformerLens; positions from 1"


def narrow(rows: Sequence[Sequence[str]], *, width: int = WIDTH, room: int = 0) -> list[list[str]]:
    """Return each row as aligned lines of at most `width` columns; text gives way, numbers do not.

    Args:
        rows: The first row is the head, whose names say which columns hold text.
        width: Columns in all.
        room: Lines in all. Rows whose text does not fit go on below while there is room, the first ones first; 0 for
            one line each.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    for name, least in _LEAST.items():
        if name in rows[0] and excess > 0:
            column = list(rows[0]).index(name)
            given = min(excess, max(0, widths[column] - least))
            widths[column] -= given
            excess -= given
    spare, found = max(0, room - len(rows)), list[list[str]]()
    for at, row in enumerate(rows):
        depth = min(_DEEPEST, 1 - -spare // (len(rows) - at))  # what is left is shared among the rows that are left
        cells = [_wrapped(_breakable(cell, size), depth, size) or [""] for cell, size in zip(row, widths, strict=True)]
        spare -= (height := max(map(len, cells))) - 1
        lines = ([cell[line] if line < len(cell) else "" for cell in cells] for line in range(height))
        aligned = (zip(line, widths, strict=True) for line in lines)
        found.append(["  ".join(cell.ljust(size) for cell, size in line).rstrip()[:width] for line in aligned])
    return found


def summary(title: str, said: Sequence[str], lines: Sequence[tuple[str, Headline]], notes: Sequence[str] = ()) -> str:
    """Return what a result prints: title, verdicts, a table of headlines, notes; at most 24 lines of 100 columns.

    Args:
        title: First line.
        said: Sentences, such as verdicts.
        lines: Headlines with the name of their report, "" where there is only one report; most important first.
        notes: What was not measured, and why.
    """
    has_names = len({name for name, _ in lines}) > 1
    rows = [((("report",) if has_names else ()) + _HEAD)]
    former = ["", *(name for name, _ in lines)]
    for before, (name, line) in zip(former, lines, strict=False):
        rows.append((("" if name == before else name,) if has_names else ()) + _cells(line))
    verdicts = [part for own in said for part in _wrapped(own, 3 if 3 * len(said) <= _SAID else 1)]
    if len(verdicts) > _SAID:
        verdicts = [*verdicts[: _SAID - 1], f"… and {len(verdicts) - _SAID + 1} more verdicts: conclusion() of each"]
    if any(line.verdict == UNDECIDED for _, line in lines):
        notes = [*notes, "?: undecided, since the interval reaches a baseline or is missing"]
    if any(_LAYER.search(text) for text in (*said, *(line.label for _, line in lines))):
        notes = [*notes, _COUNTED]
    above = [*_wrapped(title, 1), *verdicts]
    below = _noted(notes)
    room = LINES - len(above) - len(below) - 3 - bool(below)
    kept = rows if len(rows) <= room else rows[: room - 1]
    more = [] if kept is rows else [f"… and {len(rows) - len(kept)} more: to_pandas() holds all"]
    head, *table = narrow(kept, room=room - len(more))
    body = [*(part for row in table for part in row), *more]
    rule = "─" * max(map(len, [*head, *body]))
    return "\n".join([*above, "", *head, rule, *body, *([""] if below else []), *below])


def _cells(line: Headline) -> tuple[str, ...]:
    name = line.baseline_name.split(";")[0].split(" (mean")[0]
    baseline = f"{line.level_text} {name}" if line.has_baseline else ""
    return (
        line.label,
        line.value_text,
        "–" if line.no_interval else line.interval,
        baseline,
        _SHORT.get(line.verdict, line.verdict),
    )


def _noted(notes: Sequence[str]) -> list[str]:
    """Notes of at most two lines each, most important first, as many as fit; then how many are left out."""
    found: list[str] = []
    for number, note in enumerate(notes):
        lines = _wrapped(note, 2)
        if len(found) + len(lines) > _NOTED - (number < len(notes) - 1):
            return [*found, f"… and {len(notes) - number} more notes: skipped, inapplicable"]
        found += lines
    return found


def _breakable(text: str, width: int) -> str:
    """A name that is too long, with room for a break after each underscore."""
    return text.replace("_", "_ ") if len(text) > width and " " not in text else text


def _wrapped(text: str, most: int, width: int = WIDTH) -> list[str]:
    """Lines of whole words, at most so many; what is left out ends in an ellipsis."""
    lines = textwrap.wrap(text, width, subsequent_indent="  " if width < WIDTH else "")
    if len(lines) <= most:
        return lines
    rest = " ".join(" ".join(lines[most - 1 :]).split())
    last = textwrap.shorten(rest, width - 2 * (most > 1), placeholder=" …")
    if last in ("…", "") or last == " …":
        last = f"{rest[: width - 3]}…"
    return [*lines[: most - 1], f"{'  ' if most > 1 and width < WIDTH else ''}{last}"]
