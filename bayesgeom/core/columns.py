"""Columns of text for the terminal: long text wraps at whole words, numbers stay whole."""

import textwrap
from collections.abc import Sequence

WIDTH = 100
_LEAST = {
    "baseline": 16,
    "report": 12,
    "measured": 22,
    "verdict": 11,
}  # least width of text columns, in the order in which they are narrowed
_DEEPEST = 3  # most lines of one row


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
        cells = [wrapped(_breakable(cell, size), depth, size) or [""] for cell, size in zip(row, widths, strict=True)]
        spare -= (height := max(map(len, cells))) - 1
        lines = ([cell[line] if line < len(cell) else "" for cell in cells] for line in range(height))
        aligned = (zip(line, widths, strict=True) for line in lines)
        found.append(["  ".join(cell.ljust(size) for cell, size in line).rstrip()[:width] for line in aligned])
    return found


def _breakable(text: str, width: int) -> str:
    """Allow line breaks after the underscores of a long name."""
    return text.replace("_", "_ ") if len(text) > width and " " not in text else text


def wrapped(text: str, most: int, width: int = WIDTH) -> list[str]:
    """Wrap text to at most `most` lines of whole words; omitted text ends in an ellipsis."""
    lines = textwrap.wrap(text, width, subsequent_indent="  " if width < WIDTH else "")
    if len(lines) <= most:
        return lines
    rest = " ".join(" ".join(lines[most - 1 :]).split())
    last = textwrap.shorten(rest, width - 2 * (most > 1), placeholder=" …")
    if last in ("…", "") or last == " …":
        last = f"{rest[: width - 3]}…"
    return [*lines[: most - 1], f"{'  ' if most > 1 and width < WIDTH else ''}{last}"]
