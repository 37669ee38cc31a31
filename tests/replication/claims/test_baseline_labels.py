"""The baseline that a table names is the one whose level it prints."""

import math
from collections.abc import Iterator

from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.tables import Record, records_of
from examples.replication.claims import reading
from examples.replication.claims.claim import Number
from examples.replication.claims.loading import load
from tests.structure.source import ROOT

# What tables print, and the names of the same baselines in reports, where the two differ.
NAMES = {
    "uniform predictor": {"uniform"},
    "key membership": {"membership", "key_membership", "key membership"},
    "pairings with other sequences": {"other sequences"},
    "all controls": {
        "random subspaces",
        "random subspaces, most",
        "untrained networks",
        "variance-matched subspaces",
        "variance-matched subspaces, most",
    },
}


def test_labels_name_the_baseline_in_the_report() -> None:
    found = list(labeled())
    assert len(found) > 30
    wrong = [f"{at}: {label}, {row.baseline_name}" for at, label, row in found if not agree(label, row.baseline_name)]
    assert wrong == []


def test_a_number_has_a_label_of_its_baseline_if_a_test_compares_with_it() -> None:
    for claim in load().values():
        compared = {test.number for case in claim.cases for test in case.tests if test.than == "baseline"}
        assert compared == {own.name for own in claim.numbers.values() if own.baseline_label}, claim.id


def test_no_verdict_on_a_language_model_rests_on_its_untrained_copy() -> None:
    for claim in (own for own in load().values() if own.id.startswith("L")):
        for case in claim.cases:
            assert all(test.than != "baseline" for test in case.tests)
        assert not any(number.baseline == "untrained networks" for number in claim.numbers.values())


def test_another_label_is_found() -> None:
    assert agree("untrained networks", "untrained networks") and not agree("uniform predictor", "untrained networks")


def agree(label: str, name: str) -> bool:
    return name in NAMES.get(label, {label})


def labeled() -> Iterator[tuple[str, str, Record]]:
    """Each number with a label and a recorded report, and the row of the report that it reads."""
    for claim in load().values():
        for run in claim.recordable:
            folder = ROOT / str(run.report)
            numbers = [own for own in run.numbers.values() if own.baseline_label and not own.baseline]
            if numbers and folder.is_dir():
                diagnosis = Diagnosis.load(folder)
                yield from ((f"{claim.id}.{own.name}", own.baseline_label, _row(own, diagnosis)) for own in numbers)


def _row(number: Number, diagnosis: Diagnosis) -> Record:
    found = [
        row
        for report in diagnosis.values()
        if report.name == number.probe
        for row in records_of(report, metric=number.metric)
        if reading._matches(number, report, row) and not math.isnan(row.value)
    ]
    return (max if number.reduce == "max" else min)(found, key=lambda row: row.value)
