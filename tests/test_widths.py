"""Every command prints at most 100 columns into a pipe, and what a wider terminal has; only paths are never broken.

One that measures also prints at most 30 lines.
"""

import sys

import pytest

from bayesgeom.cli import tell
from bayesgeom.core.text import WIDTH, fitted
from bayesgeom.report.render import summary
from bayesgeom.report.tables import Headline


def too_long(text: str) -> list[str]:
    """The lines that could have been broken."""
    return [line for line in text.splitlines() if len(line) > WIDTH and not line.startswith("report: ")]


def test_a_wide_table_wraps_without_losing_text() -> None:
    rows = [("head", "a header of several words", "interval", "note")]
    rows += [(f"L0H{at}", "0.1234", "0.1 [0.05 … 0.15]", "a note that is longer than its column") for at in range(3)]
    lines = fitted(rows, width=60)
    assert max(map(len, lines)) <= 60 and lines[0].startswith("head  a header")
    words = " ".join(lines).split()
    assert sorted(words) == sorted(" ".join(" ".join(row) for row in rows).split())
    assert sum("0.1 [0.05 … 0.15]" in line for line in lines) == 3, "an interval stays on one line"
    assert fitted([row[:2] for row in rows], width=60)[1] == "L0H0  0.1234"


def test_a_path_is_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    path = f"/{'directory/' * 12}report.html"
    tell(f"  written: {path} and more words that go on and on", "x " * 80)
    out = capsys.readouterr().out
    assert path in out and len(out.splitlines()) > 3 and all(path in line for line in too_long(out))


def test_a_wide_terminal_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("head", "note"), ("L0H0", "a note that is longer than its column in a hundred columns, " * 2)]
    assert max(map(len, fitted(rows))) <= WIDTH and len(fitted(rows)) > 2
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "180")
    assert len(fitted(rows)) == 2


def test_the_reason_of_a_verdict_is_in_its_row() -> None:
    line = Headline(metric="x", label="effect", value=0.5, verdict="undecided", why="biased")
    assert "undecided (biased)" in summary("title", [], {"": [("a", line)]}, [], "")
