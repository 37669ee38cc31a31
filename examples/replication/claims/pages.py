"""The generated pages: `claims.md` with a plot for each claim, and the generated parts of other pages."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.text import number_text
from examples.replication import worlds
from examples.replication.claims import intervention_page, published_page, sweep_page
from examples.replication.claims.claim import (
    Case,
    Claim,
    Condition,
    Value,
    Verdict,
    deciding,
    threshold,
    verdict,
    weakest,
)
from examples.replication.claims.loading import FOLDER as DATA
from examples.replication.claims.loading import load
from examples.replication.claims.plots import plot

START, END = "<!-- generated: {} -->", "<!-- end of generated text -->"
FOLDER = Path("examples/replication")
HEAD = DATA / "page.md"  # the text before the claims
CLAIMS, INTERVENTIONS, PLOTS = FOLDER / "claims.md", FOLDER / "interventions.md", FOLDER / "plots"
PUBLISHED = tuple(FOLDER / f"{name}.md" for name in published_page.PARTS)
WITH_PARTS = (INTERVENTIONS, FOLDER / "sweeps.md", FOLDER / "worlds.md", *PUBLISHED)
_GROUPS = {
    "B": "Bijection: calibration",
    "H": "Hidden Markov models: calibration",
    "T": "Transport",
    "G": "Geometry on the wind tunnels",
    "A": "Ablations",
    "P": "Primitives and architectures",
    "Y": "Related literature",
    "D": "Gradients and training",
    "J": "Interventions and formation",
    "E": "Layers and evidence",
    "L": "Language models",
    "C": "The construction boundary",
}


def write(clone: Path) -> list[Path]:
    """Write the generated pages and plots into the clone.

    Returns:
        The files that changed.
    """
    claims = load()
    for name in WITH_PARTS:
        if not (clone / name).is_file():
            raise InvalidArgument(f"{clone} holds no {name}: name the root of a clone.")
    texts = {CLAIMS: page(claims)} | {name: refreshed((clone / name).read_text("utf-8")) for name in WITH_PARTS}
    texts |= {PLOTS / f"{claim.id}.svg": plot(claim) for claim in claims.values()}
    texts |= {PLOTS / f"{name}.svg": drawn for name, drawn in drawings().items()}
    (clone / PLOTS).mkdir(exist_ok=True)
    changed = []
    for name, text in texts.items():
        path = clone / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def drawings() -> dict[str, str]:
    """Return the plots of the sweeps and of the published claims."""
    return {**sweep_page.plots(), **published_page.plots()}


def refreshed(page: str) -> str:
    """Return a page with its generated parts replaced by current ones."""
    for name, made in {**intervention_page.PARTS, **sweep_page.PARTS, **worlds.PARTS, **published_page.PARTS}.items():
        start = START.format(name)
        if start in page:
            before, _, rest = page.partition(start)
            _, end, after = rest.partition(END)
            if not end:
                raise InvalidArgument(f"the page has no {END!r} after {start!r}: add that line.")
            page = f"{before}{start}\n\n{made()}\n\n{END}{after}"
    return page


def page(claims: Mapping[str, Claim]) -> str:
    """Return `claims.md`: how many claims have each verdict, then each claim in its group."""
    parts = [HEAD.read_text(encoding="utf-8"), summary(claims.values())]
    for letter, title in _GROUPS.items():
        parts += [f"## {title}", *(section(claim) for claim in claims.values() if claim.id[0] == letter)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def summary(claims: Iterable[Claim]) -> str:
    """Return a table of the verdicts with the claims of each."""
    found: dict[Verdict, list[str]] = {own: [] for own in Verdict}
    for claim in claims:
        found[verdict(claim).verdict].append(f"[{claim.id}](#{claim.id.lower()})")
    listed = [(str(own), str(len(ids)), ", ".join(ids)) for own, ids in found.items() if ids]
    return _table(("verdict", "claims", "which"), listed)


def section(claim: Claim) -> str:
    """Return a claim as one sentence, one table and one plot."""
    remark = f": {claim.remark}" if claim.remark else ""
    later = " †" if claim.is_later else ""
    sentence = f"{claim.claim.removesuffix('.')} ({claim.quantifier}) — **{verdict(claim)}**{later}{remark}."
    return f"### {claim.id}\n\n{sentence}\n\n{table(claim)}\n\n![{claim.id}](plots/{claim.id}.svg)"


def table(claim: Claim) -> str:
    """Return the rows of a claim with their verdicts.

    A quantity that is the same in every row is in the head; what is special of a network is in its first row.
    """
    numbers = {} if claim.measured is None else claim.measured.numbers
    titles = {claim.numbers[test.number].title for _, test, _ in deciding(claim)}
    head = ["network", "reading" if any(case.reading for case in claim.cases) else "part"]
    head += ["quantity"] * (len(titles) > 1)
    cells, named = list[list[str]](), set[str]()
    for case, test, conditions, own in joined(claim, numbers):
        is_new = case.size and case.network not in named
        named.add(case.network)
        cells.append(
            [f"{case.network} ({case.size})" if is_new else case.network, _place(case)]
            + [claim.numbers[test.number].title] * (len(titles) > 1)
            + [_value(numbers.get(test.number)), conditions, own]
        )
    value = titles.pop() if len(titles) == 1 else "value"
    head += [f"{value} [95 % interval]" if numbers else value, "holds if", "verdict"]
    if not any(row[1] for row in cells):
        head, cells = [head[0], *head[2:]], [[row[0], *row[2:]] for row in cells]
    published = [f"published ({claim.source})", *[""] * (len(head) - 4), claim.published, "", ""]
    return _table(head, [published, *cells])


def joined(claim: Claim, numbers: Mapping[str, Value]) -> Iterator[tuple[Case, Condition, str, str]]:
    """Return a row for each number of a case, with all its conditions, and its weakest verdict as text."""
    for (case, _), group in groupby(deciding(claim), key=lambda row: (row[0], row[1].number)):
        tests, verdicts = zip(*((test, own) for _, test, own in group), strict=True)
        yield (
            case,
            tests[0],
            " and ".join(threshold_text(claim, test, numbers) for test in tests),
            str(weakest(verdicts)),
        )


def threshold_text(claim: Claim, test: Condition, numbers: Mapping[str, Value]) -> str:
    """Return a test's condition, such as "< 0.0111 (0.01 × uniform predictor)"."""
    sign = ">" if test.side == "above" else "<"
    low, high = threshold(test, numbers)
    edge = high if test.side == "above" else low
    level = sign if math.isnan(edge) else f"{sign} {number_text(edge)}"
    number = claim.numbers[test.number]
    of = number.baseline_label or "strongest baseline"
    if test.than != "baseline":
        of = claim.numbers[test.than].label if isinstance(test.than, str) else number.label
    times = f"{_factor(test.times)} × " if test.times != 1 else ""
    return level if of == number.label else f"{level} ({times}{of})"


