"""What a page opens with: three to six findings, each a sentence with its number, interval and strongest baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import final

from bayesgeom.results.headline import Headline
from bayesgeom.results.section import Section

MOST = 6
GOOD = frozenset(
    {"yes", "used", "invariant", "realized", "confirmed", "as published", "agrees", "values later", "learned"}
)
BAD = frozenset({"no", "not used", "not invariant", "not realized", "contradicted", "not as published", "not learned"})
_JUDGED = {
    "yes": "This beats every baseline.",
    "no": "This does not beat the strongest baseline.",
    "undecided": "The interval does not separate this from the strongest baseline.",
}


@final
@dataclass(frozen=True, kw_only=True)
class Finding:
    """One sentence about one number of a section."""

    section: Section
    line: Headline
    sentence: str

    @property
    def numbers(self) -> str:
        """The number, its interval and its strongest baseline."""
        return numbers(self.line)


def findings(sections: Sequence) -> list[Finding]:
    """Return at most six findings: the first of every section, then the second of every section, and so on."""
    rounds = zip_longest(*(_of_section(section) for section in sections))
    return [found for found in chain.from_iterable(rounds) if found is not None][:MOST]


def caption(section: Section) -> str:
    """Return the first finding of a section as the caption of its figure."""
    first = next(iter(_of_section(section)), None)
    return "" if first is None else " ".join(part for part in (first.sentence, f"{first.numbers}.") if part.strip(". "))


def tone(line: Headline) -> str:
    """Return "good", "bad" or "open": the color of a verdict.

    Example:
        >>> tone(Headline(metric="x", label="x", value=1.0, ruling="used"))
        'good'
    """
    said = line.ruling or line.verdict
    return "good" if said in GOOD else "bad" if said in BAD else "open"


def numbers(line: Headline) -> str:
    """Return a number with its interval and its strongest baseline, in one line."""
    if line.value_text == "–":
        return ""
    interval = f"95 % interval {line.interval}" if line.interval and not line.no_interval else ""
    baseline = f"strongest baseline {line.baselines[0]}" if line.has_baseline else ""
    rest = "; ".join(part for part in (interval, baseline) if part)
    return f"{line.label}: {line.value_text}" + (f" ({rest})" if rest else "")


def _of_section(section: Section) -> list[Finding]:
    """The headlines that state a finding; those that state none where no other does."""
    told = [line for line in section.headlines if line.finding]
    lines = told or [line for line in section.headlines if line.value_text != "–"] or list(section.headlines)
    found = [Finding(section=section, line=line, sentence=line.finding or _sentence(line)) for line in lines]
    if section.verdict and section.headlines and not any(line.finding == section.verdict for line in lines):
        first = Finding(section=section, line=lines[0], sentence=section.verdict)
        found = [first, *(found[1:] if not told else found)]
    return found


def _sentence(line: Headline) -> str:
    return _JUDGED.get(line.verdict, "")
