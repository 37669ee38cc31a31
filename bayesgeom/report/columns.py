"""Columns of text for the terminal: long text wraps at whole words, numbers stay whole."""

import re
from collections.abc import Sequence

WIDTH = 100
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
        >>> print(*fitted([("head", "mean KL", "verdict"), ("L0H1", "0.25", "causal")], width=19), sep="\n")
        head  mean  verdict
              KL
        L0H1  0.25  causal
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
