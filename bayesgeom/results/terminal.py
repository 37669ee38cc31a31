"""Tables for the terminal, at most 100 columns wide; long text wraps at whole words."""

import re
from collections.abc import Sequence
from itertools import pairwise

from bayesgeom.core.verdict import Verdict
from bayesgeom.results.columns import narrow, wrapped
from bayesgeom.results.headline import MEAN, Headline

LINES = 24  # of what `print(result)` shows, at most 100 columns wide
_HEAD = ("measured", "value", "95 % interval", "baseline", "beats")
_RULED = (*_HEAD[:-1], "verdict")  # of reports that state verdicts of their own
_NOTED = 5  # lines of notes below the table
_ABOVE = 11  # lines of title and verdicts above it
_SHORT: dict[str, str] = {Verdict.UNDECIDED: "?"}
_BEATS = {**_SHORT, "yes": "beats", "no": "does not beat"}  # next to verdicts of other kinds
_LAYER = re.compile(r"\blayers? \d|\bL\d+\b")
_COUNTED = "layers are counted from 0, as in TransformerLens; positions from 1"


def summary(
    title: str,
    sentences: Sequence[str],
    lines: Sequence[tuple[str, Headline]],
    notes: Sequence[str] = (),
    where: str = "",
) -> str:
    """Return the printed form of a result: title, verdicts, headlines, notes; at most 24 lines of 100 columns.

    Args:
        title: First line.
        sentences: Sentences, such as verdicts.
        lines: Headlines with the name of their report, or "" for a single report; most important first.
        notes: Notes, such as what was not measured and why.
        where: Where to find what is left out; "" for the methods and fields that hold it.
    """
    has_names = len({name for name, _ in lines}) > 1
    is_ruled = any(line.ruling for _, line in lines)
    rows = [(("report",) if has_names else ()) + (_RULED if is_ruled else _HEAD)]
    former = ["", *(name for name, _ in lines)]
    for before, (name, line) in zip(former, lines, strict=False):
        rows.append((("" if name == before else name,) if has_names else ()) + _cells(line, is_ruled=is_ruled))
    notes = [*dict.fromkeys(f"*: {line.caveat}" for _, line in lines if line.verdict and line.caveat), *notes]
    if any(line.verdict == Verdict.UNDECIDED and not (line.caveat or line.ruling) for _, line in lines):
        notes = [*notes, "?: undecided, because the interval includes a baseline or is missing"]
    if any(_LAYER.search(text) for text in (*sentences, *(line.label for _, line in lines))):
        notes = [*notes, _COUNTED]
    above = [*wrapped(title, 4)]
    room = _ABOVE - len(above)
    above += _first(sentences, room, room - 1, f"verdicts: {where or 'see conclusion()'}")
    below = _first(notes, _NOTED, 2, f"notes: {where or 'see headlines(), skipped, inapplicable'}")
    room = LINES - len(above) - len(below) - 3 - bool(below)
    kept = (
        _fitting(rows, [name for name, _ in lines], room)
        if has_names
        else rows[: room if len(rows) <= room else room - 1]
    )
    more = [] if len(kept) == len(rows) else [f"… and {len(rows) - len(kept)} more: {where or 'see to_pandas()'}"]
    head, *table = narrow(kept, room=room - len(more))
    body = [*(part for row in table for part in row), *more]
    rule = "─" * max(map(len, [*head, *body]))
    return "\n".join([*above, "", *head, rule, *body, *([""] if below else []), *below])


def _fitting(rows: Sequence[tuple[str, ...]], names: Sequence[str], room: int) -> list[tuple[str, ...]]:
    """Return the header and the rows that fit with their texts in full.

    Reports after the first lose all but their first row, then whole reports are left out from the end.
    """
    kept = list(range(len(names)))
    while kept[1:] and sum(map(len, narrow([rows[0], *(rows[at + 1] for at in kept)], room=10 * room))) > room - 1:
        again = [at for before, at in pairwise(kept) if names[before] == names[at] and at > 1]
        kept.remove(again[-1] if again else kept[-1])
    return [rows[0], *(rows[at + 1] for at in kept)]


def _cells(line: Headline, *, is_ruled: bool) -> tuple[str, ...]:
    name = line.baseline_name.split(";")[0].split(MEAN)[0]
    judged = line.ruling or (_BEATS if is_ruled else _SHORT).get(line.verdict, line.verdict)
    return (
        line.label,
        line.value_text,
        (not line.no_interval and line.interval) or "–",  # a blank cell would look like a missing one
        f"{line.level_text} {name}" if line.has_baseline else "–",
        f"{judged}{'*' * bool(line.verdict and line.caveat)}" or "–",
    )


def _first(texts: Sequence[str], room: int, most: int, what: str) -> list[str]:
    """Return as many texts as fit into the room, of at most `most` lines each, then the number of omitted ones."""
    found: list[str] = []
    for number, text in enumerate(texts):
        lines = wrapped(text, most)
        if len(found) + len(lines) > room - (number < len(texts) - 1):
            return [*found, f"… and {len(texts) - number} more {what}"]
        found += lines
    return found
