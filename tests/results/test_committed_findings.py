"""The findings at the top of the pages of all committed reports: whole sentences, in plain words."""

from collections.abc import Iterator

import plotly.graph_objects as go
import pytest

from bayesgeom.results import page
from bayesgeom.results.diagnosis import Diagnosis, load_report
from bayesgeom.results.findings import Finding, findings
from bayesgeom.results.storage import JSON
from tests.pages import READINGS

pytestmark = pytest.mark.exhaustive


def opened(path: str = "**") -> Iterator[tuple[str, list[Finding]]]:
    """The findings of every page below a folder of readings, without its figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "_figure", lambda report: go.Figure())
        patch.setattr(page, "further_figures", lambda report: {})
        for file in sorted(READINGS.glob(f"{path}/{JSON}")):
            found = load_report(file.parent)
            reports = found.reports if isinstance(found, Diagnosis) else {found.name: found}
            sections = [page.section_of(name, report) for name, report in reports.items()]
            yield str(file.parent.relative_to(READINGS)), findings(sections)


def test_no_finding_breaks_off_in_brackets() -> None:
    told = [(where, text) for where, found in opened() for own in found for text in (own.sentence, own.numbers)]
    assert len(told) > 2000
    assert [own for own in told if own[1].count("(") != own[1].count(")")] == []
