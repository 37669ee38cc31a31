"""Columns of text for the terminal: long text wraps at whole words, numbers stay whole."""

import re
import textwrap
from collections.abc import Sequence
from functools import lru_cache

WIDTH = 100
_USUAL = (("measured", 30), ("baseline", 16), ("report", 12), ("measured", 22), ("verdict", 13))  # least widths of text
_LEAST = (*_USUAL, ("baseline", 12), ("measured", 16))  # in the order in which columns are narrowed
_DEEPEST = 3  # most lines of one row
_CELLS = (40, 32, 24)  # widths at which the cells of a wide table wrap; the first that lets it fit is used
_UNIT = re.compile(r"\[[^\]]*\]|\([^)]*\)|\S+(?: (?:…|→) \S+)+|[^ ]+(?: [^ ]+)*(?=  )|(?<=  )[^ ]+(?: [^ ]+)*")
_HARD = "\N{NO-BREAK SPACE}"  # holds a number and its interval together


def fitted(rows: Sequence[Sequence[str]], *, width: int = WIDTH) -> list[str]:
    r"""Return rows as aligned lines of at most `width` columns; no text is omitted.

    In a table that is too wide, headers wrap, then long cells. If that is not enough, further columns follow in blocks
    of their own, which repeat the column that names the rows. An interval stays on one line.

    Args:
        rows: The first row is the header.
        width: Total number of columns.

    Example:
        >>> print(*fitted([("head", "mean KL", "verdict"), ("L0H1", "0.25", "used")], width=19), sep="\n")
        head  mean  verdict
              KL
        L0H1  0.25  used
    """
    columns = list(range(len(rows[0])))
    natural = [max(len(row[at]) for row in rows) for at in columns]
    if _total(natural) <= width:
        return _lines(rows, natural)
    for cell in (width, *_CELLS):
        if _total(_widths(rows, columns, cell)) <= width:
            return _block(rows, columns, cell, width)
    keys = columns[: 1 if len({row[0] for row in rows}) == len(rows) else 2]
    found, rest = list[str](), columns[len(keys) :]
    while rest:
        block = [*keys, rest.pop(0)]
        while rest and _total(_widths(rows, [*block, rest[0]], _CELLS[0])) <= width:
            block.append(rest.pop(0))
        found += [*([""] if found else []), *_block(rows, block, _CELLS[0], width)]
    return found


def _widths(rows: Sequence[Sequence[str]], columns: Sequence[int], cell: int) -> list[int]:
    """The least width of each column if headers wrap at every word, and cells at `cell` columns."""
    return [max(_least(row[at], 0 if row is rows[0] else cell) for row in rows) for at in columns]


def _block(rows: Sequence[Sequence[str]], columns: Sequence[int], cell: int, width: int) -> list[str]:
    """Return these columns as aligned lines; where there is room, headers stay on one line."""
    widths = _widths(rows, columns, cell)
    spare = max(0, width - _total(widths))
    for place, at in enumerate(columns):
        given = min(spare, max(0, len(rows[0][at]) - widths[place]))
        widths[place] += given
        spare -= given
    return _lines([[row[at] for at in columns] for row in rows], widths)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _least(text: str, most: int) -> int:
    """The width of a cell that wraps at `most` columns: its own if it is narrower, at least its longest part."""
    return max([min(len(text), most), *map(len, _parts(text))])


def _parts(text: str) -> list[str]:
    """The parts of a cell between which it may wrap."""
    return _UNIT.sub(lambda found: found[0].replace(" ", _HARD), text).split(" ")


def _lines(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """Return each row as one or more lines, whose cells wrap within these widths."""
    found = list[str]()
    for row in rows:
        cells = [_within(cell, size) for cell, size in zip(row, widths, strict=True)]
        for at in range(max(map(len, cells))):
            line = (own[at] if at < len(own) else "" for own in cells)
            found.append("  ".join(part.ljust(size) for part, size in zip(line, widths, strict=True)).rstrip())
    return found


def _within(text: str, width: int) -> list[str]:
    """Return a cell as lines of at most this width, if none of its parts is wider."""
    if len(text) <= width:
        return [text]
    lines = [""]
    for part in filter(None, _parts(text)):
        joined = f"{lines[-1]} {part}" if lines[-1] else part
        lines[-1:] = [joined] if len(joined) <= width else [lines[-1], part]
    return [line.replace(_HARD, " ") for line in lines if line]


def narrow(rows: Sequence[Sequence[str]], *, width: int = WIDTH, room: int = 0) -> list[list[str]]:
    """Return each row as aligned lines of at most `width` columns; text is narrowed, numbers are not.

    Args:
        rows: The first row is the header, whose names determine which columns hold text.
        width: Total number of columns.
        room: Total number of lines. Long rows wrap while there is room, the first rows first; 0 for one line each.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    for name, least in _LEAST:
        if name in rows[0] and excess > 0:
            column = list(rows[0]).index(name)
            given = min(excess, max(0, widths[column] - least))
            widths[column] -= given
            excess -= given
    spare, found = max(0, room - len(rows)), list[list[str]]()
    for at, row in enumerate(rows):
        depth = min(_DEEPEST, 1 - -spare // (len(rows) - at))  # the remaining lines are shared among the remaining rows
        cells = [wrapped(_breakable(cell, size), depth, size) or ("",) for cell, size in zip(row, widths, strict=True)]
        spare -= (height := max(map(len, cells))) - 1
        lines = ([cell[line] if line < len(cell) else "" for cell in cells] for line in range(height))
        aligned = (zip(line, widths, strict=True) for line in lines)
        found.append(["  ".join(cell.ljust(size) for cell, size in line).rstrip()[:width] for line in aligned])
    return found


def _breakable(text: str, width: int) -> str:
    """Allow line breaks after the underscores of a long name."""
    return text.replace("_", "_ ") if len(text) > width and " " not in text else text


@lru_cache(maxsize=1_024)  # a table is wrapped once for each row that does not fit
def wrapped(text: str, most: int, width: int = WIDTH) -> tuple[str, ...]:
    """Wrap text to at most `most` lines of whole words; omitted text ends in an ellipsis."""
    if len(text) <= width and text == " ".join(text.split()):
        return (text,) if text else ()  # as textwrap does it, which takes a hundred times as long
    is_cell = width < WIDTH
    lines = textwrap.wrap(text, width, subsequent_indent="  " * is_cell, break_on_hyphens=is_cell)
    if len(lines) <= most:
        return tuple(lines)
    rest = " ".join(" ".join(lines[most - 1 :]).split())
    last = textwrap.shorten(rest, width - 2 * (most > 1), placeholder=" …")
    if last in ("…", "") or last == " …":
        last = f"{rest[: width - 3]}…"
    return (*lines[: most - 1], f"{'  ' if most > 1 and width < WIDTH else ''}{last}")