def _factor(times: float) -> str:
    """The factor, as a fraction where it is one of whole numbers, as in 1/618."""
    inverse = 1 / times
    return f"1/{round(inverse)}" if inverse > 100 and math.isclose(inverse, round(inverse)) else number_text(times)


def titles(claims: Iterable[Claim]) -> list[tuple[str, ...]]:
    """Return the rows of the list on the terminal: id, verdict, time, claim."""
    return [(c.id, str(verdict(c)), c.duration or "–", c.claim) for c in claims]


def overview(claims: Iterable[Claim]) -> list[tuple[str, ...]]:
    """Return the rows of the table on the terminal: each test's number, threshold and verdict."""
    found = list[tuple[str, ...]]()
    for claim in claims:
        numbers = {} if claim.measured is None else claim.measured.numbers
        found.append((claim.id, str(verdict(claim)), claim.claim))
        for case, test, conditions, own in joined(claim, numbers):
            place = ", ".join(filter(None, (case.network, _place(case)))).replace("`", "")
            label, measured = claim.numbers[test.number].title, _value(numbers.get(test.number))
            found.append(("", own, f"{place}: {label} {measured} {conditions}"))
    return found


def _place(case: Case) -> str:
    return " ".join(filter(None, (case.reading, case.part)))


def _value(value: Value | None) -> str:
    """The value with its interval, or why there is none; a dash where it is not recorded."""
    if value is None:
        return "–"
    return value.text() + (f" (no interval: {value.why_not})" if value.why_not else "")


def _table(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table without padding; vertical bars within cells are escaped."""
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join(f"|{'|'.join(cell.replace('|', chr(92) + '|') for cell in row)}|" for row in lines)
