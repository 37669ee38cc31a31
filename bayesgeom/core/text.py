"""Text of all output: numbers, percentages, intervals, names in messages, and aligned columns for the terminal.

Imports nothing heavy, because the command line needs it at its start.
"""

import math
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import SupportsFloat

WIDTH = 100  # columns of text where standard output is no terminal
MINUS = "−"
DIGITS = 4
_COUNTED = ("bits", "tokens", "symbols", "steps")  # units with a singular
_THOUSAND, _LARGE = 1e3, 1e7  # commas and no decimals from the first on, a power of ten from the second on
_CELLS = (40, 32, 24)  # widths at which the cells of a wide table wrap; the first that lets it fit is used
_UNIT = re.compile(r"\[[^\]]*\]|\([^)]*\)|\S+(?: (?:…|→) \S+)+|[^ ]+(?: [^ ]+)*(?=  )|(?<=  )[^ ]+(?: [^ ]+)*")
_HARD = "\N{NO-BREAK SPACE}"  # holds a number and its interval together


def number_text(value: SupportsFloat) -> str:
    """Return a number with four significant digits and a minus sign; NaN is a dash.

    Example:
        >>> number_text(0.123456), number_text(-2.0), number_text(3e-7), number_text(-0.00001234), number_text(0.0)
        ('0.1235', '−2', '3e−7', '−1.234e−5', '0')
        >>> number_text(12345.6), number_text(1.5e9), number_text(float("inf")), number_text(float("nan"))
        ('12,350', '1.5e9', '∞', '–')
    """
    number = float(value)
    if math.isnan(number):
        return "–"
    if math.isinf(number):
        return "∞" if number > 0 else f"{MINUS}∞"
    text = f"{abs(number):.{DIGITS}g}"
    if _THOUSAND <= float(text) < _LARGE:
        text = f"{float(text):,.0f}"
    mantissa, _, exponent = text.partition("e")
    power = f"e{int(exponent)}".replace("-", MINUS) if exponent else ""
    return f"{MINUS if number < 0 else ''}{mantissa}{power}"


def percent_text(share: SupportsFloat, digits: int | None = 0) -> str:
    """Return a share in percent, with a space as in "95 % interval"; digits None: as many as it needs not to be 0.

    Example:
        >>> percent_text(0.266), percent_text(-0.03), percent_text(float("nan")), percent_text(0.0034, None)
        ('27 %', '−3 %', '–', '0.3 %')
    """
    number = 100 * float(share)
    if digits is None:
        digits = -math.floor(math.log10(abs(number))) if 0 < abs(number) < 1 else 0
    return "–" if math.isnan(number) else f"{number:.{digits}f} %".replace("-", MINUS)


def with_minus(text: str) -> str:
    """Return a text whose negative numbers have a minus sign in place of a hyphen; names and ranges are not changed.

    Example:
        >>> with_minus("R² -0.003 (-1 to 2e-05) of bijection-v20, layers 1-4")
        'R² −0.003 (−1 to 2e−05) of bijection-v20, layers 1-4'
    """
    return re.sub(r"(?<![\w.)\]-])-(?=\.?\d)|(?<=\d[eE])-(?=\d)", MINUS, text)


def with_unit(number: str, unit: str) -> str:
    """Return a number as text with its unit, which has a singular.

    Example:
        >>> with_unit("1", "symbols"), with_unit("0.5", "bits"), with_unit("3", "")
        ('1 symbol', '0.5 bits', '3')
    """
    return f"{number} {unit[:-1] if number == '1' and unit in _COUNTED else unit}".rstrip()


def measured_text(value: SupportsFloat, unit: str = "") -> str:
    """Return a number with its unit, or a dash if it is NaN.

    Example:
        >>> measured_text(-0.25, "bits"), measured_text(float("nan"), "bits")
        ('−0.25 bits', '–')
    """
    return "–" if math.isnan(value) else with_unit(number_text(value), unit)


def labeled_text(label: str, value: str) -> str:
    """Return a value after its label, in parentheses where the label ends in a number.

    Example:
        >>> labeled_text("KL", "0.25 bits"), labeled_text("slope, evidence older than 8", "1")
        ('KL 0.25 bits', 'slope, evidence older than 8 (1)')
    """
    return f"{label} ({value})" if label[-1:].isdigit() else f"{label} {value}"


def interval_text(low: SupportsFloat, high: SupportsFloat) -> str:
    """Return both ends of an interval, or a dash if there is none, as for a single sequence.

    Example:
        >>> interval_text(-0.0123456, 0.5), interval_text(float("nan"), 0.5), interval_text(-3e-5, 4e-7)
        ('−0.01235 … 0.5', '–', '−3e−5 … 4e−7')
    """
    if math.isnan(low) or math.isnan(high):
        return "–"
    return " … ".join(number_text(end) for end in (low, high))


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun.

    Example:
        >>> count_text(1, "training"), count_text(1000, "seed")
        ('1 training', '1,000 seeds')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shortened(text: str, most: int) -> str:
    """Return text of at most `most` characters; text that was cut ends in an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def text_width() -> int:
    """Return the columns of text: those of the terminal if standard output is one, else 100."""
    if sys.stdout is None or not sys.stdout.isatty():
        return WIDTH
    return shutil.get_terminal_size((WIDTH, 24)).columns or WIDTH


def aligned_table(rows: Sequence[Sequence[str]], *, width: int | None = None) -> list[str]:
    r"""Return rows as aligned lines of at most `width` columns; no text is omitted.

    In a table that is too wide, headers wrap, then long cells. If that is not enough, further columns follow in blocks
    of their own, which repeat the column that names the rows. An interval stays on one line.

    Args:
        rows: The first row is the header.
        width: Total number of columns. Default: those of the terminal, or 100.

    Example:
        >>> print(*aligned_table([("head", "mean KL", "verdict"), ("L0H1", "0.25", "causal")], width=19), sep="\n")
        head  mean  verdict
              KL
        L0H1  0.25  causal
    """
    width = text_width() if width is None else width
    columns = list(range(len(rows[0])))
    natural = [max(len(row[at]) for row in rows) for at in columns]
    if _total(natural) <= width:
        return _lines(rows, natural)
    for cell in (width, *_CELLS):
        if _total(_widths(rows, columns, cell)) <= width:
            return _block(rows, columns, cell, width)
    keys = columns[: 1 if len({row[0] for row in rows}) == len(rows) else 2]
    lines, rest = list[str](), columns[len(keys) :]
    while rest:
        block = [*keys, rest.pop(0)]
        while rest and _total(_widths(rows, [*block, rest[0]], _CELLS[0])) <= width:
            block.append(rest.pop(0))
        lines += [*([""] if lines else []), *_block(rows, block, _CELLS[0], width)]
    return lines


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
    lines = list[str]()
    for row in rows:
        cells = [_within(cell, size) for cell, size in zip(row, widths, strict=True)]
        for at in range(max(map(len, cells))):
            line = (wrapped[at] if at < len(wrapped) else "" for wrapped in cells)
            lines.append("  ".join(part.ljust(size) for part, size in zip(line, widths, strict=True)).rstrip())
    return lines


def _within(text: str, width: int) -> list[str]:
    """Return a cell as lines of at most this width, if none of its parts is wider."""
    if len(text) <= width:
        return [text]
    parts = " ".join(filter(None, _parts(text)))
    lines = textwrap.wrap(parts, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_HARD, " ") for line in lines]
