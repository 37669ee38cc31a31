"""The head of layer 0 that key overlap would choose, and the text in which a report stores it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from bayesgeom.core.errors import InvalidArgument

_FORM = re.compile(r"(?P<head>\S+) \((?P<reading>.+), mean \|cos\| (?P<mean_cosine>[\d.]+)\)")


@final
@dataclass(frozen=True)
class Pick:
    """The head of layer 0 with the least key overlap, for one token set and site of the keys.

    Args:
        head: Its label; that of a key head (L0K0, not L0H0) if several heads share their keys.
        reading: The token set and the site where the keys were read.
        mean_cosine: Its key overlap, the mean |cos| between keys.

    Example:
        >>> str(Pick("L0H2", "inputs / weights", 0.98412))
        'L0H2 (inputs / weights, mean |cos| 0.984)'
    """

    head: str
    reading: str
    mean_cosine: float

    def __str__(self) -> str:
        return f"{self.head} ({self.reading}, mean |cos| {self.mean_cosine:.3f})"


def joined(picks: Sequence[Pick]) -> str:
    """Return picks as one text, which `picks_of` reads."""
    return "; ".join(map(str, picks))


def picks_of(text: str) -> tuple[Pick, ...]:
    """Return the picks of a text; none for "".

    Raises:
        InvalidArgument: A part of the text has another form.

    Example:
        >>> picks_of("L0H2 (columns, mean |cos| 0.198); L0H3 (inputs / weights, mean |cos| 0.25)")[1].reading
        'inputs / weights'
    """
    found = []
    for part in filter(None, text.split("; ")):
        if (own := _FORM.fullmatch(part)) is None:
            raise InvalidArgument(
                f"a head chosen by key overlap is given as 'L0H2 (columns, mean |cos| 0.198)', got {part!r}."
            )
        found.append(Pick(own["head"], own["reading"], float(own["mean_cosine"])))
    return tuple(found)
