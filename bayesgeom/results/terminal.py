"""Tables for the terminal, at most 100 columns wide; long text wraps at whole words."""

import re
import textwrap
from collections.abc import Sequence

from bayesgeom.results.estimate import UNDECIDED
from bayesgeom.results.headline import MEAN, Headline

WIDTH, LINES = 100, 24  # of what `print(result)` shows
_HEAD = ("measured", "value", "95 % interval", "baseline", "beats")
_RULED = (*_HEAD[:-1], "verdict")  # of reports that state verdicts of their own, and none against baselines
_LEAST = {
    "baseline": 16,
    "report": 12,
    "measured": 22,
    "verdict": 11,
}  # least width of text columns, in the order in which they are narrowed
_NOTED = 4  # lines of notes below the table
_VERDICT_LINES = 9  # lines of verdicts above the table
_DEEPEST = 3  # most lines of one row
_SHORT = {UNDECIDED: "?"}
_LAYER = re.compile(r"\blayers? \d|\bL\d+\b")
_COUNTED = "layers are counted from 0, as in TransformerLens; positions from 1"


def narrow(rows: Sequence[Sequence[str]], *, width: int = WIDTH, room: int = 0) -> list[list[str]]:
    """Return each row as aligned lines of at most `width` columns; text is narrowed, numbers are not.

    Args:
        rows: The first row is the header, whose names determine which columns hold text.
        width: Total number of columns.
        room: Total number of lines. Long rows wrap while there is room, the first rows first; 0 for one line each.
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
        depth = min(_DEEPEST, 1 - -spare // (len(rows) - at))  # the remaining lines are shared among the remaining rows
        cells = [_wrapped(_breakable(cell, size), depth, size) or [""] for cell, size in zip(row, widths, strict=True)]
        spare -= (height := max(map(len, cells))) - 1
        lines = ([cell[line] if line < len(cell) else "" for cell in cells] for line in range(height))
        aligned = (zip(line, widths, strict=True) for line in lines)
        found.append(["  ".join(cell.ljust(size) for cell, size in line).rstrip()[:width] for line in aligned])
    return found


def summary(
    title: str, sentences: Sequence[str], lines: Sequence[tuple[str, Headline]], notes: Sequence[str] = ()
) -> str:
    """Return the printed form of a result: title, verdicts, headlines, notes; at most 24 lines of 100 columns.

    Args:
        title: First line.
        sentences: Sentences, such as verdicts.
        lines: Headlines with the name of their report, or "" for a single report; most important first.
        notes: Notes, such as what was not measured and why.
    """
    has_names = len({name for name, _ in lines}) > 1
    is_ruled = any(line.ruling for _, line in lines) and not any(line.verdict for _, line in lines)
    rows = [((("report",) if has_names else ()) + (_RULED if is_ruled else _HEAD))]
    former = ["", *(name for name, _ in lines)]
    for before, (name, line) in zip(former, lines, strict=False):
        rows.append((("" if name == before else name,) if has_names else ()) + _cells(line, is_ruled=is_ruled))
    verdicts = [part for own in sentences for part in _wrapped(own, 3 if 3 * len(sentences) <= _VERDICT_LINES else 1)]
    if len(verdicts) > _VERDICT_LINES:
        verdicts = [
            *verdicts[: _VERDICT_LINES - 1],
            f"… and {len(verdicts) - _VERDICT_LINES + 1} more verdicts: see conclusion()",
        ]
    notes = [*dict.fromkeys(f"*: {line.caveat}" for _, line in lines if line.verdict and line.caveat), *notes]
    if any(line.verdict == UNDECIDED for _, line in lines):
        notes = [*notes, "?: undecided, because the interval includes a baseline or is missing"]
    if any(_LAYER.search(text) for text in (*sentences, *(line.label for _, line in lines))):
        notes = [*notes, _COUNTED]
    above = [*_wrapped(title, 2), *verdicts]
    below = _noted(notes)
    room = LINES - len(above) - len(below) - 3 - bool(below)
    kept = rows if len(rows) <= room else rows[: room - 1]
    more = [] if kept is rows else [f"… and {len(rows) - len(kept)} more: see to_pandas()"]
    head, *table = narrow(kept, room=room - len(more))
    body = [*(part for row in table for part in row), *more]
    rule = "─" * max(map(len, [*head, *body]))
    return "\n".join([*above, "", *head, rule, *body, *([""] if below else []), *below])


def _cells(line: Headline, *, is_ruled: bool) -> tuple[str, ...]:
    name = line.baseline_name.split(";")[0].split(MEAN)[0]
    baseline = f"{line.level_text} {name}" if line.has_baseline else ""
    return (
        line.label,
        line.value_text,
        "–" if line.no_interval else line.interval,
        baseline,
        line.ruling
        if is_ruled
        else _SHORT.get(line.verdict, line.verdict) + ("*" if line.verdict and line.caveat else ""),
    )


def _noted(notes: Sequence[str]) -> list[str]:
    """Return as many notes as fit, of at most two lines each, then the number of omitted notes."""
    found: list[str] = []
    for number, note in enumerate(notes):
        lines = _wrapped(note, 2)
        if len(found) + len(lines) > _NOTED - (number < len(notes) - 1):
            return [*found, f"… and {len(notes) - number} more notes: see skipped, inapplicable"]
        found += lines
    return found


def _breakable(text: str, width: int) -> str:
    """Allow line breaks after the underscores of a long name."""
    return text.replace("_", "_ ") if len(text) > width and " " not in text else text


def _wrapped(text: str, most: int, width: int = WIDTH) -> list[str]:
    """Wrap text to at most `most` lines of whole words; omitted text ends in an ellipsis."""
    lines = textwrap.wrap(text, width, subsequent_indent="  " if width < WIDTH else "")
    if len(lines) <= most:
        return lines
    rest = " ".join(" ".join(lines[most - 1 :]).split())
    last = textwrap.shorten(rest, width - 2 * (most > 1), placeholder=" …")
    if last in ("…", "") or last == " …":
        last = f"{rest[: width - 3]}…"
    return [*lines[: most - 1], f"{'  ' if most > 1 and width < WIDTH else ''}{last}"]
