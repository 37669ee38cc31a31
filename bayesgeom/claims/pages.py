"""The generated parts of the documentation: the table in the README and the list in `docs/claims.md`."""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from bayesgeom.claims.claim import Claim, Number, Value, Verdict
from bayesgeom.claims.loading import load
from bayesgeom.claims.reproduction_report import reason, short, text
from bayesgeom.claims.verdicts import verdict
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.text import with_unit
from bayesgeom.results.tables import markdown

START, END = "<!-- generated: {} -->", "<!-- end of generated text -->"
README, PAGE = "README.md", "docs/claims.md"
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


def write(repository: Path) -> list[Path]:
    """Write the generated parts of the documentation into the source checkout.

    Returns:
        The files that changed.
    """
    from bayesgeom.claims.subspace_page import FOLDER  # it loads the reports, and these load torch
    from bayesgeom.claims.subspace_page import page as subspace_page

    changed = []
    for name in (README, PAGE):
        path = repository / name
        if not path.is_file():
            raise InvalidArgument(f"{repository} holds no {name}: name the root of a source checkout.")
        before = path.read_text(encoding="utf-8")
        after = refreshed(before, load())
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed.append(path)
    readings = repository / FOLDER / README
    before = readings.read_text(encoding="utf-8") if readings.is_file() else ""
    if readings.parent.is_dir() and (after := subspace_page(repository / FOLDER)) != before:
        readings.write_text(after, encoding="utf-8")
        changed.append(readings)
    return changed


def refreshed(page: str, claims: Mapping[str, Claim]) -> str:
    """Return a page with its generated parts replaced by the current claims."""
    for name, made in (("findings", findings), ("open", still_open), ("summary", summary), ("claims", details)):
        start = START.format(name)
        if start in page:
            before, _, rest = page.partition(start)
            _, end, after = rest.partition(END)
            if not end:
                raise InvalidArgument(f"the page has no {END!r} after {start!r}: add that line.")
            page = f"{before}{start}\n\n{made(claims.values())}\n\n{END}{after}"
    return page


def findings(claims: Iterable[Claim]) -> str:
    """Return the README's table: one row for each claim that is supported or contradicted."""
    chosen = [c for c in claims if c.in_readme and verdict(c) in (Verdict.SUPPORTED, Verdict.CONTRADICTED)]
    rows = [
        (c.finding, f"[{c.id}]({PAGE}#{c.id.lower()}), {verdict(c)}", _measured(c), _baseline(c), c.does_not_show)
        for c in sorted(chosen, key=lambda c: c.in_readme)
    ]
    return markdown(("finding", "claim", "measured [95 % interval]", "strongest baseline", "does not show"), rows)


def still_open(claims: Iterable[Claim]) -> str:
    """Return the README's list of claims that have no verdict, each with the first sentence of the reason."""
    chosen = [c for c in claims if c.in_readme and verdict(c) not in (Verdict.SUPPORTED, Verdict.CONTRADICTED)]
    rows = [
        (c.claim, f"[{c.id}]({PAGE}#{c.id.lower()}), {verdict(c)}", _first_sentence(_reason(c)))
        for c in sorted(chosen, key=lambda c: c.in_readme)
    ]
    return markdown(("the papers say", "claim", "why there is no verdict"), rows)


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


def overview(claims: Iterable[Claim]) -> list[tuple[str, ...]]:
    """Return the rows of the table on the terminal."""
    rows: list[tuple[str, ...]] = [("id", "verdict", "time", "measured [95 % interval]", "claim")]
    for c in claims:
        first = "–" if c.measured is None else _number(c, c.shown[0])
        first = first if first == "–" else f"{c.numbers[c.shown[0]].label}: {first}"
        rows.append((c.id, str(verdict(c)), c.duration or "–", first, _clipped(c.claim)))
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
        below.append(f"- `bayesgeom reproduce {claim.id}` takes about {claim.duration} of one CPU core.")
    commands = ["", "```sh", *dict.fromkeys(claim.commands), "```"] if claim.commands else []
    return "\n".join([*lines, *below, *commands])


def _values(claim: Claim) -> str:
    """The table of every recorded number of a claim."""
    assert claim.measured is not None, "only of what was measured"
    rows = []
    for name, value in claim.measured.numbers.items():
        number = claim.numbers[name]
        interval = f"{short(value.lo)} … {short(value.hi)}{value.scope and f' ({value.scope})'}"
        if math.isnan(value.lo):
            interval = f"none: {value.why_not}" if value.why_not else "–"
        baseline = f"{short(value.baseline)} ({number.baseline_label or _strongest(number)})"
        rows.append(
            (
                number.label,
                with_unit(short(value.value), number.unit),
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
    from bayesgeom.claims.needs import ways_to_make  # it loads torch

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
    return text(value, number.unit) + (f" (no interval{why})" if math.isnan(value.lo) else "")


def _baseline(claim: Claim) -> str:
    if claim.measured is None or claim.against not in claim.measured.numbers:
        return "–"
    number, value = claim.numbers[claim.against], claim.measured.numbers[claim.against]
    is_headline = claim.against in claim.shown[:1]
    if not is_headline and (math.isnan(value.baseline) or not number.baseline_label):
        return f"{number.label}: {text(value, number.unit)}"
    if math.isnan(value.baseline):
        return "–"
    return f"{short(value.baseline)} ({number.baseline_label or 'see the report'})"


def _reason(claim: Claim) -> str:
    if why := reason(claim):
        return why
    if claim.seeds < claim.seeds_required:
        return f"There are {claim.seeds} of {claim.seeds_required} trainings."
    if claim.measured is None:
        return "It is not measured yet."
    judged = dict.fromkeys(condition.number for condition in claim.supported_if)
    found = claim.measured.numbers
    reasons = [f"{claim.numbers[n].label} is not recorded" for n in judged if n not in found]
    reasons += [f"{claim.numbers[n].label} has {_none(found[n])}" for n in judged if n in found and found[n].why_not]
    return f"{'; '.join(reasons) or 'The intervals neither meet nor fail the criterion'}."


def _first_sentence(text: str) -> str:
    """The text up to the first period that a space and a capital letter or a code name follow."""
    return re.split(r"(?<=\.)\s+(?=[A-Z`])", text, maxsplit=1)[0]


def _none(value: Value) -> str:
    return f"no interval ({value.why_not})"


def _seeds(claim: Claim) -> str:
    """Return the trainings that the measurement covers, and how many the criterion requires if these are more."""
    if claim.measured is None:
        return "–"
    if claim.seeds >= claim.seeds_required:
        return claim.trainings or str(claim.seeds)
    if claim.trainings:
        return f"{claim.trainings}; {claim.seeds_required} required"
    return f"{claim.seeds} of {claim.seeds_required}"


def _clipped(sentence: str, width: int = 60) -> str:
    return sentence if len(sentence) <= width else f"{sentence[: width - 1]}…"
