"""Text tables: Markdown, and lines with aligned columns."""

from collections.abc import Iterable, Sequence

from bayesgeom.results.columns import fitted


def markdown(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table; vertical bars within cells are escaped."""
    cells = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of text as lines with aligned columns: at most 100 columns wide, as `fitted` arranges them."""
    return fitted(rows)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    Example:
        >>> counted(1, "training"), counted(1000, "seed")
        ('1 training', '1,000 seeds')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shortened(text: str, most: int) -> str:
    """Return text of at most `most` characters; text that was cut ends in an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def listed(names: Sequence[str], most: int) -> str:
    """Return names joined by commas: the first `most` and the number of the others."""
    return f"{', '.join(names[:most])}{f' + {len(names) - most} more' if len(names) > most else ''}"
