"""The generated parts of `claims.md` and `interventions.md`, and the rows that the terminal shows."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.text import number_text, with_unit
from bayesgeom.report.render import markdown
from examples.replication.claims import intervention_page
from examples.replication.claims.claim import Claim, Number, reason, verdict
from examples.replication.claims.loading import load

START, END = "<!-- generated: {} -->", "<!-- end of generated text -->"
PAGES = tuple(f"examples/replication/{name}.md" for name in ("claims", "interventions"))
_LATER = " (written or changed after a first measurement)"
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
    "L": "Language models",
    "C": "The construction boundary",
}


def write(clone: Path) -> list[Path]:
    """Write the generated parts of the pages into the clone.

    Returns:
        The files that changed.
    """
    changed = []
    for name in PAGES:
        path = clone / name
        if not path.is_file():
            raise InvalidArgument(f"{clone} holds no {name}: name the root of a clone.")
        before = path.read_text(encoding="utf-8")
        after = refreshed(before, load())
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed.append(path)
    return changed


def refreshed(page: str, claims: Mapping[str, Claim]) -> str:
    """Return a page with its generated parts replaced by the current claims and interventions."""
    parts = {"summary": lambda: summary(claims.values()), "claims": lambda: details(claims.values())}
    for name, made in {**parts, **intervention_page.PARTS}.items():
        start = START.format(name)
        if start in page:
            before, _, rest = page.partition(start)
            _, end, after = rest.partition(END)
            if not end:
                raise InvalidArgument(f"the page has no {END!r} after {start!r}: add that line.")
            page = f"{before}{start}\n\n{made()}\n\n{END}{after}"
    return page


def summary(claims: Iterable[Claim]) -> str:
    """Return a table with a row for every claim."""
    rows = [
        (f"[{c.id}](#{c.id.lower()})", c.claim, str(verdict(c)), _measured(c), _baseline(c), _seeds(c)) for c in claims
    ]
    return markdown(("id", "claim", "verdict", "measured [95 % interval]", "strongest baseline", "trainings"), rows)


def details(claims: Iterable[Claim]) -> str:
    """Return every claim with its source, criterion, commands and measurement, by group."""
    by_group: dict[str, list[Claim]] = {}
    for claim in claims:
        by_group.setdefault(claim.id[0], []).append(claim)
    parts = []
    for letter, title in _GROUPS.items():
        parts += [f"## {title}", *(_detail(claim) for claim in by_group.get(letter, []))]
    return "\n\n".join(parts)


def titles(claims: Iterable[Claim]) -> list[tuple[str, ...]]:
    """Return the rows of the list on the terminal: id, verdict, time, claim."""
    return [(c.id, str(verdict(c)), c.duration or "–", c.claim) for c in claims]


def overview(claims: Iterable[Claim]) -> list[tuple[str, ...]]:
    """Return the rows of the table on the terminal: the first measured number of every claim, and its baseline."""
    rows: list[tuple[str, ...]] = []
    for c in claims:
        found = None if c.measured is None else c.measured.numbers.get(c.shown[0])
        number = "–" if found is None else f"{c.numbers[c.shown[0]].label} {found.text(c.numbers[c.shown[0]].unit)}"
        rows.append((c.id, str(verdict(c)), number + f"; baseline {_baseline(c)}" * (_baseline(c) != "–")))
    return rows


def _detail(claim: Claim) -> str:
    lines = [
        f"### {claim.id}",
        "",
        f"**{claim.claim}** {str(verdict(claim)).capitalize()}.",
        "",
        *(
            [f"- Finding: {claim.finding}"]
            if claim.measured is not None and claim.finding not in ("", claim.claim)
            else []
        ),
        f"- Published: {claim.published} ({claim.source}).",
        f"- Criterion{_LATER * claim.is_criterion_later}: {claim.criterion}",
    ]
    if why := reason(claim):
        lines.append(f"- Why there is no verdict: {why}")
    elif claim.measured is None:
        lines += _missing(claim)
    below = [f"- Does not show: {claim.does_not_show}"]
    if claim.measured is not None:
        lines += ["", _values(claim), ""]
        below.append(f"- Recorded {claim.measured.date}: {_origins(claim)}.")
        if claim.seeds_required > 1:
            below.append(f"- Trainings: {_seeds(claim)}.")
    if claim.duration:
        command = f"`python -m examples.replication reproduce {claim.id}`"
        below.append(f"- {command} takes about {claim.duration} of one CPU core.")
    commands = ["", "```sh", *dict.fromkeys(claim.commands), "```"] if claim.commands else []
    return "\n".join([*lines, *below, *commands])


def _values(claim: Claim) -> str:
    """The table of every recorded number of a claim."""
    assert claim.measured is not None, "only of what was measured"
    rows = []
    for name, value in claim.measured.numbers.items():
        number = claim.numbers[name]
        interval = f"{number_text(value.lo)} … {number_text(value.hi)}{value.scope and f' ({value.scope})'}"
        if math.isnan(value.lo):
            interval = f"none: {value.why_not}" if value.why_not else "–"
        baseline = f"{number_text(value.baseline)} ({number.baseline_label or _strongest(number)})"
        rows.append(
            (
                number.label,
                with_unit(number_text(value.value), number.unit),
                interval,
                "–" if math.isnan(value.baseline) else baseline,
            )
        )
    return markdown(("measured", "value", "95 % interval", "baseline"), rows)


def _strongest(number: Number) -> str:
    """What the strongest baseline of a number is called where the claim names none."""
    named = {"kl_increase_bits": "no effect", "speedup": "plain SGD"}
    return "strongest control" if number.probe == "intervention" else named.get(number.metric, "strongest baseline")


def _missing(claim: Claim) -> list[str]:
    """The line on the checkpoints that a claim lacks, if any."""
    from examples.replication.claims.reproduction import ways_to_make

    ways = ways_to_make(claim)
    return [f"- Why there is no verdict: its checkpoints are not trained. {'. '.join(ways)}."] if ways else []


def _origins(claim: Claim) -> str:
    assert claim.measured is not None, "only of what was measured"
    origins = []
    for origin in claim.measured.origins.values():
        weights = f"weights `{origin.weights_hash}`, " if origin.weights_hash else ""
        n = f"n = {origin.n:,}, " if origin.n else ""
        origins.append(f"{origin.model} ({weights}{n}seed {origin.seed})")
    return "; ".join(dict.fromkeys(origins))


def _measured(claim: Claim) -> str:
    if claim.measured is None:
        return "–"
    return "; ".join(f"{claim.numbers[n].label} {_number(claim, n)}" for n in claim.shown)


def _number(claim: Claim, name: str) -> str:
    """A number with its interval and unit, or why it has no interval; a dash where it is not recorded yet."""
    value, number = None if claim.measured is None else claim.measured.numbers.get(name), claim.numbers[name]
    if value is None:
        return "–"
    why = f": {reason}" if (reason := number.no_interval or value.why_not) else ""
    return value.text(number.unit) + (f" (no interval{why})" if math.isnan(value.lo) else "")


def _baseline(claim: Claim) -> str:
    if claim.measured is None or claim.against not in claim.measured.numbers:
        return "–"
    number, value = claim.numbers[claim.against], claim.measured.numbers[claim.against]
    is_headline = claim.against in claim.shown[:1]
    if not is_headline and (math.isnan(value.baseline) or not number.baseline_label):
        return f"{number.label}: {value.text(number.unit)}"
    if math.isnan(value.baseline):
        return "–"
    return f"{number_text(value.baseline)} ({number.baseline_label or 'see the report'})"


def _seeds(claim: Claim) -> str:
    """Return the trainings that the measurement covers, and how many the criterion requires if these are more."""
    if claim.measured is None:
        return "–"
    if claim.seeds >= claim.seeds_required:
        return claim.trainings or str(claim.seeds)
    if claim.trainings:
        return f"{claim.trainings}; {claim.seeds_required} required"
    return f"{claim.seeds} of {claim.seeds_required}"
