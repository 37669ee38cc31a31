"""The findings at the top of the pages of all committed reports: three to six whole sentences."""

import re

import plotly.graph_objects as go
import pytest

from bayesgeom.results import page
from bayesgeom.results.diagnosis import Diagnosis, load_report
from bayesgeom.results.findings import FEWEST, MOST, Finding, findings
from bayesgeom.results.storage import JSON, quantities_of
from tests.pages import READINGS

pytestmark = pytest.mark.exhaustive
VERB = re.compile(r"\b(is|are|has|have|holds?|changes?|costs?|exceeds?|disagree|reach|leaves|differ|lies?)\b")


@pytest.fixture(scope="module")
def opened() -> dict[str, list[Finding]]:
    """The findings of every page, without its figures."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "_figure", lambda report: go.Figure())
        patch.setattr(page, "further_figures", lambda report: {})
        for file in sorted(READINGS.parent.glob(f"**/{JSON}")):
            own = load_report(file.parent)
            reports = own.reports if isinstance(own, Diagnosis) else {own.name: own}
            sections = [page.section_of(name, report) for name, report in reports.items()]
            found[str(file.parent.relative_to(READINGS.parent))] = findings(sections)
    assert len(found) > 300
    return found


def test_every_page_opens_with_three_to_six_findings(opened: dict[str, list[Finding]]) -> None:
    """Pages of erasures and of one comparison had a single one."""
    assert {where: len(found) for where, found in opened.items() if not FEWEST <= len(found) <= MOST} == {}


def test_findings_are_whole_sentences(opened: dict[str, list[Finding]]) -> None:
    """They broke off in brackets, or were names of rows: "Rank 29 of 36. The head whose keys overlap least"."""
    told = [(where, own.sentence or own.numbers) for where, found in opened.items() for own in found]
    numbers = [(where, own.numbers) for where, found in opened.items() for own in found]
    assert [own for own in told if not own[1].endswith(".")] == []
    assert [own for own in told + numbers if own[1].count("(") != own[1].count(")")] == []
    assert [own for own in told if not VERB.search(own[1].split(". ")[0])] == [], "a label and a number is no sentence"
    assert [own for own in numbers if own[1] and not VERB.search(own[1])] == []


def test_no_page_repeats_a_finding(opened: dict[str, list[Finding]]) -> None:
    sentences = {where: [own.sentence or own.numbers for own in found] for where, found in opened.items()}
    assert [where for where, own in sentences.items() if len(set(own)) < len(own)] == []


def test_an_interval_that_allows_for_a_choice_says_so_and_is_never_narrower() -> None:
    """Of one head a table had 0.5331 … 0.8488 and a figure 0.5783 … 0.8488, and neither said which was which."""
    silent, narrower, n_chosen = list[str](), list[str](), 0
    for file in sorted(READINGS.parent.glob(f"**/{JSON}")):
        own = load_report(file.parent)
        for report in own.reports.values() if isinstance(own, Diagnosis) else [own]:
            for line in (line for line in report.headlines() if line.interval):
                if line.metric not in quantities_of(type(report)):
                    continue
                field = report.estimate(line.metric)
                (low, high), is_entry = field.ends, field.value == line.value
                if (is_entry & (low == line.low) & (high == line.high)).any() or not is_entry.any():
                    continue
                n_chosen += 1
                silent += [f"{file.parent.name}: {line}"] * ("(interval allows for choice)" not in line.label)
                narrower += [f"{file.parent.name}: {line}"] * (not (line.low <= low[is_entry]).all())
                narrower += [f"{file.parent.name}: {line}"] * (not (line.high >= high[is_entry]).all())
    assert n_chosen > 50 and silent == [] and narrower == []
