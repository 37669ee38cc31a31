"""Findings at the top of a page: up to six sentences with number, interval and strongest baseline."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import final

from bayesgeom.results.headline import Headline
from bayesgeom.results.section import Section

FEWEST, MOST = 3, 6
GOOD = frozenset(
    {"yes", "used", "invariant", "realized", "supported", "as published", "agrees", "values later", "learned", "passed"}
    | {"no discontinuity", "beats controls", "B better"}
)
BAD = frozenset(
    {"no", "not used", "not invariant", "not realized", "contradicted", "not as published", "not learned"}
    | {"differs", "failed", "discontinuity", "does not beat controls", "A better"}
)
_WORDS = {"yes": "beats baselines", "no": "does not beat baselines", "undecided": "undecided"}
_JUDGED = {
    "yes": ", which beats every baseline; the strongest is",
    "no": ", which does not beat the strongest baseline,",
    "undecided": ", not separated from the strongest baseline,",
    "": ", compared with",
}
_TWO_PARTS = re.compile(r"([^(:]+): (.+)")


@final
@dataclass(frozen=True, kw_only=True)
class Finding:
    """One sentence about one number of a section, with the word of its verdict and the word's color (`tone`)."""

    section: Section
    line: Headline
    sentence: str
    is_conclusion: bool = False

    @property
    def verdict(self) -> str:
        """The word in front of the sentence; "" without a verdict."""
        return self.line.ruling if self.is_conclusion else verdict_word(self.line)

    @property
    def tone(self) -> str:
        """The color of the verdict."""
        return tone(self.line) if self.verdict else "open"

    @property
    def numbers(self) -> str:
        """The number, its interval and its strongest baseline; "" if a sentence states a number that has neither."""
        return numbers(self.line) if self.line.interval or self.line.has_baseline or not self.sentence else ""


def findings(sections: Sequence[Section]) -> list[Finding]:
    """Return at most six findings: the first of every section, then the second of every section, and so on.

    The first finding of the first section leads; next are conclusions of reports, decided findings and others. Numbers
    without a verdict appear only if there are fewer than three with one, and missing numbers only if there is no other.
    """
    of_sections = [_of_section(section) for section in sections]
    rounds = zip_longest(*map(_paired, of_sections) if len(sections) > FEWEST else of_sections)
    found = [own for each in rounds for own in sorted(filter(None, each), key=partial(_rank, first=sections[0]))]
    found = [own for own in found if own.line.value_text != "–" or own.line.finding or own.verdict] or found
    judged = [own for own in found if own.is_conclusion or own.sentence or own.verdict]
    unjudged = [own for own in found if own not in judged][: max(0, FEWEST - len(judged))]
    return [own for own in found if own in judged or own in unjudged][:MOST]


def _rank(own: Finding, first: Section) -> tuple[bool, bool, bool, bool]:
    """Return the place among the findings; verdicts of single rows, such as by thresholds, repeat other sections."""
    is_open = own.tone == "open"
    return own.section is not first, not own.is_conclusion, is_open, bool(own.line.ruling)


def _paired(found: list[Finding]) -> list[Finding]:
    """Return the first two numbers with the same verdict as one finding: many sections leave one for each."""
    first, second = (*found, None, None)[:2]
    if not (first and second and first.verdict == second.verdict != "") or first.sentence or second.sentence:
        return found
    return [replace(second, sentence=numbers(first.line)), *found[2:]]


def caption(section: Section, opening: Sequence[Finding]) -> str:
    """Return the first finding of a section if it is a sentence; "" for a number, which captions of panels state.

    `opening` has the findings at the top of the page, which no section repeats.
    """
    first = next(iter(_of_section(section)), None)
    if first is None or not first.sentence or first in opening:
        return ""
    return f"{_capital(first.verdict)}: {first.sentence}" if first.verdict else first.sentence


