"""The generated page of interventions, and the committed verdicts that it shows."""

import pytest

from bayesgeom.claims.subspace_page import FOLDER, MEASURED, SINGLE, page
from bayesgeom.interventions.onwards_report import OnwardsReport
from bayesgeom.interventions.report import AFTER, BEFORE, SHUFFLED, InterventionReport
from bayesgeom.interventions.verdicts import NOT_USED, USED
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.storage import JSON
from bayesgeom.subspaces.readout import FLOOR
from tests.structure.source import ROOT

pytestmark = pytest.mark.exhaustive  # loads all reports: about 6 s


@pytest.fixture(scope="module")
def committed() -> dict[str, InterventionReport | OnwardsReport]:
    """Every committed report below `FOLDER`, by its path."""
    found: dict[str, InterventionReport | OnwardsReport] = {}
    for path in sorted((ROOT / FOLDER).glob(f"*/*/{JSON}")):
        for report in Diagnosis.load(path.parent).values():
            assert isinstance(report, InterventionReport | OnwardsReport)
            found[str(path.parent.relative_to(ROOT / FOLDER))] = report
    assert len(found) > 100
    return found


def test_no_committed_layer_is_used_on_the_strength_of_one_variance_matched_control(
    committed: dict[str, InterventionReport | OnwardsReport],
) -> None:
    single = [
        (name, at, report.verdict_by_layer[at])
        for name, report in committed.items()
        if isinstance(report, InterventionReport)
        for at in report.layers
        if SINGLE in report.reason_by_layer[at]
    ]
    assert single and all(verdict != USED for *_, verdict in single)
    for name, at, _ in single:
        report = committed[name]
        assert isinstance(report, InterventionReport) and "(1, the whole complement, in layer" in report.where, (
            name,
            at,
        )


def test_no_committed_quantity_below_the_floor_is_called_not_used(
    committed: dict[str, InterventionReport | OnwardsReport],
) -> None:
    n_found = 0
    for name, report in committed.items():
        for at in report.layers:
            if report.verdict_by_layer[at] != NOT_USED:
                continue
            n_found += 1
            level = 0.0
            if isinstance(report, InterventionReport):
                level = max(float(report.r2.baseline(SHUFFLED).value[AFTER, at]), 0.0)
            assert float(report.r2.value[BEFORE, at]) >= level + FLOOR, (name, at)
    assert n_found


def test_the_page_says_what_the_reports_hold(committed: dict[str, InterventionReport | OnwardsReport]) -> None:
    text = (ROOT / FOLDER / "README.md").read_text(encoding="utf-8")
    assert page(ROOT / FOLDER) == text, f"run `bayesgeom reproduce --write-docs`; {MEASURED} may list a missing report"
    assert text.count("| R² shuffled |") == sum(isinstance(own, InterventionReport) for own in committed.values())
    assert text.count("| R² excess |") == sum(isinstance(own, OnwardsReport) for own in committed.values())
    assert "1 variance-matched control (the whole complement) in layers 1, 2" in text
