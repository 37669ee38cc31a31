"""The codes of results, and the page of the documentation that lists them."""

import ast
import inspect
from collections.abc import Iterator
from enum import Enum

import pytest

from bayesgeom.core.verdict import Reason, Verdict
from bayesgeom.interventions.verdicts import Obstacle, Survival
from bayesgeom.report.findings import Finding
from bayesgeom.report.render import markdown
from tests.structure.source import ROOT

PAGE = ROOT / "docs" / "codes.md"
INTRODUCTION = """# Codes of verdicts and reasons

A result holds codes and no sentences. `Verdict` states what was decided. `Reason` states why an entry has no 95 %
interval, or that its interval is conservative: tables have its label in the column `reason`, `Estimate.reason` and
files its number, and `bayesgeom.core.verdict.Reason.of(number)` has its `label`. `Obstacle` states what stands against
a verdict on an intervention, and `Survival` what a causal one goes with. `Finding` states what a result says first:
`report.answer()` has its code with the numbers and names in its sentence. `python -m tests.core.test_verdict` writes
this page.
"""
SENTENCES = """## Findings

A word in braces is a number or a name of the report. A part in brackets is written where its values are known: of
several, divided by a bar, the first.
"""
TITLES: dict[type[Enum], str] = {Verdict: "Verdicts", Reason: "Reasons", Obstacle: "Obstacles", Survival: "Survival"}


def meanings(kind: type[Enum]) -> Iterator[tuple[str, str]]:
    """Name and text of every member of an enumeration, from its source."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(kind)).body if isinstance(node, ast.ClassDef))
    for node, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.Assign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield ast.unparse(node.targets[0]), str(below.value.value)


def table(kind: type[Enum]) -> str:
    rows = [("code", "number", "meaning"), ("---",) * 3]
    for name, text in meanings(kind):
        own = kind[name]
        rows.append((str(own), str(int(own)) if isinstance(own, Reason) else "", text))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def sentences() -> str:
    rows = [(own.name.lower().replace("_", " "), f"`{' '.join(own.value.split())}`") for own in Finding]
    return markdown(("code", "sentence"), rows) + "\n"


def page() -> str:
    tables = (f"## {title}\n\n{table(kind)}\n" for kind, title in TITLES.items())
    return "\n".join([INTRODUCTION, *tables, SENTENCES, sentences()])


def test_the_page_of_codes_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.core.test_verdict"


@pytest.mark.parametrize("kind", TITLES)
def test_each_code_has_a_short_label_and_one_sentence(kind: type[Enum]) -> None:
    found = dict(meanings(kind))
    assert found.keys() == {own.name for own in kind}
    assert all(text.endswith(".") and text.count(". ") == 0 for text in found.values())
    assert max(len(str(own)) for own in kind) < 40 and len({str(own) for own in kind}) == len(found)


def test_reasons_are_numbered() -> None:
    assert [int(own) for own in Reason] == list(range(len(Reason))) and Reason.of(4) is Reason.HEAVY_TAIL
    assert Verdict("yes") is Verdict.YES and f"{Reason.FEW}" == "too few"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