def verdict_word(line: Headline) -> str:
    """Return the report's own verdict, or whether the number beats its baselines; "" without either."""
    return line.ruling or _WORDS.get(line.verdict, line.verdict)


def tone(line: Headline) -> str:
    """Return "good", "bad" or "open": the color of a verdict.

    Example:
        >>> tone(Headline(metric="x", label="x", value=1.0, ruling="used"))
        'good'
    """
    outcome = line.ruling or line.verdict
    return "good" if outcome in GOOD else "bad" if outcome in BAD else "open"


def numbers(line: Headline) -> str:
    """Return a sentence on a number with its interval and its strongest baseline; "" for a missing number.

    Example:
        >>> numbers(Headline(metric="x", label="KL, layer 1", value=0.25, low=0.125, high=0.5))
        'KL, layer 1, is 0.25 (95 % interval 0.125 … 0.5).'
    """
    if line.value_text == "–":
        return ""
    interval = f" (95 % interval {line.interval})" if line.interval and not line.no_interval else ""
    judged = f"{_judged(line)} {line.baselines[0]}" if line.has_baseline and line.verdict in _JUDGED else ""
    caveat = f" {_capital(line.caveat)}." if judged and line.caveat else ""
    return f"{_subject(line)} is {line.value_text}{interval}{judged}.{caveat}"


def _subject(line: Headline) -> str:
    """Return a label as the subject of a sentence: "x: KL" is "KL (x)", and "largest: L0H1" is "Largest, L0H1,"."""
    label = line.short_label or line.label
    if parts := _TWO_PARTS.fullmatch(label):
        of, what = parts.groups()
        label = f"{of}, {what}" if re.match(r"L\d", what) else f"{what} ({of})"
    is_name = "," in label.split(" ")[0]  # as in "hmm-lstm, share closed"
    return f"{_capital(label, hyphens='–-' * (not is_name))}{',' * (', ' in re.sub(r'[(].*?[)]', '', label))}"


def _judged(line: Headline) -> str:
    if line.ruling or (line.verdict == "undecided" and line.caveat):  # decided by more than this one baseline
        return "; the strongest baseline is"
    if line.verdict == "undecided" and not line.interval:
        why = f" ({line.no_interval})" if line.no_interval else ""
        return f"; without an interval{why} nothing is decided, and the strongest baseline is"
    return _JUDGED[line.verdict]


def _of_section(section: Section) -> list[Finding]:
    """Return the headlines that state a finding, by their place, then up to three those with a verdict, then others."""
    known = [line for line in section.headlines if line.value_text != "–" or line.ruling] or list(section.headlines)
    stated = sorted((line for line in section.headlines if line.finding), key=lambda line: line.place)
    told = {line.ruling for line in stated if line.ruling}  # a row with the same verdict would only repeat it
    rest = [line for line in known if line not in stated and line.ruling not in told]
    others = sorted(rest, key=lambda line: not (line.verdict or line.ruling))
    judged = [line for line in others if line.verdict or line.ruling]
    lines = judged if not stated and len(judged) >= FEWEST else [*stated, *others[: max(0, FEWEST - len(stated))]]
    texts = [line.finding or f"{_subject(line)} has no value here." * (line.value_text == "–") for line in lines]
    found = [Finding(section=section, line=line, sentence=text) for line, text in zip(lines, texts, strict=True)]
    if section.verdict and lines:
        shown = f"{lines[0].ruling}:" if lines[0].ruling else ""  # before the sentence
        concluded = _capital(f"{section.verdict.rstrip('.')}.".removeprefix(shown).strip())
        found[0] = Finding(section=section, line=lines[0], sentence=concluded, is_conclusion=True)
    return found


def _capital(text: str, hyphens: str = "") -> str:
    """Return the text with a capital first letter; names (also those before a colon) and symbols are not changed."""
    first = re.sub(f"[,{hyphens}]", "", text.split(" ", maxsplit=1)[0])
    return text[:1].upper() + text[1:] if first.isalpha() and first.islower() and len(first) > 1 else text
