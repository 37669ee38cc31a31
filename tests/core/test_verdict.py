"""The codes of results, and the page of the documentation that lists them."""

import numpy as np

from bayesgeom.core.verdict import Reason, Verdict, table
from tests.structure.source import ROOT

PAGE = ROOT / "docs" / "codes.md"
INTRODUCTION = """# Codes of verdicts and reasons

A result holds codes and no sentences. `Verdict` states what was decided. `Reason` states why an entry has no 95 %
interval, or that its interval is conservative: tables have its label in the column `reason`, `Estimate.reason` and
files its number, and `bayesgeom.core.verdict.Reason(number)` has `label` and `sentence`.
`python -m tests.core.test_verdict` writes this page.
"""


def page() -> str:
    parts = (INTRODUCTION, "## Verdicts\n", table(Verdict), "\n## Reasons\n", table(Reason))
    return "\n".join(parts) + "\n"


def test_the_page_of_codes_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.core.test_verdict"


def test_codes_differ_and_explain_themselves() -> None:
    assert len({own.label for own in Reason}) == len(Reason) and [int(own) for own in Reason] == list(
        range(len(Reason))
    )
    for own in (*Verdict, *Reason):
        assert own.sentence.endswith(".") and len(str(own)) < 25, own
    assert Verdict("yes") is Verdict.YES and Reason(4) is Reason.HEAVY_TAIL and f"{Reason.FEW}" == "too few"


def test_labels_of_an_array() -> None:
    assert Reason.labels(np.array([[0, 4], [1, 5]])).tolist() == [["", "heavy tail"], ["conservative", "biased"]]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
